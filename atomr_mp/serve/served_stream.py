"""A stream of the pool while a client reads it, whatever protocol the client speaks."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Self

from atomr_mp import errors
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.serve import method_figures
from atomr_mp.serve.health import PoolHealth
from atomr_mp.serve.http.events import OpenHttpStreams
from atomr_mp.serve.metrics import STREAMS, Counters
from atomr_mp.serve.problems import ClientLeft, Problem
from atomr_mp.serve.served_request import ServedRequest

AHEAD: Final = 64
AHEAD_BYTES: Final = 512 * 2**10
"""Parts and bytes that may be made before the client has read them: a stalled client holds them here."""


class ServedStream:
    """A stream while a client reads it; closed when the client leaves, and when the server ends. Use `async with`.

    Args:
        served: The request.
        stream: The pool's stream; owned from here on.
        streams: The open streams, which count it and tell the server's end.
        health: Learns that a device answers.
        counters: Counters of streams and parts.
    """

    def __init__(
        self,
        served: ServedRequest,
        stream: ReplyStream,
        streams: OpenHttpStreams,
        health: PoolHealth,
        counters: Counters,
    ) -> None:
        self._served: Final = served
        self._stream: Final = stream
        self._streams: Final = streams
        self._health: Final = health
        self._counters: Final = counters
        self._why: ClientLeft | Problem | None = None
        """Why it was closed."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_s = 0.0
        """When the latest part was asked for."""
        self.count = 0
        """Number of parts so far."""

    async def __aenter__(self) -> Self:
        self._streams.add(self._close, self._served.token)
        self._counters.own[STREAMS] += 1
        self._start(self._watch())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._streams.remove(self._close)
        self._counters.own[STREAMS] -= 1
        for task in self._tasks:
            task.cancel()
        self._served.is_on(self._stream.device, self._stream.generation)
        self._served.ran_at = self._stream.ran_at
        self._stream.close()

    async def next(self) -> tuple[Any] | None:
        """Return the next part, None at the end.

        Raises:
            AtomrError: The stream has ended with this error.
            ClientLeft: The client has left.
            Problem: 500, the server ends; 401, the client's token is not valid any more.
        """
        self._asked_s = asyncio.get_running_loop().time()
        try:
            found = await anext(self._stream)
        except StopAsyncIteration:
            return None
        except errors.Cancelled:
            if self._why is None:
                raise
            if isinstance(self._why, Problem) and self._why.status == 500 and not self._served.status:
                raise errors.Cancelled(self._why.message, maybe_executed=True) from None  # as of any other call
            raise errors.unraised(self._why) from None
        self._came()
        self._health.note(self._stream.device)
        return (found,)

    def _came(self) -> None:
        """Count a part now: a stream may last for hours."""
        served, methods = self._served, self._counters.methods
        if not self.count:
            served.first_part_ns = time.monotonic_ns()
            first_ns = served.first_part_ns - served.begun_ns
            methods.took(method_figures.FIRST_PART, served.called, "", first_ns)
        self.count += 1
        served.parts = self.count
        methods.count(method_figures.PARTS, served.called, 1)

    async def result(self) -> Any:
        """Return the method's result, at the end."""
        return await self._stream

    async def _watch(self) -> None:
        await self._served.left()
        self._close(ClientLeft())

    def _close(self, why: ClientLeft | Problem) -> None:
        if self._why is None:
            self._why = why
            self._stream.close()

    def _start(self, watching: Any) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(watching))
