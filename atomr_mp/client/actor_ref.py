"""A reference to an actor, whose requests are called like methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.words import did_you_mean


class CallsByName(Protocol):
    """The pool, as far as a reference to an actor needs it."""

    @property
    def methods(self) -> list[str]:
        """The requests that can be made, as "Actor.method"."""

    def has(self, method: str) -> bool:
        """Whether there is a request of this name."""

    def streams(self, method: str) -> bool:
        """Whether there is a request of this name that streams."""

    def call(
        self,
        method: str,
        /,
        *args: Any,
        device: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        wait: bool | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Reply:
        """Make a request."""

    def stream(
        self,
        method: str,
        /,
        *args: Any,
        device: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        kwargs: dict[str, Any] | None = None,
    ) -> ReplyStream:
        """Make a request that is answered by parts."""


class ActorRef:
    """An actor of a pool; its methods are the actor's requests. Made by `Pool.actor`.

    They return a `Reply`; of methods that stream, a `ReplyStream`.
    """

    def __init__(
        self,
        pool: CallsByName,
        name: str,
        device: int | None,
        deadline_s: float | None,
        priority: int = 0,
        wait: bool | None = None,  # noqa: FBT001 - made by `Pool.actor` alone
    ) -> None:
        self._pool = pool
        self._name = name
        self._device = device
        self._deadline_s = deadline_s
        self._priority = priority
        self._wait = wait

    __reduce__ = refusal(CONNECT, "the actor's name")

    def __repr__(self) -> str:
        return f"<actor {self._name} of {self._pool!r}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = f"{self._name}.{name}"
        if name.startswith("__") or not self._pool.has(method):
            requests = [each.removeprefix(f"{self._name}.") for each in self._pool.methods]
            raise AttributeError(f"actor {self._name!r} has no request {name!r}{did_you_mean(name, requests)}")
        pool, device, deadline_s, priority = self._pool, self._device, self._deadline_s, self._priority
        wait = self._wait

        def call(*args: Any, **kwargs: Any) -> Reply:
            return pool.call(
                method, *args, device=device, deadline_s=deadline_s, priority=priority, wait=wait, kwargs=kwargs or None
            )

        def stream(*args: Any, **kwargs: Any) -> ReplyStream:
            return pool.stream(
                method, *args, device=device, deadline_s=deadline_s, priority=priority, kwargs=kwargs or None
            )

        # Python finds it here from now on, without this function.
        found = self.__dict__[name] = stream if pool.streams(method) else call
        return found
