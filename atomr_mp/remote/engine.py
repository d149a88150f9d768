"""Receives for a remote client: on the thread that waits for a reply, or on a thread of its own while none waits.

The first thread that waits becomes the leader: it polls the socket and takes in messages for all. The others wait until
it wakes them, with their answer or to lead. Handing each call over to another thread would take a fifth of its time.
The watcher, a thread of the engine's own, leads while no caller does: connections need a hello and callbacks have to
run even if no thread waits.
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
"""How long the watcher stays aside after a caller has led. Taking over at once would cost each call a change of
threads, and an idle client needs the watcher for nothing urgent."""


FLUSH_S: Final = 0.001
"""How long a call may wait for others to travel with, if earlier calls are unanswered and no thread waits for a
reply."""


LONGEST_POLL_S: Final = 3600.0
"""Longest poll while nothing happens: a stream without a deadline expires in years, but epoll takes days at most."""


class Driven(Protocol):
    """The session that an engine drives. All methods but `call_back` are called with the lock held."""

    @property
    def watching_until_ns(self) -> int | None:
        """Return the first deadline of the replies that have callbacks, CLOCK_MONOTONIC; None if there are none."""

    @property
    def awaits_answers(self) -> bool:
        """Return whether any call is unanswered."""

    def signed(self, sign: Sign) -> None:
        """Take in an event of the monitor."""

    def take(self, message: memoryview) -> None:
        """Take a message in."""

    def flush(self) -> bool:
        """Send queued messages; return whether any were sent."""

    def expire(self) -> None:
        """End the replies with callbacks whose deadline has passed."""

    def expired(self, reply: Reply) -> None:
        """End a reply whose deadline has passed."""

    def call_back(self) -> None:
        """Run callbacks that are due, without the lock."""


class Engine:
    """The threads that receive, and the socket that they share.

    Args:
        wire: The socket; owned from here on, used with the lock held.
        driven: The session that it serves.
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
        """Locks that wake the threads that wait without leading, the longest-waiting first."""
        self._callers = 0
        """Number of threads that wait for replies."""
        self._leads = 0
        """How often a caller has led."""
        self._wake: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._take_over: Final = threading.Event()
        """Set to let the watcher lead again at once."""
        self._poll: Final = select.epoll()
        for descriptor in (wire.fileno, wire.monitor_fileno, self._wake):
            self._poll.register(descriptor, select.EPOLLIN)
        self.closed = False
        self._flusher: threading.Thread | None = None
        self._flushing = False
        """Whether the flusher is about to look."""
        self._flush_wanted: Final = threading.Semaphore(0)
        self._watcher: Final = threading.Thread(target=self._watch, name="atomr-mp remote", daemon=True)

    def start(self) -> None:
        """Start the watcher."""
        self._watcher.start()

    def send(self, parts: list[bytes | memoryview]) -> bool:
        """Send a message, with the lock held; False if there is no connection."""
        return not self.closed and self._wire.send(parts)

    def look(self) -> None:
        """After a send, with the lock held: have the socket looked at, since a poll may have missed messages."""
        if self._leader.locked() and self._wire.readable:
            os.eventfd_write(self._wake, 1)

    def flush_soon(self) -> None:
        """Send queued messages soon, unless a thread waits for a reply and sends them first; with the lock held.

        Waking a thread for each burst of calls would cost a third of their rate.
        """
        if self._flushing or self.closed:
            return
        self._flushing = True
        if self._flusher is None:
            flusher = threading.Thread(target=self._flush_late, name="atomr-mp remote flusher", daemon=True)
            flusher.start()
            self._flusher = flusher
        self._flush_wanted.release()

    def kick(self) -> None:
        """Have the leader look around; with the lock held."""
        if not self.closed:
            os.eventfd_write(self._wake, 1)
            if not self._callers:
                self._take_over.set()

    @interrupts.defer_interrupts
    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Receive until a reply has come, or have another thread receive it.

        Raises:
            TimeoutError: It has not come in time.
        """
        until_ns = reply.deadline_ns
        if timeout_s is not None:
            until_ns = min(until_ns, time.monotonic_ns() + int(timeout_s * 1e9))
        with self._lock:
            self._callers += 1
        try:
            while not reply.is_over:
                left_s = (until_ns - time.monotonic_ns()) / 1e9
                if left_s > 0:
                    self._step(reply, left_s)
                elif until_ns < reply.deadline_ns:
                    if self._has_come(reply):
                        break
                    raise TimeoutError(f"no answer to {reply.method} within {timeout_s} s; the request goes on")
                else:
                    with self._lock:
                        if not self.closed:
                            self._work()  # it may have come in time without a look at the socket
                        if not reply.is_over:
                            self._driven.expired(reply)
        finally:
            with self._lock:
                self._callers -= 1
                if self._followers:
                    self._hand_over()
                if not self._callers and self._driven.watching_until_ns is not None:
                    self._take_over.set()
            self._driven.call_back()

    def _has_come(self, reply: Reply) -> bool:
        """Take in all messages that have come; return whether a reply is over."""
        with self._lock:
            self.receive()
        return reply.is_over

    def receive(self) -> None:
        """Take in all messages that have come, with the lock held."""
        if not self.closed:
            self._work()

    def finished(self, reply: Reply) -> None:
        """Wake the thread that waits for a reply; with the lock held."""
        for woken in reply.waiters:
            if self._followers.pop(woken, None) is not None:
                woken.release()
        if self._leading is reply and not self.closed:
            os.eventfd_write(self._wake, 1)

    def close(self, linger_ms: int) -> None:
        """Close the socket, and wait for no thread. Do not hold the lock."""
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
        """Drop everything, in a forked child."""
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
            if self._followers:
                with self._lock:
                    self._hand_over()
            self._driven.call_back()
        else:
            self._follow(reply, timeout_s)

    def _lead(self, reply: Reply | None, timeout_s: float | None) -> None:
        """Receive for all until something has happened; the reply is the one that this thread waits for."""
        with self._lock:
            if self.closed:
                return
            self._work(reply)  # libzmq's descriptor tells of changes only, and a send may have consumed one
            if reply is not None and reply.is_over:
                return
            dues_ns = self._driven.watching_until_ns, self._wire.renew_at_ns
            self._leading = reply
        for until_ns in dues_ns:
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
            told = False
            for descriptor, _ in ready:
                if descriptor == self._wire.fileno:
                    told = True
                elif descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                else:
                    self.hear()
            self._wire.renew()
            self._work(reply, told=told)
            if self._driven.watching_until_ns is not None:
                self._driven.expire()

    def _is_closed(self) -> bool:
        return self.closed

    def hear(self) -> None:
        """Take in the monitor's events, with the lock held.

        Its descriptor tells of each, since nobody else reads it.
        """
        for sign in self._wire.signs():
            self._driven.signed(sign)

    def _work(self, until: Reply | None = None, *, told: bool = False) -> None:
        """Take in all messages that have come, and send the queued ones.

        Args:
            until: The awaited reply. Once it has come, and nothing else is awaited, libzmq is not asked for more: each
                question to libzmq takes some hundredths of a call's time.
            told: The socket's descriptor has told of a message.
        """
        wire, driven = self._wire, self._driven
        while not self.closed:
            message = wire.receive(told=told)
            told = False
            if message is None:
                if not driven.flush() or not wire.readable:
                    return
            else:
                driven.take(message)
                if until is not None and until.is_over and not driven.awaits_answers:
                    return

    def _flush_late(self) -> None:
        """Send queued messages that no waiting thread has sent, until the queue is empty; the flusher's thread."""
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
        """Wait until the leader has received the reply, or has handed the lead to this thread."""
        woken = threading.Lock()
        woken.acquire()
        with self._lock:
            if reply.is_over:
                return
            self._followers[woken] = reply
            reply.waiters = (*reply.waiters, woken)
            if not self.closed:
                if self._watcher_leads:
                    os.eventfd_write(self._wake, 1)
                self._driven.flush()
                self.look()
        try:
            if self._leader.acquire(blocking=False):  # the leader may have gone before it could see this thread
                self._leader.release()
            else:
                interrupts.wait(lambda: woken.acquire(timeout=timeout_s))
        finally:
            with self._lock:
                self._followers.pop(woken, None)
                reply.waiters = tuple(each for each in reply.waiters if each is not woken)

    def _hand_over(self) -> None:
        """Wake the thread that has waited longest, which then leads. With the lock held."""
        woken = next(iter(self._followers), None)
        if woken is not None:
            del self._followers[woken]
            woken.release()

    def _watch(self) -> None:
        """Lead while no caller does; the watcher's thread."""
        leads = 0
        with self._lock:
            self.hear()  # libzmq's descriptor signals nothing before the first look in vain
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
