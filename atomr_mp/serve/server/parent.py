"""The parent of the front ends: owns the listening socket and, if it has started one, the pool.

A front end that dies costs its open connections: others accept meanwhile, connections in the socket's queue wait, and a
new front end is started. The parent answers no request itself, and imports no code that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.process import interpreter
from atomr_mp.protocol.libraries.memory import Statistics
from atomr_mp.serve.metrics import BEAT_S, Heartbeats, shared_bytes
from atomr_mp.serve.server.plan import FrontEndPlan

_LOG: Final = logging.getLogger("atomr_mp.serve")

MODULE: Final = "atomr_mp.serve.server.front_end"

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 10.0
"""Longest wait before a front end or a pool is started again. The wait doubles each time, if it did not live long."""

LONG_S: Final = 10.0
"""A front end or pool that has lived this long is started again at once."""

END_MARGIN_S: Final = 5.0
"""How much longer than its drain a front end may take to end."""

PROBE_S: Final = 30.0

ABORT_S: Final = 2.0
"""How long a front end that hangs may take to write its stack."""

ENDING_HANG_S: Final = 5.0
"""How long a front end may be deaf while the server ends."""


class Backoff:
    """The wait before a process is started again."""

    def __init__(self) -> None:
        self._delay_s = FIRST_RETRY_S

    def next_s(self, lived_s: float) -> float:
        """Return the wait in seconds.

        Args:
            lived_s: How long the last process has lived.
        """
        if lived_s >= LONG_S:
            self._delay_s = FIRST_RETRY_S
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, LAST_RETRY_S)
        return delay_s


class FrontEnd(NamedTuple):
    """A front-end process that runs."""

    process: subprocess.Popen[bytes]
    pidfd: int
    started_s: float
    """When it was started, by `time.monotonic`."""


class Parent:
    """Keeps front ends running, and the pool that it has started.

    Args:
        plan: The plan for each front end.
        listening: The socket on which they accept; owned from here on.
        start: Starts the pool again, blocking; None if the pool is not ours to start.
        pool: The pool, if this process has started it; owned from here on.
        announce: Called once when the first front end accepts.
    """

    def __init__(
        self,
        plan: FrontEndPlan,
        listening: socket.socket,
        start: Callable[[], Pool] | None,
        pool: Pool | None,
        announce: Callable[[], None],
    ) -> None:
        self._plan: Final = plan
        self._listening: Final = listening
        self._start: Final = start
        self._pool = pool
        self._announce: Final = announce
        self._running: dict[int, FrontEnd] = {}
        """Front ends by slot."""
        self._backoffs: Final = [Backoff() for _ in range(plan.slots)]
        self._stopping = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._plan_descriptor: Final = plan.to_descriptor()
        self._counters: Final = os.memfd_create("atomr-mp-serve-counters")
        os.ftruncate(self._counters, shared_bytes(plan.slots))
        self._look: Final = os.memfd_create("atomr-mp-serve-look")
        """Memory for the front ends' latest look at the pool."""
        self._accepting, self._accepts = os.pipe2(os.O_CLOEXEC)

    async def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; stop the pool last if this process has started it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_reader(self._accepting, self._first_accepts)
        listening_to_hearts = loop.create_task(self._replace_deaf())
        keeping = None if self._start is None else loop.create_task(self._keep_pool(self._start))
        try:
            for slot in range(self._plan.slots):
                self._start_front_end(slot)
            await self._stopping.wait()
            await self._end_front_ends()
        finally:
            listening_to_hearts.cancel()
            for each in self._running.values():
                each.process.kill()
            for each in self._running.values():
                each.process.wait()
                os.close(each.pidfd)
            loop.remove_reader(self._accepting)
            self._listening.close()
            for descriptor in (self._plan_descriptor, self._counters, self._look, self._accepting, self._accepts):
                os.close(descriptor)
            if keeping is not None:
                keeping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keeping
            if self._pool is not None:
                self._pool.close()

    # --- front ends ------------------------------------------------------------------------------------------------

    def _start_front_end(self, slot: int) -> None:
        if self._stopping.is_set():
            return
        inherited = (self._plan_descriptor, self._listening.fileno(), self._counters, self._accepts, self._look)
        numbers = [self._plan_descriptor, self._listening.fileno(), self._counters, slot, self._accepts, self._look]
        try:
            popen = subprocess.Popen(  # in the main thread, since the front end dies with the thread that made it
                interpreter.module(MODULE, *map(str, numbers)),
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,  # so that only the parent gets Ctrl-C
            )
            pidfd = os.pidfd_open(popen.pid)
        except OSError as error:
            _LOG.warning("front end %d cannot be started: %s", slot, error)
            self._start_later(slot, 0.0)
            return
        self._running[slot] = FrontEnd(popen, pidfd, time.monotonic())
        asyncio.get_running_loop().add_reader(pidfd, self._ended, slot)

    def _start_later(self, slot: int, lived_s: float) -> None:
        delay_s = self._backoffs[slot].next_s(lived_s)
        asyncio.get_running_loop().call_later(delay_s, self._start_front_end, slot)

    async def _replace_deaf(self) -> None:
        """End front ends whose event loop does not turn, with their stacks in the log."""
        beats = Heartbeats(self._counters, self._plan.slots)
        aborted: set[int] = set()
        while True:
            await asyncio.sleep(BEAT_S)  # a heartbeat that is missing is no event
            most_s = ENDING_HANG_S if self._stopping.is_set() else self._plan.limits.hang_s
            for slot, front_end in list(self._running.items()):
                pid, deaf_s = front_end.process.pid, beats.since_s(slot, front_end.started_s)
                if deaf_s > most_s + ABORT_S and pid in aborted:
                    front_end.process.kill()
                elif deaf_s > most_s and pid not in aborted:
                    aborted.add(pid)
                    _LOG.warning("front end %d (pid %d) has been deaf for %.0f s; its stack follows", slot, pid, deaf_s)
                    front_end.process.send_signal(signal.SIGABRT)

    def _ended(self, slot: int) -> None:
        popen, pidfd, started_s = self._running.pop(slot)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = popen.wait()
        if not self._stopping.is_set():
            _LOG.warning("front end %d (pid %d) has ended with status %d; the next starts", slot, popen.pid, status)
            self._start_later(slot, time.monotonic() - started_s)
        elif not self._running:
            self._all_ended.set()

    def _first_accepts(self) -> None:
        """Announce, once, that the server answers."""
        asyncio.get_running_loop().remove_reader(self._accepting)
        self._announce()

    def _stop(self) -> None:
        """End in order; at once at the second signal."""
        if self._stopping.is_set():
            for each in self._running.values():
                each.process.kill()
            return
        self._stopping.set()

    async def _end_front_ends(self) -> None:
        for each in self._running.values():
            each.process.terminate()
        # Clients can connect to the socket as long as one process has it open.
        asyncio.get_running_loop().call_later(self._plan.drain_delay_s, self._listening.close)
        if self._running:
            limit_s = self._plan.drain_delay_s + self._plan.drain_timeout_s + END_MARGIN_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), limit_s)

    # --- the pool --------------------------------------------------------------------------------------------------

    async def _keep_pool(self, start: Callable[[], Pool]) -> None:
        """Start the pool again whenever it is lost."""
        backoff, started_s = Backoff(), time.monotonic()
        while True:
            pool = self._pool
            if pool is not None:
                await _until_lost(pool)
                _LOG.warning("the pool is lost: %s; it will be started again", pool.lost)
                self._pool = None
                pool.close()
            await asyncio.sleep(backoff.next_s(time.monotonic() - started_s))
            started_s = time.monotonic()
            starting = asyncio.get_running_loop().run_in_executor(None, start)
            try:
                self._pool = await asyncio.shield(starting)
            except asyncio.CancelledError:
                with contextlib.suppress(errors.AtomrError, TimeoutError, OSError):
                    self._pool = await starting
                raise
            except (errors.AtomrError, TimeoutError, OSError) as error:
                _LOG.warning("the pool cannot be started: %s", " ".join(str(error).split()))


async def _until_lost(pool: Pool) -> None:
    """Wait until a pool is lost."""
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
