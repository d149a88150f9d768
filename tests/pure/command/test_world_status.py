"""Worlds in a pool's status, and in the account that `doctor` compares."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from atomr_mp.cli import status as command
from atomr_mp.operator.pool_status import WorldStatus, status_of
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.protocol.messages.operators import Status
from atomr_mp.supervisor.worlds.files import NAME


def test_a_status_has_a_line_for_each_world(capsys: pytest.CaptureFixture[str]) -> None:
    """Its state, its epoch and devices, and why it is not ready; of names with brackets too."""
    reason = "rank 1 (device 3) is tripped: [bold] 4 unplanned ends"
    worlds = [
        WorldInfo(0, "tp", [0, 1], ["Mlp", "Head"], WorldState.READY, 3, [1, 2]),
        WorldInfo(1, "pp", [2, 3], ["Stage"], WorldState.WAITING, 7, [], reason, 1),
    ]
    shown = status_of(Status(0, "p", "host", "1", 1, 0.0, 0, False, 1, 0, [], worlds=worlds), Path("/run"), 9.0)
    assert shown.worlds[1] == WorldStatus(
        name="pp", devices=[2, 3], actors=["Stage"], state=WorldState.WAITING, epoch=7, reason=reason
    )
    command._print(msgspec.to_builtins(shown))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("world ")]
    assert lines == [
        "world tp (Mlp, Head on devices 0 and 1) is ready, epoch 3",
        f"world pp (Stage on devices 2 and 3) is waiting, epoch 7: {reason}",
    ]


def test_the_memory_of_worlds_is_no_slab() -> None:
    """Doctor looks for the owners of slabs, and these have others."""
    assert process_tags.owner(f"{NAME}-tp-d0-g1") is None
    assert process_tags.owner(f"{NAME}-tp-stop") is None
