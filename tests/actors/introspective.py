"""An actor whose methods are clients of their own pool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol import process_tags
from atomr_mp_workers import Actor, Batch, Context, method

DEADLINE_S = 20.0


class Introspective(Actor):
    """Calls itself, and its likes on other devices."""

    def setup(self, context: Context) -> None:
        """Join the pool, and call this very device, which is not ready before this ends, unless this is a standby."""
        self._device = context.device
        self._pool = atomr_mp.connect(run_dir=os.environ[process_tags.RUN_DIR])
        self._in_setup = self._outcome("Introspective.where", context.device)

    def _outcome(self, name: str, device: int | None, *args: Any) -> str:
        try:
            return repr(self._pool.call(name, *args, device=device, deadline_s=DEADLINE_S).result())
        except errors.AtomrError as error:
            return f"{type(error).__name__}: {error.message}"

    @method
    def in_setup(self) -> str:
        """Return what this very device has answered to `setup`."""
        return self._in_setup

    @method
    def where(self) -> int:
        """Return the device."""
        return self._device

    @method(thread=True)
    def where_on_thread(self) -> int:
        """Return the device."""
        return self._device

    @method
    def loop(self, name: str, device: int | None) -> str:
        """Call a method from the loop."""
        return self._outcome(name, device)

    @method(thread=True)
    def thread(self, name: str, device: int | None) -> str:
        """Call a method from the actor's thread."""
        return self._outcome(name, device)

    @method
    async def task(self, name: str, device: int | None) -> str:
        """Call a method from the event loop."""
        try:
            return repr(await self._pool.call(name, device=device, deadline_s=DEADLINE_S))
        except errors.AtomrError as error:
            return f"{type(error).__name__}: {error.message}"

    @method
    async def awaited(self) -> int:
        """Return the device, later."""
        await asyncio.sleep(0)
        return self._device

    @method(thread=True)
    def parts(self) -> Iterator[str]:
        """Call a thread's method between parts."""
        yield "first"
        yield self._outcome("Introspective.where_on_thread", self._device)

    @method(batch=Batch(max_items=4, max_wait_s=0))
    def wheres(self, numbers: list[int]) -> list[int]:
        """Return the device, for each."""
        return [self._device for _ in numbers]

    @method
    def mapped(self, count: int) -> list[int]:
        """Map over the pool from the loop."""
        return list(self._pool.map("Introspective.wheres", range(count), deadline_s=DEADLINE_S))

    @method(thread=True)
    def make(self) -> None:
        """Keep refs of this device and of the other one."""
        self._refs = [self._pool.device(device).zeros(4) for device in (self._device, 1 - self._device)]

    @method
    def total(self, values: NDArray[np.float32]) -> float:
        """Return the sum."""
        return float(values.sum())

    @method
    def use(self) -> list[str]:
        """Use both refs from the loop in every way."""
        own, other = self._refs
        ways: list[Callable[[], Any]] = [
            lambda: self._pool.call("Introspective.total", other).result(),
            lambda: other.numpy().sum(),
            lambda: self._pool.call("Introspective.total", own).result(),
            lambda: self._pool.call("Introspective.total", own, device=1 - self._device).result(),
            own.numpy,
            lambda: self._pool.device(self._device).zeros(4),
        ]
        return [_outcome_of(way) for way in ways]


def _outcome_of(way: Callable[[], Any]) -> str:
    try:
        return str(way())
    except errors.AtomrError as error:
        return error.message


class Two(Introspective):
    """Has two threads."""

    threads = 2
