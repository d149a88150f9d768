"""Tells whether the pool behind this front end answers.

Any recent answer of a device counts. Only an idle device is asked, by a real request. The end of a device counts as
soon as the supervisor tells of it. One whose process stands still, as after SIGSTOP, does not count. A busy device is
ready: otherwise a load balancer would drop the very front ends that work. Where all actors belong to worlds, one of the
worlds has to be ready, too.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.protocol.libraries.memory import Statistics
from atomr_mp.protocol.messages.devices import DeviceInfo, WorldState
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded
from atomr_mp.serve.figures import PoolFigures
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.source import PoolSource
from atomr_mp.world import World

RECENT_S: Final = 5.0
"""How long an answer counts."""

PROBE_S: Final = 2.0
"""How long an idle device may take to answer."""


class HealthVerdict(NamedTuple):
    """Whether a balancer should send requests here, and why not, or what is wrong all the same."""

    ready: bool
    reason: str
    code: str = "ok"
    """The outcome, for the log."""


class PoolHealth:
    """Knows which devices have answered lately. For the event loop's thread, except for its listeners of the pool.

    Args:
        source: The source of the pool.
        figures: The pool's status from its supervisor.
    """

    def __init__(self, source: PoolSource, figures: PoolFigures) -> None:
        self._source: Final = source
        self._figures: Final = figures
        self._answered_s: dict[int, float] = {}
        """When each device has last answered."""
        self.in_flight: Final[Counter[int]] = Counter()
        """Calls of this front end that a device has not answered."""
        self._probing: asyncio.Task[bool] | None = None
        self._outdated = False
        """Whether a worker has ended since that began."""
        self.draining = False
        """Whether the server is about to end; then it is not ready whatever the pool does."""
        source.listeners.append(self._joined)

    def note(self, device: int) -> None:
        """Record that a device has answered, even with an error of the request."""
        if device >= 0:
            self._answered_s[device] = time.monotonic()

    async def verdict(self, method: str = "") -> HealthVerdict:
        """Return whether requests should be sent here; ask idle devices if nothing is known.

        Args:
            method: The method that is meant, "Actor.method"; empty for any.

        Raises:
            Problem: 404; there is no such method.
        """
        if self.draining:
            return HealthVerdict(ready=False, reason="the server is about to end", code="draining")
        try:
            pool = self._source.pool
            devices = pool.devices
        except errors.AtomrError as error:
            return HealthVerdict(ready=False, reason=str(error), code=error.code)
        if pool.lost is not None:
            return HealthVerdict(ready=False, reason=str(pool.lost), code=pool.lost.code)
        return await self._of_devices(pool, _devices_for(pool, method) if method else devices, method)

    async def _of_devices(self, pool: Pool, devices: list[DeviceInfo], method: str) -> HealthVerdict:
        """Return whether one of these devices answers, and a world if one has to."""
        still = await self._standing_still()
        admitted = [device for device in devices if device.admitted and (device.index, device.generation) not in still]
        if not admitted:
            states = ", ".join(
                f"{device.index} is {device.state.value}{_because(still.get((device.index, device.generation), ''))}"
                for device in devices
            )
            return HealthVerdict(ready=False, reason=f"no device takes calls: {states}", code="not_ready")
        if not any(map(self._is_known, admitted)) and not await self._probe(pool):
            reason = f"none of the {len(admitted)} devices answers"
            return HealthVerdict(ready=False, reason=reason, code="not_ready")
        reason = _no_world(pool, method, {index for index, _ in still})
        if reason:
            return HealthVerdict(ready=False, reason=reason, code="not_ready")
        status = await self._figures.status()
        unwritable = status.unwritable if status is not None else ""
        return HealthVerdict(ready=True, reason=unwritable and f"{unwritable}; calls go on")

    async def _standing_still(self) -> dict[tuple[int, int], str]:
        """Return the workers that stand still, by device and generation, and why, as the supervisor sees them."""
        workers = [] if (status := await self._figures.status()) is None else status.workers
        return {(each.device.index, each.device.generation): each.standstill for each in workers if each.standstill}

    def _is_known(self, device: DeviceInfo) -> bool:
        """Return whether a device has answered lately, or is at work for this front end."""
        answered_s = self._answered_s.get(device.index)
        return self.in_flight[device.index] > 0 or (answered_s is not None and time.monotonic() - answered_s < RECENT_S)

    async def _probe(self, pool: Pool) -> bool:
        """Ask the devices, once for all who wait for the answer."""
        if self._probing is None or self._probing.done() or self._outdated:
            self._outdated = False
            admitted = [device.index for device in pool.devices if device.admitted]
            self._probing = asyncio.get_running_loop().create_task(self._ask(pool, admitted))
        return await asyncio.shield(self._probing)

    async def _ask(self, pool: Pool, devices: Iterable[int]) -> bool:
        answers = await asyncio.gather(*(self._answers(pool, device) for device in devices))
        return any(answers) or await self._is_busy()

    async def _is_busy(self) -> bool:
        """Return whether a worker is at work for any client, as its supervisor knows."""
        status = await self._figures.status()
        return status is not None and any(worker.running and not worker.standstill for worker in status.workers)

    async def _answers(self, pool: Pool, device: int) -> bool:
        try:
            await pool.device(device).request("memory", Statistics(), PROBE_S)
        except errors.Overloaded:
            return True
        except errors.AtomrError:
            return False
        self.note(device)
        return True

    def _joined(self, pool: Pool) -> None:
        """Ask every device of a pool that was joined, also while it starts.

        The first request makes the event loop read the supervisor's messages: methods, and the pool's end.
        """
        self._answered_s.clear()
        self.in_flight.clear()
        pool.on_event(functools.partial(self._heard, pool))
        devices = [device.index for device in pool.devices]
        self._probing = asyncio.get_running_loop().create_task(self._ask(pool, devices))

    def _heard(self, _pool: Pool, event: Any) -> None:
        """Forget the answers of a worker that has ended."""
        match event:
            case DeviceChanged(device) if not device.admitted:
                self._answered_s.pop(device.index, None)
                self._outdated = True
            case IncarnationEnded(index):
                self._answered_s.pop(index, None)
                self._outdated = True


def _devices_for(pool: Pool, method: str) -> list[DeviceInfo]:
    """Return the devices that have a method.

    Raises:
        Problem: 404; there is no such method.
    """
    if not (pool.is_starting(method) or pool.has(method)):
        raise Problem(404, "not_found", f"there is no method {method[:200]!r}; /openapi.json has the methods")
    return pool.devices_for(method)


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _no_world(pool: Pool, method: str, still: AbstractSet[int]) -> str:
    """Return why no world takes calls, where one has to.

    Args:
        pool: The pool.
        method: The method that is meant; empty for any, so that one world is enough, or an actor of none.
        still: Devices whose processes stand still: their worlds' calls wait.
    """
    worlds = pool.worlds if not method else [world for world in (pool.world_of(method),) if world is not None]
    if not method:
        actors = {each.partition(".")[0] for each in pool.methods}
        if actors.difference(*(world.actors for world in worlds)):
            return ""
    if not worlds or any(world.state is WorldState.READY and still.isdisjoint(world.devices) for world in worlds):
        return ""
    return f"no world takes calls: {', '.join(_shown(world, still) for world in worlds)}"


def _shown(world: World, still: AbstractSet[int]) -> str:
    waits = [f"the process of its device {each} stands still" for each in world.devices if each in still]
    return (
        f"{world.info.name} is {world.info.state.value}{_because(', '.join(filter(None, (world.info.reason, *waits))))}"
    )
