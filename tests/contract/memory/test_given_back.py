"""Contract of refs and results that a client has dropped: the next calls give them back, however they were used."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Final

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from tests.support import DEADLINE_S, KEEPER, Ledger, local_client, settled

ARRAY: Final = np.arange(10.0)
VALUE: Final = 20_000
"""Elements of an array that comes in shared memory."""

LARGE: Final = np.arange(float(VALUE))
"""An argument that goes in shared memory of the client."""

BEHIND: Final = 40
"""How many arrays of half as many elements are more than the kernel keeps for a reader."""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """Lend a pool that all tests of this file share."""
    with Ledger() as ledger, ledger.start(KEEPER, gpus=2) as pool:
        pool.wait_ready()
        yield pool


def leases(pool: atomr_mp.Pool) -> int:
    """Return how many leases this client has, after all unreachable ones were given back."""
    gc.collect()
    return sum(pool.device(device).statistics()["leases"] for device in range(2))


def arguments(client: atomr_mp.Pool) -> int:
    """Return how many arguments the client keeps in shared memory, after all that are out of use have gone."""
    gc.collect()
    for device in range(2):
        client.call("Keeper.total", LARGE, device=device).result()  # whose answers tell what the workers have returned
    return len(local_client(client).memory._slabs._uses)


# --- what a client does, each in a thread of its own ------------------------------------------------------------------


def answered(pool: atomr_mp.Pool) -> None:
    """Read a result with refs and an array."""
    pool.call("Keeper.make_two", ARRAY, device=0).result()


def unread(pool: atomr_mp.Pool) -> None:
    """Drop a reply before its answer comes."""
    pool.call("Keeper.make", ARRAY, device=0)


def failed(pool: atomr_mp.Pool) -> None:
    """Have a call with a ref fail; its error's traceback shows all that was in reach."""
    ref = pool.device(0).put(ARRAY)
    with contextlib.suppress(errors.AtomrError):
        pool.call("Keeper.fail", ref, "typed").result()


def failed_elsewhere(pool: atomr_mp.Pool) -> None:
    """Have a call fail on another device than its ref's."""
    ref = pool.device(0).put(ARRAY)
    with contextlib.suppress(errors.AtomrError):
        pool.call("Keeper.fail", ref, "typed", device=1).result()


def called_back(pool: atomr_mp.Pool) -> None:
    """Get an answer and an error by callbacks."""
    ref = pool.device(1).put(ARRAY)
    for reply in (pool.call("Keeper.make", ref), pool.call("Keeper.fail", ref, "typed")):
        came = threading.Event()
        reply.add_done_callback(lambda _, came=came: came.set())  # type: ignore[misc]
        assert came.wait(DEADLINE_S)
        with contextlib.suppress(errors.AtomrError):
            reply.result()


def late(pool: atomr_mp.Pool) -> None:
    """Give a call up before its answer comes."""
    with contextlib.suppress(errors.DeadlineExceeded):
        pool.call("Keeper.make", ARRAY, device=0, deadline_s=1e-6).result()


def cancelled(pool: atomr_mp.Pool) -> None:
    """Cancel a call that may have started."""
    reply = pool.call("Keeper.make", ARRAY, device=1)
    reply.cancel()
    with contextlib.suppress(errors.Cancelled):
        reply.result()


def streamed(pool: atomr_mp.Pool) -> None:
    """Leave a stream of large parts."""
    with pool.stream("Keeper.large_parts", VALUE, 8, device=0, ahead=4) as parts:
        next(parts)


def awaited(pool: atomr_mp.Pool) -> None:
    """Use refs, fail and leave a stream in an event loop."""

    async def use() -> None:
        ref = await pool.call("Keeper.make", ARRAY, device=0)
        pool.call("Keeper.make", ref)
        with contextlib.suppress(errors.AtomrError):
            await pool.call("Keeper.fail", ref, "typed", device=1)
        async with pool.stream("Keeper.large_parts", VALUE, 8, device=0, ahead=4) as parts:
            await anext(parts)

    asyncio.run(use())


def far_behind(pool: atomr_mp.Pool) -> None:
    """Leave a loop to which the worker has answered more than the kernel keeps."""
    loop = asyncio.new_event_loop()

    async def use() -> None:
        for _ in range(BEHIND):
            pool.call("Keeper.large", VALUE // 2, device=0)
        pool.call("Keeper.make", ARRAY, device=0)
        await asyncio.sleep(0)  # a turn of the loop sends them

    loop.run_until_complete(use())
    pool.call("Keeper.total", ARRAY, device=0).result()
    loop.close()


def abandoned(pool: atomr_mp.Pool) -> None:
    """Leave a loop whose call is answered before somebody comes who closes its lane."""
    loop = asyncio.new_event_loop()

    async def use() -> None:
        pool.call("Keeper.make", ARRAY, device=0)
        pool.call("Keeper.large", VALUE, device=1)
        await asyncio.sleep(0)  # which sends them

    loop.run_until_complete(use())
    for device in range(2):
        pool.call("Keeper.total", ARRAY, device=device).result()  # the worker answers behind those of the loop
    loop.close()


def unawaited(pool: atomr_mp.Pool) -> None:
    """Leave loops whose calls are not sent yet, are under way, are cancelled, or have been answered in vain."""

    async def use(turns: int) -> None:
        calls = [pool.call("Keeper.total", LARGE, device=device) for device in range(2)]
        pool.call("Keeper.fail", LARGE, "typed", device=0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await calls[0]
        for _ in range(turns):
            await asyncio.sleep(0)  # how many turns the loop has had is what differs

    for turns in range(6):
        asyncio.run(use(turns))


WAYS: Final[dict[str, Callable[[atomr_mp.Pool], None]]] = {
    way.__name__: way
    for way in (
        answered,
        unread,
        failed,
        failed_elsewhere,
        called_back,
        late,
        cancelled,
        streamed,
        awaited,
        abandoned,
        far_behind,
        unawaited,
    )
}


@hypothesis.settings(max_examples=15, phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate))
@hypothesis.example(["called_back"])
@hypothesis.example(["failed_elsewhere"])
@hypothesis.example(["abandoned"])
@hypothesis.example(["far_behind"])
@hypothesis.example(["unawaited"])
@hypothesis.given(ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=6))
def test_what_a_client_has_dropped_comes_back(pool: atomr_mp.Pool, ways: list[str]) -> None:
    """Whatever it has done, and in whatever order: the workers keep nothing for it, and it keeps nothing for them."""
    with atomr_mp.connect(run_dir=pool.run_dir) as client:
        for way in ways:
            thread = threading.Thread(target=WAYS[way], args=(client,))
            thread.start()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert settled(lambda: leases(client) == 0)
        assert settled(lambda: arguments(client) <= 2)  # those of the last two calls may not be returned yet
