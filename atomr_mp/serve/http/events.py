"""Streams of events: their form, and the duties of every open stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from atomr_mp.client.reply import set_done
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.problems import ClientLeft, Header, Problem, retry_after

COMMENT: Final = b": \n\n"

COMMENT_EVERY_S: Final = 15.0
"""How often a comment is sent while there is nothing to send: proxies close a silent connection."""

HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
)

T = TypeVar("T")


class OpenHttpStreams:
    """The open streams of a front end.

    Args:
        most: Most open streams.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self.count = 0
        self.ending: Final = asyncio.Event()
        """Set when the server ends and does not wait for streams."""
        self._closers: dict[Callable[[Problem], None], bytes] = {}
        """Functions that end a stream, with the digests of their clients' tokens."""

    def end(self) -> None:
        """End all streams."""
        self.ending.set()
        for close in list(self._closers):
            close(Problem(500, "ending", "the server ends, and the stream was not over", maybe_executed=True))

    def end_revoked(self, admits: Callable[[bytes], bool]) -> None:
        """End the streams of tokens that have become invalid.

        Args:
            admits: Returns whether the token of a digest is valid.
        """
        for close, token in list(self._closers.items()):
            if not admits(token):
                why = "this stream's token is not valid any more"
                close(Problem(401, "unauthorized", why, maybe_executed=True))

    def add(self, close: Callable[[Problem], None], token: bytes) -> None:
        """Count a stream.

        Args:
            close: Ends it, with the reason.
            token: The digest of its client's token.
        """
        self._closers[close] = token
        self.count += 1

    def remove(self, close: Callable[[Problem], None]) -> None:
        """Stop counting a stream."""
        self._closers.pop(close, None)
        self.count -= 1

    def check(self) -> None:
        """Check that one more stream may be opened.

        Raises:
            Problem: 429, as many are open as may be; 503, the server ends.
        """
        if self.ending.is_set():
            raise Problem(503, "ending", "the server is about to end", headers=(retry_after(0),))
        if self.count >= self._most:
            raise Problem(
                429, "overloaded", f"{self._most} streams are open; close one or try again", headers=(retry_after(1),)
            )


def event(data: bytes, name: str = "") -> bytes:
    """Return an event. The data is one line, as JSON is."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b"data: %s\n\n" % data


class StreamWait:
    """Waits of an open stream for its next event, unless its client leaves or the server ends.

    Args:
        exchange: The stream's.
        streams: The open streams, which tell when the server ends, or the client's token does.
    """

    def __init__(self, exchange: Exchange, streams: OpenHttpStreams) -> None:
        self._exchange: Final = exchange
        self._streams: Final = streams
        loop = asyncio.get_running_loop()
        self._left: Final[asyncio.Future[None]] = loop.create_future()
        self._ending: Final[asyncio.Future[None]] = loop.create_future()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Count the stream, and watch its client, within the `with` block.

        Raises:
            Problem: No further stream is opened; see `OpenHttpStreams.check`.
        """
        self._streams.check()
        self._streams.add(self._end, self._exchange.token)
        try:
            with self._exchange.watching(self._left):
                yield
        finally:
            self._streams.remove(self._end)

    def _end(self, _why: Problem) -> None:
        set_done(self._ending)

    async def until(self, awaitable: Awaitable[T], comment: bytes = COMMENT) -> T | None:
        """Return the awaitable's result; None if the stream is ended first. Send comments meanwhile.

        Raises:
            ClientLeft: The client has left.
        """
        coming = asyncio.ensure_future(awaitable)
        events: set[asyncio.Future[Any]] = {coming, self._left, self._ending}
        try:
            while not coming.done():
                await asyncio.wait(
                    events,
                    timeout=COMMENT_EVERY_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._left.done():
                    raise ClientLeft
                if coming.done():
                    break
                if self._ending.done():
                    return None
                if comment:
                    await self._exchange.send(comment)
            return coming.result()
        finally:
            coming.cancel()
