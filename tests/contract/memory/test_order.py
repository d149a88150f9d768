"""Requests of one thread, or of one event loop, are ordered as they were made, on several devices too.

The model takes the steps one after the other; the pool gets them without a wait in between.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from tests.support import BACKEND, KEEPER, Gate, Ledger, in_loop

WINDOW: Final = 3
"""Requests that may be unanswered: walks have many more under way."""

ELEMENTS: Final = 50

SLAB_ELEMENTS: Final = 32 * 1024 * 1024 // 8
"""An array of more has a slab of its own."""

BUFFERS: Final = 4
"""Buffers of each walk; the odd ones are the second device's."""

EXAMPLES: Final = int(os.environ.get("ATOMR_MP_TEST_EXAMPLES", "12"))

NO_SHRINK: Final = (hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate)
"""Threads of a failed walk are timed differently each time: a smaller example would rarely be one."""

KINDS: Final = ("add", "call", "copy", "sum", "total", "weighted", "program", "stream")

Steps = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool of two devices, with a small window."""
    with Ledger() as ledger, ledger.start(KEEPER, gpus=2, window_requests=WINDOW) as started:
        yield started


class Walk:
    """Unwaited requests of one thread or loop, on buffers of its own, beside a model of what they do.

    Args:
        pool: The pool.
        wait: Whether calls wait for room; None as is usual.
    """

    def __init__(self, pool: atomr_mp.Pool, *, wait: bool | None = None) -> None:
        self._pool, self._wait = pool, wait
        self.devices = [pool.device(0), pool.device(1)]
        self.buffers = [self.devices[at % 2].zeros(ELEMENTS, "float64") for at in range(BUFFERS)]
        self._ones = [device.full(ELEMENTS, 1, "float64") for device in self.devices]
        self.model = [0.0] * BUFFERS
        """The value of all elements of each buffer."""
        self._programs = []
        for device in self.devices:
            with device.program() as program:
                source = program.input("source", (ELEMENTS,), "float64")
                program.returns(program.elementwise.copy(source))
            self._programs.append(program)
        self.replies: list[tuple[atomr_mp.Reply, Callable[[Any], Any], Any]] = []
        """Each with what to make of its result, and what that has to be."""
        self.streams: list[tuple[Any, float]] = []

    def take(self, step: tuple[str, int, int]) -> None:
        """Make the requests of a step."""
        kind, at, to = step
        mine, other = self.buffers[at], self.buffers[to]
        near, far = self.devices[at % 2], self.devices[to % 2]
        values = self.model
        match kind:
            case "add":
                self._expect(near.elementwise.add(mine, self._ones[at % 2], mine))
                values[at] += 1
            case "call":
                self._expect(self._pool.call("Keeper.add", mine, 1.0, wait=self._wait))
                values[at] += 1
            case "copy" if at != to:
                self._expect(far.elementwise.copy(mine, other))
                values[to] = values[at]
            case "sum" if at != to:
                self._expect(far.elementwise.add(other, mine, other))
                values[to] += values[at]
            case "total":
                reply = self._pool.call("Keeper.total", mine, device=1 - at % 2, wait=self._wait)
                self._expect(reply, float, values[at] * ELEMENTS)
            case "weighted":
                reply = self._pool.call("Keeper.weighted", mine, other, device=to % 2, wait=self._wait)
                self._expect(reply, float, values[at] * values[to] * ELEMENTS)
            case "program":
                reply = self._programs[to % 2].run(source=mine)
                self._expect(reply, lambda made: np.unique(made.numpy()).tolist(), [values[at]])
            case "stream":
                self.streams.append((self._pool.stream("Keeper.totals", mine, device=to % 2), values[at] * ELEMENTS))

    def check(self, reply: atomr_mp.Reply, made: Callable[[Any], Any], expected: Any) -> None:
        """Compare the result of an answered request with the model's."""
        assert made(reply.result()) == expected

    def check_buffers(self) -> None:
        """Compare the buffers with the model."""
        assert [np.unique(each.numpy()).tolist() for each in self.buffers] == [[value] for value in self.model]

    def _expect(self, reply: Any, made: Callable[[Any], Any] = lambda _: None, expected: Any = None) -> None:
        self.replies.append((reply, made, expected))


def walk_in_thread(pool: atomr_mp.Pool, steps: Steps) -> None:
    """Take the steps in this thread, which looks into a buffer now and then."""
    walk = Walk(pool, wait=True)
    for number, step in enumerate(steps):
        walk.take(step)
        while walk.streams:  # later writers would wait for it
            stream, expected = walk.streams.pop()
            assert list(stream) == [expected]
        if number % 5 == 4:
            at = step[1]
            assert np.unique(walk.buffers[at].numpy()).tolist() == [walk.model[at]]
    for each in walk.replies:
        walk.check(*each)
    walk.check_buffers()


def walk_in_loop(pool: atomr_mp.Pool, steps: Steps) -> None:
    """Take the steps in an event loop, without a single wait."""
    walk = Walk(pool)

    async def use() -> None:
        for step in steps:
            walk.take(step)
        # Streams at the same time: writers wait until these have been read.
        await asyncio.gather(*[reply for reply, _, _ in walk.replies], *[_first_of(*each) for each in walk.streams])

    in_loop(use)
    for each in walk.replies:
        walk.check(*each)
    walk.check_buffers()


steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, BUFFERS - 1), st.integers(0, BUFFERS - 1)), max_size=25
)


@hypothesis.settings(max_examples=EXAMPLES, deadline=None, phases=NO_SHRINK)
@hypothesis.given(in_thread=steps, in_loops=st.lists(steps, min_size=1, max_size=2))
def test_unwaited_requests_do_what_they_would_do_one_after_the_other(
    pool: atomr_mp.Pool, in_thread: Steps, in_loops: list[Steps]
) -> None:
    """In a thread and in loops at a time, on two devices, whatever the window has room for."""
    with ThreadPoolExecutor(3) as threads:
        walks = [threads.submit(walk_in_loop, pool, each) for each in in_loops]
        walks.append(threads.submit(walk_in_thread, pool, in_thread))
    for each in walks:
        each.result()


@pytest.mark.parametrize("holds", ["on its loop", "on a thread"])
def test_a_loop_goes_on_while_a_request_waits_for_another_device(ledger: Ledger, holds: str) -> None:
    """It gets its refs once the writer before it has ended; an actor on its worker's loop holds up all else there."""

    async def use(own: atomr_mp.Pool, kind: str, gate: Gate) -> None:
        target = own.device(0).zeros(ELEMENTS, "float64")
        source = own.device(1).zeros(SLAB_ELEMENTS + 1, "float64")  # in a slab of its own
        with own.device(0).program() as program:
            program.returns(program.elementwise.copy(program.input("source", (ELEMENTS,), "float64")))
        if holds == "on a thread":
            before = own.call("Keeper.add_slowly", str(gate.path), source, 1.0)
        else:
            before = own.call("Keeper.make_slowly", str(gate.path), np.zeros(1), device=1)
            own.call("Keeper.add", source, 1.0)
        await asyncio.to_thread(gate.wait, 1)
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        read = source[:ELEMENTS]
        match kind:
            case "library":
                ended = _of(own.device(0).elementwise.copy(read, target))
            case "call":
                ended = _of(own.call("Keeper.total", read, device=0), ELEMENTS)
            case "stream":
                ended = _first_of(own.stream("Keeper.totals", read, device=0), ELEMENTS)
            case _:
                ended = _of(program.run(source=read))
        behind = own.call("Keeper.total", target, device=0)
        await turned.wait()
        assert not before.done
        gate.open(1)
        await before
        await ended
        assert await behind == (ELEMENTS if kind == "library" else 0)

    with ledger.start(KEEPER, gpus=2) as own:
        for kind in ("library", "call", "stream", "program"):
            with ledger.gate(kind) as gate:
                in_loop(functools.partial(use, own, kind, gate))


def test_a_request_that_is_given_up_lets_those_behind_it_go_on(ledger: Ledger) -> None:
    """By its caller or its deadline, while it waits for a ref of another device; and no other writer waits."""
    with ledger.gate("gate") as gate, ledger.start(KEEPER, gpus=2) as own:
        target, source = own.device(0).zeros(ELEMENTS, "float64"), own.device(1).zeros(ELEMENTS, "float64")

        async def use() -> None:
            before = own.call("Keeper.add_slowly", str(gate.path), source, 1.0)
            await asyncio.to_thread(gate.wait, 1)
            cancelled = own.call("Keeper.total", source, device=0)
            late = own.call("Keeper.total", source, device=0, deadline_s=0.05)
            behind = own.call("Keeper.total", target, device=0)
            cancelled.cancel()
            for given_up, error in ((cancelled, errors.Cancelled), (late, errors.DeadlineExceeded)):
                with pytest.raises(error) as caught:
                    await given_up
                assert not caught.value.maybe_executed
            assert await behind == 0
            gate.open(1)
            await before
            await own.call("Keeper.add", source, 1.0)

        in_loop(use)


def test_an_error_of_a_ref_comes_with_the_reply(pool: atomr_mp.Pool) -> None:
    """In a loop, if a request before has left the ref undefined; the requests behind run."""
    target, source = pool.device(0).zeros(ELEMENTS, "float64"), pool.device(1).zeros(ELEMENTS, "float64")

    async def use() -> None:
        failing = pool.call("Keeper.fail_writing", source)
        reading = pool.device(0).elementwise.copy(source, target)
        behind = pool.call("Keeper.total", target)
        with pytest.raises(errors.ActorFailed):
            await failing
        with pytest.raises(errors.GpuRefUndefined) as caught:
            await reading
        assert not caught.value.maybe_executed
        assert await behind == 0

    in_loop(use)


Look = Callable[[atomr_mp.Pool, atomr_mp.GpuRef, atomr_mp.GpuRef], object]

LOOKS: Final[tuple[Look, ...]] = (
    lambda _pool, ref, _far: ref.numpy(),
    lambda _pool, ref, far: ref.copy_to(far),
    lambda _pool, ref, _far: ref.view(),
    lambda _pool, ref, _far: ref.fill(1.0),
    lambda pool, _ref, _far: pool.device(0).put(np.ones(3)),
    lambda pool, _ref, _far: pool.device(0).empty(3),
    lambda _pool, ref, _far: ref.share(for_s=3),
    lambda _pool, ref, _far: np.from_dlpack(ref),
    lambda pool, ref, _far: pool.call("Keeper.total", ref, device=1, wait=True).result(),
    lambda pool, ref, far: pool.device(1).elementwise.copy(ref, far).result(),
)
"""What waits by its documentation."""


@pytest.mark.skipif(BACKEND != "host", reason="a view of a GPU's memory needs CuPy")
def test_what_blocks_waits_for_room(ledger: Ledger) -> None:
    """However full the window is of requests without waiting callers, and though no further one of these may wait."""
    with ledger.start(KEEPER, gpus=2, window_requests=WINDOW, max_waiting=WINDOW) as own:
        for number, look in enumerate(LOOKS):
            with ledger.gate(f"gate {number}") as gate:
                _look_with_a_full_window(own, gate, look)


def _look_with_a_full_window(own: atomr_mp.Pool, gate: Gate, look: Look) -> None:
    device = own.device(0)
    ref, far = device.zeros(ELEMENTS, "float64"), own.device(1).zeros(ELEMENTS, "float64")
    waiting: list[atomr_mp.Reply] = [own.call("Keeper.make_slowly", str(gate.path), np.zeros(1), device=0)]
    gate.wait(1)
    waiting += [device.elementwise.add(ref, ref, ref) for _ in range(2 * WINDOW - 1)]
    with pytest.raises(errors.Overloaded, match="max_waiting"):
        device.elementwise.add(ref, ref, ref)
    begun = threading.Event()

    def read() -> None:
        begun.set()
        look(own, ref, far)

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        begun.wait()
        gate.open(1)
    reading.result()
    for each in waiting:
        each.result()


async def _of(reply: Awaitable[Any], expected: float | None = None) -> None:
    result = await reply
    assert expected is None or result == expected


async def _first_of(stream: AsyncIterable[Any], expected: float) -> None:
    assert [part async for part in stream] == [expected]
