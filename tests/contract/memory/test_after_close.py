"""Contract of arrays that outlive their client: they stay as they are, and the last one's end gives the memory back."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import atomr_mp
from atomr_mp.protocol.allocation import SLAB_BYTES
from tests.support import BACKEND, DEADLINE_S, KEEPER, Ledger, settled

VALUE: Final = 20_000
"""Elements of an array that comes in shared memory."""

KEPT_BYTES: Final = SLAB_BYTES if BACKEND == "host" else 2 * SLAB_BYTES
"""The worker's last empty slab of each kind of memory is kept for later: of the device's, and of the host's."""


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """Lend a pool that all tests of this file share."""
    with Ledger() as ledger, ledger.start(KEEPER) as pool:
        pool.wait_ready()
        pool.call("Keeper.large", VALUE).result()  # its slab stays mapped here
        yield pool


def slab_bytes(pool: atomr_mp.Pool) -> int:
    """Return the size of all slabs of the device."""
    gc.collect()
    return pool.status().devices[0].slab_bytes


# --- what outlives its client: each is zero at 0, and one at 1 --------------------------------------------------------


def result(client: atomr_mp.Pool) -> Any:
    """Return a result."""
    return client.call("Keeper.large", VALUE).result()


def awaited(client: atomr_mp.Pool) -> Any:
    """Return a result that a coroutine has awaited."""

    async def ask() -> Any:
        return await client.call("Keeper.large", VALUE)

    return asyncio.run(ask())


def view(client: atomr_mp.Pool) -> Any:
    """Return a view."""
    return client.device().put(np.arange(float(VALUE))).view()


def writable(client: atomr_mp.Pool) -> Any:
    """Return a part of a writable view."""
    return client.device().put(np.arange(float(VALUE))).view(write=True)[:100]


def exported(client: atomr_mp.Pool) -> Any:
    """Return what another library made of a ref."""
    return np.from_dlpack(client.device().put(np.arange(float(VALUE))))


def part(client: atomr_mp.Pool) -> Any:
    """Return a part of a stream, which goes on."""
    first, second = (next(iter(client.stream("Keeper.large_parts", VALUE, 8))) for _ in range(2))
    assert (first == second).all()
    first[1] = 1
    return first


WAYS: Final[dict[str, Callable[[atomr_mp.Pool], Any]]] = {
    way.__name__: way for way in (result, awaited, view, writable, part, *((exported,) if BACKEND == "host" else ()))
}


@hypothesis.settings(max_examples=10, phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate))
@hypothesis.example(held=[[each] for each in WAYS], on_thread=True)
@hypothesis.given(
    held=st.lists(st.lists(st.sampled_from(sorted(WAYS)), max_size=3), min_size=1, max_size=4), on_thread=st.booleans()
)
def test_the_last_array_gives_the_memory_of_its_closed_client_back(
    pool: atomr_mp.Pool, *, held: list[list[str]], on_thread: bool
) -> None:
    """Until then its memory is used for nothing else, whatever others ask for."""
    before = slab_bytes(pool)
    arrays = []
    for ways in held:
        with atomr_mp.connect(run_dir=pool.run_dir) as client:
            arrays += [WAYS[way](client) for way in ways]
    for _ in range(3):
        pool.call("Keeper.large", VALUE).result()[:] = 7
    while arrays:
        assert all(float(each[0]) == 0 and float(each[1]) == 1 for each in arrays)
        if on_thread:
            thread = threading.Thread(target=arrays.pop)
            thread.start()
            thread.join(DEADLINE_S)
        else:
            del arrays[0]
    assert settled(lambda: slab_bytes(pool) <= before + KEPT_BYTES)


@pytest.mark.skipif(BACKEND != "host", reason="a forked child has no GPU")
@pytest.mark.parametrize("ends", ["collects", "is killed"])
def test_a_forked_child_neither_frees_nor_keeps_its_parent_s_memory(
    pool: atomr_mp.Pool, ledger: Ledger, ends: str
) -> None:
    """It has a copy of the connection whose end tells that nothing is mapped."""
    before = slab_bytes(pool)
    with ledger.program("fork_after_close", str(pool.run_dir)) as parent:
        [child] = parent.hear()
        try:
            assert parent.hear() == ["dropped"]
            for _ in range(3):
                pool.call("Keeper.large", VALUE).result()[:] = 7
            assert slab_bytes(pool) > before
            if ends == "is killed":
                parent.kill()
            else:
                parent.tell()
                assert parent.hear() == ["intact"]
                parent.tell()
                assert parent.hear() == ["collected"]
            assert settled(lambda: slab_bytes(pool) <= before)
        finally:
            os.kill(int(child), signal.SIGKILL)
