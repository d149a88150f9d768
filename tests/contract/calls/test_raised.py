"""What a failed call's frames refer to is free once its error is: nothing waits for Python's cyclic collector."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory.refs import GpuRef
from tests.support import BACKEND, KEEPER, Ledger, client_of, hurry, stopped

ARRAY: Final = np.arange(10.0)


class Content:
    """An object that a caller's frame refers to, as it may refer to an array of any size."""


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool of two devices for all tests."""
    with Ledger() as ledger, ledger.start(KEEPER, gpus=2) as started:
        started.wait_ready()
        yield ledger, started


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> atomr_mp.Pool:
    """Return the pool."""
    return shared[1]


pytestmark = pytest.mark.usefixtures("uncollected")

RAISED: Final = errors.AtomrError, ZeroDivisionError


def left_by(failing: Callable[[], object]) -> str:
    """Return the error that something raises if it keeps alive what its caller's frame refers to, "" if it does not."""
    seen: list[weakref.ref[Content]] = []

    def caller() -> None:
        content = Content()
        seen.append(weakref.ref(content))
        failing()

    told = ""
    try:
        caller()
    except RAISED as error:
        told = repr(error)
    assert told, "no error"
    return told if seen[0]() is not None else ""


async def left_in_loop(failing: Callable[[], Coroutine[Any, Any, None]]) -> str:
    """Do the same for a coroutine."""
    seen: list[weakref.ref[Content]] = []

    async def caller() -> None:
        content = Content()
        seen.append(weakref.ref(content))
        await failing()

    told = ""
    try:
        await caller()
    except RAISED as error:
        told = repr(error)
    assert told, "no error"
    return told if seen[0]() is not None else ""


def call(pool: atomr_mp.Pool) -> None:
    """Raise an error of the request, by a reply that has no name."""
    pool.call("Keeper.fail", ARRAY, "typed").result()


def call_named(pool: atomr_mp.Pool) -> None:
    """Raise it by one that the frame refers to, the second time too."""
    reply = pool.call("Keeper.fail", ARRAY, "other")
    with contextlib.suppress(errors.AtomrError):
        reply.result()
    reply.result()


def call_refused(pool: atomr_mp.Pool) -> None:
    """Raise an error before anything is sent."""
    reply = pool.call("Keeper.no_such_method")
    reply.result()


async def awaited(pool: atomr_mp.Pool) -> None:
    """Raise an error of the request."""
    reply = pool.call("Keeper.fail", ARRAY, "typed")
    await reply


def streamed(pool: atomr_mp.Pool) -> None:
    """Raise the error of a stream."""
    stream = pool.stream("Keeper.large_parts", "no number", 2)
    list(stream)


def stream_s_result(pool: atomr_mp.Pool) -> None:
    """Raise it instead of its result."""
    stream = pool.stream("Keeper.large_parts", "no number", 2)
    stream.result()


async def streamed_in_loop(pool: atomr_mp.Pool) -> None:
    """Raise the error of a stream."""
    stream = pool.stream("Keeper.large_parts", "no number", 2)
    [part async for part in stream]


async def stream_awaited(pool: atomr_mp.Pool) -> None:
    """Raise it instead of its result."""
    stream = pool.stream("Keeper.large_parts", "no number", 2)
    await stream


def mapped(pool: atomr_mp.Pool) -> None:
    """Raise the error of an item."""
    results = pool.map("Keeper.fail", [(ARRAY, "typed")])
    list(results)


def mapped_from(pool: atomr_mp.Pool) -> None:
    """Raise the error of the items' source."""
    list(pool.map("Keeper.double", (1 // each for each in (0,))))


async def mapped_in_loop(pool: atomr_mp.Pool) -> None:
    """Raise an item's error."""
    [result async for result in pool.amap("Keeper.fail", [(ARRAY, "typed")])]


async def mapped_from_in_loop(pool: atomr_mp.Pool) -> None:
    """Raise the error of the source."""

    async def items() -> AsyncIterator[Any]:
        yield 1 // 0

    [result async for result in pool.amap("Keeper.double", items())]


def closed(pool: atomr_mp.Pool) -> None:
    """Raise the end of a client."""
    with client_of(pool) as own:
        ref = own.device(0).put(ARRAY)
    ref.numpy()


def cut_off(pool: atomr_mp.Pool) -> None:
    """Raise it by a reply that was not answered before."""
    with client_of(pool) as own, stopped(pool.devices[0].pid):
        reply = own.call("Keeper.double", ARRAY, device=0)
        own.close()
    for _ in range(2):
        reply.result()


def claimed(pool: atomr_mp.Pool) -> None:
    """Raise the error of a claim that was made before."""
    share = pool.device(0).put(ARRAY).share()
    for _ in range(2):
        pool.claim(share)


CALLS: Final = [
    call,
    call_named,
    call_refused,
    streamed,
    stream_s_result,
    mapped,
    mapped_from,
    closed,
    cut_off,
    claimed,
]


@pytest.mark.parametrize("use", CALLS, ids=lambda use: use.__name__)
def test_an_error_is_not_kept_by_what_has_raised_it(pool: atomr_mp.Pool, use: Callable[[atomr_mp.Pool], None]) -> None:
    """Of a call, a stream, a map and a client."""
    assert left_by(lambda: use(pool)) == ""


@pytest.mark.parametrize(
    "use",
    [awaited, streamed_in_loop, stream_awaited, mapped_in_loop, mapped_from_in_loop],
    ids=lambda use: use.__name__,
)
def test_an_error_is_not_kept_by_what_has_raised_it_in_a_loop(
    pool: atomr_mp.Pool, use: Callable[[atomr_mp.Pool], Coroutine[Any, Any, None]]
) -> None:
    """Of a call, a stream and a map; while the loop goes on."""
    with asyncio.Runner() as runner:
        assert runner.run(left_in_loop(lambda: use(pool))) == ""


REFS: Final[dict[str, Callable[[GpuRef, atomr_mp.Pool], object]]] = {
    "numpy": lambda ref, _: ref.numpy(),
    "view": lambda ref, _: ref.view(),
    "fill": lambda ref, _: ref.fill(1),
    "copy_to": lambda ref, pool: ref.copy_to(pool.device(0).zeros(ref.shape, "float64")),
    "item": lambda ref, _: ref[0].item(),
    "operator": lambda ref, _: ref + ref,
    "method": lambda ref, _: ref.sum(),
    "array": lambda ref, _: np.asarray(ref),
    "argument": lambda ref, pool: pool.call("Keeper.total", ref).result(),
    "argument on another device": lambda ref, pool: pool.call("Keeper.total", ref, device=1).result(),
    "request of a library": lambda ref, pool: (
        pool.device(0).blas.axpy(ref, pool.device(0).zeros(ref.shape, "float64")).result()
    ),
}


@pytest.mark.skipif(BACKEND != "host", reason="views of a GPU's memory need CuPy")
@pytest.mark.parametrize("size", [10, 40_000])
@pytest.mark.parametrize("use", REFS.values(), ids=list(REFS))
def test_an_error_does_not_keep_a_view(
    pool: atomr_mp.Pool, use: Callable[[GpuRef, atomr_mp.Pool], object], size: int
) -> None:
    """A view that a failed caller had is no obstacle afterwards."""
    ref = pool.device(0).zeros(size, "float64")

    def failing() -> None:
        view = ref.view(write=True)
        use(ref, pool)
        del view

    assert left_by(failing) == ""
    use(ref, pool)


def test_a_late_answer_keeps_nothing_of_its_caller(shared: tuple[Ledger, atomr_mp.Pool]) -> None:
    """The request goes on after its deadline; what it has sent is kept, and nothing else."""
    ledger, pool = shared
    kept: list[weakref.ref[Any]] = []
    with ledger.gate("late") as gate:

        def failing() -> None:
            array = np.arange(100_000.0)
            kept.append(weakref.ref(array))
            reply = pool.call("Keeper.make_slowly", gate.path, array)
            gate.wait()
            hurry(reply)
            reply.result()

        assert left_by(failing) == ""
        assert kept[0]() is None
        gate.open()
