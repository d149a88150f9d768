"""The source of the front end's pool: a given pool, or one that is joined again whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import atomr_mp
from atomr_mp import errors
from atomr_mp.pool import Pool

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 1.0
"""Longest time between attempts to join a pool; each is twice the one before."""

RETRY_AFTER_S: Final = 1.0


class PoolSource(Protocol):
    """Has the pool to call, while there is one."""

    @property
    def pool(self) -> Pool:
        """The pool.

        Raises:
            PoolUnreachable: There is no pool now.
        """

    @property
    def listeners(self) -> list[Callable[[Pool], object]]:
        """Functions that are called in the event loop with each new pool."""

    def begin(self) -> None:
        """Tell the listeners of a pool that exists already; in the event loop, at the first request."""


class GivenPool:
    """A pool that an application has joined or started, and closes itself."""

    def __init__(self, pool: Pool) -> None:
        self._pool: Final = pool
        self.listeners: Final[list[Callable[[Pool], object]]] = []

    @property
    def pool(self) -> Pool:
        """The pool."""
        return self._pool

    def begin(self) -> None:
        """Tell the listeners of the pool."""
        for listener in self.listeners:
            listener(self._pool)


class JoinedPool:
    """A pool that this process joins, and joins again when it is lost. For the event loop's thread.

    The log does not have the loss from here: the front ends' parent tells it once.

    Args:
        run_dir: The pool's run directory.
        name: The client's name in logs and `status`.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self._run_dir: Final = run_dir
        self._name: Final = name
        self._pool: Pool | None = None
        self._why = "it was not joined yet"
        self._joined: Final = asyncio.Event()
        self.listeners: Final[list[Callable[[Pool], object]]] = []

    @property
    def pool(self) -> Pool:
        """The pool.

        Raises:
            PoolUnreachable: There is no pool now.
        """
        if self._pool is None:
            raise errors.PoolUnreachable(f"there is no pool now ({self._why}); it is joined again once it runs")
        return self._pool

    def begin(self) -> None:
        """Do nothing: the listeners are called when the pool is joined."""

    async def wait_joined(self, timeout_s: float) -> bool:
        """Wait until the pool was joined for the first time; return whether it was."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._joined.wait(), timeout_s)
        return self._joined.is_set()

    async def keep_joined(self) -> None:
        """Join the pool, and again whenever it is lost, until this task is cancelled; then leave the pool."""
        loop = asyncio.get_running_loop()
        delay_s = FIRST_RETRY_S
        while True:
            try:
                joined = await asyncio.to_thread(atomr_mp.connect, run_dir=self._run_dir, name=self._name)
            except (errors.AtomrError, OSError, TimeoutError) as error:
                self._why = str(error)
                await asyncio.sleep(delay_s)  # nothing tells that a pool was started
                delay_s = min(2 * delay_s, LAST_RETRY_S)
                continue
            delay_s = FIRST_RETRY_S
            with joined:
                lost = asyncio.Event()
                joined.on_lost(functools.partial(_tell, loop, lost))
                self._pool = joined
                try:
                    for listener in self.listeners:
                        listener(joined)
                    self._joined.set()
                    await lost.wait()
                finally:
                    self._pool = None
                self._why = str(joined.lost)


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event, _error: errors.PoolLost) -> None:
    """Set an event, from any thread; do nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)
