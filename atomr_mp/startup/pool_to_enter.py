"""What `start` and `connect` return to a coroutine: a pool that begins in a thread, so that no event loop waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from atomr_mp import errors
from atomr_mp.pool import Pool


class PoolToEnter(Pool):
    """A pool that begins when a coroutine enters or awaits it; or at its first use, which then blocks.

    Args:
        begin: Makes the pool, and returns how long its devices may take to be ready; None if nobody waits for them.
    """

    def __init__(self, begin: Callable[[], tuple[Pool, float | None]]) -> None:
        # Not `Pool.__init__`: the attributes come from the pool that is made.
        self._begin = begin
        self._beginning = threading.Lock()
        self._begun: Pool | None = None
        self._given_up = False

    def __getattr__(self, name: str) -> Any:
        # Asked for what is missing, which is everything until the pool has begun.
        if not name.startswith("__") and not self._has_begun():
            self._make()
            return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        if not self._has_begun():
            return "<Pool that has not begun: enter it by `async with`>"
        return super().__repr__()

    def __enter__(self) -> Self:
        self._make()
        return self

    async def __aenter__(self) -> Self:
        making = asyncio.ensure_future(asyncio.to_thread(self._make))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            self._given_up = True
            if self._begun is not None:
                await asyncio.to_thread(self._begun.close)  # which ends the wait for its devices
            await asyncio.wait({making})
            making.exception()  # it is known that it failed
            raise
        return self

    def _has_begun(self) -> bool:
        return "_client" in self.__dict__

    def _make(self) -> None:
        """Make the pool. Blocks."""
        with self._beginning:
            if self._has_begun():
                return
            if self._given_up:
                raise errors.PoolLost("this pool was closed before it began", maybe_executed=False)
            made, ready_s = self._begin()
            try:
                self._begun = made
                if self._given_up:  # looked at after `_begun` is set, as the one who gives up sets it before he looks
                    raise errors.PoolLost("this pool was closed while it began", maybe_executed=False)
                if ready_s is not None:
                    made.wait_ready(ready_s)
            except BaseException:
                made.close()
                raise
            self.__dict__.update(made.__dict__)

    def _close(self, *, interrupted: bool) -> None:
        if self._has_begun():
            super()._close(interrupted=interrupted)
        else:
            self._given_up = True
