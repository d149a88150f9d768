"""Finds condemned requests that did nothing, from the supervisor's event log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

SUSPICIONS: Final = 2
"""So many ends make a proof (`max_suspicions`)."""


def innocent(events: Iterable[Mapping[str, Any]], deadly: Collection[int]) -> list[str]:
    """Return the verdict on each request that was condemned although its workers were killed from outside.

    Args:
        events: The pool's event log.
        deadly: Pids of the workers that have met a fault which ends a process; all others were killed from outside.
    """
    pids: dict[tuple[int, int], int] = {}
    condemned: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["event"] == "end":
            pids[event["device"], event["generation"]] = event["pid"]
        elif event["event"] == "poison_request":
            condemned[event["text"]].append((event["device"], event["generation"]))
    return [
        f"{text}: device and generation {ends}"
        for text, ends in condemned.items()
        if sum(pids.get(which) in deadly for which in ends) < SUSPICIONS
    ]
