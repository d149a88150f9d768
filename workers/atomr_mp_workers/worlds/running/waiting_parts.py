"""Parts of collectives on refs that wait for their memory: when they are noted, and when they are given up.

The rule against deadlocks. A part takes its place among the uses of its memory when its session's turn comes, as any
request does; so clients see their requests in order on each device. But the part is noted only once nothing before it
uses that memory. So what the ring has published waits for no memory: each world's thread gets through its entries,
whatever the order of the rings of several worlds.

Two calls of different sessions can still have their places in opposite orders on two devices, directly or with other
requests between them. Then neither is noted everywhere, so neither is published. The supervisor finds that out from
what all processes tell (`worlds.blocked_parts`), and has one refused, so that the other goes on. A call that waits for
long for anything else is dropped by rank 0 on all members shortly before its deadline: its client hears in time that it
has not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from atomr_mp.protocol.world import NoteKind
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.order.publisher import Publisher
from atomr_mp_workers.worlds.order.steps import PartKey
from atomr_mp_workers.worlds.running.gang_queue import GangQueue, came_as

EARLY_PART: Final = 8
EARLY_NS: Final = 250_000_000
"""How long before its deadline a call is dropped: this part of its time, or less."""


class WaitingParts:
    """The parts of one epoch. With the loop's turn.

    Args:
        queue: The queue in which they wait.
    """

    def __init__(self, queue: GangQueue) -> None:
        self._queue: Final = queue
        self._parts: Final[dict[PartKey, Request]] = {}
        """Parts that are not noted yet."""
        self._deadlines: Final[dict[PartKey, int]] = {}
        """As rank 0: until when calls have to be published that may not be yet."""

    def add(self, key: PartKey, request: Request, *, is_first_rank: bool) -> None:
        """Let a part wait."""
        self._parts[key] = request
        if is_first_rank:
            left_ns = request.deadline_ns - request.received_ns
            self._deadlines[key] = request.deadline_ns - max(0, min(left_ns // EARLY_PART, EARLY_NS))

    def clear(self) -> None:
        """Forget all parts: the epoch is over."""
        self._parts.clear()
        self._deadlines.clear()

    @property
    def requests(self) -> Collection[Request]:
        """The parts that are not noted yet."""
        return self._parts.values()

    def take(self, key: PartKey) -> Request | None:
        """Return a part that is not noted and has to be refused, and forget it; None if there is no such part."""
        self._deadlines.pop(key, None)
        return self._parts.pop(key, None)

    @property
    def has_free(self) -> bool:
        """Whether there is a part to be noted."""
        return any(map(self._is_free, self._parts))

    @property
    def due_ns(self) -> int | None:
        """When to drop the first call, None without any."""
        return min(self._deadlines.values(), default=None)

    def note_free(self, note: Callable[[PartKey, NoteKind], object]) -> None:
        """Note the parts whose memory is free now; forget those that all members have dropped."""
        for key in [key for key in self._parts if self._is_free(key)]:
            request = self._parts.pop(key)
            if key in self._queue:
                note(key, came_as(request))

    def drop_late(self, publisher: Publisher, now_ns: int) -> bool:
        """As rank 0, drop the calls that have not been published in time; return whether there are any."""
        late = [key for key, due_ns in self._deadlines.items() if now_ns >= due_ns or key not in self._queue]
        dropped = False
        for key in late:
            del self._deadlines[key]
            if key in self._queue and publisher.drop_call(key, noted=key not in self._parts, late=True):
                dropped = True
        return dropped

    def cancel(self, key: PartKey, publisher: Publisher) -> bool:
        """As rank 0, cancel a call that its caller does not want, unless it was published; return whether it is."""
        self._deadlines.pop(key, None)
        return key in self._queue and publisher.drop_call(key, noted=key not in self._parts, late=False)

    def _is_free(self, key: PartKey) -> bool:
        return key not in self._queue or self._parts[key].dropped or self._queue.is_free(key)
