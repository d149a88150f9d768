"""The lane of all threads that have no event loop: the first one that waits receives for all."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.lanes.base import Lane
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.sending import MESSAGE_CALLS
from atomr_mp.client.lanes.services import LaneServices
from atomr_mp.client.lanes.session import LONGEST_WAIT_S, SupervisorNews
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.protocol.messages import data
from atomr_mp.wire.ends import ClientEnd

if TYPE_CHECKING:
    from atomr_mp.client.memory.refs import GpuRef

FLUSH_S: Final = 0.001
"""Longest wait of a call for others to travel with, if earlier calls are unanswered and no thread waits for a reply."""


FAR_NS: Final = 2**63 - 1
"""A time that never comes, for waits without a limit."""


class ThreadsLane(Lane):
    """Drives the connections from whichever thread waits for a reply."""

    def __init__(self, services: LaneServices, number: int) -> None:
        super().__init__(services, number)
        self._leader = threading.Lock()
        self._followers: dict[threading.Lock, Reply] = {}
        """Wakers of the threads that wait and do not lead, the longest-waiting first."""
        self._successor: threading.Lock | None = None
        """The waker of the thread that was woken last to lead."""
        self._watched: set[Reply] = set()
        """Replies with callbacks, for the background thread."""
        self._watching: Reply | None = None
        """The reply with the earliest deadline, for which the background thread waits."""
        self._overtaken: Reply | None = None
        """`_watching` again, if a reply with an earlier deadline has come since: the watcher has to choose anew."""
        self._watch_more = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._closed = False
        """Whether new watchers are refused."""
        self._flushing = False
        """Whether the flusher looks at the outboxes."""
        self._flush_wanted = threading.Lock()
        """Released to wake the flusher."""
        self._flush_wanted.acquire()
        self._flusher: threading.Thread | None = None
        self._by_descriptor: dict[int, DeviceLink] = {}
        self._retries: dict[DeviceLink, threading.Timer] = {}
        self._late_gangs: threading.Timer | None = None
        """Looks at calls of worlds that are held for news."""
        self._epoll = select.epoll()
        try:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self._epoll.close()
            raise
        self._epoll.register(self._wake, select.EPOLLIN)
        self._epoll.register(self._session.descriptor, select.EPOLLIN)

    @interrupts.defer_interrupts
    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Receive until the reply is there, or let another thread do it."""
        limit_ns = FAR_NS if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        called = False
        try:
            while not reply.is_over:
                until_ns = min(limit_ns, reply.deadline_ns)  # which moves once its method is known
                left_s = (until_ns - time.monotonic_ns()) / 1e9
                if left_s > 0:
                    called = self._step(reply, left_s)
                elif until_ns < reply.deadline_ns:
                    if self._has_come(reply):
                        break
                    raise TimeoutError(f"no answer to {reply.method} within {timeout_s} s; the request goes on")
                else:
                    self._expire(reply)
        except BaseException:
            called = True  # this thread may have been woken to lead
            raise
        finally:
            if called and self._followers:
                self._hand_over()  # others wait for the thread that was woken to lead

    @interrupts.defer_interrupts
    def look(self, reply: Reply) -> None:
        """Take in what has arrived, without waiting, and end a reply whose deadline has passed."""
        if reply.deadline_ns <= time.monotonic_ns():
            self._expire(reply)
        elif not self._leader.locked() and self._step(reply, 0.0) and self._followers:
            self._hand_over()

    def _has_come(self, reply: Reply) -> bool:
        self.look(reply)
        return reply.is_over

    def wait_for_room(self, reply: Reply) -> None:
        """Wait until a call that waits for room is let in.

        Raises:
            AtomrError: It has ended instead, for example by its deadline.
        """
        try:
            while reply.state is ReplyState.BACKLOG:
                left_s = (reply.deadline_ns - time.monotonic_ns()) / 1e9
                if left_s > 0:
                    self.wait_for_news(reply, lambda: reply.state is not ReplyState.BACKLOG, left_s)
                else:
                    self._expire(reply)
        except BaseException:
            self.cancel(reply)  # nobody has the reply, so nobody can wait for it
            raise
        if reply.error is not None and reply.generation == 0:
            raise errors.unraised(reply.error)

    def _lend(self, reply: Reply, foreign: Sequence[GpuRef], device: int) -> None:
        left_s = max(0.0, (reply.deadline_ns - time.monotonic_ns()) / 1e9)
        reply.kept = (*reply.kept, *self._memory.get().lend(foreign, device, left_s))

    @interrupts.defer_interrupts
    def wait_for_part(self, stream: StreamReply, timeout_s: float | None) -> bool:
        """Wait for a part of a stream, or its end; False if neither comes within `timeout_s`."""
        until_ns = FAR_NS if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)

        def is_there() -> bool:
            return bool(stream.arrived) or stream.is_over

        while not is_there():
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                self.look(stream)
                return is_there()
            left_s = (min(stream.deadline_ns, until_ns) - now_ns) / 1e9
            if left_s > 0:
                self.wait_for_news(stream, is_there, left_s)
            else:
                self._expire(stream)
        return True

    @interrupts.defer_interrupts
    def wait_for_news(self, reply: Reply, is_there: Callable[[], bool], timeout_s: float) -> None:
        """Wait for any news of a reply, such as a part, for at most `timeout_s`.

        Args:
            reply: The reply.
            is_there: Returns whether the news has come already; called with the lock held.
            timeout_s: How long to wait.
        """
        with self._lock:
            if is_there():
                return
            news = reply.news
            if news is None:
                news = reply.news = Reply(self, 0, reply.method, FAR_NS, b"", sent_ns=time.monotonic_ns())
        with contextlib.suppress(TimeoutError):
            self.wait(news, timeout_s)

    def take(self, message: SupervisorNews) -> None:
        """Take a lifecycle event, at once."""
        self._apply(message)

    def close(self) -> None:
        """Close the descriptors, once no thread waits."""
        with self._watch_more:
            self._closed = True
            watcher, self._watcher = self._watcher, None
            self._watched.clear()
            self._watch_more.notify()
        with self._lock:
            flusher, self._flusher = self._flusher, None
            if flusher is not None and not self._flushing:
                self._flushing = True
                self._flush_wanted.release()
            retries = list(self._retries.values())
            if self._late_gangs is not None:
                retries.append(self._late_gangs)
        for timer in retries:
            timer.cancel()
            if timer is not threading.current_thread():
                interrupts.wait(timer.join)
        if flusher is not None:
            interrupts.wait(flusher.join)
        if watcher is not None and watcher is not threading.current_thread():
            os.eventfd_write(self._wake, 1)
            interrupts.wait(watcher.join)  # the watcher may be in a callback
        with self._leader:
            self._epoll.close()
            os.close(self._wake)

    def _step(self, reply: Reply, timeout_s: float) -> bool:
        """Receive for all if no other thread does, else wait to be woken; return after any news.

        Return True if this thread was woken to receive for all from now on.
        """
        if self._leader.acquire(False):
            try:
                session_spoke = self._receive_for(reply, timeout_s)
            finally:
                self._leader.release()
                if self._followers:
                    self._hand_over()
            # Only now, since both run callbacks, which may wait for other replies, or close the client.
            if session_spoke:
                self._session.read()
            if self._outcomes.owes_callbacks:
                self.call_back()
            return False
        return self._follow(reply, timeout_s)

    def _receive_for(self, reply: Reply, timeout_s: float) -> bool:
        """Receive, as the leader, until there is news; return whether there is news in the session."""
        self._outcomes.leading = reply  # first: from here on another thread that finds replies wakes this one
        for link in self._links:
            if link.outbox or link.unread:
                with self._lock:
                    if link.outbox:
                        self._sender.flush(link)
                    self._receive(link, reply)
        ready = []
        if not (reply.is_over or reply is self._overtaken):
            ready = interrupts.wait(self._epoll.poll, min(timeout_s, LONGEST_WAIT_S))
        self._outcomes.leading = None
        session_spoke = False
        for descriptor, _ in ready:
            readable = self._by_descriptor.get(descriptor)
            if readable is not None:
                with self._lock:
                    self._receive(readable, reply)
            elif descriptor == self._wake:
                os.eventfd_read(self._wake)
            else:
                session_spoke = True
        self._session.polled_ns = reply.sent_ns
        return session_spoke

    def _follow(self, reply: Reply, timeout_s: float) -> bool:
        """Wait until the leader has received the reply, or hands over to this thread; return whether it hands over."""
        woken = threading.Lock()
        woken.acquire()
        with self._lock:
            for link in self._links:
                if link.outbox:
                    self._sender.flush(link)
            if reply.is_over or reply is self._overtaken:
                return False
            self._followers[woken] = reply
            reply.waiters = (*reply.waiters, woken)
        try:
            # The leader may have gone before it could see this thread.
            if self._leader.acquire(blocking=False):
                self._leader.release()
            else:
                interrupts.wait(lambda: woken.acquire(timeout=timeout_s))
        finally:
            with self._lock:
                self._followers.pop(woken, None)
        return self._successor is woken

    def _hand_over(self) -> None:
        """Wake the thread that has waited longest; it becomes the leader."""
        with self._lock:
            woken = next(iter(self._followers), None)
            self._successor = woken
            if woken is not None:
                del self._followers[woken]
                woken.release()

    def _finished(self, reply: Reply) -> None:
        for woken in reply.waiters:
            if self._followers.pop(woken, None) is not None:
                woken.release()
        if self._outcomes.leading is reply:
            os.eventfd_write(self._wake, 1)

    def _take_in(self) -> bool:
        with self._lock:
            for link in self._links:
                self._read_for_room(link)
        return True

    def _read_for_room(self, link: DeviceLink) -> bool:
        if link.outbox:
            self._sender.flush(link)
        self._receive(link)
        if self._outcomes.owes_callbacks:
            os.eventfd_write(self._wake, 1)  # they run on the thread that waits for them
        return True

    def _queued(self, link: DeviceLink) -> None:
        """Send a full outbox. The next thread that waits for a reply, or the flusher, sends any other."""
        if len(link.outbox) >= MESSAGE_CALLS:
            self._sender.flush(link)
        elif not self._flushing:
            self._flushing = True
            if self._flusher is None:
                flusher = threading.Thread(target=self._flush_all, name="atomr-mp flusher", daemon=True)
                flusher.start()
                self._flusher = flusher
            self._flush_wanted.release()

    def give_back(self, releases: Releases, *, freed: bool = False) -> None:
        """Send due releases to an incarnation.

        The releases of all lanes are sent here, so that one place repeats them if the connection is lost. Otherwise
        all later calls would wait for releases that never arrive.

        Args:
            releases: The releases.
            freed: Whether nothing else is about to be sent.
        """
        with self._lock:
            link = self._links[releases.device]
            if link.releases is releases and not (freed and releases.is_unheard):
                releases.unheard += freed
                self._give_back(link)
                if link.connection is not None and link.connection.broken:
                    self._broken(link, ())  # perhaps no thread receives, and loops' calls wait for the releases
                    if self._outcomes.owes_callbacks:
                        os.eventfd_write(self._wake, 1)

    def _give_back(self, link: DeviceLink) -> None:
        releases = link.releases
        while link.connection is not None and (message := releases.message()) is not None:
            link.connection.send(data.FROM_CLIENT.encode(message), [])
            releases.sent(message)

    def repeat_releases(self, link: DeviceLink) -> None:
        """Send releases again that may have been lost with a connection; those of all lanes are sent here."""
        assert link.connection is not None
        for message in link.releases.to_repeat():
            link.connection.send(data.FROM_CLIENT.encode(message), [])

    def _flush_all(self) -> None:
        """Run the flusher: send outboxes that have no waiting thread, until there are none."""
        while True:
            self._flush_wanted.acquire()
            while self._flushing:
                # Waking a thread for each outbox would cost a third of all calls' rate (docs/notes/speed.md).
                time.sleep(FLUSH_S)
                with self._lock:
                    if self._flusher is not threading.current_thread():
                        return
                    self._flushing = any(link.outbox for link in self._links)
                    for link in self._links:
                        if link.outbox:
                            self._sender.flush(link)

    def connected(self, link: DeviceLink, connection: ClientEnd) -> None:
        """Watch a new connection's descriptor."""
        self._by_descriptor[connection.fileno()] = link
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        connection.when_over(lambda: self._on_over(link, connection))

    @interrupts.defer_interrupts
    def _on_over(self, link: DeviceLink, connection: ClientEnd) -> None:
        """React to the end of a connection that no thread may be reading: releases are to be repeated on the next."""
        with self._lock:
            if connection is link.connection:
                self._receive(link)
        self.call_back()

    def _disconnecting(self, _link: DeviceLink, connection: ClientEnd) -> None:
        if self._by_descriptor.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    def retry_later(self, link: DeviceLink, number: int, delay_s: float) -> None:
        """Start a timer's thread, which retries the link after `delay_s`."""
        timer = threading.Timer(delay_s, self._retry_link, (link, number))
        timer.name, timer.daemon = "atomr-mp retry", True
        timer.start()
        self._retries[link] = timer

    def settle_gangs_later(self, delay_s: float) -> None:
        """Start a timer's thread for it."""
        timer = threading.Timer(delay_s, self._settle_held_gangs)
        timer.name, timer.daemon = "atomr-mp worlds", True
        timer.start()
        self._late_gangs = timer

    # --- callbacks that no thread waits for ------------------------------------------------------------------------

    def watch(self, reply: Reply) -> None:
        """Let the watcher wait for a reply."""
        with self._watch_more:
            if self._closed:  # closing gives every reply its outcome
                return
            self._watched.add(reply)
            if self._watcher is None:
                watcher = threading.Thread(target=self._watch_all, name="atomr-mp replies", daemon=True)
                watcher.start()
                self._watcher = watcher
            self._watch_more.notify()
            watching = self._watching
            if watching is None or reply.deadline_ns >= watching.deadline_ns:
                return
            self._overtaken = watching
        self._wake_waiting_for(watching)

    def _watch_all(self) -> None:
        """Run the watcher: wait, step by step, for the reply whose deadline comes first."""
        while True:
            with self._watch_more:
                self._watching = self._overtaken = None
                self._watched = {reply for reply in self._watched if not reply.is_over}
                while not self._watched:
                    if self._watcher is not threading.current_thread():
                        return
                    self._watch_more.wait()
                first = self._watching = min(self._watched, key=lambda reply: reply.deadline_ns)
            left_s = (first.deadline_ns - time.monotonic_ns()) / 1e9
            called = True  # this thread may have been woken to lead just at the deadline
            if left_s > 0:
                called = self._step(first, left_s)
            else:
                self._expire(first)
            if called and self._followers:
                self._hand_over()  # this thread may have no reply left to wait for
            del first  # if it is over, this thread would keep its memory, and all that its error's traceback shows

    def _deadline_moved(self, reply: Reply) -> None:
        if reply in self._watched:
            super()._deadline_moved(reply)
        self._wake_waiting_for(reply)

    def _wake_waiting_for(self, reply: Reply) -> None:
        """Wake the threads that wait for a reply, to look again."""
        with self._lock:
            for woken in [woken for woken, waited_for in self._followers.items() if waited_for is reply]:
                del self._followers[woken]
                woken.release()
            if self._outcomes.leading is reply:
                os.eventfd_write(self._wake, 1)
