"""What chaos calls an innocent request that was condemned."""

from __future__ import annotations

from typing import Any

from soaking.condemned import innocent

ENDS = [(1, 1, 11), (1, 2, 12), (0, 5, 13)]
"""Device, generation and pid."""


def log(*ends: tuple[int, int]) -> list[dict[str, Any]]:
    """Return an event log of processes that have ended, and of a request that was condemned for some of the ends."""
    return [
        {"event": "pool_start"},
        *({"event": "end", "device": device, "generation": generation, "pid": pid} for device, generation, pid in ENDS),
        *({"event": "poison_request", "device": device, "generation": n, "text": "A.run"} for device, n in ends),
    ]


def test_what_met_two_faults_is_guilty() -> None:
    """Whatever else has ended a worker while it ran."""
    assert innocent(log((1, 1), (1, 2), (0, 5)), {11, 13}) == []
    assert innocent(log(), set()) == []


def test_what_met_fewer_is_innocent() -> None:
    """It is shown with its ends; an unknown one is no proof."""
    assert innocent(log((1, 1), (1, 2)), {11}) == ["A.run: device and generation [(1, 1), (1, 2)]"]
    assert len(innocent(log((1, 1), (7, 7)), {11})) == 1
