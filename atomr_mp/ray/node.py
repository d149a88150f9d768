"""Ray's actor on a node: it starts the pool, admits clients' keys, and ends with its raylet."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

import ray

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.pool import Pool
from atomr_mp.process.files.rundir import SESSION_SOCKET, default_run_dir
from atomr_mp.ray.admission import admit, is_full
from atomr_mp.ray.boards import END_S, KEPT, Boards
from atomr_mp.ray.gpu_locks import GpuLocks, given_gpus
from atomr_mp.ray.outcomes import Outcome, outcome
from atomr_mp.ray.raylet import watch_raylet
from atomr_mp.ray.sweeper import sweep_after
from atomr_mp.remote import keys
from atomr_mp.supervision.placement import VISIBLE
from atomr_mp.version import __version__

PREDECESSOR_S: Final = 15.0
"""How long the pool of a former actor on this node, or another pool on its GPUs, may take to end."""

LISTEN_S: Final = 30.0
"""How long the relay may take to listen."""

AGAIN_S: Final = 0.05
"""Time between looks at things that no event tells of: another pool's end, the relay's start."""


class NodePool:
    """Owns the pool of a node. It is Ray's actor, with an event loop; made by `Cluster`.

    Args:
        name: The cluster's name and the bundle's number, with which the run directory's name begins.
        devices: How many GPUs it has, or processes on the host backend.
        settings: For `atomr_mp.start`.
        ports: First and last port for the relay, None for any.
    """

    def __init__(self, name: str, devices: int, settings: dict[str, Any], ports: tuple[int, int] | None) -> None:
        self._node: Final = ray.get_runtime_context().get_node_id()
        self._name: Final = f"{name}-{self._node[:8]}-{os.getpid()}"  # no successor's: its directory is removed
        self._devices: Final = devices
        self._settings: Final = settings
        self._ports: Final = ports
        self._run_dir: Final = default_run_dir(self._name)
        self._keys: Final = self._run_dir.with_name(f"{self._name}.keys")
        self._locks: Final = GpuLocks(default_run_dir("ray-gpu-locks"), self._run_dir)
        self._pool: Pool | None = None
        self._supervisor = -1
        """A pidfd of the pool's supervisor."""
        self._server = ""
        self._address = ""
        self._boards: dict[str, Boards] = {}
        """The boards of the last pools, by epoch."""
        self._opening = asyncio.Lock()
        self._admitting = asyncio.Lock()
        self._sweeper = sweep_after(self._run_dir, self._keys)
        """Whatever ends this process closes it."""
        watch_raylet(lambda: os._exit(1))  # before the pool, which must not outlive a raylet that ends during its start

    async def open(self, version: str) -> Outcome:
        """Start the pool if it does not run; return where it is."""
        return await outcome(self._open(version))

    async def admit(self, name: str, public: str) -> Outcome:
        """Admit a client's public key for as long as this pool lives."""
        return await outcome(self._admit(name, public))

    async def started(self, epoch: str) -> Outcome:
        """Return the calls that a lost pool had started, as (ids, for how long they are known); None if nothing tells.

        Args:
            epoch: The pool's.
        """
        boards = self._boards.get(epoch)
        found = None if boards is None else await asyncio.to_thread(boards.started, 2 * END_S)
        return {"value": found and tuple(found)}

    async def stop(self) -> Outcome:
        """Stop the pool in good order, and remove its directory."""
        return await outcome(self._stop())

    async def _open(self, version: str) -> dict[str, Any]:
        if version != __version__:
            raise errors.ConfigurationError(
                f"node {self._node[:8]} has atomr-mp {__version__}, and its client {version}: install the same"
            )
        async with self._opening:
            if self._pool is None or self._has_ended():
                self._pool = await asyncio.to_thread(self._start)
                self._supervisor = os.pidfd_open(self._pool.supervisor_pid)
                # Before any other client: a session hears of each new worker before those that were opened later.
                self._boards[self._pool.epoch.hex()] = await asyncio.to_thread(Boards, self._run_dir)
                if len(self._boards) > KEPT:
                    del self._boards[next(iter(self._boards))]
                self._address = await self._listening(self._pool)
        return {
            "node": self._node,
            "run_dir": str(self._run_dir),
            "address": self._address,
            "server": self._server,
            "supervisor": self._pool.supervisor_pid,
            "epoch": self._pool.epoch.hex(),
        }

    def _has_ended(self) -> bool:
        poll = select.poll()  # select(2) knows no descriptor above 1023, and Ray's process may have as many
        poll.register(self._supervisor, select.POLLIN)
        return bool(poll.poll(0))

    def _start(self) -> Pool:
        if self._pool is not None:
            self._pool.close()
            os.close(self._supervisor)
            self._pool = None
        gpus = str(self._devices)
        if self._settings["backend"] == "cuda":
            self._take_gpus()
            gpus = "all"  # all GPUs that CUDA_VISIBLE_DEVICES leaves
        shutil.rmtree(self._keys, ignore_errors=True)
        pair = keys.new_pair()
        keys.write_new(self._keys / keys.SERVER_FILE, keys.ServerKeys(public=pair.public, secret=pair.secret))
        self._server = pair.public
        until = time.monotonic() + PREDECESSOR_S
        for port in self._free_ports():
            try:
                return atomr_mp.start(
                    pool=self._name,
                    run_dir=self._run_dir,
                    gpus=gpus,
                    listen=f"tcp://{_bracketed(ray.util.get_node_ip_address())}:{port}",
                    keys_dir=str(self._keys),
                    **self._settings,
                )
            except errors.PoolBusy:  # the pool of a former actor is ending
                if time.monotonic() > until:
                    raise
                time.sleep(AGAIN_S)
            except errors.ConfigurationError:
                if port == 0 or _is_free(port):
                    raise  # no other process has taken the port meanwhile: the error has another reason
        raise errors.ConfigurationError(f"none of the ports {self._ports} is free for the relay")

    def _take_gpus(self) -> None:
        from atomr_mp.process.gpus import nvml
        from atomr_mp.supervision import placement

        variable = os.environ.get(VISIBLE)
        given_gpus(ray.get_runtime_context().get_accelerator_ids().get("GPU", []), variable)
        self._locks.take([each.uuid for each in placement.visible(nvml.survey().gpus, variable)], PREDECESSOR_S)

    def _free_ports(self) -> Iterator[int]:
        """Yield ports to listen at; 0, for any, again and again without a range."""
        if self._ports is None:
            yield from itertools.repeat(0)
            return
        first, last = self._ports
        for port in range(first, last + 1):
            while _is_free(port):  # also again, after the end of a predecessor
                yield port

    @staticmethod
    async def _listening(pool: Pool) -> str:
        until = time.monotonic() + LISTEN_S
        while time.monotonic() < until:
            remote = (await asyncio.to_thread(pool.status)).remote
            if remote is not None and remote.listening:
                return remote.address
            await asyncio.sleep(AGAIN_S)
        raise errors.PoolUnreachable(f"the pool's relay does not listen after {LISTEN_S:g} s; see its log")

    async def _admit(self, name: str, public: str) -> None:
        new = keys.AdmittedKey(name=keys.check_name(name), public=[keys.check_key(public)])
        async with self._admitting:
            await asyncio.to_thread(self._admit_now, new)

    def _admit_now(self, new: keys.AdmittedKey) -> None:
        with OperatorSession(self._run_dir / SESSION_SOCKET) as operator:
            connected: set[str] = set()
            if is_full(keys.read_admitted(self._keys), new) and (remote := operator.status().remote) is not None:
                connected = {each.key for each in remote.sessions}
            keys.change_admitted(self._keys, lambda before: admit(before, new, connected))
            operator.read_keys()

    async def _stop(self) -> None:
        async with self._opening:  # after a start that is under way
            await asyncio.to_thread(self._stop_now)

    def _stop_now(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
            os.close(self._supervisor)
        for path in (self._keys, self._run_dir):
            shutil.rmtree(path, ignore_errors=True)
        self._locks.close()


def _is_free(port: int) -> bool:
    """Return whether a port of this node, and the next one, can be listened at now."""
    host = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for each in (port, port + 1):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, each))
            except OSError:
                return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
