"""`POST /call/Actor.method`: a call of the pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from atomr_mp.pool import Pool
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.pool_calls import PoolCalls
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.values import arrays, results, schemas, uploads
from atomr_mp.serve.values.bodies import from_json, odd_numbers
from atomr_mp.serve.values.conversions import NO_ODD_NUMBERS
from atomr_mp.serve.values.multipart import FORM, parts_of
from atomr_mp.serve.values.schemas import ArgumentPlan

JSON_TYPES: Final = frozenset({b"application/json", b""})

Streaming = Callable[[Exchange, Pool, ArgumentPlan], Awaitable[None]]


class HttpCalls:
    """Answers calls.

    Args:
        source: The source of the pool.
        calls: Makes calls.
        stream: Answers calls of methods that stream.
    """

    def __init__(self, source: PoolSource, calls: PoolCalls, stream: Streaming) -> None:
        self._source: Final = source
        self._calls: Final = calls
        self._stream: Final = stream

    async def answer(self, exchange: Exchange) -> None:
        """Answer `POST /call/Actor.method`."""
        pool = self._source.pool
        plan = self._calls.plan(pool, exchange.values[0])
        exchange.called = plan.method
        if plan.info.streams:
            await self._stream(exchange, pool, plan)
            return
        form = results.form_of(exchange.headers.get(b"accept", b""), plan.result)
        args, kwargs = await arguments(exchange, plan)
        deadline_s, priority = options(exchange)
        reply = self._calls.call(exchange, plan, args, kwargs, deadline_s=deadline_s, priority=priority)
        del args, kwargs  # decoded, they may take many times the bytes that were sent, and the call may be long
        result = await self._calls.outcome(exchange, reply)
        async with exchange.making(results.about_bytes(result)):
            content_type, body = results.encode(result, form, plan.as_json)
            await exchange.answer(200, body, content_type)


async def arguments(exchange: Exchange, plan: ArgumentPlan) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
    """Read a call's arguments, by position and by name.

    Raises:
        Problem: 400, 411, 413 or 415.
        InvalidRequest: They do not fit the method.
        ClientLeft: The client left before they were complete.
    """
    given = exchange.headers
    if b"content-encoding" in given and given[b"content-encoding"].lower() != b"identity":
        raise Problem(415, "unsupported_media_type", "a body with Content-Encoding is not read; send it as it is")
    kind = given.get(b"content-type", b"")
    if kind != b"application/json":
        kind = kind.partition(b";")[0].strip().lower()
    if kind not in JSON_TYPES:
        return (), await _other_arguments(exchange, plan, kind)
    body = await exchange.body(exchange.limits.json_bytes)
    if not body:
        return (), None
    if not kind:
        # A web page of another origin may send a body without this type, and its browser would not ask first.
        raise Problem(415, "unsupported_media_type", "send the header `Content-Type: application/json`")
    numbers = odd_numbers(body) if plan.has_odd_numbers else NO_ODD_NUMBERS
    return plan.arguments(from_json(body, exchange.limits.json_containers), numbers)


async def _other_arguments(exchange: Exchange, plan: ArgumentPlan, kind: bytes) -> dict[str, Any]:
    """Read a call's arguments, by name, from a body that is no JSON.

    Raises:
        Problem: 400, 411, 413 or 415.
        InvalidRequest: They do not fit the method.
        ClientLeft: The client left before they were complete.
    """
    limits = exchange.limits
    if kind == results.NPY:
        name = schemas.needs_one_array(plan)
        if exchange.content_length() is None:
            raise Problem(411, "length_required", "a raw array is sent with its Content-Length", close=True)
        return {name: arrays.from_npy(await exchange.body(limits.npy_bytes))}
    if kind == FORM:
        body = await exchange.body(limits.raw_bytes)
        return uploads.of_form(plan, parts_of(body, exchange.headers[b"content-type"], limits.form_parts), limits)
    if not uploads.is_raw(kind):
        raise Problem(
            415,
            "unsupported_media_type",
            f"{kind.decode('latin-1')[:100]} is not read; send application/json, multipart/form-data, one array as "
            "application/x-npy, or a file as application/octet-stream",
        )
    if not plan.raw:
        raise Problem(
            415,
            "unsupported_media_type",
            f"{plan.method} has no parameter that a raw body could be: exactly one that is annotated as bytes; send "
            "application/json",
        )
    given = exchange.headers[b"content-type"]
    return uploads.of_raw(plan, await exchange.body(limits.raw_bytes), given, exchange.scope["query_string"], limits)


def options(exchange: Exchange) -> tuple[float | None, int]:
    """Return a call's deadline in seconds and its priority, from the headers.

    Raises:
        Problem: 400; a header is invalid.
    """
    deadline_s, priority = seconds(exchange, b"x-deadline-s"), exchange.headers.get(b"x-priority")
    if priority is None:
        return deadline_s, 0
    try:
        if b"_" not in priority:
            return deadline_s, int(priority)
    except ValueError:
        pass
    raise Problem(400, "bad_request", "X-Priority is a whole number from -8 to 7")


def seconds(exchange: Exchange, name: bytes) -> float | None:
    """Return the seconds in a header, None if the header is missing.

    Raises:
        Problem: 400; the header is not a number, or too large.
    """
    given = exchange.headers.get(name)
    if given is None:
        return None
    try:
        found = 0.0 if b"_" in given else float(given)  # Python's own spelling is nobody else's
    except ValueError:
        found = 0.0
    most_s = exchange.limits.deadline_s
    if not 0 < found <= most_s:  # nor NaN
        raise Problem(400, "bad_request", f"{name.decode().title()} is a number of seconds, at most {most_s:g}")
    return found
