"""Faces of a remote session for replies: one for threads, and one for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from atomr_mp.client.interrupts import defer_interrupts
from atomr_mp.client.memory.leases import Lease
from atomr_mp.client.reply import Reply, StreamReply, decode_leased, set_done, would_block
from atomr_mp.remote.session import RemoteSession
from atomr_mp.remote.streams import RemoteStreamReply

FAR_NS: Final = 2**62
"""A time that never comes."""

LONGEST_WAIT_S: Final = 3600.0
"""How long a thread waits before it looks again."""


class ThreadsFace:
    """Serves calls that are made where no event loop runs; any thread may wait for their replies.

    Args:
        session: The session.
    """

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, session: RemoteSession) -> None:
        self._session: Final = session

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Return when the reply has come, or raise `TimeoutError`."""
        self._session.engine.wait(reply, timeout_s)

    @defer_interrupts
    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""
        self._session.cancel(reply)

    @defer_interrupts
    def add_callback(self, reply: Reply, callback: Callable[[Reply], object]) -> bool:
        """Have `callback` run once the reply has come; False if it has come already."""
        with self._session.lock:
            if reply.is_over:
                return False
            if reply.callbacks is None:
                reply.callbacks = []
            reply.callbacks.append(callback)
            self._session.watch(reply)
        return True

    @defer_interrupts
    def look(self, reply: Reply) -> None:
        """Take in what has arrived, without waiting, and end a reply whose deadline has passed."""
        self._session.look(reply)

    def belongs_to(self, _loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the replies are an event loop's."""
        return False

    @defer_interrupts
    def watch(self, reply: Reply) -> None:
        """Have a reply received even if no thread waits for it."""
        with self._session.lock:
            if not reply.is_over:
                self._session.watch(reply)

    # --- streams ---------------------------------------------------------------------------------------------------

    @defer_interrupts
    def go_on(self, stream: StreamReply) -> None:
        """Let a stream's worker go on, as far as the stream's credit says."""
        assert isinstance(stream, RemoteStreamReply)
        self._session.grant(stream)

    @defer_interrupts
    def close_stream(self, stream: StreamReply) -> None:
        """Let go of a stream; from any thread."""
        assert isinstance(stream, RemoteStreamReply)
        self._session.close_stream(stream)

    def wait_for_part(self, stream: StreamReply, timeout_s: float | None) -> bool:
        """Wait for a part of a stream, or its end; return False if neither comes within `timeout_s`."""
        assert isinstance(stream, RemoteStreamReply)
        until_ns = FAR_NS if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        while not (stream.arrived or stream.is_over):
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                self.look(stream)
                return bool(stream.arrived) or stream.is_over
            left_s = (min(stream.deadline_ns, until_ns) - now_ns) / 1e9
            if left_s > 0:
                self._wait_for_news(stream, min(left_s, LONGEST_WAIT_S))
            else:
                self._expire(stream)
        return True

    @defer_interrupts
    def _wait_for_news(self, stream: RemoteStreamReply, timeout_s: float) -> None:
        with self._session.lock:
            if stream.arrived or stream.is_over:
                return
            news = stream.news
            if news is None:
                news = stream.news = Reply(self, 0, stream.method, FAR_NS, b"", sent_ns=time.monotonic_ns())
        with contextlib.suppress(TimeoutError):
            self._session.engine.wait(news, timeout_s)

    @defer_interrupts
    def _expire(self, stream: RemoteStreamReply) -> None:
        self._session.look(stream)

    @defer_interrupts
    def decode(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Return the results in an answer that came with leases."""
        memory = self._session.memory
        assert memory is not None
        return decode_leased(body, frames, lambda: memory.resolver(leases))

    async def decode_aside(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Do the same in a task; nothing has to be opened."""
        return self.decode(body, frames, leases)


class LoopFace(ThreadsFace):
    """Serves calls made in a running event loop; their futures and callbacks belong to the loop.

    Args:
        session: The session.
        loop: The loop.
    """

    def __init__(self, session: RemoteSession, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(session)
        self.loop: asyncio.AbstractEventLoop = loop

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Wait in a thread other than the loop's."""
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001 - exported; the public one raises where there is none
            raise would_block(reply)
        super().wait(reply, timeout_s)

    def leave(self) -> None:
        """End the replies of a loop that was closed, and tell the gateway: nobody reads them."""
        self._session.leave(self)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the replies' loop."""
        return loop is self.loop

    def watch(self, reply: Reply) -> None:
        """Have a reply received; its future may be new while the answer has come."""
        with self._session.lock:
            if not reply.is_over and not (isinstance(reply, StreamReply) and reply.arrived):
                self._session.watch(reply)
            elif reply.future is not None:
                set_done(reply.future)
