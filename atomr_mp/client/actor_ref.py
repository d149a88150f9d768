"""A reference to an actor, whose requests are called like methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from atomr_mp.client.call_or_stream import CallOrStream
from atomr_mp.client.callers import calling_loop
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.client.taken_arguments import TakenArguments
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.words import did_you_mean


class CallsByName(Protocol):
    """The pool, as far as a reference to an actor needs it."""

    @property
    def methods(self) -> list[str]:
        """The requests that can be made, as "Actor.method"."""

    def is_starting(self, method: str) -> bool:
        """Whether it is not known yet if there is a request of this name."""

    def has(self, method: str, deadline_s: float | None = None) -> bool:
        """Whether there is a request of this name; a thread waits to know."""

    def streams(self, method: str, deadline_s: float | None = None) -> bool:
        """Whether there is a request of this name that streams; a thread waits to know."""

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
        pool, device, deadline_s, priority = self._pool, self._device, self._deadline_s, self._priority
        wait = self._wait
        waits = is_known_later(pool.is_starting, name, method)
        if name.startswith("__") or not (waits or pool.has(method, deadline_s)):
            requests = [each.removeprefix(f"{self._name}.") for each in pool.methods]
            raise AttributeError(f"actor {self._name!r} has no request {name!r}{did_you_mean(name, requests)}")

        def call(*args: Any, **kwargs: Any) -> Reply:
            return pool.call(
                method, *args, device=device, deadline_s=deadline_s, priority=priority, wait=wait, kwargs=kwargs or None
            )

        def stream(*args: Any, **kwargs: Any) -> ReplyStream:
            return pool.stream(
                method, *args, device=device, deadline_s=deadline_s, priority=priority, kwargs=kwargs or None
            )

        if waits:
            return either(call, stream, method, pool.streams)
        # Python finds it here from now on, without this function.
        found = self.__dict__[name] = stream if pool.streams(method) else call
        return found


def is_known_later(is_starting: Callable[[str], bool], name: str, method: str) -> bool:
    """Return whether a coroutine asks for a method that is not known yet: it cannot wait, as a thread does."""
    return not name.startswith("__") and is_starting(method) and calling_loop() is not None


def either(
    call: Callable[..., Reply],
    stream: Callable[..., ReplyStream],
    method: str,
    streams: Callable[[str], bool],
) -> Callable[..., CallOrStream]:
    """Return a function that makes a request of a method which is not known yet, see `CallOrStream`."""

    def request(*args: Any, **kwargs: Any) -> CallOrStream:
        reply = call(*args, **kwargs)
        taken = TakenArguments(args, kwargs)

        def opened() -> ReplyStream:
            args, kwargs = taken.given()
            return stream(*args, **kwargs)

        return CallOrStream(reply, lambda: streams(method), opened)

    return request
