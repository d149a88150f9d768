"""A request of a library that ends its process, alone or in a program, is named and refused, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from tests.support import ACTORS, BACKEND, Ledger, local_client, settled, wait_until

DEADLY: Final = f"{ACTORS}/deadly_plans.py:DeadlyPlans"
SETTINGS: Final[dict[str, Any]] = {"max_suspicions": 2, "max_restarts": 100, "backoff_initial_s": 0.01}


def by_program(device: atomr_mp.Device, n: int) -> atomr_mp.Reply:
    """Double a vector of ones by a program without refs."""
    with device.program() as p:
        x = p.input("x", (n,), "float64")
        p.returns(p.elementwise.add(x, x))
    return p.run(x=np.ones(n))


def by_program_with_refs(device: atomr_mp.Device, n: int) -> atomr_mp.Reply:
    """Double a vector that is put anew by a program that is recorded anew."""
    x = device.put(np.ones(n))
    with device.program() as p:
        p.returns(p.elementwise.add(x, x))
    return p.run()


def by_request(device: atomr_mp.Device, n: int) -> atomr_mp.Reply:
    """Double a vector that is put anew."""
    x = device.put(np.ones(n))
    reply: atomr_mp.Reply = device.elementwise.add(x, x)
    return reply


@pytest.mark.skipif(BACKEND != "host", reason="the actor changes the host's library")
@pytest.mark.parametrize(
    ("send", "method", "n"),
    [
        pytest.param(by_program, "program.run", 13, id="SIGKILL"),
        pytest.param(by_program_with_refs, "program.run", 17, id="SIGSEGV"),
        pytest.param(by_request, "elementwise.add", 13, id="SIGKILL by itself"),
    ],
)
def test_a_preparation_that_ends_its_process_is_held_against_its_request(
    ledger: Ledger, send: Callable[[atomr_mp.Device, int], atomr_mp.Reply], method: str, n: int
) -> None:
    """It ends two workers in all; what waits for a plan behind it is lost with the first, and acquitted."""
    with ledger.start(DEADLY, **SETTINGS) as pool, ledger.gate("preparation") as gate:
        device = pool.device(0)
        lost = send(device, n)
        gate.wait()
        also_lost = send(device, 5)
        assert settled(lambda: pool.status().devices[0].running == 2)
        pool.call("DeadlyPlans.nothing").result()  # the loop goes on beside a preparation
        gate.open(2)
        for reply in (lost, also_lost):
            error = reply.exception()
            assert isinstance(error, errors.WorkerLost), error
            assert error.maybe_executed
        assert send(device, 5).result().numpy().tolist() == [2.0] * 5
        found = send(device, n).exception()
        assert isinstance(found, errors.PoisonRequest), found
        assert (found.ends, found.method, found.maybe_executed) == (2, method, True)
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            for each in (device, other.device(0)):
                with pytest.raises(errors.PoisonRequest):
                    send(each, n)
                assert send(each, 5).result().numpy().tolist() == [2.0] * 5
        assert pool.devices[0].restarts == 2
        told = [each for each in read_events(pool.run_dir / "events.jsonl") if each["event"] == "poison_request"]
        assert all(found.fingerprint in str(each["text"]) for each in told[-1:])
        assert told


@pytest.mark.skipif(BACKEND != "host", reason="the actor changes the host's library")
def test_content_that_ends_a_process_is_not_held_against_other_content(ledger: Ledger) -> None:
    """A request that differs in nothing but its content runs alone after it, and acquits them both."""
    with ledger.start(DEADLY, **SETTINGS) as pool:
        device = pool.device(0)

        def square(value: float) -> atomr_mp.Reply:
            x = device.put(np.full(5, value))
            reply: atomr_mp.Reply = device.elementwise.multiply(x, x)
            return reply

        for _ in range(3):
            error = square(13.0).exception()
            assert type(error) is errors.WorkerLost, error
            assert square(3.0).result().numpy().tolist() == [9.0] * 5
            wait_until(pool, lambda: not local_client(pool).suspicions.methods)
        for _ in range(2):
            error = square(13.0).exception()
        assert isinstance(error, errors.PoisonRequest), error
        (held,) = pool.status().quarantined
        assert (held.request.method, held.ends) == ("elementwise.multiply", 2)
