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
