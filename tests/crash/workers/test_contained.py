"""Workers whose own code fails: one request's error, the log, the figures, and what many of them lead to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.doctor import examine
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation

BROKEN = f"{ACTORS}/broken.py:Broken"


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool whose worker is broken on order."""
    with ledger.start(BROKEN) as started:
        yield started


def met(pool: atomr_mp.Pool) -> int:
    """Return how many faults the pool has counted."""
    with OperatorSession(Path(pool.run_dir) / SESSION_SOCKET) as observer:
        return sum(worker.figures.internal_errors for worker in observer.status().workers)


@pytest.mark.parametrize("step", ["decode", "convert", "borrow", "settle", "answer"])
def test_a_fault_costs_its_request_alone(pool: atomr_mp.Pool, step: str) -> None:
    """It is `InternalError` with a reference into the log; the worker, its memory and other requests go on."""
    pid = pool.call("Broken.pid").result(DEADLINE_S)
    device = pool.device(0)
    array = device.put(np.zeros(3))
    method = "touch" if step in {"decode", "answer"} else "write"
    pool.call("Broken.break_step", step, 1, method).result(DEADLINE_S)
    error = pool.call(f"Broken.{method}", array).exception(DEADLINE_S)
    assert type(error) is errors.InternalError
    assert error.maybe_executed == (step in {"settle", "answer"})
    logged = "".join(path.read_text(errors="replace") for path in Path(pool.run_dir).rglob("*.log"))
    assert error.reference in logged
    assert "IndexError: list index out of range" in logged
    if step == "settle":  # else it has not run, and the content is as before
        assert isinstance(pool.call("Broken.touch", array).exception(DEADLINE_S), errors.GpuRefUndefined)
        array.accept()
    pool.call("Broken.write", array).result(DEADLINE_S)
    assert pool.call("Broken.touch", array).result(DEADLINE_S) == 1
    assert pool.call("Broken.pid").result(DEADLINE_S) == pid
    assert met(pool) == 1
    _, findings = examine(Path(pool.run_dir), lasts_s=0)
    assert [each.kind for each in findings if each.kind == "fault"] == ["fault"]


def test_ten_faults_of_one_session_end_it_and_nobody_else(pool: atomr_mp.Pool) -> None:
    """The client reads why; others are answered by the same worker."""
    pid = pool.call("Broken.pid").result(DEADLINE_S)
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.call("Broken.break_step", "decode", 10, "touch").result(DEADLINE_S)
        outcomes = [other.call("Broken.touch", 1, deadline_s=DEADLINE_S).exception(DEADLINE_S) for _ in range(9)]
        assert {type(each) for each in outcomes} == {errors.InternalError}
        with pytest.raises(errors.RequestError):
            other.call("Broken.touch", 1, deadline_s=DEADLINE_S).result(DEADLINE_S)
        assert settled(lambda: _is_lost(other))
    assert pool.call("Broken.pid").result(DEADLINE_S) == pid


def test_faults_of_several_sessions_replace_the_worker(pool: atomr_mp.Pool) -> None:
    """In a planned way, after it has answered."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other, atomr_mp.connect(run_dir=pool.run_dir) as third:
        pool.call("Broken.break_step", "decode", 15, "touch").result(DEADLINE_S)
        for _ in range(5):
            for client in (pool, other, third):
                error = client.call("Broken.touch", 1, deadline_s=DEADLINE_S).exception(DEADLINE_S)
                assert error is None or type(error) is errors.InternalError
        wait_generation(pool, 2)
        assert pool.call("Broken.touch", 1).result(DEADLINE_S) == 1
        assert pool.devices[0].restarts == 0


def _is_lost(client: atomr_mp.Pool) -> bool:
    try:
        return isinstance(client.call("Broken.pid", deadline_s=1.0).exception(DEADLINE_S), errors.PoolLost)
    except errors.PoolLost:
        return True
