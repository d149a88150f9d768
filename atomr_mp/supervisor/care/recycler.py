"""Replaces workers that have passed a limit of theirs, one device at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp.protocol.board import Counter, Gauge
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervision.recycle import Life, choose, due, has_limit
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.care.usage import memory_bytes
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop, Timer

LOOK_S: Final = 0.25
"""Interval of looks. A worker's counts are not events, since reporting them would delay it."""


class Recycler:
    """Looks at the workers now and then.

    Args:
        loop: The supervisor's loop.
        devices: The pool's devices.
        limits: Returns the pool's settings.
        pausing: Returns whether replacements pause now.
        driver_bytes: Returns a process's device memory, by device and pid; None if no driver tells it.
    """

    def __init__(
        self,
        loop: Loop,
        devices: Sequence[SupervisedDevice],
        limits: Callable[[], PoolSettings],
        pausing: Callable[[], bool],
        driver_bytes: Callable[[int, int], int | None],
    ) -> None:
        self._loop = loop
        self._devices = devices
        self._limits = limits
        self._pausing = pausing
        self._driver_bytes = driver_bytes
        self._timer: Timer | None = None
        self._early: dict[tuple[int, int], float] = {}
        """The jitter of each current incarnation, by device and generation."""
        self._due_s: dict[tuple[int, int], float] = {}
        """When each incarnation became due; CLOCK_MONOTONIC."""

    def start(self) -> None:
        """Look from now on, if there is a limit; to be called again when the policy has changed."""
        if self._timer is None and has_limit(self._limits()):
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Replace a worker if one is due, and come back later."""
        self._timer = None
        self.start()
        limits = self._limits()
        if not has_limit(limits) or self._pausing():
            return
        ready = [each for each in self._devices if each.life.state is State.READY and not each.quarantine.reason]
        away = sum(not device.is_settled for device in self._devices)
        keys = [(device.index, device.roles.generation) for device in ready]
        self._early = {key: self._early.get(key, random.random()) for key in keys}  # noqa: S311 - no secret
        self._due_s = {key: since_s for key, since_s in self._due_s.items() if key in self._early}
        lives = {device.index: life for device in ready if (life := self._life(device, limits)) is not None}
        chosen = choose(limits, lives, away=away)
        if chosen is not None:
            index, why = chosen
            self._devices[index].replace("recycle", f"its worker is replaced: {why}")

    def _life(self, device: SupervisedDevice, limits: PoolSettings) -> Life | None:
        """Return the counts and the memory of a device's worker; None if its board is not believed."""
        worker = device.roles.active
        assert worker is not None
        board = worker.live_board.read()
        if board is None:
            return None
        key = device.index, device.roles.generation
        told = self._driver_bytes(device.index, worker.pid)
        life = Life(
            age_s=worker.age_s,
            early=self._early[key],
            requests=board.read(Counter.STARTED),
            memory_bytes=memory_bytes(worker.pid) if limits.max_memory_bytes else 0,
            leases=board.read(Gauge.LEASES),
            device_bytes=board.read(Gauge.SLAB_BYTES) if told is None else told,
            by_driver=told is not None,
        )
        if not due(limits, life):
            return life
        now_s = time.monotonic()
        return life._replace(waited_s=now_s - self._due_s.setdefault(key, now_s))
