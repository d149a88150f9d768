"""Keeps a session with a pool that the server has joined: it tells once, for all front ends, that the pool is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.serve.server.pool_keeper import until_lost
from atomr_mp.serve.server_log import tell

_FAILURES: Final = (errors.AtomrError, OSError, TimeoutError)

RETRY_S: Final = 0.5
"""Time between attempts to join the pool again."""


class JoinedPoolKeeper:
    """Notes that a pool is lost, and joins it again. For the event loop's thread.

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
                await asyncio.sleep(RETRY_S)  # nothing tells that a pool was started
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
