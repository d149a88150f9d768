"""The answer to a call of a cluster, from whichever node gives it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Generator
from typing import Any, Final, NamedTuple, Protocol

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.ray.failover import ClusterCall, goes_on, may_ask


class Attempt(NamedTuple):
    """One sending of a call."""

    node: int
    reply: Reply
    call: ClusterCall
    """The call, with what its node says of the method."""
    epoch: bytes = b""
    """The life of the pool that has it."""


class ReplyNodes(Protocol):
    """The nodes, as a reply sees them."""

    def send(self, call: ClusterCall, avoid: Collection[int] = ()) -> Attempt:
        """Send a call to a node outside the given ones; blocks while none can be reached, until its deadline."""

    def may_have_started(self, attempt: Attempt) -> bool:
        """Return whether a call that was lost with its pool may have started, as far as its node knows. Blocks."""


@checks_names
class ClusterReply:
    """The answer to a call of a cluster. Thread-safe; waited for like a `Reply`, in threads and in event loops.

    It survives the loss of its node's pool: the thread or task that waits for it sends the call to another node, within
    its deadline, if its method is idempotent or it certainly has not run.

    Args:
        call: The call.
        nodes: Send the call.
        attempt: Its first sending; None if no node could be reached and the caller's event loop must not block.
    """

    def __init__(self, call: ClusterCall, nodes: ReplyNodes, attempt: Attempt | None) -> None:
        self._call = call
        self._nodes: Final = nodes
        self._attempt = attempt
        self._lock: Final = threading.Lock()
        self._unavailable: set[int] = set()
        """Nodes whose devices take no work."""
        self._may_have_run = False
        """Whether the call may have run in an earlier attempt."""
        self._asked: Attempt | None = None
        """The attempt whose node was asked whether the call had started."""
        self._cancelled = False
        self._unsent: errors.AtomrError | None = None
        """Why the call could not be sent at all."""

    def __repr__(self) -> str:
        attempt = self._attempt
        return f"<ClusterReply of {self._call.method}: {attempt or self._unsent or 'not sent yet'}>"

    @property
    def method(self) -> str:
        """The request, as "Actor.method"."""
        return self._call.method

    @property
    def node(self) -> int:
        """Index of the node that the call went to last, -1 if none."""
        return -1 if self._attempt is None else self._attempt.node

    @property
    def device(self) -> int:
        """Index of the device on that node, -1 if none."""
        return -1 if self._attempt is None else self._attempt.reply.device

    @property
    def done(self) -> bool:
        """Whether there is an answer."""
        attempt = self._attempt
        if attempt is None:
            return self._unsent is not None
        return attempt.reply.done and not self._would_go_on(attempt, attempt.reply.error)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer and return the result; see `Reply.result`.

        Raises:
            TimeoutError: No answer within `timeout_s`; the request goes on.
            AtomrError: The request ended with this error; `PoolLost` after the loss of a pool.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            attempt = self._attempt or self._first()
            try:
                return attempt.reply.result(None if until is None else max(0.0, until - time.monotonic()))
            except errors.AtomrError as error:
                if not self._again(attempt, error):
                    raise self._told(attempt, error) from None

    def exception(self, timeout_s: float | None = None) -> errors.AtomrError | None:
        """Wait for the answer and return the error, or None if there is a result."""
        try:
            attempt = self._settled(timeout_s)
        except errors.AtomrError as unsent:
            return unsent
        error = attempt.reply.error
        return None if error is None else self._told(attempt, error)

    def cancel(self) -> None:
        """Ask that the request does not start; see `Reply.cancel`."""
        with self._lock:
            self._cancelled = True
            attempt = self._attempt
        if attempt is not None:
            attempt.reply.cancel()

    def go_on(self) -> bool:
        """Send the call to another node if its pool was lost, without waiting for the answer; True if that was done."""
        attempt = self._attempt
        if attempt is None or not attempt.reply.is_over:
            return False
        error = attempt.reply.error
        return error is not None and self._would_go_on(attempt, error) and self._again(attempt, error)

    def add_done_callback(self, callback: Callable[[ClusterReply], object]) -> None:
        """Call `callback(reply)` once there is an answer; at once if there is one. See `Reply.add_done_callback`.

        After the loss of a pool it is called on a thread of its own.
        """
        attempt = self._attempt
        if attempt is not None:
            attempt.reply.add_done_callback(lambda reply: self._ended(attempt, reply.error, callback))
        elif self._unsent is not None:
            callback(self)
        else:
            self._send_aside(callback)

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            attempt = self._attempt
            if attempt is None:
                yield from asyncio.to_thread(self._first).__await__()
                continue
            try:
                return (yield from attempt.reply.__await__())
            except errors.AtomrError as error:
                if not self._would_go_on(attempt, error) or not (
                    yield from asyncio.to_thread(self._again, attempt, error).__await__()
                ):
                    raise self._told(attempt, error) from None

    def _settled(self, timeout_s: float | None) -> Attempt:
        """Wait until an attempt has the outcome, and return it."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            attempt = self._attempt or self._first()
            error = attempt.reply.exception(None if until is None else max(0.0, until - time.monotonic()))
            if error is None or not self._again(attempt, error):
                return attempt

    def _first(self) -> Attempt:
        """Send the call that could not be sent when it was made."""
        with self._lock:
            if self._unsent is not None:
                raise errors.unraised(self._unsent)
            if self._attempt is None:
                try:
                    self._attempt = self._nodes.send(self._call)
                    self._call = self._attempt.call
                except errors.AtomrError as error:
                    self._unsent = errors.unraised(error)
                    raise
            return self._attempt

    def _again(self, attempt: Attempt, error: errors.AtomrError) -> bool:
        """Send the call elsewhere, unless that is done; False if it ends with this error."""
        with self._lock:
            if self._attempt is not attempt:
                return True
            if not self._would_go_on(attempt, error):
                return False
            if self._may_ask(attempt, error):
                self._asked = attempt
                if self._nodes.may_have_started(attempt):
                    return False
                error.maybe_executed = False  # type: ignore[attr-defined]
            if isinstance(error, errors.DeviceUnavailable):
                self._unavailable.add(attempt.node)
            try:
                again = self._nodes.send(self._call, self._unavailable)
            except errors.AtomrError:
                return False  # there is no other node for it: the error of its end says more
            self._may_have_run |= isinstance(error, errors.RequestError) and error.maybe_executed
            self._attempt = again
            return True

    def _would_go_on(self, attempt: Attempt, error: errors.AtomrError | None) -> bool:
        """Return whether the call is sent again; maybe, if its node has to be asked first."""
        if error is None or self._cancelled:
            return False
        return goes_on(self._call, error, time.monotonic_ns()) or self._may_ask(attempt, error)

    def _may_ask(self, attempt: Attempt, error: errors.AtomrError) -> bool:
        return self._asked is not attempt and may_ask(self._call, error, time.monotonic_ns())

    def _told(self, attempt: Attempt, error: errors.AtomrError) -> errors.AtomrError:
        """Return an error for the caller, in a cluster's words; it says whether any attempt may have run."""
        if self._may_have_run and isinstance(error, errors.RequestError):
            error.maybe_executed = True
        if isinstance(error, errors.SessionLost):  # its words and advice are for whoever has one pool, by one relay
            return errors.PoolLost(
                f"the session with node {attempt.node} has ended, by the end of its pool or a cut that lasted too "
                f"long; the cluster joins it again by itself ({error.message})",
                maybe_executed=error.maybe_executed,
            )
        return error

    def _ended(
        self, attempt: Attempt, error: errors.AtomrError | None, callback: Callable[[ClusterReply], object]
    ) -> None:
        if self._would_go_on(attempt, error):
            self._send_aside(callback)  # the thread that receives must not wait for a node
        else:
            callback(self)

    def _send_aside(self, callback: Callable[[ClusterReply], object]) -> None:
        def wait() -> None:
            self.exception()
            callback(self)

        threading.Thread(target=wait, name="atomr-mp ray reply", daemon=True).start()
