"""The lane of one asyncio event loop, driven by the loop itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.lanes.base import Lane
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.lending import LoopLending
from atomr_mp.client.lanes.services import LaneServices
from atomr_mp.client.lanes.session import SupervisorNews
from atomr_mp.client.reply import Reply, StreamReply, would_block
from atomr_mp.client.reply_life import ReplyEvent, ReplyState
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded, IncarnationStopped, WorldChanged
from atomr_mp.wire.ends import ClientEnd

if TYPE_CHECKING:
    from atomr_mp.client.memory.refs import GpuRef

LATE_S: Final = 1.0
"""How long after a reply's deadline its loop may end it; then a waiting thread takes the loop for stopped."""


CLOSE_S: Final = 5.0
"""How long a loop may take to close its connections when another thread closes the client."""

LOOK_S: Final = 0.02
"""How often that thread looks whether the loop has stopped."""

MOST_TOLD: Final = 32
"""Most lifecycle events for each device that wait for a loop that does not run; then outdated ones are dropped. Some
loops never run again, such as a `map`'s, and pools live for months."""

_running_loop: Final = asyncio._get_running_loop  # noqa: SLF001 - exported; the public one raises where there is none


class _Reader:
    """Reads the session when the loop finds something to be read. The loop alone keeps it, until it is closed."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read: Final = read

    def __call__(self) -> None:
        self._read()


class EventLoopLane(Lane):
    """An event loop's lane. Its methods are for the loop's own thread, except where they name others.

    Args:
        services: What the client's lanes share.
        number: As that of any lane.
        loop: The event loop.
        closed: Called once the loop has been closed.
    """

    def __init__(
        self, services: LaneServices, number: int, loop: asyncio.AbstractEventLoop, closed: Callable[[], object]
    ) -> None:
        super().__init__(services, number)
        self._give_back_from = services.give_back
        self._loop = loop
        self._thread: Final = threading.current_thread()
        self._flushing = False
        """Whether the outboxes will be sent at the end of this turn of the loop."""
        self._granted: dict[StreamReply, None] = {}
        """Streams whose workers may go on, and hear of it at the end of this turn of the loop."""
        self._told: deque[SupervisorNews] = deque()
        """Lifecycle events that have not been applied."""
        self._telling: Final = threading.Lock()
        """Guards `_told`, `_known` and `_called_for_told`."""
        self._known = [link.info.generation for link in self._links]
        """The latest generation of each device that was reported to the loop."""
        self._called_for_told = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._lending: Final = LoopLending(
            self._memory,
            self._session.request_ids,
            self._links,
            make=functools.partial(Reply, self),
            enter=self._enter,
            settled=self._settled,
            cancel=self.cancel,
            call_soon=self._call_soon,
        )
        reader = _Reader(self._session.read)
        self._closed_with_loop: Final = weakref.finalize(reader, closed)
        self._closed_with_loop.atexit = False
        loop.add_reader(self._session.descriptor, reader)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the lane's loop."""
        return loop is self._loop

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Wait in a thread for an answer that the loop receives."""
        if self._loop.is_closed():
            raise RuntimeError("the event loop to which this reply belongs is closed")
        if _running_loop() is self._loop:
            raise would_block(reply)
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: None if self.add_callback(reply, lambda _: done.set()) else done.set())
        left_s = max(0.0, (reply.deadline_ns - time.monotonic_ns()) / 1e9) + LATE_S
        if timeout_s is not None and timeout_s < left_s:
            if not done.wait(timeout_s):
                raise TimeoutError(f"no answer to {reply.method} within {timeout_s} s; the request goes on")
        else:
            while not done.wait(left_s):  # its deadline may have moved meanwhile
                left_s = (reply.deadline_ns - time.monotonic_ns()) / 1e9 + LATE_S
                if left_s <= 0:
                    raise TimeoutError(f"the event loop to which {reply.told()} belongs does not run")

    @interrupts.defer_interrupts
    def look(self, reply: Reply) -> None:
        """Take in what has arrived; from any thread. While the loop runs elsewhere, it does that by itself."""
        if _running_loop() is not self._loop:
            if self._loop.is_closed():
                self._session.read()  # which lets go of this lane
            return
        if not self._lock.acquire(blocking=False):
            return  # this thread is taking answers in, and writes a reply into a log
        self._lock.release()
        self._session.read()  # which takes the lock itself
        with self._lock:
            for link in self._links:
                if link.outbox:
                    self._sender.flush(link)
                self._receive(link)
        if reply.deadline_ns <= time.monotonic_ns():
            self._expire(reply)
        self._loop.call_soon(self.call_back)

    def cancel(self, reply: Reply) -> None:
        """Ask the worker not to start a request; from any thread."""
        if _running_loop() is self._loop:
            super().cancel(reply)
        else:
            self._call_soon(self.cancel, reply)

    def take(self, message: SupervisorNews) -> None:
        """Apply a lifecycle event in the loop, after those that came before; from any thread."""
        in_loop = _running_loop() is self._loop
        with self._telling:
            self._told.append(message)
            if len(self._told) > MOST_TOLD * len(self._known):
                self._forget_passed()
            called, self._called_for_told = self._called_for_told, not in_loop
        if in_loop:
            self._apply_told()
        elif not called:
            self._call_soon(self._apply_told)

    @interrupts.defer_interrupts
    def _apply_told(self) -> None:
        with self._telling:
            self._called_for_told = False
        while (message := self._next_told()) is not None:
            self._apply(message)
        self._loop.call_soon(self.call_back)

    def _next_told(self) -> SupervisorNews | None:
        with self._telling:
            if not self._told:
                return None
            message = self._told.popleft()
            if isinstance(message, DeviceChanged):
                self._known[message.device.index] = message.device.generation
            return message

    def _forget_passed(self) -> None:
        """Drop outdated events for a loop that has not run for long, such as those of past generations."""
        last = {told.device.index: told for told in self._told if isinstance(told, DeviceChanged)}
        last_worlds = {told.world.number: told for told in self._told if isinstance(told, WorldChanged)}

        def counts(told: SupervisorNews) -> bool:
            match told:
                case DeviceChanged(device):
                    return last[device.index] is told
                case WorldChanged(world):
                    return last_worlds[world.number] is told
                case IncarnationStopped():  # only a hint, since its end is reported too
                    return False
                case IncarnationEnded() if told.device in last:
                    return not self._known[told.device] < told.generation < last[told.device].device.generation
                case _:
                    return True

        self._told = deque(filter(counts, self._told))

    def _pool_lost(self, lost: errors.PoolLost) -> None:
        # The ended session's descriptor stays readable, so the loop would spin.
        self._unwatch(self._session.descriptor)
        super()._pool_lost(lost)

    @property
    def is_left(self) -> bool:
        """Whether the loop has been closed; or its thread has ended, and no call waits for another to run the loop.

        A `map`'s loop stands still between two reads, which need not be one thread's.
        """
        loop = self._loop
        if loop.is_closed():
            return True
        if loop.is_running() or self._thread.is_alive() or self._backlog.count:
            return False
        return all(len(link.flight.requests) == link.flight.streams for link in self._links)

    def close(self) -> None:
        """Close the connections, in the loop's thread if the loop runs."""
        if self._loop.is_running() and _running_loop() is not self._loop:
            closed = threading.Event()
            if self._call_soon(self._close) and self._call_soon(closed.set):
                until_s = time.monotonic() + CLOSE_S
                # A loop that stops tells nobody, and may leave its last calls undone.
                while self._loop.is_running():
                    if interrupts.wait(closed.wait, LOOK_S) or time.monotonic() > until_s:
                        return
        self._close()

    def _call_soon(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Schedule a call in the loop, from any thread; False if the loop is closed, which may happen at any moment."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False
        return True

    def _close(self) -> None:
        self._closed_with_loop.detach()
        self._unwatch(self._session.descriptor)
        if self._timer is not None and not self._loop.is_closed():
            self._timer.cancel()
        with self._lock:  # the courier may be about to use a connection
            for link in self._links:
                link.hold()  # a flush may be on the loop's list already
                link.sending = False
            for reply in [*self._unanswered(), *self._gangs.open()] if self._loop.is_closed() else ():
                reply.future = None  # whose callbacks would go to the loop
            for gang in self._gangs.open():
                self._gangs.give_up(gang, self._left(gang))
            workers = {(each.device, each.generation): each for link in self._links for each in link.incarnations()}
            for link in self._links:
                self._failover.leave(link)
            for reply in self._unanswered():
                worker = workers.get((reply.device, reply.generation))
                if reply.copies and worker is not None:  # which may still read them
                    self._memory.get().abandoned(reply.copies, worker, reply.deadline_ns)
                self._leave(reply)

    def _unanswered(self) -> list[Reply]:
        """Return all requests of the lane. With the lock held."""
        return [reply for link in self._links for _, reply in link.flight.items()] + self._backlog.all()

    def _leave(self, reply: Reply) -> None:
        """End a reply that has no receiver; its worker ends a stream, but runs a call. With the lock held."""
        if not reply.is_over:
            event = ReplyEvent.EXPIRE if isinstance(reply, StreamReply) else ReplyEvent.FAIL
            self._outcomes.feed(reply, event, self._left(reply))

    def _left(self, reply: Reply) -> errors.RequestError:
        """Return the error of a reply that has no receiver."""
        why = f"the event loop that has called {reply.method} has ended, and receives no answers"
        lost = self._session.lost
        return errors.Cancelled(why) if lost is None else lost.again(maybe_executed=False)

    def _lend(self, reply: Reply, foreign: Sequence[GpuRef], device: int) -> None:
        self._lending.begin(reply, foreign, device)

    def _enter(self, question: Reply, device: int) -> None:
        """Send a question for a ref in its place in the order of its device."""
        with self._lock:
            self._enter_link(question, self._links[device])
        self.watch(question)

    @interrupts.defer_interrupts
    def _settled(self, link: DeviceLink, reply: Reply, error: errors.AtomrError | None) -> None:
        """Go on with a device's requests: one no longer waits for a ref, and fails if there is an error."""
        with self._lock:
            if error is not None and not reply.is_over:
                self._outcomes.feed(reply, ReplyEvent.FAIL, error)
                self._make_room()
            self._sender.flush(link)
        self.call_back()

    def _queued(self, _link: DeviceLink) -> None:
        """Let all calls of this turn of the loop travel together."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_all)

    @interrupts.defer_interrupts
    def _flush_all(self) -> None:
        self._flushing = False
        with self._lock:
            for link in self._links:
                if link.outbox:
                    self._sender.flush(link)

    def _give_back(self, link: DeviceLink) -> None:
        self._give_back_from(link.releases)

    @interrupts.defer_interrupts
    def _on_readable(self, link: DeviceLink) -> None:
        with self._lock:
            self._receive(link)
        self.call_back()

    def connected(self, link: DeviceLink, connection: ClientEnd) -> None:
        """Watch a new connection's descriptor."""
        self._loop.add_reader(connection.fileno(), self._on_readable, link)

    def _disconnecting(self, _link: DeviceLink, connection: ClientEnd) -> None:
        self._unwatch(connection.fileno())

    def _unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor, unless the loop is closed, which may happen at any moment."""
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.remove_reader(descriptor)

    def retry_later(self, link: DeviceLink, number: int, delay_s: float) -> None:
        """Schedule the retry in the loop."""
        self._loop.call_later(delay_s, self._retry_link, link, number)

    def settle_gangs_later(self, delay_s: float) -> None:
        """Schedule it in the loop; from any thread."""
        self._call_soon(self._loop.call_later, delay_s, self._settle_held_gangs)

    def _flushed(self, link: DeviceLink, connection: ClientEnd) -> None:
        self._call_soon(super()._flushed, link, connection)

    def _finished(self, reply: Reply) -> None:
        """Do nothing: this lane's waiters use futures and callbacks."""

    def watch(self, reply: Reply) -> None:
        """Watch a reply's deadline in the loop; from any thread."""
        if self._timer is not None and reply.deadline_ns >= self._timer_ns:
            return  # when the timer is due, it is set again for the replies that are left
        if _running_loop() is self._loop:
            self._set_timer(reply.deadline_ns)
        else:
            self._call_soon(self.watch, reply)

    def watch_stream(self, stream: StreamReply) -> None:
        """Watch a stream's deadline in the loop."""
        self.watch(stream)

    def go_on(self, stream: StreamReply) -> None:
        """Let a stream's worker go on at the end of this turn of the loop, together with other streams."""
        if _running_loop() is not self._loop:  # a thread reads parts that have come
            super().go_on(stream)
            self.watch(stream)
            return
        if not self._granted:
            self._loop.call_soon(self._grant_all)
        self._granted[stream] = None

    @interrupts.defer_interrupts
    def _grant_all(self) -> None:
        granted, self._granted = self._granted, {}
        now_ns = time.monotonic_ns()
        with self._lock:
            going = [stream for stream in granted if stream.carrier.state is ReplyState.STREAMING]
            for stream in going:
                stream.expect_next(now_ns)
            for link in self._links:
                link.grant([each.carrier for each in going if each.carrier.device == link.device])
        if going:
            self.watch(min(going, key=lambda stream: stream.deadline_ns))

    def close_stream(self, stream: StreamReply) -> None:
        """Close a stream; from any thread."""
        if _running_loop() is self._loop or self._loop.is_closed():
            super().close_stream(stream)
        else:
            self._call_soon(self.close_stream, stream)

    def close_streams(self, error: errors.AtomrError) -> None:
        """Close all streams; from any thread."""
        if _running_loop() is self._loop or not self._loop.is_running():
            super().close_streams(error)
        else:
            self._call_soon(self.close_streams, error)

    def _set_timer(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._loop.call_later(max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9), self._expire_late)

    @interrupts.defer_interrupts
    def _expire_late(self) -> None:
        """End the replies whose deadline has passed, and look again at the next deadline."""
        self._timer = None
        now_ns = time.monotonic_ns()
        with self._lock:
            calls = [reply for reply in self._unanswered() if reply.gang is None]  # parts have no deadline
            waiting = [reply for reply in (*calls, *self._gangs.open()) if not reply.is_over]
        for reply in waiting:
            if reply.deadline_ns <= now_ns:
                self._expire(reply)
        left = [reply.deadline_ns for reply in waiting if not reply.is_over]
        if left:
            self._set_timer(min(left))
