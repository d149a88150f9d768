"""Calls beyond the window: in order for each device, none overtaken, and the windows closed while some wait."""

from __future__ import annotations

from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.flow.flight import Flight, Window

DEVICES: Final = 2
WINDOW: Final = Window(requests=2, payload_bytes=10)

devices = st.integers(0, DEVICES - 1)


class Waiting(RuleBasedStateMachine):
    """Calls come, wait, get room and are answered in any order; lists of the waiting ones are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.flights: list[Flight[Reply]] = [Flight(WINDOW, device) for device in range(DEVICES)]
        self.backlog = Backlog(self.flights, most_calls=1000, most_bytes=10**6)
        self.anywhere: list[Reply] = []
        self.pinned: list[list[Reply]] = [[] for _ in range(DEVICES)]
        self.out: list[dict[int, int]] = [{} for _ in range(DEVICES)]
        """Bytes of the calls in flight, by id."""
        self.ids = 0

    def has_room(self, device: int, nbytes: int) -> bool:
        """Return whether a window has room, closed or not."""
        out = self.out[device]
        return len(out) < WINDOW.requests and (not out or sum(out.values()) + nbytes <= WINDOW.payload_bytes)

    @rule(device=devices, named=st.booleans(), nbytes=st.integers(1, 12))
    def call(self, device: int, *, named: bool, nbytes: int) -> None:
        """Make a call, which waits if there is no room or others wait for the same."""
        self.ids += 1
        reply = Reply(cast("Any", None), self.ids, "A.b", 0, b"x" * nbytes)
        closed = bool(self.anywhere or self.pinned[device])
        if not closed and self.has_room(device, nbytes):
            assert self.flights[device].let_in(reply.id, reply, nbytes) == len(self.out[device]) + 1
            self.out[device][reply.id] = nbytes
            return
        assert self.flights[device].let_in(reply.id, reply, nbytes) == 0
        queue = self.pinned[device] if named else self.anywhere
        assert self.backlog.add(reply, device if named else None, nbytes, nbytes) is (not queue)
        queue.append(reply)

    @rule(device=devices, anywhere=st.booleans())
    def admit(self, device: int, *, anywhere: bool) -> None:
        """Let in all that have room, in the order in which they came."""
        while True:
            queues = [queue for queue in (self.pinned[device], self.anywhere if anywhere else []) if queue]
            queue = min(queues, key=lambda queue: queue[0].id, default=None)
            found = self.backlog.admit(device, anywhere=anywhere)
            if queue is None or not self.has_room(device, len(queue[0].body)):
                assert found is None
                return
            assert found is queue.pop(0)
            self.out[device][found.id] = len(found.body)

    @rule(device=devices)
    def answer(self, device: int) -> None:
        """Answer the oldest call of a device."""
        if self.out[device]:
            request_id = next(iter(self.out[device]))
            del self.out[device][request_id]
            assert self.flights[device].take(request_id) is not None

    @rule(at=st.integers(0, 3))
    def cancel(self, at: int) -> None:
        """Cancel a waiting call, the first or another one."""
        queue = [self.anywhere, *self.pinned][at % (DEVICES + 1)]
        if queue:
            self.backlog.remove(queue.pop(at % len(queue)))

    @invariant()
    def windows_are_closed_while_calls_wait_for_them(self) -> None:
        """Closed for calls of the device's own, and for those of any device."""
        assert [flight.closed for flight in self.flights] == [bool(self.anywhere or own) for own in self.pinned]

    @invariant()
    def waiting_calls_are_those_of_the_model(self) -> None:
        """In number and in order."""
        assert self.backlog.all() == [*self.anywhere, *self.pinned[0], *self.pinned[1]]
        assert self.backlog.count == len(self.backlog.all())


TestWaiting = Waiting.TestCase
