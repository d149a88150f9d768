"""The pool's status from its supervisor: asked once for all callers, with a bounded wait."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import Final

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.protocol.messages.operators import Status
from atomr_mp.serve.source import PoolSource

FRESH_S: Final = 1.0
"""Age up to which a status counts as fresh: however many scrape, the supervisor is not asked more often."""

AGAIN_S: Final = 0.1
"""Least time between two questions for those that nothing older is shown to."""

ASK_S: Final = 1.0
"""How long callers wait for the supervisor. After that they do not wait until it has answered."""


class PoolFigures:
    """The status of a pool, for the event loop's thread.

    Args:
        source: The source of the pool.
    """

    def __init__(self, source: PoolSource) -> None:
        self._source: Final = source
        self._pool: Pool | None = None
        """The pool that was asked last."""
        self._asked_s = 0.0
        self._asked = 0
        """How often it was asked."""
        self._told: asyncio.Future[Status | None] | None = None
        """The answer to the last question."""
        self._latest: tuple[Pool, Status] | None = None
        source.listeners.append(self._joined)

    @property
    def latest(self) -> Status | None:
        """The latest answer of the pool's supervisor, also while it does not answer; None once the pool is lost."""
        pool, status = self._latest or (None, None)
        with contextlib.suppress(errors.AtomrError):
            return status if pool is not None and pool is self._source.pool and pool.lost is None else None
        return None

    async def status(self) -> Status | None:
        """Return the pool's status, `FRESH_S` old at most; None if there is no pool, or its supervisor does not answer.

        Waits for `ASK_S` at most.
        """
        try:
            pool = self._source.pool
        except errors.AtomrError:
            return None
        if pool.lost is not None:
            return None
        now_s = asyncio.get_running_loop().time()
        told = self._told
        if told is None or pool is not self._pool or (told.done() and not self._is_fresh(told, now_s)):
            told = self._ask(pool, now_s)
        left_s = self._asked_s + ASK_S - now_s
        if left_s > 0 and not told.done():
            await asyncio.wait({told}, timeout=left_s)
        return told.result() if told.done() else None

    async def present(self) -> Status | None:
        """Return the pool's status as it is now or a moment later; see `status`.

        So it is not older than what another front end has told before: counters never go backwards.
        """
        loop = asyncio.get_running_loop()
        needed = self._asked + 1
        while True:
            try:
                pool = self._source.pool
            except errors.AtomrError:
                return None
            told, now_s = self._told, loop.time()
            if pool.lost is not None or told is None or pool is not self._pool:
                return await self.status()
            if not told.done():
                left_s = self._asked_s + ASK_S - now_s
                if left_s <= 0:
                    return None
                await asyncio.wait({told}, timeout=left_s)
            elif self._asked >= needed:
                return told.result()
            elif (wait_s := self._asked_s + AGAIN_S - now_s) > 0:
                await asyncio.sleep(wait_s)
            else:
                self._ask(pool, now_s)

    def _is_fresh(self, told: asyncio.Future[Status | None], now_s: float) -> bool:
        return told.result() is not None and now_s - self._asked_s < FRESH_S

    def _joined(self, pool: Pool) -> None:
        """Ask at once, so that something is known if the supervisor stops before anybody asks."""
        self._ask(pool, asyncio.get_running_loop().time())

    def _ask(self, pool: Pool, now_s: float) -> asyncio.Future[Status | None]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Status | None] = loop.create_future()
        told.add_done_callback(functools.partial(self._note, pool))
        self._told, self._pool, self._asked_s = told, pool, now_s
        self._asked += 1
        # A thread of its own: a stopped supervisor blocks it for long. The loop's own threads are few, and waited for
        # at the end.
        threading.Thread(target=_ask, args=(pool, loop, told), name="pool figures", daemon=True).start()
        return told

    def _note(self, pool: Pool, told: asyncio.Future[Status | None]) -> None:
        if (status := told.result()) is not None:
            self._latest = pool, status


def _ask(pool: Pool, loop: asyncio.AbstractEventLoop, told: asyncio.Future[Status | None]) -> None:
    """Ask in a thread, and tell the answer in the loop."""
    try:
        status = pool.figures()
    except (errors.AtomrError, OSError, TimeoutError):
        status = None
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(told.set_result, status)
