"""A request whose method is not known yet: how its caller uses it tells whether it is a call or a stream."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Final, Self

from atomr_mp import errors
from atomr_mp.client.callers import calling_loop
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import ReplyStream, count_from


class CallOrStream:
    """The answer to a request that a coroutine makes through an actor's reference while the pool starts.

    Awaited it is what the method turns out to be; read by `async for`, or entered by `async with`, a `ReplyStream`.
    Neither is sent before the method is known. All else is the call's, until the method is known to stream. The stream
    has the arguments and the time of the call.

    Args:
        reply: The call, which waits.
        streams: Returns whether the method streams; called once that is known.
        open_stream: Opens the stream in the call's place, with the arguments as they were at the call.
    """

    def __init__(self, reply: Reply, streams: Callable[[], bool], open_stream: Callable[[], ReplyStream]) -> None:
        self._reply: Final = reply
        self._streams: Final = streams
        self._open_stream: Final = open_stream
        self._called_ns: Final = time.monotonic_ns()
        self._stream: ReplyStream | None = None
        here = weakref.ref(self)

        def answered(_reply: Reply) -> None:
            request = here()
            if request is not None:
                request._open_at_once()  # noqa: SLF001 - its own

        reply.add_done_callback(answered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream or self._reply, name)

    def __repr__(self) -> str:
        reply = self._reply
        if self._stream is None and reply.undeclared is not None and not reply.done:
            return f"<CallOrStream {reply.id} of {reply.method}: waits for its method to be known>"
        return repr(self._stream or self._reply)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._outcome().__await__()

    def __aiter__(self) -> Self:
        self._opened()
        return self

    async def __anext__(self) -> Any:
        return await self._opened().__anext__()

    async def __aenter__(self) -> ReplyStream:
        return await self._opened().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened().__aexit__(kind, error, trace)

    async def _outcome(self) -> Any:
        if self._stream is None:
            try:
                return await self._reply
            except errors.InvalidRequest:  # of a call, if the method streams
                if not self._streams():
                    raise
        return await self._opened()

    def _open_at_once(self) -> None:
        """Open the stream once the call was refused for it, as long as its reader comes later."""
        if self._stream is None and isinstance(self._reply.error, errors.InvalidRequest) and calling_loop() is not None:
            with contextlib.suppress(errors.AtomrError):  # whoever reads it is told
                if self._streams():
                    self._opened()

    def _opened(self) -> ReplyStream:
        """Return the stream, which takes the call's place.

        Raises:
            AtomrError: The call has ended before, and not because the method streams.
        """
        if self._stream is None:
            reply = self._reply
            if reply.done and reply.error is not None and not isinstance(reply.error, errors.InvalidRequest):
                raise errors.unraised(reply.error)
            reply.cancel()
            stream = self._stream = self._open_stream()
            count_from(stream, self._called_ns)
        return self._stream
