"""Memory after a kill of its worker, its client, or both."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, BACKEND, PROBE, Delays, Gate, Ledger, Program, settled, wait_generation, wait_until

KEEPER: Final = f"{ACTORS}/keeper.py:Keeper"

REFS: Final = 1000

BACK_S: Final = 1.0
"""Within this time of its last running request, a killed client's memory is back."""

NOTHING: Final = dict.fromkeys(("slabs", "used_bytes", "leases", "views", "open_elsewhere", "shared"), 0)


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of two devices."""
    with ledger.start(PROBE, KEEPER, gpus=2) as started:
        yield started


def statistics(pool: atomr_mp.Pool, device: int = 0) -> dict[str, int]:
    """Return a device's figures, once the collection has ended."""
    gc.collect()
    return pool.device(device).statistics()


def expect(pool: atomr_mp.Pool, device: int, **expected: int) -> None:
    """See that a device's figures come to be so, in time."""
    began, delays = time.monotonic(), Delays(pool.supervisor_pid, *(each.pid for each in pool.devices))
    took_s = 0.0

    def as_expected() -> bool:
        nonlocal took_s
        took_s = time.monotonic() - began - delays.so_far_s()
        return expected.items() <= statistics(pool, device).items()

    settled(as_expected)
    found = statistics(pool, device)
    assert {name: found[name] for name in expected} == expected
    assert took_s < BACK_S


def descriptors(pool: atomr_mp.Pool) -> list[int]:
    """Return how many the supervisor and the workers have open."""
    pids = [pool.supervisor_pid, *(device.pid for device in pool.devices)]
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]


def no_more(pool: atomr_mp.Pool, before: list[int]) -> bool:
    """Whether none has more open than before, when one may still have been on its way to being closed."""
    return all(now <= earlier for now, earlier in zip(descriptors(pool), before, strict=False))


def host(view: Any) -> np.ndarray[Any, Any]:
    """Return what a view shows, in the host's memory."""
    return view.get() if BACKEND == "cuda" else view  # type: ignore[no-any-return]


def mapped() -> int:
    """Return how many slabs of workers this process has mapped."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:atomr-mp-slab")


def start_holder(ledger: Ledger, pool: atomr_mp.Pool, gate: Gate) -> tuple[Program, list[bytes]]:
    """Start a client that holds memory in every way; return it and what it has shared, once its requests run."""
    holder = ledger.program("holder", pool.run_dir, gate.path, str(REFS))
    shared = [bytes.fromhex(word) for word in holder.hear()]
    gate.wait(2)  # on each device
    return holder, shared


def test_a_killed_client_s_memory_comes_back_and_nobody_else_s_does(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Soon after its last request has ended, not before; memory that it had shared stays for others."""
    ours = pool.device(0).put(np.arange(1000.0))
    view = pool.device(0).put(np.full(1000, 5.0)).view()
    before, open_before, sessions = statistics(pool), descriptors(pool), pool.status().sessions
    with ledger.gate("gate") as gate:
        holder, (viewed, let_go, lapsing) = start_holder(ledger, pool, gate)
        with holder, atomr_mp.connect(run_dir=pool.run_dir) as other:
            other.wait_ready()
            claimed = other.claim(viewed)
            with pytest.raises(errors.BorrowConflict):
                claimed.fill(1)
            holder.kill()
            assert settled(lambda: pool.status().sessions == sessions + 1)
            # One of its requests still runs on each device, so none of its memory is used for anything else.
            assert statistics(pool)["leases"] >= before["leases"] + REFS
            assert statistics(pool)["client_slabs"] == statistics(pool, 1)["foreign_slabs"] == 1
            gate.open(1000)
            expect(pool, 0, views=before["views"], leases=before["leases"] + 1, client_slabs=0)
            expect(pool, 1, **NOTHING, foreign_slabs=0, client_slabs=0)
            assert claimed.numpy().sum() == 499500
            claimed.fill(2)
            assert other.claim(let_go).numpy().sum() == 500500
            assert settled(lambda: statistics(pool)["shared"] == 0)
            with pytest.raises(errors.GpuRefReleased):
                other.claim(lapsing)
        expect(pool, 0, **{**before, "allocations": statistics(pool)["allocations"]})
        assert settled(lambda: no_more(pool, open_before))
    assert (view == 5).all()
    assert pool.call("Keeper.total", ours).result() == 499500
    assert [device.generation for device in pool.devices] == [1, 1]


@pytest.mark.skipif(BACKEND != "host", reason="a GPU's memory is mapped by no name")
def test_after_a_worker_s_death_old_views_are_read_and_new_uses_refused(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """For every client that had some; requests of others on its memory end well."""
    gc.collect()
    before = mapped()  # by what a test that failed has left
    with atomr_mp.connect(run_dir=pool.run_dir) as other, ledger.gate("gate") as gate:
        other.wait_ready()
        ref, written = (pool.device(0).put(np.arange(1000.0)) for _ in range(2))
        elsewhere = pool.device(1).put(np.arange(10.0))
        theirs = other.claim(ref.share())
        shared = written.share()
        views = [ref.view(), ref[::2].view(), theirs.view()]
        writing = written.view(write=True)
        running = pool.call("Keeper.total_slowly", gate.path, ref, device=1)
        gate.wait()
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        for client in (pool, other):
            wait_generation(client, 2)
        gate.open()
        assert running.result() == 499500
        assert [view.sum() for view in views] == [499500, 249500, 499500]
        writing[:] = 3  # for nobody; but it is there
        uses: list[Any] = [ref.numpy, ref.view, ref[3:].share, lambda: ref.fill(1), lambda: pool.claim(shared)]
        uses += [theirs.numpy, theirs.view, lambda: other.call("Keeper.total", theirs)]
        uses += [lambda: pool.call("Keeper.total", ref, device=1), lambda: ref[:10].copy_to(elsewhere)]
        for use in uses:
            with pytest.raises(errors.GpuRefStale) as stale:
                use()
            assert (stale.value.device, stale.value.generation, stale.value.current) == (0, 1, 2)
        assert elsewhere.numpy().sum() == 45
        assert mapped() >= before + 2
        del views, writing
        gc.collect()
        assert mapped() == before + 1  # the other device's
        expect(pool, 0, **NOTHING)
        expect(pool, 1, foreign_slabs=0, leases=1)


@pytest.mark.parametrize("first", ["client", "worker"])
def test_a_client_and_a_worker_may_be_killed_together(pool: atomr_mp.Pool, ledger: Ledger, first: str) -> None:
    """Neither waits for the other; the other device and the next incarnation keep nothing of either."""
    ours = pool.device(1).put(np.arange(10.0))
    assert (host(ours.view()) == np.arange(10.0)).all()  # from now on the supervisor watches this process
    before, open_before, sessions = statistics(pool, 1), descriptors(pool), pool.status().sessions
    with ledger.gate("gate") as gate:
        holder, shared = start_holder(ledger, pool, gate)
        with holder:
            claimed = pool.claim(shared[1])
            view = claimed.view()
            ends: list[Callable[[], object]] = [holder.kill, lambda: os.kill(pool.devices[0].pid, signal.SIGKILL)]
            for end in ends if first == "client" else reversed(ends):
                end()
            wait_generation(pool, 2)
            assert settled(lambda: pool.status().sessions == sessions)
            gate.open(1000)
            expect(pool, 1, **{**before, "allocations": statistics(pool, 1)["allocations"]})
        assert (host(view) == np.arange(1000.0) + 1).all()
        for each in shared:
            with pytest.raises(errors.GpuRefStale):
                pool.claim(each)
        with pytest.raises(errors.GpuRefStale):
            claimed.numpy()
        expect(pool, 0, **NOTHING, client_slabs=0, foreign_slabs=0)
        assert pool.call("Keeper.total", ours).result() == 45
        assert pool.device(0).put(np.ones(5)).numpy().sum() == 5
        assert settled(lambda: no_more(pool, open_before[:1]))


def test_views_outlive_a_killed_supervisor(ledger: Ledger) -> None:
    """Only they are left of a pool that is lost."""
    gc.collect()
    before = mapped()
    pool = ledger.start(KEEPER)
    ref = pool.device().put(np.arange(1000.0))
    view = ref.view()
    shared = ref.share()
    os.kill(pool.supervisor_pid, signal.SIGKILL)
    with pytest.raises(errors.PoolLost):
        wait_until(pool, lambda: False)
    uses: list[Any] = [ref.numpy, ref.share, lambda: pool.claim(shared), lambda: pool.device().zeros(3)]
    for use in uses:
        with pytest.raises(errors.PoolLost):
            use()
    assert view.sum() == 499500
    pool.close()
    assert view.sum() == 499500
    del view
    gc.collect()
    assert mapped() == before
    with ledger.start(KEEPER) as again, pytest.raises(errors.PoolMismatch):
        again.claim(shared)
