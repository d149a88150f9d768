"""Arrays that are copied by several threads and, where the memory is a GPU's, in parts: on real pools."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory import staging
from atomr_mp.interop.copying import LARGE_BYTES, CopyThreads
from tests.support import BACKEND, KEEPER, Ledger, wait_generation

ROWS: Final = (staging.STAGED_BYTES + staging.PART_BYTES) // 8000 + 3
"""Rows of a thousand numbers, in all a little more than a part and what is not copied in parts."""


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy in small parts, whatever other threads do."""
    monkeypatch.setattr(staging, "BUSY_NS", 2**62)


@pytest.fixture(scope="module")
def shared() -> Iterator[atomr_mp.Pool]:
    """A pool of one device for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(KEEPER) as started:
        yield started


def any_bytes(nbytes: int) -> np.ndarray[Any, Any]:
    """Return random bytes, so that one part cannot pass for another."""
    return np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)


def numbers(dtype: str = "float64") -> np.ndarray[Any, Any]:
    """Return a large array whose parts differ."""
    return np.arange(ROWS * 1000).reshape(ROWS, 1000).astype(dtype)


@pytest.mark.parametrize("nbytes", [LARGE_BYTES, LARGE_BYTES + 1, staging.STAGED_BYTES + 1, staging.PART_BYTES * 7 + 7])
def test_arrays_of_any_size_come_back(pool: atomr_mp.Pool, nbytes: int) -> None:
    """As new arrays, and in arrays that are there."""
    array = any_bytes(nbytes)
    ref = pool.device().put(array)
    np.testing.assert_array_equal(ref.numpy(), array)
    out = np.zeros_like(array)
    assert ref.numpy(out=out) is out
    np.testing.assert_array_equal(out, array)
    assert pool.call("Keeper.total", array).result() == array.sum()


def test_arrays_come_back_however_they_lie(pool: atomr_mp.Pool) -> None:
    """On either side: turned, with gaps, in another order of bytes."""
    array, put = numbers(), pool.device().put
    for given in (array.T, np.repeat(array, 2, axis=1)[:, ::2], array[::-1, ::-1], array.astype(">f8")):
        ref = put(given)
        np.testing.assert_array_equal(ref.numpy(), given)
    ref = put(array)
    np.testing.assert_array_equal(ref.T.numpy(), array.T)
    out: Any = np.zeros((1000, ROWS)).T
    ref[::-1].numpy(out=out)
    np.testing.assert_array_equal(out, array[::-1])


def test_a_read_is_whole_beside_writers(pool: atomr_mp.Pool) -> None:
    """A request of another client comes before all of it, or after."""
    ref = pool.device().zeros((ROWS, 1000), "float64")
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        theirs, ones = other.claim(ref.share()), other.device().ones((ROWS, 1000), "float64")
        reads_enough = threading.Event()

        def write() -> None:
            while not reads_enough.is_set():
                with contextlib.suppress(errors.BorrowConflict):  # on a slow machine a read takes longer than it may
                    other.device().blas.axpy(ones.reshape(-1), theirs.reshape(-1)).result()

        writing = threading.Thread(target=write)
        writing.start()
        try:
            out, seen = np.empty((ROWS, 1000)), list[float]()
            for _ in range(8):
                read = ref.numpy(out=out)
                assert read.min() == read.max(), "torn"
                seen.append(read.max())
        finally:
            reads_enough.set()
            writing.join()
    assert seen == sorted(seen)


def test_what_does_not_fit_leaves_the_array_as_it_was(pool: atomr_mp.Pool) -> None:
    """The error is the one of a small array."""
    ref = pool.device().put(numbers())
    out = np.zeros((ROWS, 1000))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        ref.numpy(out=out)
    assert not out.any()
    ref.free()
    with pytest.raises(errors.GpuRefReleased):
        ref.numpy()


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("way", ["put", "numpy", "numpy(out)"])
def test_a_worker_s_death_amid_a_copy_leaves_no_partial_array(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, way: str, at: int
) -> None:
    """The copy is whole, or an error says that the worker or its memory has gone; the next one is whole."""
    if at and BACKEND == "host":
        pytest.skip("the memory is copied at once")
    array = any_bytes(staging.PART_BYTES * 7)
    with ledger.start(KEEPER) as pool:
        ref, device = pool.device().put(array), pool.device()
        copies = itertools.count()

        def killed(copy: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any) -> Any:
                if next(copies) == at:
                    os.kill(pool.devices[0].pid, signal.SIGKILL)
                    wait_generation(pool, 2)
                return copy(*arguments)

            return wrapped

        with monkeypatch.context() as patch:
            for name in ("copy", "begin"):
                patch.setattr(CopyThreads, name, killed(getattr(CopyThreads, name)))
            out = np.empty_like(array) if way == "numpy(out)" else None
            try:
                if way == "put":
                    ref = device.put(array)
                    if ref.generation == 2:
                        np.testing.assert_array_equal(ref.numpy(), array)
                else:
                    np.testing.assert_array_equal(ref.numpy(out=out), array)
            except (errors.WorkerLost, errors.GpuRefStale):
                assert BACKEND != "host"
        assert next(copies) > at
        np.testing.assert_array_equal(device.put(array).numpy(), array)
