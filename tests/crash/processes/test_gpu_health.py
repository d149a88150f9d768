"""Reactions to the driver's reports of a GPU, with a fake driver and real workers on the host."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.startup import planning
from atomr_mp.supervision.recycle import MEMORY_AFTER_S
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.testing import Hang
from tests.crash.workers.test_hangs import HANGING, events
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, settled, wait_generation, wait_state

pytestmark = pytest.mark.skipif(BACKEND != "host", reason="the stand-in hides the driver that a GPU needs")

STAND_INS = Path(__file__).parents[2] / "stand_ins"

Report = Callable[[str], None]


@pytest.fixture
def report(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Give each of the host's devices a GPU's UUID; return what has the driver report something of the first."""
    host_devices = planning._host_devices

    def with_gpus(settings: PoolSettings) -> object:
        plans = [msgspec.structs.replace(plan, uuid=f"GPU-{plan.gpu}") for plan in host_devices(settings)]
        for plan in plans:
            (ledger.path / plan.uuid).touch()
        return plans

    monkeypatch.setattr(planning, "_host_devices", with_gpus)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), os.environ.get("PYTHONPATH", "")]))

    def add(line: str) -> None:
        with (ledger.path / "GPU-0").open("a") as file:
            file.write(f"{line}\n")

    return add


def reports(pool: atomr_mp.Pool) -> list[tuple[object, object]]:
    """Return what the event log has of the first device's GPU."""
    return [(event["measure"], event["text"]) for event in events(pool, "gpu") if event["device"] == 0]


def test_an_error_that_a_worker_finds_out_by_itself_is_noted_and_no_more(ledger: Ledger, report: Report) -> None:
    """The event log and the status have it, beside the worker's fate."""
    with ledger.start(HANGING, gpus=2) as pool:
        before = pool.devices[0]
        report("xid 31")
        assert settled(lambda: len(reports(pool)) == 1)
        ((measure, text),) = reports(pool)
        assert measure == "restart"
        assert "Xid 31" in str(text)
        assert pool.status().devices[0].notes == [text]
        assert pool.status().devices[1].notes == []
        assert pool.devices[0] == before
        assert pool.call("Hanging.where", device=0).result() == [before.pid, before.generation]


def test_a_worker_that_takes_too_much_of_its_device_is_replaced(ledger: Ledger, report: Report) -> None:
    """The driver's figures of its process decide, or else its slabs. Callers notice nothing, whatever runs or waits."""
    keeper = f"{ACTORS}/keeper.py:Keeper"
    with ledger.start(keeper, gpus=2, max_device_bytes=2**24) as pool, ledger.gate("gate") as gate:
        before = list(pool.devices)
        pool.call("Keeper.grow", 2**20, device=0).result()
        report(f"memory {before[0].pid} {2**25}")
        wait_generation(pool, 2, 0, MEMORY_AFTER_S + DEADLINE_S)
        assert pool.devices[1] == before[1]
        running = pool.call("Keeper.wait", gate.path, device=1, deadline_s=600)
        gate.wait()
        pool.call("Keeper.grow", 2**24, device=1).result()
        wait_state(pool, DeviceState.DRAINING, 1)
        waiting = [pool.call("Keeper.total", np.ones(3), device=device) for device in (0, 1)]
        gate.open()
        assert running.exception() is None
        assert [reply.result() for reply in waiting] == [3.0, 3.0]
        wait_generation(pool, 2, 1)
        texts = {event["device"]: str(event["text"]) for event in events(pool, "recycle")}
        assert f"by what the driver tells, it takes {2**25} bytes of its device (max_device_bytes {2**24})" in texts[0]
        assert "its slabs take" in texts[1]
        assert not events(pool, "end")
        assert [device.restarts for device in pool.devices] == [0, 0]


def test_a_gpu_that_needs_a_reset_is_out_of_use_until_it_had_one(ledger: Ledger, report: Report) -> None:
    """Requests on it fail at once, other devices go on; afterwards a real start is the proof."""
    with ledger.start(HANGING, gpus=2) as pool, ledger.gate("gate") as gate:
        before = pool.devices[0]
        running = pool.call("Hanging.hold", gate.path, device=0, deadline_s=600)
        gate.wait()
        report("recovery 1")
        lost = running.exception()
        assert type(lost) is errors.WorkerLost
        assert "needs a reset" in lost.message
        info = wait_state(pool, DeviceState.QUARANTINED)
        assert "needs a reset" in info.reason
        with pytest.raises(errors.DeviceUnavailable, match="needs a reset"):
            pool.call("Hanging.where", device=0)
        assert pool.call("Hanging.where").result()[0] == pool.devices[1].pid
        report("recovery 0")
        after = wait_generation(pool, before.generation + 1)
        assert pool.call("Hanging.where", device=0).result() == [after.pid, after.generation]
        assert settled(lambda: pool.status().devices[0].notes == [])


def test_the_illness_of_a_gpu_is_that_of_all_its_devices(ledger: Ledger, report: Report) -> None:
    """All are out of use until it has recovered; the devices of another GPU go on as they were."""
    with ledger.start(HANGING, gpus=2, workers_per_gpu=2) as pool:
        before = list(pool.devices)
        report("recovery 1")
        for device in (0, 1):
            assert "needs a reset" in wait_state(pool, DeviceState.QUARANTINED, device).reason
            with pytest.raises(
                errors.DeviceUnavailable, match=rf"^device {device} \(host:0, GPU 0, worker {device}\) "
            ):
                pool.call("Hanging.where", device=device)
        assert pool.devices[2:] == before[2:]
        assert [bool(worker.notes) for worker in pool.status().devices] == [True, True, False, False]
        sick = [(event["device"], event["gpu"], event["worker"]) for event in events(pool, "sick")]
        assert sick == [(0, 0, 0), (1, 0, 1)]
        report("recovery 0")
        for device in (0, 1):
            after = wait_generation(pool, before[device].generation + 1, device)
            assert pool.call("Hanging.where", device=device).result() == [after.pid, after.generation]
        assert pool.devices[2:] == before[2:]
        assert settled(lambda: not any(worker.notes for worker in pool.status().devices))


def test_a_gpu_at_reduced_capacity_finishes_what_it_holds(ledger: Ledger, report: Report) -> None:
    """Then nothing is started on it, except by an operator."""
    with ledger.start(HANGING) as pool, ledger.gate("gate") as gate:
        before = pool.devices[0]
        running = pool.call("Hanging.hold", gate.path, deadline_s=600)
        gate.wait()
        report("recovery 4")
        wait_state(pool, DeviceState.DRAINING)
        gate.open()
        assert running.result() == before.pid
        wait_state(pool, DeviceState.QUARANTINED)
        assert pool.devices[0].restarts == 0
        pool.restart(0)
        after = wait_generation(pool, before.generation + 1)
        assert pool.call("Hanging.where").result()[0] == after.pid


def test_a_planned_replacement_is_not_noticed(ledger: Ledger, report: Report) -> None:
    """If the driver asks for the replacement of processes that use other GPUs' memory."""
    with ledger.start(HANGING, standby="hot") as pool:
        before = pool.devices[0]
        report("recovery 3")
        after = wait_generation(pool, before.generation + 1)
        assert pool.call("Hanging.where").result()[0] == after.pid
        assert after.restarts == 0


def test_a_driver_that_does_not_answer_delays_nobody(ledger: Ledger, report: Report) -> None:
    """Except for its reports: calls, the status, a failover and the pool's end go on without it."""
    with ledger.start(HANGING, faults=[]) as pool:
        before = pool.devices[0]
        with testing.inject(pool, at="nvml", fault=Hang(), times=None) as injected:
            report("xid 31")  # after which the driver is asked how the GPU is
            (asking, *_) = injected.wait()
            assert asking not in {pool.supervisor_pid, before.pid}
            assert pool.call("Hanging.where").result() == [before.pid, before.generation]
            assert pool.status().devices[0].pid == before.pid
            os.kill(before.pid, signal.SIGKILL)
            after = wait_generation(pool, before.generation + 1)
            assert pool.call("Hanging.where").result() == [after.pid, after.generation]
    assert not psutil.pid_exists(asking)
