"""Calls beyond the window: they wait in their lane for room, in order for each device, and take no credit. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.client.lanes.homes import Home
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.protocol.flow.flight import RETRY_AFTER_S, Flight
from atomr_mp.protocol.words import counted


class _Queue:
    """The calls that wait for the same devices, in order."""

    __slots__ = ("calls", "devices", "several")

    def __init__(self, devices: Home) -> None:
        self.devices: Final = devices
        self.several: Final = len(devices) > 1
        self.calls: Final[OrderedDict[int, tuple[Reply, int, int]]] = OrderedDict()
        """Each with its bytes in the window, and those of its arguments."""


@checks.owned()
class Backlog:
    """The calls of a lane that wait for room.

    Each waits for some devices: the one that it names, those that have its actor, or all. It takes the first room among
    these, so a lost device does not hold up calls that others can take. While calls wait for a device, its window
    admits no later ones.

    Args:
        flights: The window of each device.
        most_calls: Most calls that may wait.
        most_bytes: Most bytes of their arguments. A single larger call may wait if no other does.
    """

    def __init__(self, flights: Sequence[Flight[Reply]], most_calls: int, most_bytes: int) -> None:
        self._flights = flights
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._everywhere: Final[Home] = tuple(range(len(flights)))
        self._queues: dict[Home, _Queue] = {}
        """All queues; none is empty."""
        self._of: Final[list[list[_Queue]]] = [[] for _ in flights]
        """Those whose calls a device can take."""
        self._bytes = 0
        self.count = 0
        """Number of waiting calls; only to be read."""

    def add(self, reply: Reply, devices: Home | None, window_bytes: int, nbytes: int, *, bounded: bool = True) -> bool:
        """Let a call wait; return whether no other waits before it for the same devices.

        Args:
            reply: The call.
            devices: The devices that can take it; None for all.
            window_bytes: Bytes that it counts for in a window.
            nbytes: Bytes of its arguments, with those in shared memory.
            bounded: Whether it is refused if too many wait.

        Raises:
            Overloaded: Too many calls wait; this one was refused.
        """
        if bounded:
            self._check_room(nbytes, devices)
        if devices is None:
            devices = self._everywhere
        queue = self._queues.get(devices)
        is_first = queue is None
        if queue is None:
            queue = self._queues[devices] = _Queue(devices)
            for device in devices:
                self._of[device].append(queue)
                self._flights[device].closed = True
        queue.calls[reply.id] = reply, window_bytes, nbytes
        self._bytes += nbytes
        self.count += 1
        return is_first

    def add_gang(self, nbytes: int, *, bounded: bool) -> None:
        """Count a call of a world that waits; it waits elsewhere, for room on all members.

        Args:
            nbytes: Bytes of its arguments.
            bounded: Whether it is refused if too many wait.

        Raises:
            Overloaded: Too many calls wait; this one was refused.
        """
        if bounded:
            self._check_room(nbytes, None)
        self._bytes += nbytes
        self.count += 1

    def remove_gang(self, nbytes: int) -> None:
        """Count a call of a world no longer."""
        self._bytes -= nbytes
        self.count -= 1

    def admit(self, device: int, may_take: Callable[[Home], bool] | None = None) -> Reply | None:
        """Take out a device's next call, give it credit there, and return it; None if none waits, or there is no room.

        Args:
            device: The device.
            may_take: Whether it may take a call that several devices can take, this one among them; None for always.
        """
        queue, request_id = None, 0
        for each in self._of[device]:
            if may_take is None or not each.several or may_take(each.devices):
                first = next(iter(each.calls))
                if queue is None or first < request_id:
                    queue, request_id = each, first
        if queue is None:
            return None
        reply, window_bytes, _ = queue.calls[request_id]
        flight = self._flights[device]
        flight.closed = False
        if isinstance(reply, StreamReply):  # it uses no window, and was counted when it came
            flight.let_in_stream(request_id, reply)
            has_room = True
        else:
            has_room = bool(flight.let_in(request_id, reply, window_bytes))
        if has_room:
            self._take(queue, request_id)
        flight.closed = bool(self._of[device])
        return reply if has_room else None

    def remove(self, reply: Reply) -> None:
        """Remove a waiting call."""
        for queue in self._queues.values():
            if reply.id in queue.calls:
                self._take(queue, reply.id)
                return

    def homes(self) -> list[Home]:
        """Return for which devices calls wait, for each queue."""
        return list(self._queues)

    def replies(self, devices: Home) -> list[Reply]:
        """Return the calls that wait for these devices."""
        return [call[0] for call in self._queues[devices].calls.values()]

    @property
    def streams(self) -> int:
        """How many streams wait, behind calls."""
        return sum(isinstance(reply, StreamReply) for reply in self.all()) if self.count else 0

    def all(self) -> list[Reply]:
        """Return all waiting calls, in order for each device."""
        return [call[0] for queue in self._queues.values() for call in queue.calls.values()]

    def _check_room(self, nbytes: int, devices: Home | None) -> None:
        if self.count < self._most_calls and (not self.count or self._bytes + nbytes <= self._most_bytes):
            return
        raise errors.Overloaded(
            f"{counted(self.count, 'call waits', 'calls wait')} for room in this client ({self._bytes} bytes), as "
            f"many as may (max_waiting: {counted(self._most_calls, 'call')} and {self._most_bytes} bytes)",
            device=devices[0] if devices is not None and len(devices) == 1 else -1,
            window=self._most_calls,
            retry_after_s=RETRY_AFTER_S,
        )

    def _take(self, queue: _Queue, request_id: int) -> None:
        _, _, nbytes = queue.calls.pop(request_id)
        self._bytes -= nbytes
        self.count -= 1
        if queue.calls:
            return
        del self._queues[queue.devices]
        for device in queue.devices:
            self._of[device].remove(queue)
            self._flights[device].closed = bool(self._of[device])
