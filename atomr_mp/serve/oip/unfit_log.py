"""Tells in the server's log which described models cannot be asked, once for each generation of their methods."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping
from typing import Final

from atomr_mp.pool import Pool
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.oip.models import ModelTable
from atomr_mp.serve.server_log import tell
from atomr_mp.serve.source import PoolSource


class UnfitLog:
    """Looks at the models whenever a pool's methods have changed. For the event loop's thread.

    Args:
        source: The source of the pool; one server of several has to have this log.
        table: Has the models.
    """

    def __init__(self, source: PoolSource, table: ModelTable) -> None:
        self._table: Final = table
        self._seen: Mapping[str, MethodInfo | None] = {}
        """The methods of the described models at the last look."""
        if table.described:
            source.listeners.append(self._joined)

    def _joined(self, pool: Pool) -> None:
        loop = asyncio.get_running_loop()
        pool.on_event(functools.partial(_soon, loop, functools.partial(self._look, pool)))
        self._look(pool)

    def _look(self, pool: Pool) -> None:
        methods = pool.methods_by_name
        wanted = {self._table.method_of(name) for name in self._table.described}
        seen = {each: methods.get(each) for each in wanted}
        if (
            not methods
            or seen == self._seen
            or any(info is None and pool.is_starting(each) for each, info in seen.items())
        ):
            return
        self._seen = seen
        for name, why in self._table.unfit(methods).items():
            tell(logging.ERROR, "model_unfit", why, model=name)


def _soon(loop: asyncio.AbstractEventLoop, look: functools.partial[None], _event: object) -> None:
    """Look in the event loop, from any thread; do nothing if it is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(look)
