"""Several devices of one GPU: their numbers, their ends, and refs between them; and actors that only some have."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.cli.events import _line as event_line
from atomr_mp.cli.status import title
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import DeviceState
from tests.remote import serve
from tests.support import (
    ACTORS,
    BACKEND,
    Events,
    Ledger,
    in_loop,
    parts_of,
    settled,
    wait_generation,
    wait_until,
)

EVERYWHERE: Final = f"{ACTORS}/placed.py:Everywhere"
HERE: Final = f"{ACTORS}/placed.py:Here@0"
THERE: Final = f"{ACTORS}/placed.py:There@1+2"
PLACED: Final[dict[str, Any]] = {"gpus": 1, "workers_per_gpu": 3}


def loaded(ledger: Ledger) -> set[str]:
    """Return which actor was set up on which device."""
    return set(ledger.runs("loaded"))


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_devices_of_a_gpu_are_numbered_beside_each_other(ledger: Ledger, gpus: int) -> None:
    """Status, events, logs and errors name both; the quota is a share of what the GPU's one device would have."""
    with ledger.start(EVERYWHERE, gpus=gpus, workers_per_gpu=2) as pool:
        places = [(device.index, device.gpu, device.worker, device.workers_per_gpu) for device in pool.devices]
        assert places == [(2 * gpu + worker, gpu, worker, 2) for gpu in range(gpus) for worker in range(2)]
        assert [pool.call("Everywhere.where", device=index).result() for index in range(2 * gpus)] == list(
            range(2 * gpus)
        )
        assert len({device.pid for device in pool.devices}) == 2 * gpus
        assert len({device.uuid for device in pool.devices}) == (gpus if BACKEND == "cuda" else 1)
        last = msgspec.to_builtins(pool.status().devices[-1])
        assert (last["gpu"], last["worker"], last["workers_per_gpu"]) == (gpus - 1, 1, 2)
        words = f"device {2 * gpus - 1} (GPU {gpus - 1}, worker 1)"
        assert title(last) == words
        ready = [event for event in read_events(pool.run_dir / "events.jsonl") if event["event"] == "ready"]
        assert {(event["device"], event["gpu"], event["worker"]) for event in ready} == {each[:3] for each in places}
        assert any(f"{words} generation 1: ready after" in event_line(event) for event in ready)
        log = (pool.run_dir / f"device-{2 * gpus - 1}.log").read_text()
        assert log.startswith(f"--- {words} generation 1\n")


def test_one_worker_of_a_gpu_ends_and_the_others_serve_on(ledger: Ledger) -> None:
    """With the calls that they run, their refs, and their generation; only the one that was killed has another."""
    with ledger.start(EVERYWHERE, gpus=1, workers_per_gpu=2) as pool, ledger.gate("gate") as gate:
        before, events = pool.devices[1], Events(pool)
        kept = pool.call("Everywhere.ones", 10, device=1).result()
        running = pool.call("Everywhere.hold", gate.path, device=1, deadline_s=600)
        gate.wait()
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        events.wait(lambda device: device.index == 0 and device.state is not DeviceState.READY)
        wait_generation(pool, 2, 0)
        gate.open()
        assert running.result() == 1
        assert pool.call("Everywhere.total", kept, device=1).result() == 10.0
        assert pool.devices[1] == before
        assert pool.call("Everywhere.where", device=0).result() == 0


def test_a_ref_of_a_gpu_s_other_device_is_another_device_s(ledger: Ledger) -> None:
    """It is lent to the device that a call names, and stale when its own device has ended."""
    with ledger.start(EVERYWHERE, gpus=1, workers_per_gpu=2) as pool:
        there = pool.device(1).put(np.arange(1000.0))
        assert pool.call("Everywhere.total", there).result() == 499500.0
        assert pool.call("Everywhere.total", there, device=0).result() == 499500.0
        assert there.device == 1
        with pytest.raises(errors.GpuRefWrongDevice):
            pool.call("Everywhere.total", [there, pool.device(0).put(np.ones(3))])
        os.kill(pool.devices[1].pid, signal.SIGKILL)
        wait_generation(pool, 2, 1)
        with pytest.raises(errors.GpuRefStale):
            pool.call("Everywhere.total", there, device=0)
        assert pool.devices[0].generation == 1


def test_an_actor_is_where_its_devices_are_and_nowhere_else(ledger: Ledger) -> None:
    """Neither its worker nor a standby of another device loads it. Every kind of call finds it."""
    with ledger.start(EVERYWHERE, HERE, THERE, **PLACED, standby="hot") as pool:
        wait_until(pool, lambda: all(device.standby is not None for device in pool._client.devices))
        placed = {"Here:0", "There:1", "There:2"}
        assert loaded(ledger) == {f"Everywhere:{device}" for device in range(3)} | placed
        assert len(ledger.runs("loaded")) == 2 * len(loaded(ledger))
        assert {pool.call("Here.where").result() for _ in range(9)} == {0}
        replies = [pool.call("There.where") for _ in range(60)]
        assert {reply.result() for reply in replies} == {1, 2}
        assert set(pool.map("There.where", range(100))) == {1, 2}
        assert set(pool.map("There.together", range(100))) == {1, 2}
        assert set(parts_of(pool.stream("Here.count", 3))[0]) == {0}
        assert pool.actor("There", device=2).where().result() == 2
        assert [device.index for device in pool.devices_for("There.where")] == [1, 2]

        async def both() -> set[int]:
            calls = [pool.call("There.where") for _ in range(60)]
            return {await call for call in calls} | {device async for device in pool.amap("There.where", range(60))}

        assert in_loop(both) == {1, 2}


def test_a_process_that_is_made_ahead_imports_its_device_s_actors_alone(ledger: Ledger) -> None:
    """As the one that it takes the place of."""
    with ledger.start(EVERYWHERE, HERE, THERE, **PLACED, standby="warm") as pool:
        for device in list(pool.devices):
            os.kill(device.pid, signal.SIGKILL)
            pid = wait_generation(pool, 2, device.index).pid
            made = {
                name
                for made_by, _, name in (line.partition(":") for line in ledger.runs("made"))
                if made_by == str(pid)
            }
            assert made == {"Everywhere", "There" if device.index else "Here"}
        assert [device.generation for device in pool.devices] == [2, 2, 2]


def test_a_call_for_a_device_without_the_actor_is_refused(ledger: Ledger) -> None:
    """Before anything is sent, with the devices that have it, whether it names the device or brings its memory."""
    with ledger.start(EVERYWHERE, HERE, THERE, **PLACED) as pool:
        words = r"^There\.where cannot run on device 0: the actor There is on devices 1 and 2 alone"
        with pytest.raises(errors.InvalidRequest, match=words):
            pool.call("There.where", device=0)
        with pytest.raises(errors.InvalidRequest, match=words):
            pool.actor("There", device=0).where()
        with pytest.raises(errors.InvalidRequest, match="the actor Here is on device 0 alone"):
            pool.stream("Here.count", 3, device=1)
        at_two = pool.device(2).put(np.ones(5))
        with pytest.raises(errors.InvalidRequest, match="cannot run on device 2"):
            pool.call("Here.total", at_two)
        assert pool.call("Here.total", at_two, device=0).result() == 5.0
        assert pool.call("There.total", at_two).result() == 5.0


def test_calls_wait_for_the_devices_of_their_actor(ledger: Ledger) -> None:
    """While those come back, or have no room, calls of other actors go on."""
    with ledger.start(HERE, THERE, **PLACED, window_requests=2) as pool, ledger.gate("gate") as gate:

        async def busy() -> list[int]:
            held = [pool.call("There.hold", gate.path, deadline_s=600) for _ in range(10)]
            await asyncio.to_thread(gate.wait, 2)  # one on each of their devices; as many wait there, the others here
            assert [await pool.call("Here.where") for _ in range(10)] == [0] * 10
            gate.open(10)
            return [await reply for reply in held]

        assert set(in_loop(busy)) == {1, 2}
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert pool.call("Here.where", deadline_s=60).result() == 0
        assert pool.call("There.where").result() in {1, 2}
        wait_generation(pool, 2, 0)


def test_a_remote_client_s_calls_go_there_too(ledger: Ledger) -> None:
    """And are refused with the same words."""
    served = serve(ledger, EVERYWHERE, HERE, THERE, **PLACED)
    with served.pool, served.connect() as far:
        assert {far.call("There.where").result() for _ in range(30)} <= {1, 2}
        assert far.call("Here.where").result() == 0
        with pytest.raises(errors.InvalidRequest, match="the actor Here is on device 0 alone"):
            far.call("Here.where", device=1)
        assert set(far.map("There.where", range(50))) <= {1, 2}


def test_an_actor_is_placed_by_a_function_too(ledger: Ledger) -> None:
    """A device that a pool does not have is refused before anything starts."""
    placed = atomr_mp.on_devices(f"Other={ACTORS}/placed.py:Everywhere", [1])
    with ledger.start(EVERYWHERE, placed, gpus=1, workers_per_gpu=2) as pool:
        assert pool.call("Other.where").result() == 1
    with pytest.raises(errors.ConfigurationError, match="actor Other is for device 1, and there is no device 1"):
        ledger.start(EVERYWHERE, placed, gpus=1)


def test_a_reload_moves_an_actor(ledger: Ledger) -> None:
    """From then on calls go where it is; a pool refuses devices that it does not have."""
    file = ledger.path / "pool.toml"

    def write(*actors: str, workers: int = 2) -> None:
        listed = ", ".join(f'"{actor}"' for actor in actors)
        file.write_text(f"actors = [{listed}]\nworkers_per_gpu = {workers}\n")

    at = f"{ACTORS}/placed.py:Here@{{}}"
    write(EVERYWHERE, at.format(0))
    settings: dict[str, Any] = {"backend": BACKEND, "run_dir": ledger.run_dir(), "max_suspicions": 0}
    with atomr_mp.start(config=file, gpus=1, **settings) as pool:
        assert pool.call("Here.where").result() == 0
        write(EVERYWHERE, at.format(1))
        assert pool.reload() == []
        assert settled(lambda: [device.index for device in pool.devices_for("Here.where")] == [1])
        assert {pool.call("Here.where").result() for _ in range(5)} == {1}
        write(EVERYWHERE, at.format(2), workers=3)
        with pytest.raises(errors.ConfigurationError, match="there is no device 2"):
            pool.reload()
        write(EVERYWHERE, workers=3)
        assert pool.reload() == ["workers_per_gpu"]
        assert settled(lambda: "Here.where" not in pool.methods)
