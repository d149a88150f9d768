"""`POST /call/Actor.method`: a call of the pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.pool import Pool
from atomr_mp.serve.health import PoolHealth
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.http.problems import Problem
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.target import CallTarget
from atomr_mp.serve.values import arrays, results, schemas, uploads
from atomr_mp.serve.values.bodies import from_json, odd_numbers
from atomr_mp.serve.values.conversions import NO_ODD_NUMBERS
from atomr_mp.serve.values.multipart import FORM, parts_of
from atomr_mp.serve.values.schemas import ArgumentPlan

JSON_TYPES: Final = frozenset({b"application/json", b""})

Streaming = Callable[[Exchange, Pool, ArgumentPlan], Awaitable[None]]

UNTOUCHED: Final = frozenset(
    {
        errors.WorkerLost.code,
        errors.WorkerHung.code,
        errors.ConnectionLost.code,
        errors.PoolLost.code,
        errors.DeadlineExceeded.code,
        errors.DeviceUnavailable.code,
        errors.Cancelled.code,
    }
)
"""Errors that do not show that a worker answers."""


class PoolCalls:
    """Makes calls of a pool for exchanges.

    Args:
        source: The source of the pool.
        health: Learns which devices answer.
        stream: Answers calls of methods that stream.
    """

    def __init__(self, source: PoolSource, health: PoolHealth, stream: Streaming) -> None:
        self._stream: Final = stream
        self._source: Final = source
        self._health: Final = health
        self._plans: dict[str, ArgumentPlan] = {}

    def plan(self, pool: Pool, method: str) -> ArgumentPlan:
        """Return the plan of a method's arguments.

        Raises:
            Problem: 404; there is no such method.
            PoolUnreachable: The pool starts and has no methods yet.
        """
        info = pool.methods_by_name.get(method)
        if info is None:
            if pool.is_starting(method):
                raise errors.PoolUnreachable("the pool is starting, and no device that has this has been ready yet")
            try:
                info = pool.method_info(method)
            except errors.InvalidRequest as error:
                raise Problem(404, "not_found", str(error)) from error
        found = self._plans.get(method)
        if found is None or found.info is not info:
            if len(self._plans) > 2 * len(pool.methods):  # plans may be of methods that a reload has removed
                self._plans.clear()
            found = self._plans[method] = schemas.plan_of(method, info)
        return found

    async def answer(self, exchange: Exchange) -> None:
        """Answer `POST /call/Actor.method`."""
        pool = self._source.pool
        plan = self.plan(pool, exchange.path.removeprefix("/call/"))
        exchange.called = plan.method
        if plan.info.streams:
            await self._stream(exchange, pool, plan)
            return
        form = results.form_of(exchange.headers.get(b"accept", b""), plan.result)
        args, kwargs = await arguments(exchange, plan)
        deadline_s, priority = options(exchange)
        reply = CallTarget(pool, plan.method).call(args, kwargs, deadline_s=deadline_s, priority=priority)
        exchange.sent = True
        del args, kwargs  # decoded, they may take many times the bytes that were sent, and the call may be long
        result = await self.outcome(exchange, reply)
        content_type, body = results.encode(result, form, plan.as_json)
        await exchange.answer(200, body, content_type)

    async def outcome(self, exchange: Exchange, reply: Reply) -> Any:
        """Wait for a call's result; see `Exchange.outcome`."""
        in_flight, device = self._health.in_flight, reply.device
        in_flight[device] += 1
        try:
            result = await exchange.outcome(reply)
        except errors.AtomrError as error:
            if error.code not in UNTOUCHED:
                self._health.note(reply.device)
            raise
        finally:
            in_flight[device] -= 1
            exchange.is_on(reply.device, reply.generation)
            if reply.ran_at:
                exchange.ran_at = reply.ran_at
        self._health.note(reply.device)
        return result

    async def outcomes(self, exchange: Exchange, replies: Sequence[Reply]) -> list[Any]:
        """Wait for the results of several calls; see `Exchange.outcomes`."""
        in_flight, devices = self._health.in_flight, [reply.device for reply in replies]
        in_flight.update(devices)
        try:
            results = await exchange.outcomes(replies)
        except errors.AtomrError as error:
            raise of_all(error, replies) from None
        finally:
            in_flight.subtract(devices)
            shown = next((reply for reply in replies if reply.is_over and reply.error is not None), replies[0])
            exchange.is_on(shown.device, shown.generation)
            exchange.ran_at = tuple({place: None for reply in replies for place in reply.ran_at})
        for reply in replies:
            self._health.note(reply.device)
        return results


def of_all(error: errors.AtomrError, replies: Sequence[Reply]) -> errors.AtomrError:
    """Return the error of one of several calls of a request, as the error of the request: others may have run."""
    if isinstance(error, errors.RequestError) and any(map(_may_have_run, replies)):
        error.maybe_executed = True
    return error


def _may_have_run(reply: Reply) -> bool:
    return not reply.is_over or reply.error is None or getattr(reply.error, "maybe_executed", True)


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
