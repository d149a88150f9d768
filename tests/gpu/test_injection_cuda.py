"""Faults of `atomr_mp.testing` that on a GPU are kernels."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors, testing
from tests.support import ACTORS, DEADLINE_S, Ledger, wait_generation

pytestmark = pytest.mark.gpu

FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
OFTEN: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0, "backend": "cuda"}


def poisoned(pool: atomr_mp.Pool) -> errors.ContextPoisoned:
    """Call until the device has come to its fault, which may be some calls later; return what is said then."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        error = pool.call("Faulty.total", [1.0]).exception()
        if error is not None:
            assert isinstance(error, errors.ContextPoisoned)
            return error
    raise AssertionError("no fault was met")


@pytest.mark.parametrize("status", [700, 710, 716, 719])
def test_the_context_is_really_lost(ledger: Ledger, status: int) -> None:
    """The request that meets it, or the next one, gets its status; the device comes back."""
    with ledger.start(FAULTY, faults=[], **OFTEN) as pool:
        fault = testing.Poison(status)  # type: ignore[arg-type]
        with testing.inject(pool, at="enqueue", fault=fault, of="Faulty.total"):
            pool.call("Faulty.nothing").result()
            assert poisoned(pool).status == status
        wait_generation(pool, 2)
        pool.call("Faulty.nothing").result()
        testing.assert_nothing_left(pool)


@pytest.mark.parametrize("at", ["setup", "decode", "before_reply"])
def test_it_is_lost_wherever_it_was_ordered(ledger: Ledger, at: testing.Point) -> None:
    """No result leaves it; in a set-up the start is tried again."""
    with ledger.start(FAULTY, faults=[], **OFTEN) as pool:
        with testing.inject(pool, at=at, fault=testing.Poison()) as injected:
            if at == "setup":
                os.kill(pool.devices[0].pid, signal.SIGKILL)
            else:
                assert poisoned(pool).status == 700
            injected.wait()
        wait_generation(pool, 3 if at == "setup" else 2)
        pool.call("Faulty.nothing").result()


def test_a_kernel_that_never_ends_is_ended_with_its_process(ledger: Ledger) -> None:
    """The worker goes on listening meanwhile; its memory is back for the next one."""
    with ledger.start(FAULTY, faults=[], **OFTEN) as pool:
        with testing.inject(pool, at="enqueue", fault=testing.HangInKernel(), of="Faulty.nothing") as injected:
            stuck = pool.call("Faulty.nothing", deadline_s=60)
            (pid,) = injected.wait()
            os.kill(pid, signal.SIGKILL)
            assert isinstance(stuck.exception(), errors.WorkerLost)
        wait_generation(pool, 2)
        pool.call("Faulty.nothing").result()


def test_a_kernel_may_take_its_time(ledger: Ledger) -> None:
    """And end."""
    with ledger.start(FAULTY, faults=[], **OFTEN) as pool:
        with testing.inject(pool, at="enqueue", fault=testing.HangInKernel(0.2), of="Faulty.nothing"):
            assert pool.call("Faulty.nothing").result() is None
        assert pool.devices[0].generation == 1
