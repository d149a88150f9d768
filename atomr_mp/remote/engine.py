"""Who receives for a remote client: the thread that waits for a reply, or a thread of its own while none waits.

The first thread that waits becomes the leader: it polls the socket and takes in what comes, for all. The others wait
until it wakes them, with their answer or to lead. To hand each call over to another thread would take a fifth of its
time. The watcher, a thread of the engine's own, leads while no caller does: connections have to be greeted and
callbacks run though nobody waits.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Final, Protocol

from atomr_mp.client import interrupts
from atomr_mp.client.reply import Reply
from atomr_mp.remote.wire import RemoteWire, Sign

ASIDE_S: Final = 0.1
"""How long the watcher stays aside after a caller has led. To take over at once would cost each call a change of
threads; nothing that the watcher does for an idle client is as urgent."""


FLUSH_S: Final = 0.001
"""How long a call that is made while earlier ones are unanswered may wait for others to travel with, if no thread waits
for any reply meanwhile."""


LONGEST_POLL_S: Final = 3600.0
"""How long nobody looks around where nothing happens: a stream without a deadline has one in years, and epoll takes at
most days."""


class Driven(Protocol):
    """What an engine drives. All but `call_back` is called with the lock held."""

    @property
    def watching_until_ns(self) -> int | None:
        """When the first of the replies expires that have callbacks, CLOCK_MONOTONIC; None if there are none."""

    @property
    def awaits_answers(self) -> bool:
        """Whether any call is unanswered."""

    def signed(self, sign: Sign) -> None:
        """Take in what the monitor says."""

    def take(self, message: memoryview) -> None:
        """Take a message in."""

    def flush(self) -> bool:
        """Send what waits; return whether anything was sent."""

    def expire(self) -> None:
        """End the replies with callbacks whose deadline has passed."""

    def expired(self, reply: Reply) -> None:
        """End a reply whose deadline has passed."""

    def call_back(self) -> None:
        """Run callbacks that are due, without the lock."""


class Engine:
    """Threads, and the socket that they share.

    Args:
        wire: The socket; owned from here on, used with the lock held.
        driven: The connection that it belongs to.
        lock: Guards both.
    """

    def __init__(self, wire: RemoteWire, driven: Driven, lock: threading.RLock) -> None:
        self._wire = wire
        self._driven = driven
        self._lock = lock
        self._leader = threading.Lock()
        self._leading: Reply | None = None
        self._watcher_leads = False
        self._followers: dict[threading.Lock, Reply] = {}
        """What wakes the threads that wait and do not lead, the longest-waiting first."""
        self._callers = 0
        """Threads that wait for replies."""
        self._leads = 0
        """How often a caller has led."""
        self._wake: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._take_over: Final = threading.Event()
        """Have the watcher lead again, at once."""
        self._poll: Final = select.epoll()
        for descriptor in (wire.fileno, wire.monitor_fileno, self._wake):
            self._poll.register(descriptor, select.EPOLLIN)
        self.closed = False
        self._flusher: threading.Thread | None = None
        self._flushing = False
        """The flusher is about to look."""
        self._flush_wanted: Final = threading.Semaphore(0)
        self._watcher: Final = threading.Thread(target=self._watch, name="atomr-mp remote", daemon=True)

    def start(self) -> None:
        """Start the watcher."""
        self._watcher.start()

    def send(self, parts: list[bytes | memoryview]) -> bool:
        """Send a message, with the lock held; False if there is no connection."""
        return not self.closed and self._wire.send(parts)

    def look(self) -> None:
        """After a message was sent, with the lock held: whoever polls may not be told of what has come meanwhile."""
        if self._leader.locked() and self._wire.readable:
            os.eventfd_write(self._wake, 1)

    def flush_soon(self) -> None:
        """Send what waits if no thread waits for a reply soon, which sends it; with the lock held.

        To wake a thread for each burst of calls would cost a third of their rate.
        """
        if self._flushing or self.closed:
            return
        self._flushing = True
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._flush_late, name="atomr-mp remote flusher", daemon=True)
            self._flusher.start()
        self._flush_wanted.release()

    def kick(self) -> None:
        """Have whoever leads look around; with the lock held."""
        if not self.closed:
            os.eventfd_write(self._wake, 1)
            if not self._callers:
                self._take_over.set()

    @interrupts.defer_interrupts
    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Receive until a reply is there, or have another thread do it.

        Raises:
            TimeoutError: It was not there in time.
        """
        until_ns = reply.deadline_ns
        if timeout_s is not None:
            until_ns = min(until_ns, time.monotonic_ns() + int(timeout_s * 1e9))
        with self._lock:
            self._callers += 1
        try:
            while not reply.done:
                left_s = (until_ns - time.monotonic_ns()) / 1e9
                if left_s > 0:
                    self._step(reply, left_s)
                elif until_ns < reply.deadline_ns:
                    raise TimeoutError(f"no answer to {reply.method} within {timeout_s} s; the request goes on")
                else:
                    with self._lock:
                        if not self.closed:
                            self._work()  # it may have come in time, and nobody has looked
                        if not reply.done:
                            self._driven.expired(reply)
        finally:
            with self._lock:
                self._callers -= 1
                self._hand_over()
                if not self._callers and self._driven.watching_until_ns is not None:
                    self._take_over.set()
            self._driven.call_back()

    def receive(self) -> None:
        """Take in all that has come, with the lock held."""
        if not self.closed:
            self._work()

    def finished(self, reply: Reply) -> None:
        """Wake whoever waits for a reply; with the lock held."""
        for woken in reply.waiters:
            if self._followers.pop(woken, None) is not None:
                woken.release()
        if self._leading is reply and not self.closed:
            os.eventfd_write(self._wake, 1)

    def close(self, linger_ms: int) -> None:
        """Close the socket. Nobody is waited for any more. Not to be called with the lock held."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            os.eventfd_write(self._wake, 1)
            self._take_over.set()
            self._flush_wanted.release()
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            interrupts.wait(self._watcher.join)
        if self._flusher is not None:
            interrupts.wait(self._flusher.join)
        with self._leader, self._lock:
            self._wire.close(linger_ms)
            self._poll.close()
            os.close(self._wake)

    def forget_in_child(self, lock: threading.RLock) -> None:
        """Let go, in a forked child."""
        self._lock = lock
        self.closed = True
        self._wire.forget_in_child()

    def _step(self, reply: Reply, timeout_s: float) -> None:
        if self._leader.acquire(blocking=False):
            try:
                self._leads += 1
                self._lead(reply, timeout_s)
            finally:
                self._leader.release()
            with self._lock:
                self._hand_over()
            self._driven.call_back()
        else:
            self._follow(reply, timeout_s)

    def _lead(self, reply: Reply | None, timeout_s: float | None) -> None:
        """Receive for all until something has happened; the reply is what this thread waits for."""
        with self._lock:
            if self.closed:
                return
            self._work(reply)  # libzmq's descriptor tells of changes only: what was sent may have taken one
            if reply is not None and reply.done:
                return
            until_ns = self._driven.watching_until_ns
            self._leading = reply
        if until_ns is not None:
            left_s = min(max(0.0, (until_ns - time.monotonic_ns()) / 1e9), LONGEST_POLL_S)
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            ready = interrupts.wait(self._poll.poll, timeout_s)
        finally:
            self._leading = None
        with self._lock:
            if self._is_closed():
                return
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                elif descriptor != self._wire.fileno:
                    self.hear()
            self._work(reply)
            self._driven.expire()

    def _is_closed(self) -> bool:
        return self.closed

    def hear(self) -> None:
        """Take in what the monitor has said, with the lock held. Its descriptor tells of all: nobody else reads it."""
        for sign in self._wire.signs():
            self._driven.signed(sign)

    def _work(self, until: Reply | None = None) -> None:
        """Take in all that has come, and send what waits.

        Args:
            until: If it is there, and nothing else is waited for, nobody looks for more: each question to libzmq costs
                a call some hundredths of its time.
        """
        wire, driven = self._wire, self._driven
        while not self.closed:
            message = wire.receive()
            if message is None:
                if not driven.flush() or not wire.readable:
                    return
            else:
                driven.take(message)
                if until is not None and until.done and not driven.awaits_answers:
                    return

    def _flush_late(self) -> None:
        """Send what nobody who waits has sent, until there is nothing; the flusher's thread."""
        while True:
            self._flush_wanted.acquire()
            time.sleep(FLUSH_S)
            with self._lock:
                self._flushing = False
                if self.closed:
                    return
                if self._driven.flush():
                    self.look()

    def _follow(self, reply: Reply, timeout_s: float) -> None:
        """Wait until the leader has received the reply, or has left the lead to us."""
        woken = threading.Lock()
        woken.acquire()
        with self._lock:
            if reply.done:
                return
            self._followers[woken] = reply
            reply.waiters = (*reply.waiters, woken)
            if not self.closed:
                if self._watcher_leads:
                    os.eventfd_write(self._wake, 1)
                self._driven.flush()
                self.look()
        try:
            if self._leader.acquire(blocking=False):  # the leader may have gone before it could see us
                self._leader.release()
            else:
                interrupts.wait(lambda: woken.acquire(timeout=timeout_s))
        finally:
            with self._lock:
                self._followers.pop(woken, None)
                reply.waiters = tuple(each for each in reply.waiters if each is not woken)

    def _hand_over(self) -> None:
        """Wake the thread that has waited longest; it leads then. With the lock held."""
        woken = next(iter(self._followers), None)
        if woken is not None:
            del self._followers[woken]
            woken.release()

    def _watch(self) -> None:
        """Lead while no caller does; the watcher's thread."""
        leads = 0
        with self._lock:
            self.hear()  # libzmq's descriptor tells of nothing until somebody has looked once in vain
        while not self.closed:
            if self._callers or leads != self._leads:
                leads = self._leads
                self._take_over.wait(ASIDE_S)
                self._take_over.clear()
                if self._callers:
                    leads = -1
                    continue
                if leads != self._leads and self._driven.watching_until_ns is None:
                    continue
            leads = self._leads
            with self._leader:
                self._watcher_leads = True
                if not self._callers:
                    self._lead(None, None)
                self._watcher_leads = False
            with self._lock:
                self._hand_over()
            self._driven.call_back()
