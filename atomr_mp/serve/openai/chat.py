"""`POST /v1/chat/completions`: messages to a method, and its text back, whole or as it is made."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.serve.calls import PoolCalls, options
from atomr_mp.serve.http import events
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.http.problems import Problem, describe
from atomr_mp.serve.openai import bodies
from atomr_mp.serve.openai.declared import UNKNOWN_USAGE, method_of
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.streams import ServedStream, StreamCalls
from atomr_mp.serve.values.results import encode_json

FORM: Final = "chat"

USED: Final = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata"})

DONE: Final = events.event(b"[DONE]")


class Chat:
    """Answers chats.

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

    async def answer(self, exchange: Exchange) -> None:
        """Answer a request."""
        body = await bodies.read(exchange)
        pool = self._source.pool
        plan = self._calls.plan(pool, method_of(pool, body.get("model"), FORM))
        exchange.called = plan.method
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise errors.InvalidRequest("messages is a list of objects, with role and content")
        first, *others = plan.info.parameters
        if "max_tokens" in others and "max_tokens" not in body and "max_completion_tokens" not in others:
            body["max_tokens"] = body.pop("max_completion_tokens", None)
        more = bodies.parameters(body, USED, others, plan.method)
        _, kwargs = plan.arguments({first: messages, **more})
        completion, in_parts = Completion(body["model"]), bool(body.get("stream"))
        del body, messages, more
        if plan.info.streams:
            opened = self._streams.open(exchange, pool, plan.method, (), kwargs)
            del kwargs
            async with opened as parts:
                await (self._send if in_parts else _collect)(exchange, parts, completion)
            return
        deadline_s, priority = options(exchange)
        reply = pool.call(plan.method, kwargs=kwargs, deadline_s=deadline_s, priority=priority)
        text = text_of(await self._calls.outcome(exchange, reply))
        if in_parts:
            await exchange.begin(200, *events.HEADERS)
            await exchange.send(completion.chunk(text) + completion.chunk("", finish="stop"))
            await exchange.end(DONE)
        else:
            await exchange.answer(200, completion.whole(text, "stop"))

    async def _send(self, exchange: Exchange, parts: ServedStream, completion: Completion) -> None:
        """Send the text as it is made."""
        try:
            first = await parts.begin(events.HEADERS, events.COMMENT)
            await parts.send(first, lambda part: completion.chunk(text_of(part)))
            await exchange.send(completion.chunk("", finish=finish_of(await parts.result())))
            await exchange.end(DONE)
        except (errors.AtomrError, Problem) as error:
            if not exchange.status:
                raise
            exchange.failed(error)
            told = describe(error, exchange.id, debug=self._debug) | {"parts": parts.count}
            await exchange.end(events.event(encode_json({"error": told})))


async def _collect(exchange: Exchange, parts: ServedStream, completion: Completion) -> None:
    """Answer with the whole text at its end."""
    texts = []
    while (found := await parts.next()) is not None:
        texts.append(text_of(found[0]))
    await exchange.answer(200, completion.whole("".join(texts), finish_of(await parts.result())))


class Completion:
    """One answer in OpenAI's form.

    Args:
        model: The model's name in the request.
    """

    def __init__(self, model: str) -> None:
        self._head: Final = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._begun = False

    def whole(self, text: str, finish: str) -> bytes:
        """Return the body of an answer."""
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return encode_json({**self._head, "object": "chat.completion", "choices": [choice], "usage": UNKNOWN_USAGE})

    def chunk(self, text: str, finish: str | None = None) -> bytes:
        """Return an event with a part of the text; the first one names the speaker."""
        delta: dict[str, Any] = {} if finish is not None else {"content": text}
        if not self._begun:
            self._begun = True
            delta["role"] = "assistant"
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return events.event(encode_json({**self._head, "object": "chat.completion.chunk", "choices": [choice]}))


def finish_of(result: object) -> str:
    """Return the reason of the text's end: the method's result if OpenAI has that reason, else "stop"."""
    return result if result in {"stop", "length", "content_filter"} and isinstance(result, str) else "stop"


def text_of(result: object) -> str:
    """Return the text that a method has returned.

    Raises:
        Unsupported: The result is not text.
    """
    if isinstance(result, str):
        return result
    raise errors.Unsupported(f"the method has returned no text but a {type(result).__name__}", maybe_executed=True)
