"""Answers for methods that stream: each part as it comes, as a server-sent event or a line of JSON.

The status waits a while for the first part: until then an error has a status of its own. The last event is `end`, with
the number of parts, or `error`; a stream that ends without either was cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.pool import Pool
from atomr_mp.serve.calls import arguments, options, seconds
from atomr_mp.serve.health import PoolHealth
from atomr_mp.serve.http import events
from atomr_mp.serve.http.accept import weight
from atomr_mp.serve.http.events import COMMENT_EVERY_S, OpenHttpStreams
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.problems import Header, Problem, describe
from atomr_mp.serve.served_stream import AHEAD, AHEAD_BYTES, ServedStream
from atomr_mp.serve.target import CallTarget
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.values.schemas import ArgumentPlan

STATUS_S: Final = 10.0
"""How long the status waits for the first part: proxies give up an answer that does not begin."""

JOIN_BYTES: Final = 64 * 2**10
"""Parts that have arrived together are sent together, up to this size: a write costs more than most parts."""

LINES_TYPES: Final = frozenset({b"application/jsonl", b"application/x-ndjson"})

EVENTS_TYPE: Final = b"text/event-stream"


class Form(NamedTuple):
    """The form in which a stream is written."""

    headers: tuple[Header, ...]
    part: Callable[[bytes], bytes]
    last: Callable[[bytes, str], bytes]
    """Writes the last event, from its JSON and its name, "end" or "error"."""
    comment: bytes
    """A comment to send while there is nothing to send; empty for none."""


EVENTS: Final = Form(events.HEADERS, events.event, events.event, events.COMMENT)

LINES: Final = Form(
    ((b"content-type", b"application/jsonl"), *events.HEADERS[1:]),
    lambda data: b'{"part":%s}\n' % data,
    lambda data, name: b'{"%s":%s}\n' % (name.encode(), data),
    b"",
)


def form_of(accept: bytes) -> Form:
    """Return the form in which a client wants a stream.

    Raises:
        Problem: 406; the client accepts neither server-sent events nor lines of JSON.
    """
    if not accept:
        return EVENTS
    lines = max(weight(accept, each) for each in LINES_TYPES)
    events_ = weight(accept, EVENTS_TYPE)
    if lines.quality and (lines > events_ or (lines.precision == 2 and lines == events_)):
        return LINES
    if events_.quality:
        return EVENTS
    raise Problem(406, "not_acceptable", "this method streams, as text/event-stream or application/jsonl")


class StreamCalls:
    """Answers calls of methods that stream.

    Args:
        streams: The front end's open streams.
        health: Learns which devices answer.
        counters: Counters of streams and parts.
        debug: Whether errors show the actor's traceback.
    """

    def __init__(self, streams: OpenHttpStreams, health: PoolHealth, counters: Counters, *, debug: bool) -> None:
        self._streams: Final = streams
        self._health: Final = health
        self._counters: Final = counters
        self._debug: Final = debug

    async def answer(self, exchange: Exchange, pool: Pool, plan: ArgumentPlan) -> None:
        """Answer with a method's parts."""
        exchange.called = plan.method
        form = form_of(exchange.headers.get(b"accept", b""))
        args, kwargs = await arguments(exchange, plan)
        opened = self.open(exchange, pool, plan.method, args, kwargs)
        del args, kwargs  # decoded, they may take many times the bytes that were sent, and the stream may be long
        async with opened as parts:
            try:
                first = await parts.begin(form.headers, form.comment)
                write, as_json = form.part, plan.as_json
                if as_json is None:
                    await parts.send(first, lambda part: write(encode_json(part)))
                else:
                    await parts.send(first, lambda part: write(encode_json(as_json(part))))
                end = {"parts": parts.count, "result": await parts.result()}
                await exchange.end(form.last(encode_json(end), "end"))
            except (errors.AtomrError, Problem) as error:
                if not exchange.status:
                    raise
                exchange.failed(error)
                told = describe(error, exchange.id, debug=self._debug, sent=True) | {"parts": parts.count}
                await exchange.end(form.last(encode_json(told), "error"))

    def open(
        self, exchange: Exchange, pool: Pool, method: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> HttpStream:
        """Return a stream for a client, with the deadlines in its headers.

        Raises:
            Problem: 400, a header is invalid; 429 or 503, no further stream is opened.
            AtomrError: The pool does not open it.
        """
        deadline_s, priority = options(exchange)
        between_s = seconds(exchange, b"x-between-s")
        more: dict[str, Any] = {} if between_s is None else {"between_s": between_s}
        first_s = seconds(exchange, b"x-first-s")
        self._streams.check()
        more |= {"first_s": first_s, "ahead": AHEAD, "ahead_bytes": AHEAD_BYTES}
        stream = CallTarget(pool, method).stream(args, kwargs, deadline_s=deadline_s, priority=priority, **more)
        exchange.sent = True
        return HttpStream(exchange, stream, self._streams, self._health, self._counters)


class HttpStream(ServedStream):
    """A stream that is answered over HTTP.

    Args:
        exchange: The client's.
        stream: The pool's stream; owned from here on.
        streams: The open streams, which count it and tell the server's end.
        health: Learns that a device answers.
        counters: Counters of streams and parts.
    """

    def __init__(
        self, exchange: Exchange, stream: ReplyStream, streams: OpenHttpStreams, health: PoolHealth, counters: Counters
    ) -> None:
        super().__init__(exchange, stream, streams, health, counters)
        self._exchange: Final = exchange

    async def begin(self, headers: tuple[Header, ...], comment: bytes) -> tuple[Any] | None:
        """Begin the answer once the first part has come, or after a while; return the part, None if there is none.

        Raises:
            AtomrError: The stream has ended with this error, which the status can still tell.
            ClientLeft: The client has left.
            Problem: 500, the server ends; 401, the client's token is not valid any more.
        """
        coming = asyncio.ensure_future(self.next())
        try:
            await asyncio.wait({coming}, timeout=STATUS_S)
            if coming.done():
                coming.result()
            await self._exchange.begin(200, *headers)
            if comment:
                self._start(self._comment(comment))
            return await coming
        finally:
            coming.cancel()

    async def send(self, first: tuple[Any] | None, write: Callable[[Any], bytes]) -> None:
        """Send each part to the client as soon as it has arrived. Parts that arrived together are sent together.

        Args:
            first: The first part, see `begin`.
            write: Returns the bytes of a part.
        """
        found = first
        while found is not None:
            together = [write(found[0])]
            nbytes = len(together[0])
            try:
                while nbytes < JOIN_BYTES and (found := self._stream.next_kept()) is not None:
                    self._came()
                    together.append(data := write(found[0]))
                    nbytes += len(data)
            finally:  # even if a later part has failed
                await self._exchange.send(b"".join(together))
            found = await self.next()

    async def _comment(self, comment: bytes) -> None:
        """Send a comment now and then while no part comes."""
        loop = asyncio.get_running_loop()
        while True:
            silent_s = loop.time() - self._asked_s
            if silent_s >= COMMENT_EVERY_S:
                await self._exchange.send(comment)
                self._asked_s = loop.time()
                silent_s = 0.0
            await asyncio.sleep(COMMENT_EVERY_S - silent_s)
