"""Two devices, requests in every place, refs that are lent to the other device, and calls of a world: no circle.

The dispatchers are real. The client is the test, which sends a request with a lent ref once its borrow was granted; the
parts of a world's call run once both are free, as by its ring.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.protocol import token, values
from atomr_mp.protocol.libraries import memory as memory_requests
from atomr_mp.protocol.messages import data
from atomr_mp_workers import Actor, Batch, method
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests import operands
from atomr_mp_workers.requests.gangs import GangParts
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.off_loop.threads import ActorThreads
from atomr_mp_workers.requests.request import Request
from tests.pure.worker.test_dispatch import NEVER_NS, Worker

EXAMPLES: Final = int(os.environ.get("ATOMR_MP_TEST_EXAMPLES", "60"))

STILL_S: Final = 3.0
"""After so long without an answer nothing goes on."""

PLACES = ("on_loop", "on_stream", "on_thread", "in_batch")


class Using(Actor):
    """Uses one buffer, in every place."""

    log: list[Any]

    @method(writes=["x"])
    def write_on_loop(self, x: np.ndarray[Any, Any]) -> None:
        """Add one."""
        x += 1

    @method(writes=["x"])
    def write_on_stream(self, x: np.ndarray[Any, Any]) -> None:
        """Add one."""
        x += 1

    @method(writes=["x"], thread=True)
    def write_on_thread(self, x: np.ndarray[Any, Any]) -> None:
        """Add one."""
        x += 1

    @method(writes=["xs"], thread=True, batch=Batch(max_items=3, max_wait_s=0))
    def write_in_batch(self, xs: list[np.ndarray[Any, Any]]) -> list[None]:
        """Add one to each."""
        for x in xs:
            x[...] += 1
        return [None] * len(xs)

    @method
    def read_on_loop(self, x: np.ndarray[Any, Any]) -> None:
        """Do nothing."""

    @method
    def read_on_stream(self, x: np.ndarray[Any, Any]) -> None:
        """Do nothing."""

    @method(thread=True)
    def read_on_thread(self, x: np.ndarray[Any, Any]) -> None:
        """Do nothing."""

    @method(thread=True, batch=Batch(max_items=3, max_wait_s=0))
    def read_in_batch(self, xs: list[np.ndarray[Any, Any]]) -> list[None]:
        """Do nothing."""
        return [None] * len(xs)

    @method(thread=True)
    def gather(self, x: np.ndarray[Any, Any]) -> None:
        """Do nothing, as a part of a call of a world."""

    @method(thread=True, writes=["x"])
    def reduce(self, x: np.ndarray[Any, Any]) -> None:
        """Add one, as a part of a call of a world."""
        x += 1


class Letting(GangParts):
    """Lets all parts in."""

    def check(self, method: Method, session: int, gang: data.Gang | None) -> None:
        """Refuse none."""

    def gone(self, gang: data.Gang) -> None:
        """Do nothing."""

    def came(self, request: Request) -> None:
        """Do nothing."""

    def unwanted(self, request: Request) -> None:
        """Do nothing."""

    def left(self, request: Request) -> None:
        """Do nothing."""

    def is_quiet(self, gang: data.Gang) -> bool:  # noqa: ARG002 - as above
        """Return False."""
        return False

    def refused(self, session: int, gang: data.Gang) -> None:
        """Do nothing."""


class Parts:
    """The parts of one rank. One is given out once the other rank's is free too."""

    levels: dict[int, object] = {}  # noqa: RUF012 - it stays empty

    def __init__(self, ranks: list[Parts]) -> None:
        self.here: dict[int, Request] = {}
        self.given: set[int] = set()
        self._ranks = ranks
        ranks.append(self)

    def __len__(self) -> int:
        return len(self.here)

    def add(self, item: Request, _owner: Hashable, _priority: int = 0) -> None:
        """Let a part wait."""
        assert item.gang is not None
        self.here[item.gang.id] = item

    def put_back(self, item: Request, owner: Hashable, priority: int = 0) -> None:
        """Let it wait again."""
        self.add(item, owner, priority)

    def items(self) -> Iterable[Request]:
        """Return all parts."""
        return self.here.values()

    def take(self, _is_ready: Callable[[Request], bool]) -> Request | None:
        """Return a part that may begin."""
        found = next((key for key in self.here if all(rank.is_free(key) for rank in self._ranks)), None)
        if found is None:
            return None
        self.given.add(found)
        return self.here.pop(found)

    def is_free(self, key: int) -> bool:
        """Return whether nothing before a part uses its memory."""
        return key in self.given or (key in self.here and operands.is_free(self.here[key]))

    def heads(self) -> Iterator[Request]:
        """Yield none."""
        return iter(())

    def charge(self, owner: Hashable, cost: int) -> None:
        """Do nothing."""


class Sent(NamedTuple):
    """A request that uses a lent ref."""

    device: int
    """Where it runs."""
    method: str
    borrow: int
    """The id of its borrow at the other device."""


class Walk:
    """One client of two workers."""

    def __init__(self) -> None:
        self.tokens = [token.pack(bytes(16), device, 1) for device in range(2)]
        self._workers = [Worker(target=f"{__name__}:Using", own_token=own) for own in self.tokens]
        self._peers = [worker.client(1) for worker in self._workers]
        self._ids = itertools.count(1)
        self._asked: dict[int, tuple[Sent, int]] = {}
        """Requests whose borrows were asked for, by the question, and how many other requests are sent before them."""
        self._granted: list[tuple[int, Sent]] = []
        self._lent: dict[int, Sent] = {}
        """Those that were sent."""
        self._unanswered: list[set[int]] = [set(), set()]
        self._answered = [0, 0]
        self.arrays: list[DeviceArray] = []
        self._threads: list[ActorThreads] = []
        ranks: list[Parts] = []
        for worker, peer in zip(self._workers, self._peers, strict=True):
            stream = worker.device.make_stream("stream", inline_bytes=-1)
            worker.streams.append(stream)
            for name in ("write_on_stream", "read_on_stream"):
                worker.methods[f"Logged.{name}"].stream = stream
            worker.envelope.gangs = Letting()  # type: ignore[misc]
            with worker.own_threads.started():
                threads = ActorThreads("world", 1, worker.device, Parts(ranks))
            self._threads.append(threads)
            worker.dispatcher.add_runner("Logged.gather", threads)
            worker.dispatcher._threads["Logged.reduce"] = threads
            array = worker.store.buffers.allocate(peer.session.holder, "int64", (4,))
            array.array[...] = 0
            worker.store.lease(peer.session.holder, array)
            self.arrays.append(array)
        for device, array in enumerate(self.arrays):
            other, number = self._workers[1 - device].store, array.block.slab_number
            memory = self._workers[device].store.slabs.by_number[number].memory
            other.add_foreign_slab(self._peers[1 - device].session.number, device, 1, number, memory)

    def use(self, device: int, name: str) -> None:
        """Send a request that uses the device's own array."""
        self._send(device, f"Logged.{name}", (self.arrays[device],))
        self._send_granted()

    def use_elsewhere(self, device: int, name: str, late: int) -> None:
        """Have a request read this device's array on the other device.

        Args:
            device: The device that lends.
            name: The method.
            late: How many other requests are sent between the grant and the request.
        """
        borrow = 1000 + len(self._asked) + len(self._granted) + len(self._lent) + next(self._ids)
        body = memory_requests.Borrow(self.arrays[device], borrow, passing=True)
        question = self._send(device, "memory.borrow", body)
        self._asked[question] = Sent(1 - device, f"Logged.{name}", borrow), late
        self.look()

    def call_world(self, name: str) -> None:
        """Send the parts of a call of the world, that of rank 0 last."""
        gang = data.Gang(1, 1, next(self._ids))
        for device in (1, 0):
            self._send(device, f"Logged.{name}", (self.arrays[device],), gang)
        self._send_granted()

    def _send(self, device: int, name: str, arguments: Any, gang: data.Gang | None = None) -> int:
        worker, number = self._workers[device], next(self._ids)
        body = values.encode(arguments)[0]
        call = data.Call(number, name, NEVER_NS, 0, body, refs=1, gang=gang)
        self._unanswered[device].add(number)
        worker.dispatcher.take(worker.envelope.open(self._peers[device], data.Calls(self.tokens[device], [call]), []))
        self._turn(device)
        return number

    def _send_granted(self, *, all_: bool = False) -> None:
        """Send what has waited behind enough others since its grant."""
        waiting = [(left - 1, sent) for left, sent in self._granted]
        self._granted = [(left, sent) for left, sent in waiting if left >= 0 and not all_]
        for left, sent in waiting:
            if left < 0 or all_:
                self._lent[self._send(sent.device, sent.method, (self.arrays[1 - sent.device],))] = sent

    def _turn(self, device: int) -> None:
        worker = self._workers[device]
        worker.dispatcher.take_back()
        while worker.dispatcher.work():
            pass
        worker.dispatcher.start_batches()

    def look(self) -> bool:
        """Take one turn of each worker, and in what it answers; return whether there was anything."""
        found = False
        for device, peer in enumerate(self._peers):
            self._turn(device)
            replies = peer.replies[self._answered[device] :]
            self._answered[device] += len(replies)
            for reply in replies:
                found = True
                assert reply.error is None, reply.error
                self._unanswered[device].remove(reply.id)
                if reply.id in self._asked and self._asked[reply.id][0].device != device:
                    sent, late = self._asked.pop(reply.id)
                    self._workers[device].store.passing_reads.grant(peer.session.holder, sent.borrow, 0)
                    self._granted.append((late, sent))
                elif reply.id in self._lent:
                    sent = self._lent.pop(reply.id)
                    lender = self._workers[1 - device]
                    lender.store.close_view(self._peers[1 - device].session.holder, sent.borrow)
                    lender.dispatcher.advance()
        return found

    def finish(self) -> None:
        """Wait until all is answered."""
        until = time.monotonic() + STILL_S
        while any(self._unanswered) or self._asked or self._granted:
            if self.look():
                until = time.monotonic() + STILL_S
            elif self._granted:
                self._send_granted(all_=True)
            else:
                assert time.monotonic() < until, self._standing()
                self._workers[int(not self._unanswered[0])].woken.wait(0.002)

    def _standing(self) -> str:
        """Return what waits where, which is a circle."""
        return "; ".join(
            f"device {device}: {sorted(self._unanswered[device])} of {worker.dispatcher.running}"
            for device, worker in enumerate(self._workers)
        )

    def close(self) -> None:
        """Close it."""
        for threads, worker in zip(self._threads, self._workers, strict=True):
            threads.close()
            worker.close()


USES = st.one_of(
    st.tuples(st.just("own"), st.integers(0, 1), st.sampled_from(["write", "write", "read"]), st.sampled_from(PLACES)),
    st.tuples(st.just("lent"), st.integers(0, 1), st.integers(0, 4), st.sampled_from(PLACES)),
    st.tuples(st.just("world"), st.just(0), st.sampled_from(["gather", "reduce"]), st.just("")),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(USES, min_size=3, max_size=16))
def test_no_two_wait_for_each_other(uses: list[tuple[str, int, Any, str]]) -> None:
    """Whatever is sent in which order, all is answered, and every write counts."""
    walk, written = Walk(), [0, 0]
    for kind, device, how, place in uses:
        if kind == "own":
            walk.use(device, f"{how}_{place}")
            written[device] += how == "write"
        elif kind == "lent":
            walk.use_elsewhere(device, f"read_{place}", how)
        else:
            walk.call_world(how)
            written = [count + (how == "reduce") for count in written]
    walk.finish()
    assert [int(array.array[0]) for array in walk.arrays] == written
    walk.close()
