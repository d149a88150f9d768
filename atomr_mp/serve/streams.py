"""Answers for methods that stream: each part as it comes, as a server-sent event or a line of JSON.

The status waits a while for the first part: until then an error has a status of its own. The last event is `end`, with
the number of parts, or `error`; a stream that ends without either was cut off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

from atomr_mp import errors
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.pool import Pool
from atomr_mp.serve import method_figures
from atomr_mp.serve.calls import arguments, options, seconds
from atomr_mp.serve.health import PoolHealth
from atomr_mp.serve.http import events
from atomr_mp.serve.http.accept import weight
from atomr_mp.serve.http.events import COMMENT_EVERY_S, OpenHttpStreams
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.http.problems import ClientLeft, Header, Problem, describe
from atomr_mp.serve.metrics import STREAMS, Counters
from atomr_mp.serve.target import CallTarget
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.values.schemas import ArgumentPlan

STATUS_S: Final = 10.0
"""How long the status waits for the first part: proxies give up an answer that does not begin."""

AHEAD: Final = 64
AHEAD_BYTES: Final = 512 * 2**10
"""Parts and bytes that may be made before the client has read them: a stalled client holds them here."""

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
    ) -> ServedStream:
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
        return ServedStream(exchange, stream, self._streams, self._health, self._counters)


class ServedStream:
    """A stream while a client reads it; closed when the client leaves, and when the server ends. Use `async with`.

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
        self._exchange: Final = exchange
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
        self._streams.add(self._close, self._exchange.token)
        self._counters.own[STREAMS] += 1
        self._start(self._watch())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._streams.remove(self._close)
        self._counters.own[STREAMS] -= 1
        for task in self._tasks:
            task.cancel()
        self._exchange.is_on(self._stream.device, self._stream.generation)
        self._exchange.ran_at = self._stream.ran_at
        self._stream.close()

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

    async def next(self) -> tuple[Any] | None:
        """Return the next part, None at the end; raises as `begin` does."""
        self._asked_s = asyncio.get_running_loop().time()
        try:
            found = await anext(self._stream)
        except StopAsyncIteration:
            return None
        except errors.Cancelled:
            if self._why is None:
                raise
            if isinstance(self._why, Problem) and self._why.status == 500 and not self._exchange.status:
                raise errors.Cancelled(self._why.message, maybe_executed=True) from None  # as of any other call
            raise errors.unraised(self._why) from None
        self._came()
        self._health.note(self._stream.device)
        return (found,)

    def _came(self) -> None:
        """Count a part now: a stream may last for hours."""
        exchange, methods = self._exchange, self._counters.methods
        if not self.count:
            exchange.first_part_ns = time.monotonic_ns()
            first_ns = exchange.first_part_ns - exchange.begun_ns
            methods.took(method_figures.FIRST_PART, exchange.called, "", first_ns)
        self.count += 1
        exchange.parts = self.count
        methods.count(method_figures.PARTS, exchange.called, 1)

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

    async def result(self) -> Any:
        """Return the method's result, at the end."""
        return await self._stream

    async def _watch(self) -> None:
        await self._exchange.left()
        self._close(ClientLeft())

    def _close(self, why: ClientLeft | Problem) -> None:
        if self._why is None:
            self._why = why
            self._stream.close()

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

    def _start(self, watching: Any) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(watching))
