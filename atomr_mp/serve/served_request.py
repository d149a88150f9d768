"""One request of a client while it is answered, whatever protocol it came by: what is known of it, and its waits."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.client.reply import set_done
from atomr_mp.serve.problems import ClientLeft, Problem

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply
    from atomr_mp.errors import AtomrError

WATCH_AFTER_S: Final = 0.005
"""How long a call may take before its client is watched: most calls have ended by then, and a watcher costs a task."""

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_PROCESS: Final = os.urandom(6).hex()
_NUMBERS: Final = itertools.count(1)


class Watcher(Protocol):
    """Resolves a future once a client has left."""

    def start(self, after_s: float = 0.0) -> None:
        """Begin after some seconds."""

    def stop(self) -> None:
        """End, whether or not it has begun."""


class ServedRequest(abc.ABC):
    """One request of a client. Used by one task.

    Args:
        method: The protocol's verb, such as "POST" or "gRPC".
        path: What it asks for.
        given_id: The id that the client has given it; None for none. An unfit one is replaced.
    """

    __slots__ = (
        "begun_ns", "called", "code", "device", "error", "first_part_ns", "generation", "id", "method", "parts", "path",
        "ran_at", "read_bytes", "sent", "sent_bytes", "status", "token",
    )  # fmt: skip

    def __init__(self, method: str, path: str, given_id: bytes | None) -> None:
        self.method: Final = method
        self.path: Final = path
        self.id: Final = (
            given_id.decode("ascii")
            if given_id is not None and _REQUEST_ID.fullmatch(given_id)
            else f"{_PROCESS}-{next(_NUMBERS)}"
        )
        self.begun_ns: Final = time.monotonic_ns()
        self.called = ""
        """The pool's method that was called, "Actor.method"; empty if none was."""
        self.sent = False
        """Whether the pool has a call of this request, so that it may have run."""
        self.ran_at: tuple[tuple[int, int], ...] = ()
        """The devices and incarnations that have ended while a call of this request ran there."""
        self.device = -1
        """The device that has the call; -1 if it has none."""
        self.generation = 0
        """The incarnation that has the call; 0 if none has."""
        self.code = "ok"
        """"ok", or the code of the error that has ended the answer."""
        self.error: AtomrError | None = None
        """The error that has ended the answer, if it is one of ours."""
        self.parts = 0
        """Parts of a stream so far."""
        self.first_part_ns = 0
        """When the first part of a stream came; 0 before."""
        self.read_bytes = 0
        """Bytes of the body."""
        self.sent_bytes = 0
        """Bytes of the answer, without its head."""
        self.token = b""
        """The digest of the client's token; empty if none was asked for."""
        self.status = 0
        """The answer's status as HTTP has it, 0 before it has begun."""

    @abc.abstractmethod
    def watcher(self, left: asyncio.Future[None]) -> Watcher:
        """Return the object that resolves a future once the client has left."""

    @abc.abstractmethod
    async def left(self) -> None:
        """Return when the client has left. The request has been read."""

    def is_on(self, device: int, generation: int) -> None:
        """Note the device and the incarnation that have the call."""
        self.device, self.generation = device, generation

    def failed(self, error: AtomrError | Problem) -> None:
        """Note the error that has ended the answer."""
        self.code = error.code
        self.error = None if isinstance(error, Problem) else error

    async def outcome(self, reply: Reply) -> Any:
        """Wait for a call's result, or until the client leaves; then the call is cancelled. The request has been read.

        Raises:
            ClientLeft: The client has left.
            AtomrError: The call ended with this error.
        """
        if not reply.is_over:
            ended = asyncio.get_running_loop().create_future()
            reply.wake(ended)
            watcher = self.watcher(ended)
            watcher.start(WATCH_AFTER_S)
            try:
                await ended
            except asyncio.CancelledError:
                reply.cancel()
                raise
            finally:
                watcher.stop()
            if not reply.is_over:
                reply.cancel()
                raise ClientLeft
        return reply.result()

    async def outcomes(self, replies: Sequence[Reply]) -> list[Any]:
        """Wait for the results of several calls; as soon as one fails, or the client leaves, the others are cancelled.

        Raises:
            ClientLeft: The client has left.
            AtomrError: The error of the first call that failed.
        """
        try:
            waiting = [reply for reply in replies if not reply.is_over]
            if waiting:
                loop = asyncio.get_running_loop()
                ended = loop.create_future()
                left = len(waiting)

                def count(reply: Reply) -> None:
                    nonlocal left
                    left -= 1
                    if not left or reply.error is not None:
                        set_done(ended)

                for reply in waiting:
                    reply.add_done_callback(count)
                with self.watching(ended):
                    await ended
            for reply in replies:
                if reply.is_over and reply.error is not None:
                    raise errors.unraised(reply.error)
            if not all(reply.is_over for reply in replies):
                raise ClientLeft
            return [reply.result() for reply in replies]
        finally:
            for reply in replies:
                reply.cancel()

    @contextlib.contextmanager
    def watching(self, left: asyncio.Future[None]) -> Iterator[None]:
        """Resolve a future once the client has left. The request has been read.

        Sending succeeds even after the client has left, so only this watch tells.
        """
        watcher = self.watcher(left)
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()
