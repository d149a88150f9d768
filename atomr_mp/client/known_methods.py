"""What a client knows of a pool's requests, and how it waits for what it does not know yet.

While a pool starts, no device has told which requests its actors have. One rule holds for every way to call: nothing is
decided before that is known. A request waits in this process, and its lane learns the method's own deadline, and
whether its stream resumes, before it is sent. Where a caller has to know first, a thread waits until its deadline, and
a coroutine waits by `arrival` or is told that the pool is starting.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.client.callers import calling_loop
from atomr_mp.protocol.messages.devices import OUT_OF_USE, MethodInfo
from atomr_mp.protocol.signatures import all_named
from atomr_mp.protocol.words import did_you_mean

if TYPE_CHECKING:
    from atomr_mp.client.client import Client


class KnownMethods:
    """A client's requests, by "Actor.method". Thread-safe.

    Args:
        client: The session.
    """

    def __init__(self, client: Client) -> None:
        self._client: Final = client

    def is_starting(self, method: str) -> bool:
        """Whether it is not known yet if there is a request: no device that may have its actor has been ready.

        Args:
            method: "Actor.method", or the actor's name.
        """
        client = self._client
        if client.lost is not None:
            return False
        if not client.methods:
            return not any(device.admitted for device in client.devices)
        actor = method.partition(".")[0]
        return actor in client.homes and not any(known.partition(".")[0] == actor for known in client.methods)

    def info(self, method: str) -> MethodInfo:
        """Return a request's description, as far as the session's messages tell it; see `look_up`."""
        return (self._client.methods.get(method) if type(method) is str else None) or self.look_up(method)

    def look_up(self, method: str) -> MethodInfo:
        """Return a request's description, if the session's unread messages tell it; else `NOT_KNOWN_YET`.

        Raises:
            InvalidRequest: There is no such request, or the name is no text.
            PoolLost: The pool has ended.
        """
        if not isinstance(method, str):
            raise errors.InvalidRequest(f'a method is named by a text, "Actor.method"; got {method!r:.200}')
        client = self._client
        starting = self.is_starting(method)  # before: the message that ends this also tells the requests
        client.read_session()
        info = client.methods.get(method)
        if info is not None:
            return info
        if client.lost is not None:
            raise client.lost.again(maybe_executed=False)
        if starting or self.is_starting(method):
            return NOT_KNOWN_YET
        hint = did_you_mean(method, client.methods)
        known = ", ".join(sorted(client.methods)) or "none"
        raise errors.InvalidRequest(f"there is no request {method!r}{hint}; this pool's requests are: {known}")

    def known(self, method: str, deadline_s: float) -> MethodInfo:
        """Return a request's description; a thread waits for it, if need be.

        Raises:
            InvalidRequest: There is no such request; or it is not known yet, and this is an event loop's thread.
            DeadlineExceeded: The pool still starts.
            DeviceUnavailable: No device that may have it is in use.
            PoolLost: The pool has ended.
        """
        info = self.info(method)
        if info is not NOT_KNOWN_YET:
            return info
        if calling_loop() is not None:
            raise errors.InvalidRequest(STARTING.format(method))
        self._check_came(method, deadline_s, came=self._client.wait_until(lambda: self._is_settled(method), deadline_s))
        return self.look_up(method)

    def has(self, method: str, deadline_s: float) -> bool:
        """Whether there is a request of this name; waits as `known` does."""
        try:
            return bool(self.known(method, deadline_s))
        except errors.InvalidRequest:
            if self.is_starting(str(method)):
                raise
            return False

    async def arrival(self, method: str, deadline_s: float) -> MethodInfo:
        """Return a request's description once it is known; the event loop goes on meanwhile. See `known`."""
        info = self.info(method)
        if info is not NOT_KNOWN_YET:
            return info
        came = await self._client.until(lambda: self._is_settled(method), time.monotonic() + deadline_s)
        self._check_came(method, deadline_s, came=came)
        return self.look_up(method)

    def named(
        self, method: str, info: MethodInfo, args: tuple[Any, ...], kwargs: Any, deadline_s: float
    ) -> dict[str, Any]:
        """Return all arguments of a call by name.

        Raises:
            InvalidRequest: The names are no texts, or not those of the method.
        """
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise errors.InvalidRequest(f"{method}: kwargs are a dict of arguments by name; got {kwargs!r:.200}")
        if info is NOT_KNOWN_YET:
            if not args:
                return dict(kwargs)
            info = self.known(method, deadline_s)
        return all_named(method, info.parameters, args, kwargs)

    def _is_settled(self, method: str) -> bool:
        """Whether nothing is to be waited for: it is known whether there is a request, or no device will tell."""
        return not self.is_starting(method) or self._are_out_of_use(method)

    def _are_out_of_use(self, method: str) -> bool:
        client = self._client
        home = client.homes.get(method.partition(".")[0], range(len(client.devices)))
        return all(client.devices[index].state in OUT_OF_USE for index in home)

    def _check_came(self, method: str, deadline_s: float, *, came: bool) -> None:
        if not came:
            raise errors.DeadlineExceeded(f"the pool was starting still after {deadline_s:g} s; nothing was sent")
        if self.is_starting(method):
            reasons = {device.reason: None for device in self._client.devices if device.state in OUT_OF_USE}
            raise errors.DeviceUnavailable(
                f"no device that may have {method} is in use, so it is not known whether there is such a request: "
                f"{'; '.join(reasons)}"
            )


NOT_KNOWN_YET: Final = MethodInfo("", [], idempotent=False, deadline_s=None, doc="")
"""Stands for any request while the pool starts. Only its identity means anything."""

STARTING: Final = (
    "the pool is starting, and it is not known yet whether it has a request {!r}: wait first, by `Pool.wait_ready` in "
    "a thread"
)
