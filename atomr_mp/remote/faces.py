"""What replies see of a remote session, in threads and in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from atomr_mp.client.interrupts import defer_interrupts
from atomr_mp.client.memory.leases import Lease
from atomr_mp.client.reply import Reply, set_done
from atomr_mp.protocol import values
from atomr_mp.remote.session import RemoteSession


class ThreadsFace:
    """For calls that are made where no event loop runs; any thread may wait for their replies.

    Args:
        session: The session.
    """

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, session: RemoteSession) -> None:
        self._session: Final = session

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Return when the reply is there, or raise `TimeoutError`."""
        self._session.engine.wait(reply, timeout_s)

    @defer_interrupts
    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""
        self._session.cancel(reply)

    @defer_interrupts
    def add_callback(self, reply: Reply, callback: Callable[[Reply], object]) -> bool:
        """Have `callback` run once the reply is there; False if it is there already."""
        with self._session.lock:
            if reply.done:
                return False
            if reply.callbacks is None:
                reply.callbacks = []
            reply.callbacks.append(callback)
            self._session.watch(reply)
        return True

    def belongs_to(self, _loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the replies are an event loop's."""
        return False

    @defer_interrupts
    def watch(self, reply: Reply) -> None:
        """See that a reply is received though nobody waits for it."""
        with self._session.lock:
            if not reply.done:
                self._session.watch(reply)

    @defer_interrupts
    def decode(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Return the results in an answer that came with leases."""
        memory = self._session.memory
        assert memory is not None
        return values.Decoder[Any]().decode(body, frames, memory.resolver(leases))


class LoopFace(ThreadsFace):
    """For calls that are made in a running event loop: their futures and callbacks are the loop's.

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
            raise RuntimeError("result() would block the event loop to which this reply belongs; await the reply")
        super().wait(reply, timeout_s)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the replies' loop."""
        return loop is self.loop

    def watch(self, reply: Reply) -> None:
        """See that a reply is received; its future may be new, and the answer there."""
        with self._session.lock:
            if not reply.done:
                self._session.watch(reply)
            elif reply.future is not None:
                set_done(reply.future)
