"""The reply that a streaming request returns at once; its parts come later."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.reply import ArrivedPart, StreamReply, decode
from atomr_mp.client.stream_closer import StreamCloser
from atomr_mp.protocol import amounts
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.pickling import CONNECT, refusal

if TYPE_CHECKING:
    import asyncio


class StreamLane(Protocol):
    """The lane that has sent a stream's request, as the stream uses it."""

    def go_on(self, stream: StreamReply) -> None:
        """Let the stream's worker go on: enough was read for that."""

    def close_stream(self, stream: StreamReply) -> None:
        """Release a stream."""

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the lane is driven by this event loop."""

    def look(self, reply: StreamReply) -> None:
        """Take in what has arrived, without waiting."""

    def watch(self, reply: StreamReply) -> None:
        """Watch the stream's deadline."""

    def date_back(self, stream: StreamReply, passed_ns: int) -> None:
        """Have a stream's deadlines end earlier, which was asked for before it was opened."""


@checks_names
class ReplyStream:
    """The answer to a request that streams: its parts in order, each once, then its end or an error.

    One that was opened in a running event loop is read there, by `async for`. Any other is read by threads, by `for`;
    several threads that read one share its parts. Parts come as far ahead as `Pool.stream` was told; a worker whose
    reader is slower waits, and holds up nobody else.

    A reader may leave it before its end: by `close`, at the end of a `with` or `async with`, by a task that is
    cancelled while it waits, or because nobody refers to it any more. Then the generator gets `GeneratorExit` at its
    `yield`.

    Parts that have arrived are always delivered before an error is raised. The error's `parts` is their number.
    """

    def __init__(
        self,
        reply: StreamReply,
        lane: StreamLane,
        closer: StreamCloser,
        wait: Callable[[StreamReply, float | None], bool] | None,
    ) -> None:
        self._reply = reply
        self._lane = lane
        self._closer = closer
        self._wait = wait
        """Waits in a thread; None if it belongs to an event loop."""
        self._closed = False
        self._unread: ArrivedPart | None = None
        """A part that could not be opened; the next look is for it again."""
        self.parts = 0
        """How many parts were read."""

    __reduce__ = refusal(f"send its parts, or {CONNECT}", "its parts, `list(stream)`")

    def __repr__(self) -> str:
        state = "closed" if self._closed else ("ended" if self.done else "open")
        return f"<ReplyStream {self._reply.id} of {self._reply.method}: {state}, {self.parts} parts read>"

    @property
    def method(self) -> str:
        """The request, as "Actor.method"."""
        return self._reply.method

    @property
    def device(self) -> int:
        """Index of the device that sends it."""
        return self._reply.device

    @property
    def generation(self) -> int:
        """The incarnation that sends it, 0 while it waits for one."""
        return self._reply.generation

    @property
    def ran_at(self) -> tuple[tuple[int, int], ...]:
        """The devices and incarnations that have ended while it ran there."""
        return self._reply.ran_at

    @property
    def done(self) -> bool:
        """Whether it has ended; parts may be left to be read. Takes in what has arrived, and does not wait."""
        return self._reply.done

    def next_kept(self) -> tuple[Any] | None:
        """Return the next part if it is in this process's memory, as a value of its own; None otherwise.

        Raises:
            ActorFailed: The part cannot be read.
            ResultUnread: The part could not be opened now; it is the next one again.
        """
        arrived = self._reply.arrived
        if not arrived or self._closed or self._unread is not None or arrived[0].leases is not None:
            return None
        part = self._take()
        return None if part is None else (self._decode(part),)

    @property
    def has_part(self) -> bool:
        """Whether a part has arrived that was not read, so that reading does not wait. Takes in what has arrived."""
        if not (self._reply.arrived or self._reply.is_over or self._closed or self._unread):
            self._lane.look(self._reply)
        return bool(self._unread or self._reply.arrived) and not self._closed

    # --- threads ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next part; blocks until it has come.

        Raises:
            StopIteration: There are no more; its value is the stream's result.
            WouldBlock: The stream belongs to an event loop.
            ResultUnread: The part could not be opened now; it is the next one again.
            AtomrError: The stream has ended with this error.
        """
        found = self._read_in_thread(None)
        if found is None:
            raise StopIteration(self._result())
        return self._decode(found)

    def result(self, timeout_s: float | None = None) -> Any:
        """Return the generator's return value. Blocks until the end; parts that were not read are dropped.

        Args:
            timeout_s: How long to wait for each part; None until the stream's deadlines.

        Raises:
            TimeoutError: No part, nor the end, within `timeout_s`; the stream goes on.
            WouldBlock: The stream belongs to an event loop, and has not ended; await it.
            AtomrError: The stream has ended with this error.
        """
        if timeout_s is not None:
            timeout_s = amounts.duration("timeout_s", timeout_s, zero=True)
        while self._read_in_thread(timeout_s) is not None:
            pass
        return self._result()

    def close(self) -> None:
        """Release the stream; does not wait. May be called twice, and from any thread."""
        self._closed = True
        self._unread = None
        if not self._reply.is_over or self._reply.arrived:
            self._lane.close_stream(self._reply)

    def cancel(self) -> None:
        """Close the stream, like `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read_in_thread(self, timeout_s: float | None) -> ArrivedPart | None:
        """Return the next part, None at the end."""
        reply = self._reply
        while not self._closed:
            part = self._take()
            if part is not None:
                return part
            if reply.is_over and not reply.arrived:
                return None
            if self._wait is None:
                raise errors.WouldBlock(
                    "this stream belongs to an event loop: read it there, by `async for`; its result is `await stream`"
                )
            if not self._wait(reply, timeout_s):
                raise TimeoutError(f"no part of {reply.method} within {timeout_s} s; the stream goes on")
        return None

    # --- event loops -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """Return the next part.

        Raises:
            StopAsyncIteration: There are no more; see `result`.
            WouldBlock: The stream was opened in another event loop.
            RuntimeError: Another task waits for its next part.
            ResultUnread: The part could not be opened now; it is the next one again.
            AtomrError: The stream has ended with this error.
        """
        found = self._take() or await self._read_in_loop()  # a coroutine costs more than the look
        if found is None:
            await self._result_aside()
            raise StopAsyncIteration
        if found.leases is None:
            return self._decode(found)
        import asyncio  # the awaiting task has it

        try:
            return await self._reply.lane.decode_aside(found.body, found.frames, found.leases)
        except errors.ResultUnread:
            self._keep_unread(found)
            raise
        except asyncio.CancelledError:
            self.close()
            raise

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the generator's return value, at the end; parts that were not read are dropped."""
        return self._drain().__await__()

    async def aclose(self) -> None:
        """Release the stream; does not wait. May be called twice."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _drain(self) -> Any:
        while await self._read_in_loop() is not None:
            pass
        return await self._result_aside()

    async def _read_in_loop(self) -> ArrivedPart | None:
        """Return the next part, None at the end."""
        import asyncio  # the awaiting task has it

        reply = self._reply
        while not self._closed:
            part = self._take()
            if part is not None:
                return part
            if reply.is_over and not reply.arrived:
                return None
            loop = asyncio.get_running_loop()
            if self._wait is not None:  # a thread, or a notebook's cell, has opened it
                try:
                    await asyncio.to_thread(self._wait, reply, None)
                except asyncio.CancelledError:
                    self.close()  # which ends the thread's wait
                    raise
                continue
            if not self._lane.belongs_to(loop):
                raise errors.WouldBlock("this stream belongs to another event loop: read it there")
            if reply.future is not None:
                raise RuntimeError("another task waits for the next part of this stream")
            reply.future = loop.create_future()
            self._lane.watch(reply)
            try:
                await reply.future
            except asyncio.CancelledError:
                self.close()
                raise
            finally:
                reply.future = None
        return None

    # --- both ------------------------------------------------------------------------------------------------------

    def _take(self) -> ArrivedPart | None:
        """Take the next part if it has come, and the stream was not closed; one that is interrupted stays the next."""
        if self._unread is None and not self._reply.arrived:
            return None
        held = interrupts.hold()  # else its credit might be lost with it, and its worker would wait for ever
        part: ArrivedPart | None = None
        try:
            part, self._unread = self._unread, None
            if part is None and not self._closed:
                part = self._reply.take_part(self._lane.go_on)
            if part is not None:
                self.parts += 1
        finally:
            if held:
                self._let_go(held, part)
        return part

    def _let_go(self, held: int, part: ArrivedPart | None) -> None:
        try:
            interrupts.let_go(held)
        except KeyboardInterrupt:
            if part is not None:
                self._keep_unread(part)
            raise

    def _decode(self, part: ArrivedPart) -> Any:
        try:
            if part.leases is None:
                return decode(part.body, part.frames)
            return self._reply.lane.decode(part.body, part.frames, part.leases)
        except errors.ResultUnread:
            self._keep_unread(part)
            raise

    def _keep_unread(self, part: ArrivedPart) -> None:
        """Let a part that was not read be the next one again."""
        self.parts -= 1
        if not self._closed:
            self._unread = part

    def _result(self) -> Any:
        reply = self._reply
        if self._closed:
            raise errors.Cancelled(f"this stream of {reply.method} was closed", maybe_executed=True)
        if reply.error is not None:
            raise errors.unraised(reply.error)
        if reply.leases is not None:
            return reply.lane.decode(reply.body, reply.frames, reply.leases)
        return decode(reply.body, reply.frames)

    async def _result_aside(self) -> Any:
        """Return the result; the event loop goes on while its memory is opened."""
        reply = self._reply
        if self._closed or reply.error is not None or reply.leases is None:
            return self._result()
        return await reply.lane.decode_aside(reply.body, reply.frames, reply.leases)

    def __del__(self) -> None:
        reply = getattr(self, "_reply", None)
        if reply is not None and not reply.is_over:
            self._closer.put((self._lane, reply))


AHEAD: Final = 16
"""Parts that may be on their way or unread, if the caller does not say."""

AHEAD_BYTES: Final = 16 * 2**20
"""Most bytes of such parts."""

BETWEEN_S: Final = 60.0
"""How long a part may take, if the caller does not say."""


def count_from(stream: ReplyStream, called_ns: int) -> None:
    """Count a stream's deadlines from an earlier time, at which it was asked for.

    Args:
        stream: The stream, just opened.
        called_ns: CLOCK_MONOTONIC.
    """
    stream._lane.date_back(stream._reply, time.monotonic_ns() - called_ns)  # noqa: SLF001 - no matter of users
