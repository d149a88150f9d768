"""Programs with loops whose worker is killed amid them: each run has one answer, and it is right."""

from __future__ import annotations

import os
import random
import signal

import numpy as np

import atomr_mp
from atomr_mp import errors
from atomr_mp.libraries.program import Program
from tests.support import DEADLINE_S, Ledger, settled, wait_generation

ROUNDS = 3000
KILLS = 4


def sums(device: atomr_mp.Device) -> Program:
    """Return a program without refs: n rounds, each of which adds x to a sum, and to another in every round but one."""
    with device.program() as p:
        n, one, x = (p.input(name, (), "int64") for name in ("n", "one", "x"))
        left, total, other = p.elementwise.maximum(n, n), p.elementwise.subtract(n, n), p.elementwise.subtract(n, n)
        with p.while_(left, most=2**40) as loop:
            p.elementwise.subtract(left, one, left)
            p.elementwise.add(total, x, total)
            with p.if_(left):
                p.elementwise.add(other, x, other)
        p.returns(total, other, loop.rounds)
    return p


def check(run: atomr_mp.Reply, x: int) -> None:
    """Check what a run returns; if its worker is gone by now, or goes while that is read, so is that."""
    try:
        results = run.result(DEADLINE_S)
        found = [int(each.numpy()) for each in results]
    except (errors.GpuRefStale, errors.WorkerLost):
        return
    assert found == [x * ROUNDS, x * (ROUNDS - 1), ROUNDS]


def test_each_run_is_answered_once_and_rightly_whatever_is_killed(ledger: Ledger) -> None:
    """With its result, or that its worker is lost; a cancelled one ends; those of the next worker are well."""
    order = random.Random(5)
    with ledger.start(
        backend="host", standby="hot", max_restarts=1000, backoff_initial_s=0.0, max_suspicions=0
    ) as pool:
        p = sums(pool.device(0))
        answers: dict[int, list[object]] = {}
        for kill in range(KILLS):
            wait_generation(pool, kill + 1)
            one = np.int64(1)
            runs = {
                x: p.run(n=np.int64(ROUNDS), one=one, x=np.int64(x), deadline_s=DEADLINE_S)
                for x in range(8 * kill, 8 * kill + 8)
            }
            unwanted = p.run(n=np.int64(2**40), one=one, x=one, deadline_s=DEADLINE_S)
            for x, run in runs.items():
                run.add_done_callback(lambda _, x=x: answers.setdefault(x, []).append(x))  # type: ignore[misc]
            assert settled(lambda: pool.status().devices[0].running > 0)
            if order.random() < 0.5:
                unwanted.cancel()
            pid = pool.devices[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            unwanted.cancel()
            for x, run in runs.items():
                if not isinstance(run.exception(DEADLINE_S), errors.WorkerLost):
                    check(run, x)
            wait_generation(pool, kill + 2)
            check(p.run(n=np.int64(ROUNDS), one=one, x=np.int64(kill)), kill)
            assert isinstance(unwanted.exception(DEADLINE_S), errors.Cancelled | errors.WorkerLost)
        assert answers == {x: [x] for x in range(8 * KILLS)}
        assert settled(lambda: pool.status().devices[0].running == 0)
