"""Calls beyond the window: in order for each device, none overtaken, and the windows closed while some wait."""

from __future__ import annotations

from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.homes import Home
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.flow.flight import Flight, Window

DEVICES: Final = 3
WINDOW: Final = Window(requests=2, payload_bytes=10)

devices = st.integers(0, DEVICES - 1)

homes: Final = [(0,), (1,), (2,), (0, 1), (1, 2), None]
"""What a call may wait for: a device, those that have its actor, or any."""


class Waiting(RuleBasedStateMachine):
    """Calls come, wait, get room and are answered in any order; lists of the waiting ones are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.flights: list[Flight[Reply]] = [Flight(WINDOW, device) for device in range(DEVICES)]
        self.backlog = Backlog(self.flights, most_calls=1000, most_bytes=10**6)
        self.queues: dict[Home, list[Reply]] = {}
        self.out: list[dict[int, int]] = [{} for _ in range(DEVICES)]
        """Bytes of the calls in flight, by id."""
        self.ids = 0

    def has_room(self, device: int, nbytes: int) -> bool:
        """Return whether a window has room, closed or not."""
        out = self.out[device]
        return len(out) < WINDOW.requests and (not out or sum(out.values()) + nbytes <= WINDOW.payload_bytes)

    def is_closed(self, device: int) -> bool:
        """Return whether calls wait that a device can take."""
        return any(queue for home, queue in self.queues.items() if device in home)

    @rule(home=st.sampled_from(homes), at=devices, nbytes=st.integers(1, 12))
    def call(self, home: Home | None, at: int, nbytes: int) -> None:
        """Make a call, which waits if there is no room or others wait for the same."""
        self.ids += 1
        reply = Reply(cast("Any", None), self.ids, "A.b", 0, b"x" * nbytes)
        among = tuple(range(DEVICES)) if home is None else home
        device = among[at % len(among)]
        if not self.is_closed(device) and self.has_room(device, nbytes):
            assert self.flights[device].let_in(reply.id, reply, nbytes) == len(self.out[device]) + 1
            self.out[device][reply.id] = nbytes
            return
        assert self.flights[device].let_in(reply.id, reply, nbytes) == 0
        queue = self.queues.setdefault(among, [])
        assert self.backlog.add(reply, home, nbytes, nbytes) is (not queue)
        queue.append(reply)

    @rule(device=devices, others=st.booleans())
    def admit(self, device: int, *, others: bool) -> None:
        """Let in all that have room, in the order in which they came."""
        while True:
            queues = [
                queue for home, queue in self.queues.items() if queue and device in home and (others or len(home) == 1)
            ]
            queue = min(queues, key=lambda queue: queue[0].id, default=None)
            found = self.backlog.admit(device, None if others else lambda _: False)
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

    @rule(which=st.integers(0, 9), at=st.integers(0, 3))
    def cancel(self, which: int, at: int) -> None:
        """Cancel a waiting call, the first or another one."""
        queues = [queue for queue in self.queues.values() if queue]
        if queues:
            queue = queues[which % len(queues)]
            self.backlog.remove(queue.pop(at % len(queue)))

    @invariant()
    def windows_are_closed_while_calls_wait_for_them(self) -> None:
        """Closed for each device that could take one of the waiting calls, and for no other."""
        assert [flight.closed for flight in self.flights] == list(map(self.is_closed, range(DEVICES)))

    @invariant()
    def waiting_calls_are_those_of_the_model(self) -> None:
        """In number, and in order for the same devices."""
        waiting = {home: queue for home, queue in self.queues.items() if queue}
        assert {home: self.backlog.replies(home) for home in self.backlog.homes()} == waiting
        assert self.backlog.count == len(self.backlog.all()) == sum(map(len, waiting.values()))


TestWaiting = Waiting.TestCase
