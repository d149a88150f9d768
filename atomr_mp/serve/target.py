"""The target of a method's calls: the pool, or the world of the method's actor."""

from __future__ import annotations

from typing import Any, Final

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.pool import Pool


class CallTarget:
    """Calls a method on any device; or, of a world's actor, on all ranks, and gives what rank 0 returns.

    Args:
        pool: The pool.
        method: "Actor.method".
    """

    def __init__(self, pool: Pool, method: str) -> None:
        self._method: Final = method
        self._world: Final = pool.world_of(method)
        self._of: Final[Any] = pool if self._world is None else self._world

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, *, deadline_s: float | None, priority: int
    ) -> Reply:
        """Call the method; see `Pool.call`."""
        reply: Reply = self._of.call(
            self._method, *args, kwargs=kwargs, deadline_s=deadline_s, **self._priority(priority)
        )
        return reply

    def call_once(
        self, kwargs: dict[str, Any], *, deadline_s: float | None, priority: int, at: tuple[int, int] | None
    ) -> Reply:
        """Call the method on one device, once; see `Pool.call_once`.

        Raises:
            InvalidRequest: It is of a world's actor.
        """
        if self._world is not None:
            raise errors.InvalidRequest(f"{self._method} runs on all ranks of a world, and so has no sequences")
        pool: Pool = self._of
        return pool.call_once(self._method, (), kwargs, deadline_s=deadline_s, priority=priority, at=at)

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
        stream: ReplyStream = self._of.stream(
            self._method, *args, kwargs=kwargs, deadline_s=deadline_s, **options, **self._priority(priority)
        )
        return stream

    def _priority(self, priority: int) -> dict[str, int]:
        """Return the option for a priority; a world has none.

        Raises:
            InvalidRequest: It has none, and the priority is not 0.
        """
        if self._world is None:
            return {"priority": priority}
        self._world.check_priority(self._method, priority)
        return {}
