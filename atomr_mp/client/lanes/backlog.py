"""Calls beyond the window: they wait in their lane for room, in order for each device, and take no credit. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.protocol.flow.flight import RETRY_AFTER_S, Flight
from atomr_mp.protocol.words import counted


@checks.owned()
class Backlog:
    """The calls of a lane that wait for room.

    A call for a named device waits for that one. Any other takes the first room, so a lost device does not hold up
    calls that others can take. While calls wait for a device, its window admits no later ones.

    Args:
        flights: The window of each device.
        most_calls: Most calls that may wait.
        most_bytes: Most bytes of their arguments. A single larger call may wait if no other does.
    """

    def __init__(self, flights: Sequence[Flight[Reply]], most_calls: int, most_bytes: int) -> None:
        self._flights = flights
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._anywhere: OrderedDict[int, tuple[Reply, int, int]] = OrderedDict()
        self._pinned: Final[list[OrderedDict[int, tuple[Reply, int, int]]]] = [OrderedDict() for _ in flights]
        """Waiting calls by device: each with its bytes in the window, and those of its arguments."""
        self._bytes = 0
        self.count = 0
        """Number of waiting calls; only to be read."""

    def add(self, reply: Reply, device: int | None, window_bytes: int, nbytes: int, *, bounded: bool = True) -> bool:
        """Let a call wait; return whether no other waits before it for the same device, or for any.

        Args:
            reply: The call.
            device: The device; None for any.
            window_bytes: Bytes that it counts for in a window.
            nbytes: Bytes of its arguments, with those in shared memory.
            bounded: Whether it is refused if too many wait.

        Raises:
            Overloaded: Too many calls wait; this one was refused.
        """
        has_room = self.count < self._most_calls and (not self.count or self._bytes + nbytes <= self._most_bytes)
        if bounded and not has_room:
            raise errors.Overloaded(
                f"{counted(self.count, 'call waits', 'calls wait')} for room in this client ({self._bytes} bytes), as "
                f"many as may (max_waiting: {counted(self._most_calls, 'call')} and {self._most_bytes} bytes)",
                device=-1 if device is None else device,
                window=self._most_calls,
                retry_after_s=RETRY_AFTER_S,
            )
        queue = self._anywhere if device is None else self._pinned[device]
        is_first = not queue
        queue[reply.id] = reply, window_bytes, nbytes
        self._bytes += nbytes
        self.count += 1
        if is_first:
            self._close()
        return is_first

    def admit(self, device: int, *, anywhere: bool) -> Reply | None:
        """Take out a device's next call, give it credit there, and return it; None if none waits, or there is no room.

        Args:
            device: The device.
            anywhere: Whether calls for any device count too.
        """
        queue = self._pinned[device]
        if anywhere and self._anywhere and (not queue or next(iter(self._anywhere)) < next(iter(queue))):
            queue = self._anywhere
        if not queue:
            return None
        request_id = next(iter(queue))
        reply, window_bytes, _ = queue[request_id]
        flight = self._flights[device]
        flight.closed = False
        if isinstance(reply, StreamReply):  # it uses no window, and was counted when it came
            flight.let_in_stream(request_id, reply)
            has_room = True
        else:
            has_room = bool(flight.let_in(request_id, reply, window_bytes))
        if has_room:
            self._take(queue, request_id)
        flight.closed = bool(self._anywhere or self._pinned[device])
        return reply if has_room else None

    def remove(self, reply: Reply) -> None:
        """Remove a waiting call."""
        for queue in (self._anywhere, *self._pinned):
            if reply.id in queue:
                self._take(queue, reply.id)
                return

    def replies(self, device: int | None = None) -> Iterator[Reply]:
        """Return the calls that wait for a device, or with None for any device."""
        queue = self._anywhere if device is None else self._pinned[device]
        return iter([reply for reply, _, _ in queue.values()])

    @property
    def streams(self) -> int:
        """How many streams wait, behind calls."""
        return sum(isinstance(reply, StreamReply) for reply in self.all()) if self.count else 0

    def all(self) -> list[Reply]:
        """Return all waiting calls, in order for each device."""
        return [reply for queue in (self._anywhere, *self._pinned) for reply, _, _ in queue.values()]

    def _take(self, queue: OrderedDict[int, tuple[Reply, int, int]], request_id: int) -> None:
        _, _, nbytes = queue.pop(request_id)
        self._bytes -= nbytes
        self.count -= 1
        if not queue:
            self._close()

    def _close(self) -> None:
        """Close the windows of devices that calls wait for, so that no later call overtakes them; open the others."""
        waits = bool(self._anywhere)
        for flight, queue in zip(self._flights, self._pinned, strict=True):
            flight.closed = waits or bool(queue)
