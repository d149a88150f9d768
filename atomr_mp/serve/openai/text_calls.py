"""Calls of methods that answer with text, whole or as it is made, in the form that a writer gives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.serve.calls import options
from atomr_mp.serve.http import events
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.openai import bodies, refusals
from atomr_mp.serve.openai.declared import method_of
from atomr_mp.serve.openai.parts import AnswerPart, TextAnswer
from atomr_mp.serve.pool_calls import PoolCalls, of_all
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.served_stream import ServedStream
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.streams import HttpStream, StreamCalls
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.values.schemas import ArgumentPlan

DONE: Final = events.event(b"[DONE]")


class Writer(Protocol):
    """Writes one answer."""

    keeps: bool
    """Whether the end of a stream needs the whole text again."""

    def whole(self, answers: Sequence[TextAnswer]) -> dict[str, Any]:
        """Return an answer's body; there is one answer for each call."""

    def part(self, part: AnswerPart) -> bytes:
        """Return the events for what is new; nothing if nothing is."""

    def end(self, answer: TextAnswer) -> bytes:
        """Return the last events."""

    def failed(self, answer: TextAnswer, error: dict[str, Any]) -> bytes:
        """Return the event that ends a stream with an error, see `refusals.describe`."""


class Asked(NamedTuple):
    """What a request asks for."""

    calls: Sequence[dict[str, Any]]
    """The arguments of each call by name; several have to be answered whole, by a method that does not stream."""
    writer: Writer
    in_parts: bool
    """Whether to answer with a stream of events."""


class TextForm(NamedTuple):
    """A form of requests whose answer is text."""

    name: str
    """The form that a method declares."""
    read: Callable[[Mapping[str, Any], ArgumentPlan], Asked]
    """Reads a request."""


class TextCalls:
    """Answers requests in forms of text.

    Args:
        source: The source of the pool.
        calls: Makes calls.
        streams: Opens streams.
        debug: Whether errors show the actor's traceback.
    """

    def __init__(self, source: PoolSource, calls: PoolCalls, streams: StreamCalls, *, debug: bool) -> None:
        self._source: Final = source
        self._calls: Final = calls
        self._streams: Final = streams
        self._debug: Final = debug

    def answers(self, form: TextForm) -> Callable[[Exchange], Awaitable[None]]:
        """Return the handler of requests in a form."""

        async def handler(exchange: Exchange) -> None:
            await self._answer(exchange, form)

        return handler

    async def _answer(self, exchange: Exchange, form: TextForm) -> None:
        body = await bodies.read(exchange)
        pool = self._source.pool
        plan = self._calls.plan(pool, method_of(pool, body.get("model"), form.name))
        exchange.called = plan.method
        calls, writer, in_parts = form.read(body, plan)
        del body
        if plan.info.streams:
            _, kwargs = plan.arguments(calls[0])
            opened = self._streams.open(exchange, pool, plan.method, (), kwargs)
            del calls, kwargs  # decoded, they may take many times the bytes that were sent, and the stream may be long
            async with opened as parts:
                if in_parts:
                    await self._send(exchange, parts, writer)
                else:
                    await exchange.answer(200, encode_json(writer.whole([await _gather(parts)])))
            return
        answers = [TextAnswer() for _ in calls]
        results = await call_all(self._calls, exchange, plan, calls)
        parts_of = [answer.take_all(result) for answer, result in zip(answers, results, strict=True)]
        if in_parts:
            told = writer.part(parts_of[0]) + writer.end(answers[0])
            await exchange.begin(200, *events.HEADERS)
            await exchange.end(told)
        else:
            await exchange.answer(200, encode_json(writer.whole(answers)))

    async def _send(self, exchange: Exchange, parts: HttpStream, writer: Writer) -> None:
        """Send the text as it is made."""
        answer = TextAnswer(keeps=writer.keeps)
        try:
            first = await parts.begin(events.HEADERS, events.COMMENT)
            await parts.send(first, lambda part: writer.part(answer.take(part)))
            last = answer.end(await parts.result())
            await exchange.end(writer.part(last) + writer.end(answer))
        except (errors.AtomrError, Problem) as error:
            if not exchange.status:
                raise
            exchange.failed(error)
            told = refusals.describe(error, exchange.id, debug=self._debug, sent=True) | {"parts": parts.count}
            await exchange.end(writer.failed(answer, told))


async def _gather(parts: ServedStream) -> TextAnswer:
    """Return a stream's whole answer."""
    answer = TextAnswer()
    while (found := await parts.next()) is not None:
        answer.take(found[0])
    answer.end(await parts.result())
    return answer


async def call_all(
    calls: PoolCalls, exchange: Exchange, plan: ArgumentPlan, several: Sequence[dict[str, Any]]
) -> list[Any]:
    """Make a call for each arguments by name; return their results, in this order.

    Raises:
        AtomrError: The error of the first call that failed; the others are cancelled.
        ClientLeft: The client has left.
    """
    deadline_s, priority = options(exchange)
    planned = [plan.arguments(each)[1] for each in several]  # all of them before the first call is made
    replies: list[Reply] = []
    try:
        for kwargs in planned:
            reply = calls.call(exchange, plan, (), kwargs, deadline_s=deadline_s, priority=priority)
            replies.append(reply)
    except errors.AtomrError as error:
        for reply in replies:
            reply.cancel()
        raise of_all(error, replies) from None
    if len(replies) == 1:
        return [await calls.outcome(exchange, replies[0])]
    return await calls.outcomes(exchange, replies)
