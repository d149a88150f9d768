"""Reads take their turn among the writers of a buffer: copies to the host and to other devices, by several clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.programs.counting_walk import BEGUN, CLIENTS, DONE, THREADS
from tests.support import ACTORS, BACKEND, KEEPER, Gate, Ledger, wait_sent

STEPS: Final = int(os.environ.get("ATOMR_MP_TEST_STEPS", "60"))
"""Steps of each thread of a walk."""

LARGE: Final = 40_000
"""Elements of a counter that its clients copy where it is."""


@pytest.fixture(scope="module")
def shared() -> Iterator[atomr_mp.Pool]:
    """One pool of two devices for all tests: none of them ends a worker."""
    with Ledger() as ledger, ledger.start(KEEPER, f"{ACTORS}/exchanging.py:Exchanging", gpus=2) as started:
        device = started.device(0)
        device.blas.axpy(device.zeros(1, "float64"), device.zeros(1, "float64")).result()  # opens the library
        yield started


@pytest.mark.parametrize("seed", range(int(os.environ.get("ATOMR_MP_TEST_WALKS", "1"))))
def test_random_reads_and_writes_are_ordered_by_arrival(
    pool: atomr_mp.Pool, ledger: Ledger, tmp_path: Path, seed: int
) -> None:
    """Two clients of three threads each: every write counts, and every read has all writes before it, each whole."""
    counters = [pool.device(0).zeros(n, "float64") for n in (LARGE, 1000, LARGE)]
    shared = [[counter.share(600).hex() for counter in counters] for _ in range(CLIENTS)]
    path = tmp_path / "figures"
    figures = np.zeros((CLIENTS, THREADS, len(counters), 3), np.int64)
    path.write_bytes(figures.tobytes())
    walks = [
        ledger.program("counting_walk", pool.run_dir, path, str(client), str(seed), str(STEPS), *shared[client])
        for client in range(CLIENTS)
    ]
    with walks[0], walks[1]:
        assert [" ".join(walk.hear()) for walk in walks] == ["ok"] * CLIENTS
    figures = np.frombuffer(path.read_bytes(), np.int64).reshape(figures.shape)
    assert (figures[..., BEGUN] == figures[..., DONE]).all()
    for at, counter in enumerate(counters):
        assert np.unique(counter.numpy()).tolist() == [figures[:, :, at, DONE].sum()]


@pytest.mark.skipif(BACKEND != "host", reason="a GPU's memory is copied by its worker, whatever becomes of the reader")
@pytest.mark.parametrize("end", ["goes on", "is killed"])
def test_a_writer_waits_for_a_reader(pool: atomr_mp.Pool, ledger: Ledger, end: str) -> None:
    """Until it has what it asked for, or its session has ended."""
    ref, ones = (pool.device(0).full(LARGE, 1, "float64") for _ in range(2))
    reader = ledger.program("stuck_reader", pool.run_dir, ref.share(600).hex())
    with reader:
        assert reader.hear() == ["reading"]
        writing = [pool.device(0).blas.axpy(ones, ref), pool.call("Keeper.add_on_thread", ref, 1.0)]
        wait_sent(writing[1])
        if end == "goes on":
            reader.tell()
            assert reader.hear() == ["ok"]
        else:
            reader.kill()
        for each in writing:
            each.result()
    assert np.unique(ref.numpy()).tolist() == [3]


@pytest.mark.skipif(BACKEND != "host", reason="a GPU's memory is copied by its worker, whatever becomes of the reader")
def test_a_reader_that_is_stopped_is_named(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """After its time, by those who wait for it and by later ones; nothing is undefined for readers that come then."""
    ref, ones = (pool.device(0).full(LARGE, 1, "float64") for _ in range(2))
    reader = ledger.program("stuck_reader", pool.run_dir, ref.share(600).hex())
    with reader:
        assert reader.hear() == ["reading"]
        waiting = [
            pool.device(0).blas.axpy(ones, ref),
            pool.call("Keeper.add", ref, 1.0),
            pool.call("Keeper.add_on_thread", ref, 1.0),
        ]
        for each in waiting:
            with pytest.raises(errors.BorrowConflict, match=f"process {reader.pid} ") as refused:
                each.result()
            assert not refused.value.maybe_executed
        with pytest.raises(errors.BorrowConflict, match=f"process {reader.pid} "):
            ref.fill(5)
        assert np.unique(ref.numpy()).tolist() == [1]
        reader.tell()
        assert reader.hear() == ["ok"]
        ref.fill(5)
    assert np.unique(ref.numpy()).tolist() == [5]


def test_a_writer_waits_for_a_request_on_another_device(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """The client that made the request need not do anything for the writer to go on."""
    with ledger.gate("gate") as gate, atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        ref = pool.device(0).full(1000, 1, "float64")
        theirs = other.claim(ref.share())
        reading = _read_elsewhere(pool, gate, ref)
        writing = other.call("Keeper.add", theirs, 1.0)
        wait_sent(writing)
        gate.open(1)
        writing.result()
        assert theirs.numpy()[0] == 2
        assert reading.result() == 1000


def test_a_request_on_another_device_holds_writers_up_for_a_time(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Then they are refused, and the error names the client's process; it reads what was there."""
    with ledger.gate("gate") as gate:
        ref = pool.device(0).full(1000, 1, "float64")
        reading = _read_elsewhere(pool, gate, ref)
        with pytest.raises(errors.BorrowConflict, match=f"process {os.getpid()} "):
            pool.call("Keeper.add", ref, 1.0).result()
        gate.open(1)
        assert reading.result() == 1000
        pool.call("Keeper.add", ref, 1.0).result()


@pytest.mark.parametrize("way", ["call", "stream"])
def test_a_reader_of_another_device_passes_what_waits_for_memory(pool: atomr_mp.Pool, ledger: Ledger, way: str) -> None:
    """On its actor's thread: what waits there may wait for a writer that the reader holds up."""
    with ledger.gate("gate") as gate:
        ref, lent = pool.device(1).full(1000, 1, "float64"), pool.device(0).full(1000, 1, "float64")
        held = pool.call("Exchanging.hold", ref, str(gate.path), 1.0)
        gate.wait(1)
        waiting = [pool.call("Keeper.add_on_thread", ref, 1.0) for _ in range(2)]
        if way == "stream":
            assert list(pool.stream("Keeper.totals", lent, device=1)) == [1000]
        else:
            assert pool.call("Keeper.total_on_thread", lent, device=1).result() == 1000
        pool.call("Keeper.add", lent, 1.0).result()
        assert not any(each.done for each in (held, *waiting))
        gate.open(1)
        for each in (held, *waiting):
            each.result()
        assert np.unique(ref.numpy()).tolist() == [4]


def test_a_stream_comes_after_the_requests_before_it(pool: atomr_mp.Pool) -> None:
    """Though calls travel together, and a stream's request travels by itself."""
    ref = pool.device(0).zeros(10, "float64")
    for count in range(1, 20):
        for _ in range(5):
            pool.call("Keeper.add", ref, 1.0)
        with pool.stream("Keeper.totals", ref) as totals:
            assert list(totals) == [50 * count]


def _read_elsewhere(pool: atomr_mp.Pool, gate: Gate, ref: atomr_mp.GpuRef) -> atomr_mp.Reply:
    reading = pool.call("Keeper.total_slowly", str(gate.path), ref, device=1)
    wait_sent(reading)
    gate.wait(1)
    return reading
