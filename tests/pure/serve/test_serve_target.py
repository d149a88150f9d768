"""The target of an HTTP call: the pool, or the world of the method's actor."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.serve import pool_calls
from atomr_mp.serve.pool_calls import PoolCalls
from atomr_mp.serve.target import CallTarget


class FakeTarget:
    """A pool or a world; it keeps what is asked of it."""

    def __init__(self, world: FakeTarget | None = None) -> None:
        self.asked: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []
        self._world = world
        self.refusals: list[errors.StaleGeneration] = []
        """Refusals of calls that go to one incarnation."""

    def world_of(self, method: str) -> FakeTarget | None:
        """Return the world of an actor."""
        return self._world if method.startswith("Mlp.") else None

    def check_priority(self, method: str, priority: int) -> None:
        """Refuse a priority."""
        if priority:
            raise errors.InvalidRequest(f"{method} has no priority")

    def call(self, method: str, *args: Any, **options: Any) -> str:
        """Keep a call."""
        self.asked.append(("call", method, args, options))
        return "reply"

    def call_once(self, method: str, *args: Any, **options: Any) -> str:
        """Keep a call that goes to one incarnation; refuse it as long as there is a reason."""
        self.asked.append(("once", method, args, options))
        if self.refusals:
            raise self.refusals.pop(0)
        return "reply"

    def stream(self, method: str, *args: Any, **options: Any) -> str:
        """Keep a stream."""
        self.asked.append(("stream", method, args, options))
        return "stream"


def test_a_method_of_a_world_s_actor_goes_to_the_world_and_any_other_to_the_pool() -> None:
    """With all that was asked for; a world knows no priorities, and is given none."""
    world = FakeTarget()
    pool: Any = FakeTarget(world)
    for method, target, priority in (("Mlp.forward", world, {}), ("Other.one", pool, {"priority": 0})):
        found = CallTarget(pool, method)
        found.call((1,), {"x": 2}, deadline_s=3.0, priority=0)
        found.stream((), None, deadline_s=None, priority=0, first_s=1.0, ahead=64)
        assert target.asked == [
            ("call", method, (1,), {"kwargs": {"x": 2}, "deadline_s": 3.0, **priority}),
            ("stream", method, (), {"kwargs": None, "deadline_s": None, "first_s": 1.0, "ahead": 64, **priority}),
        ]
    found = CallTarget(pool, "Mlp.forward")
    with pytest.raises(errors.InvalidRequest, match="has no priority"):
        found.call((), None, deadline_s=None, priority=1)
    with pytest.raises(errors.InvalidRequest, match="has no priority"):
        found.stream((), None, deadline_s=None, priority=1)
    assert len(world.asked) == 2


def call_once(pool: Any, method: str = "Other.one", deadline_s: float | None = None) -> Any:
    """Make a call for the third incarnation of device 1; return whether it was sent."""
    served: Any = SimpleNamespace(sent=False)
    calls = PoolCalls(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type] # not used
    asyncio.run(calls.call_once(served, pool, method, {"x": 2}, deadline_s=deadline_s, priority=0, at=(1, 3)))
    return served.sent


def stale(current: int) -> errors.StaleGeneration:
    """Return the refusal of a client that knows an incarnation."""
    return errors.StaleGeneration("x", maybe_executed=False, device=1, generation=3, current=current)


def test_a_call_waits_for_news_of_its_incarnation() -> None:
    """Another front end has called there. One that is over is not waited for, and worlds have none."""
    pool: Any = FakeTarget()
    pool.refusals = [stale(2), stale(2)]
    assert call_once(pool)
    assert pool.asked == [("once", "Other.one", ((), {"x": 2}), {"deadline_s": None, "priority": 0, "at": (1, 3)})] * 3
    for current in (3, 4):
        pool.refusals = [stale(current)]
        with pytest.raises(errors.StaleGeneration):
            call_once(pool)
    with pytest.raises(errors.InvalidRequest, match="runs on all ranks of a world, and so has no sequences"):
        call_once(FakeTarget(FakeTarget()), "Mlp.forward")


def test_a_call_does_not_wait_for_news_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor beyond its deadline; nothing has run then."""
    pool: Any = FakeTarget()
    monkeypatch.setattr(pool_calls, "HEAR_S", 0.02)
    for deadline_s in (None, 0.01):
        pool.refusals = [stale(2)] * 1000
        with pytest.raises(errors.DeviceUnavailable, match="no news of incarnation 3 of device 1 have come") as refused:
            call_once(pool, deadline_s=deadline_s)
        assert not refused.value.maybe_executed
        assert pool.refusals
