"""The target of an HTTP call: the pool, or the world of the method's actor."""

from __future__ import annotations

from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.serve.target import CallTarget


class FakeTarget:
    """A pool or a world; it keeps what is asked of it."""

    def __init__(self, world: FakeTarget | None = None) -> None:
        self.asked: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []
        self._world = world

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
