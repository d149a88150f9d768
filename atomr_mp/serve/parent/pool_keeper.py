"""Keeps the server's pool: one that it has started, or one that it has joined."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import time
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.process.spawn import ExitCause
from atomr_mp.protocol.libraries.memory import Statistics
from atomr_mp.protocol.words import counted
from atomr_mp.serve.parent.backoff import Backoff
from atomr_mp.serve.server_log import tell

PROBE_S: Final = 30.0

JOIN_AGAIN_S: Final = 0.5
"""Time between attempts to join the pool again."""

LOADING_EVERY_S: Final = 10.0
"""How often a pool that is loading says so."""

ENDS_S: Final = 2.0
"""How long the supervisor of a lost pool may take to end."""

Start = Callable[[], tuple[Pool, float]]
"""Starts a pool; returns it, and how many seconds its devices may take to be ready."""

_FAILURES: Final = (errors.AtomrError, TimeoutError, OSError)


class PoolKeeper:
    """Waits until a pool that the server starts is ready, starts it again if it is lost, and stops it.

    For the event loop's thread.

    Args:
        pool: The pool, which may not be ready; owned from here on.
        limit_s: How many seconds its devices may take to be ready.
        start: Starts the pool again; called on a thread.
        ready: Called each time that the pool is ready.
    """

    def __init__(self, pool: Pool, limit_s: float, start: Start, ready: Callable[[Pool], None]) -> None:
        self._pool: Pool | None = pool
        self._limit_s = limit_s
        self._start: Final = start
        self._ready: Final = ready
        self.was_ready = False
        """Whether a pool has been ready once."""

    @property
    def pool(self) -> Pool | None:
        """The pool; None while there is none."""
        return self._pool

    async def keep(self) -> None:
        """Wait until the pool is ready, and start it again whenever it is lost.

        Raises:
            AtomrError: It was not ready the first time.
            TimeoutError: Likewise, in time.
        """
        assert self._pool is not None
        await self._until_ready(self._pool)
        backoff, started_s = Backoff(), time.monotonic()
        while True:
            if self._pool is not None:
                why = await until_lost(self._pool)
                pid = self._pool.supervisor_pid
                ended = await asyncio.to_thread(how_ended, pid)
                text = f"the pool is lost: {why} (supervisor pid {pid}, {ended}); it will be started again"
                tell(logging.ERROR, "lost", text, pid=pid, ended=ended)
                await self.close()
            await asyncio.sleep(backoff.next_s(time.monotonic() - started_s))
            started_s = time.monotonic()
            starting = asyncio.ensure_future(asyncio.to_thread(self._start))
            try:
                pool, self._limit_s = await asyncio.shield(starting)
                self._pool = pool
                await self._until_ready(pool)
            except asyncio.CancelledError:
                with contextlib.suppress(*_FAILURES):
                    self._pool, _ = await starting
                raise
            except _FAILURES as error:
                text = f"the pool cannot be started: {' '.join(str(error).split())}"
                tell(logging.ERROR, "not_started", text)
                await self.close()

    async def _until_ready(self, pool: Pool) -> None:
        """Wait for the devices, and say now and then which ones are awaited."""
        begun_s = time.monotonic()
        devices = len(pool.devices)
        text = f"pool {pool.name} is loading on {counted(devices, 'device')}"
        tell(logging.INFO, "loading", text, pool=pool.name, devices=devices)
        waiting = asyncio.ensure_future(asyncio.to_thread(pool.wait_ready, self._limit_s))
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may end after this server
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=LOADING_EVERY_S)
            took_s = time.monotonic() - begun_s
            if done:
                waiting.result()
                text = f"pool {pool.name} is ready after {took_s:.1f} s"
                tell(logging.INFO, "ready", text, pool=pool.name, took_s=round(took_s, 3))
                self.was_ready = True
                self._ready(pool)
                return
            late = [f"device {each.index} is {each.state.value}" for each in pool.devices if not each.admitted]
            text = f"pool {pool.name} is loading for {took_s:.0f} s: {', '.join(late)}"
            tell(logging.INFO, "loading", text, pool=pool.name, took_s=round(took_s, 3))

    async def reload(self) -> None:
        """Replace the workers, so that they run the actors' present code. The pool's events tell of it."""
        pool = self._pool
        if pool is None:
            tell(logging.WARNING, "not_reloaded", "there is no pool to reload")
            return
        begun_s = time.monotonic()
        try:
            pending = await asyncio.to_thread(pool.reload)
        except TimeoutError:
            took_s = time.monotonic() - begun_s
            tell(logging.WARNING, "not_reloaded", f"the reload is not done after {took_s:.0f} s, and goes on")
            return
        except (errors.ActorLoadFailed, errors.SetupFailed, errors.ConfigurationError):
            return  # an event of the pool, as its begin and its end are
        except _FAILURES as error:
            tell(logging.ERROR, "not_reloaded", f"the reload has failed: {' '.join(str(error).split())}")
            return
        if pending:
            tell(logging.WARNING, "restart_needed", f"a restart is needed for: {', '.join(pending)}")

    async def close(self) -> None:
        """Stop the pool, if there is one."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.close)


def how_ended(pid: int) -> str:
    """Return how a child of this process has ended, in words. It is not reaped. Blocks for a moment at most."""
    cause = ExitCause()
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(1000 * ENDS_S)  # its connections end before it does
            found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        finally:
            os.close(pidfd)
        if found is None:
            return "which has not ended"
        cause = (
            ExitCause(status=found.si_status) if found.si_code == os.CLD_EXITED else ExitCause(signal=found.si_status)
        )
    return cause.describe()


class JoinedPoolKeeper:
    """Tells, once for all front ends, that the pool is lost that the server has joined, and joins it again.

    For the event loop's thread.

    Args:
        pool: The pool; owned from here on.
        join: Joins it again; called on a thread.
    """

    def __init__(self, pool: Pool, join: Callable[[], Pool]) -> None:
        self._pool: Pool | None = pool
        self._join: Final = join

    @property
    def pool(self) -> Pool | None:
        """The pool; None while there is none."""
        return self._pool

    async def keep(self) -> None:
        """Tell whenever the pool is lost, and when it is there again, until this task is cancelled."""
        while True:
            if self._pool is None:
                await asyncio.sleep(JOIN_AGAIN_S)  # nothing tells that a pool was started
                await self._join_again()
                continue
            why = await until_lost(self._pool)
            tell(logging.ERROR, "lost", f"the pool is lost: {why}; it is joined again once it runs")
            await self.close()

    async def _join_again(self) -> None:
        joining = asyncio.ensure_future(asyncio.to_thread(self._join))
        try:
            self._pool = await asyncio.shield(joining)
        except asyncio.CancelledError:
            with contextlib.suppress(*_FAILURES):
                self._pool = await joining
            raise
        except _FAILURES:
            return
        tell(logging.INFO, "joined", f"pool {self._pool.name} is joined again", pool=self._pool.name)

    async def close(self) -> None:
        """Leave the pool, if there is one."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.close)


async def until_lost(pool: Pool) -> errors.PoolLost | None:
    """Wait until a pool is lost; return why."""
    loop = asyncio.get_running_loop()
    lost = asyncio.Event()

    def tell(_error: errors.PoolLost) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lost.set)

    pool.on_lost(tell)
    with contextlib.suppress(errors.AtomrError):
        # The first request makes the loop read the supervisor's messages, and so learn of its end.
        await pool.device(0).request("memory", Statistics(), PROBE_S)
    await lost.wait()
    return pool.lost
