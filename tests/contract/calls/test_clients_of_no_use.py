"""Everything that can be asked of a pool, by a client that was closed, and in a child forked from its process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.device import Device
from atomr_mp.protocol.messages.devices import WorldInfo
from tests.support import ACTORS, DEADLINE_S, KEEPER, PROBE, Ledger

LARGE: Final = 200_000

LOCAL: Final = {
    "Pool": "close device devices devices_for has is_starting lost method_info methods methods_by_name on_event "
    "on_lost run_dir streams world_of worlds",
    "Device": "program request uuid",
    "GpuRef": "T accept answered as_strided defined device dtype free generation holding is_of memory nbytes ndim "
    "numpy_dtype of_layout overlaps ravel refuse_in_loop reshape shape show size squeeze strides to_wire transpose",
    "World": "check_priority epoch has info state streams",
}
"""Names that send no request: what this process knows, the beginning of something else, and what only gives back."""


class Client:
    """A client, and what it asks: by class and name.

    Args:
        run_dir: Of the pool.
    """

    def __init__(self, run_dir: Any) -> None:
        pool = atomr_mp.connect(run_dir=run_dir)
        self.pool: Final = pool
        pool.wait_ready(DEADLINE_S)
        device = pool.device(0)
        pool.host_array(LARGE)  # its memory has room for another array
        ref = device.put(np.ones(LARGE))
        pool._client.worlds.take(WorldInfo(0, "tp", [0], ["Keeper"]))
        world = pool.world("tp")
        shared = ref.share()

        async def amap() -> list[Any]:
            return [each async for each in pool.amap("Probe.echo", [(1,)])]

        self.asks: Final[dict[str, Callable[[], object]]] = {
            "Pool.actor": lambda: pool.actor("Probe").echo(1).result(DEADLINE_S),
            "Pool.amap": lambda: asyncio.run(amap()),
            "Pool.call": lambda: pool.call("Probe.echo", 1).result(DEADLINE_S),
            "Pool.call_once": lambda: pool.call_once(
                "Probe.echo", (1,), None, deadline_s=None, priority=0, at=(0, pool.devices[0].generation)
            ).result(DEADLINE_S),
            "Pool.claim": lambda: pool.claim(shared),
            "Pool.figures": pool.figures,
            "Pool.host_array": lambda: pool.host_array(LARGE),
            "Pool.map": lambda: list(pool.map("Probe.echo", [(1,)])),
            "Pool.reload": pool.reload,
            "Pool.restart": lambda: pool.restart(0),
            "Pool.status": pool.status,
            "Pool.stream": lambda: list(pool.stream("Streamer.count", 2)),
            "Pool.wait_ready": lambda: pool.wait_ready(DEADLINE_S),
            "Pool.world": lambda: pool.world("tp"),
            "World.actor": lambda: world.actor("Keeper").large(1).result(DEADLINE_S),
            "World.call": lambda: world.call("Keeper.large", 1).result(DEADLINE_S),
            "World.stream": lambda: list(world.stream("Keeper.large_parts", 1, 1)),
            "World.wait_ready": lambda: world.wait_ready(DEADLINE_S),
            "Device.arange": lambda: device.arange(LARGE),
            "Device.empty": lambda: device.empty(LARGE),
            "Device.full": lambda: device.full(LARGE, 1),
            "Device.ones": lambda: device.ones(LARGE),
            "Device.put": lambda: device.put(np.ones(LARGE)),
            "Device.statistics": device.statistics,
            "Device.zeros": lambda: device.zeros(LARGE),
            "GpuRef.astype": lambda: ref.astype("float32"),
            "GpuRef.copy": ref.copy,
            "GpuRef.copy_to": lambda: ref[:1].copy_to(ref[1:2]),
            "GpuRef.fill": lambda: ref.fill(1),
            "GpuRef.item": ref[:1].item,
            "GpuRef.max": ref.max,
            "GpuRef.mean": ref.mean,
            "GpuRef.min": ref.min,
            "GpuRef.numpy": ref.numpy,
            "GpuRef.prod": ref.prod,
            "GpuRef.share": ref.share,
            "GpuRef.sum": ref.sum,
            "GpuRef.view": ref.view,
        }

    def outcomes(self) -> dict[str, str]:
        """Ask everything, and return the classes of the errors by what was asked; "" for none."""
        found = {}
        for name, ask in self.asks.items():
            try:
                ask()
            except Exception as error:  # noqa: BLE001 - shown by the test
                found[name] = type(error).__name__
            else:
                found[name] = ""
        return found


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One client of a pool of its own, which the last test closes."""
    with Ledger() as ledger, ledger.start(PROBE, f"{ACTORS}/streaming.py:Streamer", KEEPER) as pool:
        made = Client(pool.run_dir)
        yield made
        made.pool.close()


def test_every_public_name_is_asked_here_or_sends_no_request(client: Client) -> None:
    """Whoever adds a method to a pool, a device or a ref has to say which it is."""
    for cls in (atomr_mp.Pool, Device, atomr_mp.GpuRef, atomr_mp.World):
        public = {f"{cls.__name__}.{name}" for name in dir(cls) if not name.startswith("_")}
        local = {f"{cls.__name__}.{name}" for name in LOCAL[cls.__name__].split()}
        assert public == local | {name for name in client.asks if name.startswith(f"{cls.__name__}.")}
        assert not local & client.asks.keys()


def test_a_forked_child_is_refused_whatever_it_asks(client: Client) -> None:
    """Also what needs no worker: it would use memory that the parent uses as its own. The parent goes on."""
    array = client.pool.host_array(LARGE)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(DEADLINE_S))
        try:
            os.write(theirs, json.dumps(client.outcomes()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as found:
        assert set(json.loads(found.read()).items()) == {(name, errors.PoolLost.__name__) for name in client.asks}
    os.waitpid(child, 0)
    array[:] = 3
    assert (client.pool.device(0).put(array).numpy() == 3).all()


def test_a_closed_client_is_refused_whatever_it_asks(client: Client) -> None:
    """With the one error that says so."""
    client.pool.close()
    assert set(client.outcomes().items()) == {(name, errors.PoolLost.__name__) for name in client.asks}
