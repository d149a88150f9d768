"""A worker that survives its kill: its device is quarantined, the pool goes on, and it comes back by a real start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.cli.status import EXIT
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.allocation import SLAB_BYTES
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.startup import launch
from atomr_mp.testing import NoMemory
from tests.crash.workers.test_hangs import HANGING, events
from tests.support import Ledger, settled, wait_generation, wait_state, wait_until

KILL_TIMEOUT_S = 0.5


@pytest.fixture(autouse=True)
def stuck(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have pools started whose workers survive what the supervisor sends, as long as this file is there."""
    monkeypatch.setattr(launch, "MODULE", "tests.programs.withholding")
    path = ledger.path / "stuck"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def hang(pool: atomr_mp.Pool, ledger: Ledger, device: int = 0) -> int:
    """Have a worker hang; return its pid when its request has got that error."""
    with ledger.gate(f"gate-{pool.devices[device].generation}") as gate:
        reply = pool.call("Hanging.wait_for_nobody", gate.path, device=device, deadline_s=600)
        (pid,) = gate.wait()
        assert type(reply.exception()) is errors.WorkerHung
    return pid


def test_a_device_whose_worker_does_not_end_is_quarantined_until_it_has(ledger: Ledger) -> None:
    """Its requests fail all the same, other devices go on, and the next worker's start is the proof."""
    with ledger.start(HANGING, gpus=2, kill_timeout_s=KILL_TIMEOUT_S) as pool:
        pid = hang(pool, ledger)
        info = wait_state(pool, DeviceState.QUARANTINED)
        wait_until(pool, lambda: f"pid {pid}" in pool._client.devices[0].reason)
        with pytest.raises(errors.DeviceUnavailable, match=f"pid {pid}"):
            pool.call("Hanging.where", device=0)
        assert pool.call("Hanging.where").result()[0] == pool.devices[1].pid
        assert [event["pid"] for event in events(pool, "unkillable")] == [pid]
        shown = pool.status()
        assert (shown.state, EXIT[shown.state]) == ("degraded", 1)
        assert shown.devices[0].state is DeviceState.QUARANTINED
        assert f"pid {pid}" in shown.devices[0].reason
        os.kill(pid, signal.SIGKILL)
        after = wait_generation(pool, info.generation + 1)
        assert pool.call("Hanging.where", device=0).result() == [after.pid, after.generation]
        assert [event["pid"] for event in events(pool, "unstuck")] == [pid]
        assert after.restarts == 1


def test_nothing_is_started_on_a_gpu_of_whose_devices_one_does_not_end(ledger: Ledger, stuck: Path) -> None:
    """A sibling goes on; if it ends, it is out of use too, and comes back with the other. Other GPUs are none of it."""
    with ledger.start(HANGING, gpus=2, workers_per_gpu=2, kill_timeout_s=KILL_TIMEOUT_S) as pool:
        before = list(pool.devices)
        pid = hang(pool, ledger)
        wait_state(pool, DeviceState.QUARANTINED)
        assert pool.call("Hanging.where", device=1).result() == [before[1].pid, 1]
        stuck.unlink()
        for device in (1, 2):
            os.kill(before[device].pid, signal.SIGKILL)
        info = wait_state(pool, DeviceState.QUARANTINED, 1)
        assert f"a killed worker of device 0, on the same GPU, has not ended (pid {pid})" in info.reason
        wait_generation(pool, 2, 2)
        assert pool.devices[3] == before[3]
        os.kill(pid, signal.SIGKILL)
        for device in (0, 1):
            after = wait_generation(pool, 2, device)
            assert pool.call("Hanging.where", device=device).result() == [after.pid, after.generation]


def test_an_operator_may_try_all_the_same(ledger: Ledger) -> None:
    """The process that does not end stays where it is, and is reaped when it has."""
    with ledger.start(HANGING, kill_timeout_s=KILL_TIMEOUT_S) as pool:
        pid = hang(pool, ledger)
        info = wait_state(pool, DeviceState.QUARANTINED)
        pool.restart(0)
        after = wait_generation(pool, info.generation + 1)
        assert pool.call("Hanging.where").result() == [after.pid, after.generation]
        os.kill(pid, signal.SIGKILL)
        assert settled(lambda: len(events(pool, "unstuck")) == 1)
        assert pool.call("Hanging.where").result() == [after.pid, after.generation]


def test_nothing_is_started_beside_a_predecessor_that_does_not_end(ledger: Ledger) -> None:
    """The standby has taken over before that was known; if it fails too, the device is quarantined."""
    with ledger.start(HANGING, standby="hot", kill_timeout_s=KILL_TIMEOUT_S) as pool:
        wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        first = hang(pool, ledger)
        wait_generation(pool, 2)
        assert settled(lambda: len(events(pool, "unkillable")) == 1)
        second = hang(pool, ledger)
        wait_state(pool, DeviceState.QUARANTINED)
        assert {event["generation"] for event in events(pool, "standby_start")} == {2}
        os.kill(first, signal.SIGKILL)
        assert settled(lambda: len(events(pool, "unstuck")) == 1)
        assert pool.devices[0].state == "quarantined"
        os.kill(second, signal.SIGKILL)
        wait_generation(pool, 3)
        wait_until(pool, lambda: pool._client.devices[0].standby is not None)


def die(pool: atomr_mp.Pool, ledger: Ledger) -> int:
    """Have a standby take the place of a worker that is killed and does not end; return that one's pid."""
    wait_until(pool, lambda: pool._client.devices[0].standby is not None)
    with ledger.gate("dies") as gate:
        pool.call("Hanging.wait_for_nobody", gate.path, deadline_s=600)
        (pid,) = gate.wait()
    wait_generation(pool, 2)
    return pid


def test_an_allocation_waits_for_the_memory_of_a_dying_predecessor(ledger: Ledger, stuck: Path) -> None:
    """What finds none tries once more when that has ended, on the loop."""
    with ledger.start(HANGING, standby="hot", kill_timeout_s=60.0, faults=[]) as pool:
        first = die(pool, ledger)
        with testing.inject(pool, at="allocate", fault=NoMemory(), generation=2, times=2) as injected:
            made = pool.call("Hanging.make")
            injected.wait(2)
            stuck.unlink()
            os.kill(first, signal.SIGKILL)
            assert made.result().generation == 2


def test_an_allocation_waits_for_nobody_else(ledger: Ledger, stuck: Path) -> None:
    """Not where there is no predecessor; not for ever, and not twice, for one that does not end."""
    with ledger.start(HANGING, standby="hot", kill_timeout_s=60.0, faults=[]) as pool:
        wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        with testing.inject(pool, at="allocate", fault=NoMemory(), times=None) as injected:
            # As much as needs a slab of its own: a standby has one ready.
            with pytest.raises(errors.OutOfMemory, match="a test lets the device have no memory left"):
                pool.device(0).empty(2 * SLAB_BYTES, "uint8")
            before = len(injected.fired)
            first = die(pool, ledger)
            for _ in range(2):
                with pytest.raises(errors.OutOfMemory):
                    pool.device(0).empty(2 * SLAB_BYTES, "uint8")
            # The promoted worker may have tried to make a spare slab for its client meanwhile, off its loop.
            assert len(injected.fired) - 3 * before in {0, before // 2}
        stuck.unlink()
        os.kill(first, signal.SIGKILL)
        wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        assert pool.call("Hanging.where").result()[1] == 2


def test_a_stop_does_not_wait_for_what_does_not_end(ledger: Ledger) -> None:
    """It is named for the next supervisor."""
    pool = ledger.start(HANGING, kill_timeout_s=KILL_TIMEOUT_S)
    with pool:
        pid = hang(pool, ledger)
        wait_state(pool, DeviceState.QUARANTINED)
        with OperatorSession(pool.run_dir / "session.sock") as observer:
            observer.stop()
    assert settled(lambda: [path.name for path in (pool.run_dir / "workers").iterdir()] == [str(pid)])
    os.kill(pid, signal.SIGKILL)
    (pool.run_dir / "workers" / str(pid)).unlink()
