"""Watches whether the supervisor answers, and tells in the server's log when it does not, and when it does again.

A supervisor that ends is seen at once. One that is stopped, or stuck, is not: calls go on, but no worker that ends is
replaced, and nothing else would say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.process.notify import Notifier
from atomr_mp.protocol.own_time import OwnTime
from atomr_mp.serve.server_log import tell

ASK_EVERY_S: Final = 2.0
"""How often it is asked."""

SILENT_S: Final = 10.0
"""How long it may be silent before that is logged: on a busy machine an answer takes a while."""


class Silence:
    """Times a supervisor's silence, and decides when to tell of it. Pure: time is an argument.

    Args:
        now_s: When the watch begins.
    """

    def __init__(self, now_s: float) -> None:
        self._answered_s = now_s
        self._told = False

    def since_s(self, now_s: float) -> float:
        """Return for how many seconds it has been silent."""
        return now_s - self._answered_s

    def look(self, now_s: float) -> float | None:
        """Return for how many seconds it has been silent, once a silence, when that has become long; else None."""
        silent_s = self.since_s(now_s)
        if self._told or silent_s < SILENT_S:
            return None
        self._told = True
        return silent_s

    def answered(self, now_s: float) -> float | None:
        """Note an answer; return how many seconds of silence it ends, if the silence was logged."""
        silent_s, told = self.since_s(now_s), self._told
        self._answered_s, self._told = now_s, False
        return silent_s if told else None


class SupervisorWatch:
    """Asks a pool's supervisor again and again. For the event loop's thread.

    Args:
        pool: Returns the pool, None while there is none.
        notifier: Is told that the server is alive, for as long as its supervisor answers.
    """

    def __init__(self, pool: Callable[[], Pool | None], notifier: Notifier) -> None:
        self._pool: Final = pool
        self._notifier: Final = notifier

    async def keep_watching(self) -> None:
        """Watch until this task is cancelled."""
        loop = asyncio.get_running_loop()
        own = OwnTime(loop.time(), 2 * ASK_EVERY_S)
        watched, silence = self._pool(), Silence(own.now_s)
        asked: asyncio.Future[bool] | None = None
        every_s = ASK_EVERY_S
        if limit_s := self._notifier.watchdog_s:
            every_s = min(every_s, limit_s / 2)
        while True:
            own.look(loop.time())
            pool, now_s = self._pool(), own.now_s
            if pool is not watched or pool is None or pool.lost is not None:  # its end is told elsewhere
                watched, silence, asked = pool, Silence(now_s), None
            elif asked is not None and asked.done():
                if asked.result() and (ended_s := silence.answered(now_s)) is not None:
                    _tell(logging.INFO, "supervisor_answers", f"answers again, after {ended_s:.0f} s", pool)
                asked = None
            if (silent_s := silence.look(now_s)) is not None and pool is not None:
                text = f"has not answered for {silent_s:.0f} s; as long as it does not, no worker that ends is replaced"
                _tell(logging.ERROR, "supervisor_silent", text, pool)
            if limit_s and silence.since_s(now_s) < limit_s:
                self._notifier.alive()
            if asked is None and pool is not None and pool.lost is None:
                asked = _ask(pool, loop)
            await asyncio.sleep(every_s)  # a silence is a matter of time


def _tell(level: int, event: str, text: str, pool: Pool) -> None:
    tell(level, event, f"the supervisor (pid {pool.supervisor_pid}) {text}", pid=pool.supervisor_pid)


def _ask(pool: Pool, loop: asyncio.AbstractEventLoop) -> asyncio.Future[bool]:
    """Ask on a thread of its own, which a stopped supervisor blocks for long; return whether it has answered."""
    told: asyncio.Future[bool] = loop.create_future()

    def ask() -> None:
        answered = True
        try:
            pool.status()
        except (errors.PoolUnreachable, errors.PoolLost, errors.DeadlineExceeded, OSError):  # TimeoutError, too
            answered = False
        except errors.AtomrError:
            pass  # that is an answer
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set, told, answered)

    threading.Thread(target=ask, name="supervisor watch", daemon=True).start()
    return told


def _set(told: asyncio.Future[bool], answered: bool) -> None:  # noqa: FBT001 - a callback's
    if not told.done():
        told.set_result(answered)
