"""Tells the supervisor which parts of calls wait for their memory behind which: it may be in a circle of devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from atomr_mp.protocol.messages.control import MAX_WAITS, BlockedPart, FromWorker, NamedPart, PartsWait
from atomr_mp_workers.requests.request import Request

PATIENT_NS: Final = 100_000_000
"""How long a part waits before the supervisor hears of it, and how long it takes to look again."""


MOST_OFTEN: Final = 50
"""The loop does not look again before so many times the time that it takes."""


class BlockedParts:
    """The parts of this process that are blocked. With the loop's turn.

    Args:
        send: Tells the supervisor.
    """

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        self._send: Final = send
        self.before: Callable[[Sequence[Request]], list[tuple[Request, Request]]] = lambda _parts: []
        """Returns which parts wait here for which; see `Dispatcher.parts_before`."""
        self.due_ns: int | None = None
        """When to look again; None if nothing waits."""
        self._has_told = False
        """Whether the supervisor believes that parts wait here."""

    def look(self, waiting: Iterable[Request], now_ns: int) -> None:
        """Tell which parts wait for which.

        Args:
            waiting: The parts that wait for their memory.
            now_ns: CLOCK_MONOTONIC.
        """
        if self.due_ns is not None and now_ns < self.due_ns:
            return
        waiting = list(waiting)
        late = [each for each in waiting if now_ns >= each.received_ns + PATIENT_NS][:MAX_WAITS]
        found = (
            [BlockedPart(_name(each), _name(other)) for each, other in self.before(late)[:MAX_WAITS]] if late else []
        )
        took_ns = time.monotonic_ns() - now_ns
        self.due_ns = now_ns + max(PATIENT_NS, MOST_OFTEN * took_ns) if waiting else None
        if found or self._has_told:  # again and again: what the supervisor has had refused, it forgets
            self._has_told = bool(found)
            self._send(PartsWait(found))


def _name(part: Request) -> NamedPart:
    assert part.gang is not None
    return NamedPart(part.gang.world, part.peer.session.number, part.gang.id)
