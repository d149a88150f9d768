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


class Driven(Protocol):
    """What an engine drives. All but `call_back` is called with the lock held."""

    @property
    def watching_until_ns(self) -> int | None:
        """When the first of the replies expires that have callbacks, CLOCK_MONOTONIC; None if there are none."""

    def signed(self, sign: Sign) -> None:
        """Take in what the monitor says."""

    def take(self, message: memoryview) -> None:
        """Take a message in."""

    def flush(self) -> None:
        """Send what waits."""

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
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            interrupts.wait(self._watcher.join)
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
            self._work()
            if reply is not None and reply.done:
                return
            until_ns = self._driven.watching_until_ns
            self._leading = reply
        if until_ns is not None:
            left_s = max(0.0, (until_ns - time.monotonic_ns()) / 1e9)
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            ready = interrupts.wait(self._poll.poll, timeout_s)
        finally:
            self._leading = None
        with self._lock:
            if self._is_closed():
                return
            if any(descriptor == self._wake for descriptor, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            self._work()
            self._driven.expire()

    def _is_closed(self) -> bool:
        return self.closed

    def _work(self) -> None:
        """Take in all that has come, and send what waits."""
        wire, driven = self._wire, self._driven
        while True:
            for sign in wire.signs():
                driven.signed(sign)
            while not self.closed and (message := wire.receive()) is not None:
                driven.take(message)
            driven.flush()
            if not wire.readable:
                return

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
