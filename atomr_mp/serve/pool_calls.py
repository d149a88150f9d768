"""Calls of the pool for clients, whatever protocol they speak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.pool import Pool
from atomr_mp.serve.health import PoolHealth
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.served_request import ServedRequest
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.target import CallTarget
from atomr_mp.serve.values import schemas
from atomr_mp.serve.values.schemas import ArgumentPlan

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


HEAR_S: Final = 5.0
"""How long a call waits for news of its incarnation."""

HEAR_EVERY_S: Final = 0.005


class PoolCalls:
    """Makes calls of a pool.

    Args:
        source: The source of the pool.
        health: Learns which devices answer.
    """

    def __init__(self, source: PoolSource, health: PoolHealth) -> None:
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

    def call(
        self,
        served: ServedRequest,
        plan: ArgumentPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        *,
        deadline_s: float | None,
        priority: int,
    ) -> Reply:
        """Make a call for a request.

        Args:
            served: The request.
            plan: The method's.
            args: Arguments by position.
            kwargs: Arguments by name.
            deadline_s: The call's deadline in seconds; None for none.
            priority: Its priority.

        Raises:
            AtomrError: The pool does not take it.
        """
        reply = CallTarget(self._source.pool, plan.method).call(args, kwargs, deadline_s=deadline_s, priority=priority)
        served.sent = True
        return reply

    async def call_once(
        self,
        served: ServedRequest,
        pool: Pool,
        method: str,
        kwargs: dict[str, Any],
        *,
        deadline_s: float | None,
        priority: int,
        at: tuple[int, int] | None,
    ) -> Reply:
        """Make a call that is not sent again once it may have run; see `Pool.call_once`.

        Waits until this process has heard of the incarnation, for `HEAR_S` at most: another one has called there.

        Raises:
            StaleGeneration: The incarnation leaves or has ended.
            DeviceUnavailable: No news of it have come.
            AtomrError: The pool does not take it.
        """
        target, until_s = CallTarget(pool, method), time.monotonic() + min(HEAR_S, deadline_s or HEAR_S)
        while True:
            try:
                reply = target.call_once(kwargs, deadline_s=deadline_s, priority=priority, at=at)
            except errors.StaleGeneration as error:
                if error.current >= error.generation:
                    raise
                if time.monotonic() > until_s:
                    why = f"no news of incarnation {error.generation} of device {error.device} have come; call again"
                    raise errors.DeviceUnavailable(why, device=error.device) from None
            else:
                served.sent = True
                return reply
            await asyncio.sleep(HEAR_EVERY_S)  # the lane takes in the news in a later turn of the loop

    async def outcome(self, served: ServedRequest, reply: Reply) -> Any:
        """Wait for a call's result; see `ServedRequest.outcome`."""
        in_flight, device = self._health.in_flight, reply.device
        in_flight[device] += 1
        try:
            result = await served.outcome(reply)
        except errors.AtomrError as error:
            if error.code not in UNTOUCHED:
                self._health.note(reply.device)
            raise
        finally:
            in_flight[device] -= 1
            served.is_on(reply.device, reply.generation)
            if reply.ran_at:
                served.ran_at = reply.ran_at
        self._health.note(reply.device)
        return result

    async def outcomes(self, served: ServedRequest, replies: Sequence[Reply]) -> list[Any]:
        """Wait for the results of several calls; see `ServedRequest.outcomes`."""
        in_flight, devices = self._health.in_flight, [reply.device for reply in replies]
        in_flight.update(devices)
        try:
            results = await served.outcomes(replies)
        except errors.AtomrError as error:
            raise of_all(error, replies) from None
        finally:
            in_flight.subtract(devices)
            shown = next((reply for reply in replies if reply.is_over and reply.error is not None), replies[0])
            served.is_on(shown.device, shown.generation)
            served.ran_at = tuple({place: None for reply in replies for place in reply.ran_at})
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
