"""The target of a method's calls: the pool, or the world of the method's actor."""

from __future__ import annotations

from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.pool import Pool
from atomr_mp.world import World


class CallTarget(Protocol):
    """Takes calls of a method."""

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, *, deadline_s: float | None, priority: int
    ) -> Reply:
        """Call the method; see `Pool.call`."""

    def stream(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        *,
        deadline_s: float | None,
        priority: int,
        **options: Any,
    ) -> ReplyStream:
        """Open a stream of the method; see `Pool.stream`, which also describes the options."""


def target_of(pool: Pool, method: str) -> CallTarget:
    """Return the target of a method's calls.

    Args:
        pool: The pool.
        method: "Actor.method".
    """
    world = pool.world_of(method)
    return PoolTarget(pool, method) if world is None else WorldTarget(world, method)


class PoolTarget:
    """Calls a method on any device.

    Args:
        pool: The pool.
        method: "Actor.method".
    """

    def __init__(self, pool: Pool, method: str) -> None:
        self._pool: Final = pool
        self._method: Final = method

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, *, deadline_s: float | None, priority: int
    ) -> Reply:
        """Call the method."""
        return self._pool.call(self._method, *args, kwargs=kwargs, deadline_s=deadline_s, priority=priority)

    def stream(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        *,
        deadline_s: float | None,
        priority: int,
        **options: Any,
    ) -> ReplyStream:
        """Open a stream of the method."""
        return self._pool.stream(
            self._method, *args, kwargs=kwargs, deadline_s=deadline_s, priority=priority, **options
        )


class WorldTarget:
    """Calls a method on all ranks of a world; what comes back is rank 0's.

    Args:
        world: The world.
        method: "Actor.method".
    """

    def __init__(self, world: World, method: str) -> None:
        self._world: Final = world
        self._method: Final = method

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, *, deadline_s: float | None, priority: int
    ) -> Reply:
        """Call the method."""
        self._world.check_priority(self._method, priority)
        return self._world.call(self._method, *args, kwargs=kwargs, deadline_s=deadline_s)

    def stream(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        *,
        deadline_s: float | None,
        priority: int,
        **options: Any,
    ) -> ReplyStream:
        """Open a stream of the method."""
        self._world.check_priority(self._method, priority)
        opens: Any = getattr(self._world, "stream", None)
        if opens is None:
            raise errors.InvalidRequest(f"{self._method} streams, and methods of a world's actors cannot")
        stream: ReplyStream = opens(self._method, *args, kwargs=kwargs, deadline_s=deadline_s, **options)
        return stream
