"""Kernels that never end, and the driver's reports of a GPU."""

from __future__ import annotations

from typing import Final

import pytest

from atomr_mp import errors
from tests.crash.workers.test_hangs import events
from tests.support import ACTORS, PROBE, Ledger, settled, wait_generation, wait_until

pytestmark = pytest.mark.gpu

HANGING: Final = f"{ACTORS}/hanging_cuda.py:HangingOnDevice"
FAULTY: Final = f"{ACTORS}/faulty.py:Faulty"
WAYS: Final = {
    "launch": {"cuda"},
    "launch_and_copy": {"cuda"},
    "launch_and_synchronise": {"cuda"},
    "launch_on_thread": {"cuda"},
    "launch_on_thread_and_synchronise": {"cuda"},
    # What the device still does is no reason: this one never asks for it.
    "lock_in_c": {"native"},
    "spin_beside_a_kernel": {"python"},
}
"""Where each may be found."""


@pytest.mark.parametrize("standby", ["none", "hot"])
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_that_never_ends_is_found_and_its_process_replaced(ledger: Ledger, way: str, standby: str) -> None:
    """Wherever its end is waited for; requests behind it did not run."""
    with ledger.start(HANGING, backend="cuda", standby=standby) as pool, ledger.gate("gate") as gate:
        before = pool.devices[0]
        if standby == "hot":
            wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        hung = pool.call(f"HangingOnDevice.{way}", gate.path, deadline_s=600)
        assert gate.wait() == [before.pid]
        error = hung.exception()
        assert type(error) is errors.WorkerHung
        assert error.where in WAYS[way]
        assert error.maybe_executed
        after = wait_generation(pool, before.generation + 1)
        assert pool.call("HangingOnDevice.where").result() == [after.pid, after.generation]
        (told,) = events(pool, "hung")
        assert "in _serve" in str(told["stacks"])


def test_an_illegal_access_is_noted_beside_the_workers_own_report(ledger: Ledger) -> None:
    """As Xid 31 or 13; and the worker is replaced once."""
    with ledger.start(FAULTY, PROBE, backend="cuda") as pool:
        assert type(pool.call("Faulty.fault_and_wait", "illegal").exception()) is errors.ContextPoisoned
        after = wait_generation(pool, 2)
        assert settled(lambda: any("Xid" in str(event["text"]) for event in events(pool, "gpu")))
        assert {event["measure"] for event in events(pool, "gpu")} <= {"restart", "note"}
        assert after.restarts == 1
        assert pool.call("Probe.echo", 1).result() == 1
        assert pool.devices[0].generation == 2
