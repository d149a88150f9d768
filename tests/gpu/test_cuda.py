"""The runtime on a real GPU, as far as only a real context can show it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, settled, wait_generation

pytestmark = pytest.mark.gpu

FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
FAULTS: Final = {"illegal": 700, "misaligned": 716, "trap": 719, "check": 710}
"""Kernels and the status that the driver has for them."""


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of one GPU."""
    with ledger.start(FAULTY, PROBE, backend="cuda") as started:
        yield started


# --- results, where they are ---------------------------------------------------------------------------------


def test_what_an_actor_computes_stays_on_the_device(pool: atomr_mp.Pool) -> None:
    """CuPy's arrays are refs for the caller, without a copy; and arguments again."""
    x = pool.device().put(np.arange(100_000, dtype="float32"))
    doubled = pool.call("Faulty.double", x).result()
    assert isinstance(doubled, atomr_mp.GpuRef)
    assert np.array_equal(doubled.numpy(), np.arange(100_000, dtype="float32") * 2)
    assert pool.call("Faulty.total", doubled[:10]).result() == 90
    assert pool.device().statistics()["copied_results"] == 0


@pytest.mark.parametrize("nbytes", [0, 8, 100_000, 2**20, 2**26 + 8])
def test_arrays_of_any_size_come_back(pool: atomr_mp.Pool, nbytes: int) -> None:
    """Put, doubled, copied back; also into memory that is there."""
    array = np.random.default_rng(nbytes).standard_normal(nbytes // 8)
    ref = pool.device().put(array)
    assert np.array_equal(ref.numpy(), array)
    out = np.full_like(array, np.nan)
    pool.call("Faulty.double", ref).result().numpy(out=out)
    assert np.array_equal(out, array * 2)
    assert pool.call("Faulty.total", array).result() == pytest.approx(array.sum())


def test_a_result_is_sent_when_the_device_has_it(pool: atomr_mp.Pool) -> None:
    """Whatever its duration; meanwhile the loop answers others."""
    pool.call("Faulty.spin", 1).result()  # loads the kernels, which waits for the device
    slow = pool.call("Faulty.spin", 2_000_000_000)
    assert pool.call("Probe.echo", 7).result() == 7
    assert not slow.done
    assert slow.result(DEADLINE_S).numpy()[3] == 6


def test_memory_that_is_dropped_is_not_used_again_too_early(pool: atomr_mp.Pool) -> None:
    """A running request reads memory that its caller has released."""
    for _ in range(20):
        x = pool.device().full(2**20, 3.0)
        pool.call("Faulty.spin", 20_000_000)
        reply = pool.call("Faulty.total", x)
        x.free()
        pool.device().full(2**20, 5.0)
        assert reply.result() == 3 * 2**20


def test_a_view_is_the_memory_itself(pool: atomr_mp.Pool) -> None:
    """In this process, without a copy: each side reads the other's writes, at a mapping's address."""
    import cupy

    ref = pool.device().put(np.arange(1000, dtype="float32"))
    view = ref.view(write=True)
    assert isinstance(view, cupy.ndarray)
    assert cupy.array_equal(view, cupy.arange(1000, dtype="float32"))
    view *= 3
    with pytest.raises(errors.BorrowConflict):
        pool.call("Faulty.total", ref).result()
    del view
    assert pool.call("Faulty.total", ref).result() == 3 * np.arange(1000).sum()
    result = pool.call("Faulty.double", ref).result()
    assert float(result.view().sum()) == 6 * np.arange(1000).sum()


def test_other_libraries_take_a_ref_as_it_is(pool: atomr_mp.Pool) -> None:
    """By DLPack and by CUDA's array interface."""
    import cupy

    torch = pytest.importorskip("torch")
    ref = pool.device().put(np.arange(12, dtype="float32").reshape(3, 4))
    tensor: Any = torch.from_dlpack(ref)
    assert tensor.is_cuda
    assert tensor.sum().item() == 66
    array = cupy.asarray(ref)
    assert float(array[1].sum()) == 22
    transposed = cupy.from_dlpack(ref.T)
    assert transposed.shape == (4, 3)
    assert float(transposed[0, 2]) == 8
    assert ref.__cuda_array_interface__["data"][1]


def test_a_second_process_reads_the_same_memory(pool: atomr_mp.Pool) -> None:
    """Shared and claimed."""
    ref = pool.device().put(np.arange(1000, dtype="float32"))
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        claimed = other.claim(ref.share())
        ref.free()
        assert other.call("Faulty.total", claimed).result() == np.arange(1000).sum()


# --- errors that are none of the device's ---------------------------------------------------------------------


def test_out_of_memory_is_no_fault(pool: atomr_mp.Pool) -> None:
    """Typed, and the worker goes on."""
    for _ in range(2):
        with pytest.raises(errors.OutOfMemory):
            pool.call("Faulty.exhaust").result()
    with pytest.raises(errors.OutOfMemory):
        pool.device().empty((2**44,), "int8")
    assert pool.devices[0].generation == 1


def test_an_error_of_a_library_is_typed(pool: atomr_mp.Pool) -> None:
    """It neither poisons the context nor ends the worker."""
    with pytest.raises(errors.LibraryError) as raised:
        pool.call("Faulty.raise_from", "cupy").result()
    assert raised.value.library == "runtime"
    assert raised.value.status > 0
    assert pool.call("Probe.echo", 1).result() == 1
    assert pool.devices[0].generation == 1


# --- poison ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", FAULTS)
def test_a_poisoned_context_is_told_and_replaced(pool: atomr_mp.Pool, how: str) -> None:
    """The caller has the status, the device another process, and its refs are stale; memory is what it was."""
    ref = pool.device().put(np.ones(1000))
    free = free_bytes()
    with pytest.raises(errors.ContextPoisoned) as poisoned:
        pool.call("Faulty.fault", how).result(DEADLINE_S)
    assert poisoned.value.status == FAULTS[how]
    assert poisoned.value.maybe_executed
    wait_generation(pool, 2)
    with pytest.raises(errors.GpuRefStale):
        pool.call("Faulty.total", ref).result()
    again = pool.device().put(np.ones(1000))
    assert pool.call("Faulty.total", again).result() == 1000
    assert settled(lambda: free_bytes() > free - 2**28, DEADLINE_S)


@pytest.mark.parametrize("method", ["fault_and_wait", "fault_on_thread"])
def test_a_fault_is_told_wherever_it_is_met(pool: atomr_mp.Pool, method: str) -> None:
    """In the call itself, and on an actor's thread."""
    with pytest.raises(errors.ContextPoisoned):
        pool.call(f"Faulty.{method}", "illegal").result(DEADLINE_S)
    wait_generation(pool, 2)
    assert pool.call("Probe.echo", 1).result() == 1


@pytest.mark.parametrize("how", [*FAULTS, "kill"])
def test_no_wrong_answer_leaves_a_lost_context(pool: atomr_mp.Pool, how: str) -> None:
    """Under load of two clients every request is answered right or fails typed, and the worker comes back."""
    wrong: list[object] = []
    outcomes: list[type[Exception] | None] = []
    stop = threading.Event()

    def load(client: atomr_mp.Pool) -> None:
        random = np.random.default_rng(id(client) % 2**32)
        while not stop.is_set():
            n = int(random.integers(1, 50_000))
            try:
                replies = [client.call("Faulty.double", np.full(n, float(k))) for k in range(8)]
                for k, reply in enumerate(replies):
                    found = reply.result(DEADLINE_S).numpy()
                    if not np.array_equal(found, np.full(n, 2.0 * k)):
                        wrong.append((k, n, found))
                outcomes.append(None)
            except errors.AtomrError as error:
                outcomes.append(type(error))

    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        threads = [threading.Thread(target=load, args=(client,)) for client in (pool, other)]
        for thread in threads:
            thread.start()
        settled(lambda: len(outcomes) > 20, DEADLINE_S)
        with pytest.raises((errors.ContextPoisoned, errors.WorkerLost)):
            pool.call("Faulty.fault", how).result(DEADLINE_S)
        wait_generation(pool, 2)
        before = len(outcomes)
        settled(lambda: len(outcomes) > before + 20, DEADLINE_S)
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a request was never answered"
    assert not wrong
    assert outcomes[-1] is None
    known = (errors.ContextPoisoned, errors.WorkerLost, errors.GpuRefStale, errors.DeviceUnavailable)
    assert {each for each in outcomes if each is not None} <= set(known)
    gc.collect()


def free_bytes() -> int:
    """Return how much of the GPU's memory is free."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free)
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("method", ["fault", "fault_and_wait", "fault_on_thread"])
def test_a_request_that_poisons_contexts_is_found_out(ledger: Ledger, method: str) -> None:
    """Whichever request meets the error: requests beside it succeed, and two contexts are lost in all."""
    with ledger.start(FAULTY, backend="cuda", max_suspicions=2, max_restarts=2) as pool:
        array = np.arange(8, dtype="float32")
        replies = [pool.call("Faulty.double", array) for _ in range(5)]
        first = pool.call(f"Faulty.{method}", "illegal")
        replies += [pool.call("Faulty.double", array) for _ in range(5)]
        assert isinstance(first.exception(), errors.ContextPoisoned)
        assert [reply.exception() for reply in replies] == [None] * 10
        wait_generation(pool, 2)
        assert isinstance(pool.call(f"Faulty.{method}", "illegal").exception(), errors.PoisonRequest)
        with pytest.raises(errors.PoisonRequest):
            pool.call(f"Faulty.{method}", "illegal")
        wait_generation(pool, 3)
        assert np.array_equal(pool.call("Faulty.double", array).result().numpy(), array * 2)
