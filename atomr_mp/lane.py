"""A client's connections and the requests on them: `BlockingLane` for threads, `LoopLane` for an asyncio loop.

A ZeroMQ socket cannot be shared by threads that block in it, and a hand-over to a thread of its own costs more than a
call. So every asyncio loop has its own connections, driven by the loop, and all other threads share one set, on which
the first thread that waits receives for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.protocol import data, token, values
from atomr_mp.protocol.flight import Flight
from atomr_mp.protocol.session import DeviceChanged, DeviceInfo, DeviceState, IncarnationEnded
from atomr_mp.reply import Reply
from atomr_mp.transport.data import DataConnection

if TYPE_CHECKING:
    from atomr_mp.client import Client

DRAIN_MS: Final = 5
"""How long answers of an ended incarnation may take to come out of libzmq."""

MESSAGE_CALLS: Final = 16
"""Most calls put into one message; more would make the worker wait for the first."""

Callback = Callable[[Reply], object]


class Link:
    """A lane's connection to one device, through all its incarnations."""

    def __init__(self, info: DeviceInfo, flight: Flight[Reply]) -> None:
        self.device: Final = info.index
        self.info = info
        self.flight: Final = flight
        """Requests without an answer, sent or held."""
        self.held: deque[Reply] = deque()
        """Requests that wait for an incarnation, in order."""
        self.outbox: list[Reply] = []
        """Requests that wait to be sent together."""
        self.connection: DataConnection | None = None
        self.generation = 0
        """The incarnation of `connection`."""
        self.token = b""
        self.sending = False
        """Whether requests may be sent now; if not, they are held."""
        self.unread = False
        """Replies may have arrived of which the connection's descriptor does not tell any more."""


class Lane(ABC):
    """What both kinds share: where requests go, and how they end.

    Args:
        client: Whose lane this is.
        number: Distinguishes the lane's connections from those of the session's other lanes.
        devices: The devices as they are now.
    """

    def __init__(self, client: Client, number: int, devices: Iterable[DeviceInfo]) -> None:
        self._client = client
        self._number = number
        self._lock = threading.Lock()
        self._links = [Link(info, Flight(client.login.window, info.index)) for info in devices]
        self._called_back: list[Reply] = []
        """Finished replies whose callbacks are to be run once the lock is free."""
        self._lost: errors.PoolLost | None = None

    # --- what replies and the client call --------------------------------------------------------------------------

    def submit(
        self, device: int | None, method: str, arguments: tuple[bytes, list[values.Buffer]], deadline_ns: int
    ) -> Reply:
        """Send a request, or hold it while its device comes back.

        Args:
            device: Where to; None for the one with the fewest unanswered requests of this lane.
            method: "Actor.method".
            arguments: Encoded.
            deadline_ns: CLOCK_MONOTONIC.

        Raises:
            Overloaded: The window is full.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more.
        """
        body, payload = arguments
        reply = Reply(self, self._client.next_id(), method, deadline_ns, body)
        payload_bytes = len(body)
        if payload:
            reply._payload = payload
            payload_bytes += sum(map(len, payload))
        with self._lock:
            if self._lost is not None:
                raise _copy(self._lost)
            link = self._place() if device is None else self._links[device]
            if link.info.state in _CLOSED:
                raise _unavailable(link.info)
            link.flight.add(reply.id, reply, payload_bytes)
            reply._link = link
            if link.sending:
                self._post(link, reply)
            else:
                link.held.append(reply)
        return reply

    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""
        with self._lock:
            link = reply._link
            if reply.done or link is None:
                return
            unsent = link.held if reply in link.held else link.outbox if reply in link.outbox else None
            if unsent is not None:
                unsent.remove(reply)
                link.flight.take(reply.id)
                self._end(reply, errors.Cancelled("cancelled before it was sent"))
            elif link.connection is not None:
                cancel = data.FROM_CLIENT.encode(data.Cancel(link.token, [reply.id]))
                link.unread = link.connection.send(cancel, [])
        self._call_back()

    def add_callback(self, reply: Reply, callback: Callback) -> bool:
        """Have `callback` run once the reply is there; False if it is there already."""
        with self._lock:
            if reply.done:
                return False
            if reply._callbacks is None:
                reply._callbacks = []
            reply._callbacks.append(callback)
        self._watch(reply)
        return True

    @abstractmethod
    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Return when the reply is there.

        Raises:
            TimeoutError: It was not, in time.
        """

    def belongs_to(self, _loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the lane is driven by this event loop."""
        return False

    # --- what the supervisor says ----------------------------------------------------------------------------------

    @abstractmethod
    def take(self, message: DeviceChanged | IncarnationEnded | errors.PoolLost) -> None:
        """Take a lifecycle event, from whichever thread has received it."""

    def _apply(self, message: DeviceChanged | IncarnationEnded | errors.PoolLost) -> None:
        with self._lock:
            match message:
                case DeviceChanged(info):
                    self._device_changed(self._links[info.index], info)
                case IncarnationEnded():
                    self._incarnation_ended(self._links[message.device], message)
                case errors.PoolLost():
                    self._pool_lost(message)
        self._call_back()

    def _device_changed(self, link: Link, info: DeviceInfo) -> None:
        link.info = info
        if info.admitted and info.generation != link.generation:
            self._disconnect(link)
            link.connection = DataConnection(self._client.zmq_context, info.endpoint, self._client.login, self._number)
            link.generation = info.generation
            link.token = token.pack(self._client.epoch, info.index, info.generation)
            self._connected(link, link.connection)
        link.sending = info.admitted and info.state is DeviceState.READY
        if link.sending:
            link.outbox.extend(link.held)
            link.held.clear()
            self._flush(link)
            return
        self._hold(link)
        if info.state in _CLOSED:
            while link.held:
                reply = link.held.popleft()
                link.flight.take(reply.id)
                self._end(reply, _unavailable(info))

    def _incarnation_ended(self, link: Link, ended: IncarnationEnded) -> None:
        self._hold(link)
        if link.generation == ended.generation and link.connection is not None:
            link.connection.wait_disconnected(DRAIN_MS)
            self._receive(link)
            self._disconnect(link)
        started = frozenset(ended.started)
        back = []
        for request_id, reply in link.flight.items():
            if reply._sent_generation != ended.generation:
                continue
            maybe_executed = request_id in started or reply._sent_ns <= ended.known_since_ns
            if ended.planned and not maybe_executed:
                back.append(reply)
                continue
            link.flight.take(request_id)
            error = ended.error.error()
            if isinstance(error, errors.RequestError):
                error.maybe_executed = maybe_executed
            self._end(reply, error)
        for reply in reversed(back):
            reply._sent_generation = 0
            link.held.appendleft(reply)

    def _pool_lost(self, lost: errors.PoolLost) -> None:
        self._lost = lost
        for link in self._links:
            self._hold(link)
            if link.connection is not None:
                link.connection.wait_disconnected(DRAIN_MS)
                self._receive(link)
                self._disconnect(link)
            link.held.clear()
            for request_id, reply in link.flight.items():
                link.flight.take(request_id)
                error = _copy(lost)
                error.maybe_executed = reply._sent_generation != 0
                self._end(reply, error)

    # --- for the kinds, with the lock held -------------------------------------------------------------------------

    @abstractmethod
    def _connected(self, link: Link, connection: DataConnection) -> None:
        """Watch a new connection's descriptor."""

    @abstractmethod
    def _disconnecting(self, _link: Link, connection: DataConnection) -> None:
        """Stop watching a connection's descriptor."""

    @abstractmethod
    def _finished(self, reply: Reply) -> None:
        """Wake whoever waits for a reply."""

    @abstractmethod
    def _watch(self, reply: Reply) -> None:
        """See that a reply with a callback is received though nobody waits for it. Without the lock."""

    @abstractmethod
    def _post(self, link: Link, reply: Reply) -> None:
        """Send a request, now or soon."""

    @abstractmethod
    def _arrived(self, link: Link) -> None:
        """Replies have arrived while something was sent."""

    def _place(self) -> Link:
        best, least = None, 0
        for link in self._links:
            if link.sending and (best is None or len(link.flight) < least):
                best, least = link, len(link.flight)
        if best is not None:
            return best
        waiting = [link for link in self._links if link.info.state not in _CLOSED]
        if not waiting:
            raise _unavailable(self._links[0].info)
        return min(waiting, key=lambda link: len(link.flight))

    def _hold(self, link: Link) -> None:
        """Send nothing more on a link for now; what waits to be sent is held."""
        link.sending = False
        link.held.extend(link.outbox)
        link.outbox.clear()

    def _flush(self, link: Link) -> None:
        """Send a link's outbox."""
        replies, link.outbox = link.outbox, []
        for at in range(0, len(replies), MESSAGE_CALLS):
            self._send(link, replies[at : at + MESSAGE_CALLS])

    def _send(self, link: Link, replies: list[Reply]) -> None:
        connection = link.connection
        assert connection is not None
        calls: list[data.Call] = []
        frames: list[values.Buffer] = []
        now_ns = time.monotonic_ns()
        generation = link.generation
        for reply in replies:
            payload = reply._payload
            if payload:
                frames += payload
            calls.append(data.Call(reply.id, reply.method, reply.deadline_ns, len(payload), reply._body))
            reply._sent_ns = now_ns
            reply._sent_generation = generation
        link.unread = connection.send(data.FROM_CLIENT.encode(data.Calls(link.token, calls)), frames)
        if link.unread:
            self._arrived(link)

    def _receive(self, link: Link, until: Reply | None = None) -> None:
        """Take in what has arrived on a link; stop early once the reply `until` is there."""
        connection = link.connection
        if connection is None:
            return
        while until is None or not until.done:
            message = connection.receive()
            if message is None:
                link.unread = False
                return
            header, frames = message
            at = 0
            for answer in data.FROM_WORKER.decode(header).replies:
                reply = link.flight.take(answer.id)
                if reply is not None and not reply.done:
                    reply._body = answer.body
                    if answer.frames:
                        reply._frames = frames[at : at + answer.frames]
                    self._end(reply, None if answer.error is None else answer.error.error())
                at += answer.frames
        link.unread = True

    def _end(self, reply: Reply, error: errors.AtomrError | None) -> None:
        """Give a reply its outcome, unless it has one: its deadline may have passed before."""
        if reply.done:
            return
        reply._error = error
        reply._payload = ()
        reply.done = True
        self._finished(reply)
        if reply._callbacks is not None:
            self._called_back.append(reply)

    def _expire(self, reply: Reply) -> None:
        """End a reply whose deadline has passed; its credit comes back with its late answer."""
        self.cancel(reply)
        with self._lock:
            sent = reply._sent_generation != 0
            self._end(
                reply,
                errors.DeadlineExceeded(
                    f"no answer to {reply.method} within its deadline; "
                    + ("it may be running still" if sent else "it was never sent"),
                    maybe_executed=sent,
                ),
            )
        self._call_back()

    def _call_back(self) -> None:
        """Run the callbacks of finished replies, without the lock."""
        while self._called_back:
            reply = self._called_back.pop()
            callbacks, reply._callbacks = reply._callbacks or (), None
            for callback in callbacks:
                callback(reply)

    def _disconnect(self, link: Link) -> None:
        if link.connection is not None:
            self._disconnecting(link, link.connection)
            link.connection.close()
            link.connection = None
        link.unread = False


class BlockingLane(Lane):
    """The lane of all threads that have no event loop: the first one that waits receives for all."""

    def __init__(self, client: Client, number: int, devices: Iterable[DeviceInfo]) -> None:
        super().__init__(client, number, devices)
        self._leader = threading.Lock()
        self._leading: Reply | None = None
        """What the leader waits for while it polls."""
        self._followers: dict[threading.Lock, Reply] = {}
        """What wakes the threads that wait and do not lead, the longest-waiting first."""
        self._watched: set[Reply] = set()
        """Replies with callbacks, for the background thread."""
        self._watch_more = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._flush_wanted = threading.Lock()
        """Held while no outbox waits for the flusher."""
        self._flush_wanted.acquire()
        self._flusher: threading.Thread | None = None
        self._by_descriptor: dict[int, Link] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._epoll.register(client.session_descriptor, select.EPOLLIN)

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Receive until the reply is there, or let another thread do it."""
        until_ns = reply.deadline_ns
        if timeout_s is not None:
            until_ns = min(until_ns, time.monotonic_ns() + int(timeout_s * 1e9))
        while not reply.done:
            left_s = (until_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                self._hand_over()  # we may have been woken to lead
                if until_ns < reply.deadline_ns:
                    raise TimeoutError(f"no answer to {reply.method} within {timeout_s} s; the request goes on")
                self._expire(reply)
            elif self._leader.acquire(blocking=False):
                try:
                    self._receive_for(reply, left_s)
                finally:
                    self._leader.release()
                    self._hand_over()
            else:
                self._follow(reply, left_s)

    def take(self, message: DeviceChanged | IncarnationEnded | errors.PoolLost) -> None:
        """Take a lifecycle event, at once."""
        self._apply(message)

    def close(self) -> None:
        """Give the descriptors back; nobody waits any more."""
        with self._watch_more:
            watcher, self._watcher = self._watcher, None
            self._watched.clear()
            self._watch_more.notify()
        with self._lock:
            flusher, self._flusher = self._flusher, None
            self._want_flush()
        if flusher is not None:
            flusher.join()
        if watcher is not None and watcher is not threading.current_thread():
            os.eventfd_write(self._wake, 1)
            watcher.join()
        with self._leader:
            self._epoll.close()
            os.close(self._wake)

    def _receive_for(self, reply: Reply, timeout_s: float) -> None:
        """Receive, as the leader, until something has happened; return then."""
        for link in self._links:
            if link.outbox or link.unread:
                with self._lock:
                    if link.outbox:
                        self._flush(link)
                    self._receive(link, reply)
        self._call_back()
        if reply.done:
            return
        self._leading = reply
        ready = self._epoll.poll(timeout_s)
        self._leading = None
        self._client.note_session_polled()
        for descriptor, _ in ready:
            link_ = self._by_descriptor.get(descriptor)
            if link_ is not None:
                with self._lock:
                    self._receive(link_, reply)
            elif descriptor == self._wake:
                os.eventfd_read(self._wake)
            else:
                self._client.read_session()
        self._call_back()

    def _follow(self, reply: Reply, timeout_s: float) -> None:
        """Wait until the leader has received the reply, or has left the lead to us."""
        woken = threading.Lock()
        woken.acquire()
        with self._lock:
            for link in self._links:
                if link.outbox:
                    self._flush(link)
            if reply.done:
                return
            self._followers[woken] = reply
            reply._waiters = (*reply._waiters, woken)
        # The leader may have gone before it could see us.
        if self._leader.acquire(blocking=False):
            self._leader.release()
        else:
            woken.acquire(timeout=timeout_s)
        with self._lock:
            self._followers.pop(woken, None)

    def _hand_over(self) -> None:
        """Wake the thread that has waited longest; it becomes the leader."""
        if self._followers:
            with self._lock:
                woken = next(iter(self._followers), None)
                if woken is not None:
                    del self._followers[woken]
                    woken.release()

    def _finished(self, reply: Reply) -> None:
        for woken in reply._waiters:
            if self._followers.pop(woken, None) is not None:
                woken.release()
        if self._leading is reply:
            os.eventfd_write(self._wake, 1)

    def _post(self, link: Link, reply: Reply) -> None:
        """Send at once if the worker has nothing of ours; else let what is called meanwhile travel together.

        The outbox is sent when it is full, when a thread waits for any reply, and at the latest by the flusher, which
        runs as soon as the calling thread lets go of the interpreter (within its switch interval, 5 ms).
        """
        if len(link.flight) == 1:
            self._send(link, [reply])
            return
        link.outbox.append(reply)
        if len(link.outbox) >= MESSAGE_CALLS:
            self._flush(link)
        elif len(link.outbox) == 1:
            if self._flusher is None:
                self._flusher = threading.Thread(target=self._flush_all, name="atomr-mp flusher", daemon=True)
                self._flusher.start()
            self._want_flush()

    def _want_flush(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is wanted already
            self._flush_wanted.release()

    def _flush_all(self) -> None:
        """Send outboxes for which nobody waits; the flusher's thread."""
        while True:
            self._flush_wanted.acquire()
            with self._lock:
                if self._flusher is not threading.current_thread():
                    return
                for link in self._links:
                    if link.outbox:
                        self._flush(link)

    def _arrived(self, _link: Link) -> None:
        if self._leading is not None:
            os.eventfd_write(self._wake, 1)

    def _connected(self, link: Link, connection: DataConnection) -> None:
        self._by_descriptor[connection.fileno()] = link
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _disconnecting(self, _link: Link, connection: DataConnection) -> None:
        del self._by_descriptor[connection.fileno()]
        self._epoll.unregister(connection.fileno())

    # --- callbacks with nobody waiting -----------------------------------------------------------------------------

    def _watch(self, reply: Reply) -> None:
        with self._watch_more:
            self._watched.add(reply)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch_all, name="atomr-mp replies", daemon=True)
                self._watcher.start()
            self._watch_more.notify()

    def _watch_all(self) -> None:
        while True:
            with self._watch_more:
                self._watched = {reply for reply in self._watched if not reply.done}
                while not self._watched:
                    if self._watcher is not threading.current_thread():
                        return
                    self._watch_more.wait()
                first = min(self._watched, key=lambda reply: reply.deadline_ns)
            self.wait(first, None)


class LoopLane(Lane):
    """The lane of one asyncio event loop; all of it but `take` and `wait` runs in that loop."""

    def __init__(
        self, client: Client, number: int, devices: Iterable[DeviceInfo], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(client, number, devices)
        self._loop = loop
        self._flushing = False
        """The outboxes will be sent at the end of this turn of the loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._watched: set[Reply] = set()
        loop.add_reader(client.session_descriptor, client.read_session)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the lane's loop."""
        return loop is self._loop

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Wait in a thread for what the loop receives."""
        if self._loop.is_closed():
            raise RuntimeError("the event loop to which this reply belongs is closed")
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError("result() would block the event loop to which this reply belongs; await the reply")
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: None if self.add_callback(reply, lambda _: done.set()) else done.set())
        if not done.wait(timeout_s):
            raise TimeoutError(f"no answer to {reply.method} within {timeout_s} s; the request goes on")

    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start; from any thread."""
        if asyncio._get_running_loop() is self._loop:
            super().cancel(reply)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cancel, reply)

    def take(self, message: DeviceChanged | IncarnationEnded | errors.PoolLost) -> None:
        """Take a lifecycle event, in the loop."""
        if asyncio._get_running_loop() is self._loop:
            self._apply(message)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, message)

    @property
    def is_closed(self) -> bool:
        """Whether the loop has been closed, and the lane with it."""
        return self._loop.is_closed()

    def close(self) -> None:
        """Stop watching; in the loop's thread, or after the loop was closed."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._client.session_descriptor)
            if self._timer is not None:
                self._timer.cancel()
        for link in self._links:
            self._disconnect(link)

    def _post(self, link: Link, reply: Reply) -> None:
        """Let all that is called in this turn of the loop travel together."""
        link.outbox.append(reply)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_all)

    def _flush_all(self) -> None:
        self._flushing = False
        with self._lock:
            for link in self._links:
                if link.outbox:
                    self._flush(link)

    def _on_readable(self, link: Link) -> None:
        with self._lock:
            self._receive(link)
        self._call_back()

    def _arrived(self, link: Link) -> None:
        self._loop.call_soon(self._on_readable, link)

    def _connected(self, link: Link, connection: DataConnection) -> None:
        self._loop.add_reader(connection.fileno(), self._on_readable, link)

    def _disconnecting(self, _link: Link, connection: DataConnection) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(connection.fileno())

    def _finished(self, reply: Reply) -> None:
        self._watched.discard(reply)

    def _watch(self, reply: Reply) -> None:
        self._watched.add(reply)
        if self._timer is None or reply.deadline_ns < self._timer_ns:
            self._set_timer(reply.deadline_ns)

    def _set_timer(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._loop.call_later(max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9), self._expire_watched)

    def _expire_watched(self) -> None:
        self._timer = None
        now_ns = time.monotonic_ns()
        for reply in [reply for reply in self._watched if reply.deadline_ns <= now_ns]:
            self._expire(reply)
        if self._watched:
            self._set_timer(min(reply.deadline_ns for reply in self._watched))


_CLOSED: Final = frozenset({DeviceState.STOPPED, DeviceState.STOPPING})


def _unavailable(info: DeviceInfo) -> errors.DeviceUnavailable:
    return errors.DeviceUnavailable(
        f"device {info.index} ({info.name}) is {info.state.value}: {info.reason or 'no reason given'}",
        device=info.index,
    )


def _copy(lost: errors.PoolLost) -> errors.PoolLost:
    return errors.PoolLost(lost.message, maybe_executed=False)
