"""A preparation that ends its process is its request's doing: that one is named and refused, and no other."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from tests.support import ACTORS, Ledger, settled

DEADLY: Final = f"{ACTORS}/deadly_plans.py:DeadlyPlans"


def doubling(device: atomr_mp.Device, n: int) -> Any:
    """Return a program without refs for vectors of a length."""
    with device.program() as p:
        x = p.input("x", (n,), "float64")
        p.returns(p.elementwise.add(x, x))
    return p


@pytest.mark.parametrize("n", [13, 17], ids=["SIGKILL", "SIGSEGV"])
def test_a_preparation_that_ends_its_process_is_held_against_its_request(ledger: Ledger, n: int) -> None:
    """It ends two workers in all; what waits for a plan behind it is lost with the first, and acquitted."""
    settings: dict[str, Any] = {"max_suspicions": 2, "max_restarts": 100, "backoff_initial_s": 0.01}
    with ledger.start(DEADLY, **settings) as pool, ledger.gate("preparation") as gate:
        device = pool.device(0)
        deadly, behind = doubling(device, n), doubling(device, 5)
        lost = deadly.run(x=np.ones(n))
        gate.wait()
        also_lost = behind.run(x=np.ones(5))
        assert settled(lambda: pool.status().workers[0].running == 2)
        pool.call("DeadlyPlans.nothing").result()  # the loop goes on beside a preparation
        gate.open(2)
        for reply in (lost, also_lost):
            error = reply.exception()
            assert isinstance(error, errors.WorkerLost), error
            assert error.maybe_executed
        assert behind.run(x=np.ones(5)).result().numpy().tolist() == [2.0] * 5
        found = deadly.run(x=np.ones(n)).exception()
        assert isinstance(found, errors.PoisonRequest), found
        assert (found.ends, found.method, found.maybe_executed) == (2, "program.run", True)
        with pytest.raises(errors.PoisonRequest):
            deadly.run(x=np.ones(n))
        assert behind.run(x=np.ones(5)).result().numpy().tolist() == [2.0] * 5
        assert pool.devices[0].restarts == 2
        told = [each for each in read_events(pool.run_dir / "events.msgpack") if each["event"] == "poison_request"]
        assert all(found.fingerprint in str(each["text"]) for each in told[-1:])
        assert told
