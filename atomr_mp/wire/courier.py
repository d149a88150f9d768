"""Does connections' pending work while their thread does something else: logins, and what the kernel did not take."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol


class PendingWriter(Protocol):
    """A connection that may have bytes to write, or a login to end."""

    def writer_fileno(self) -> int:
        """Return the descriptor to poll before `advance`."""

    @property
    def waits_for(self) -> int:
        """Events to poll that descriptor for before `advance`; 0 if there is nothing to do."""

    def advance(self) -> None:
        """Do as much of the pending work as possible."""


class PendingWork(NamedTuple):
    """A connection with pending work."""

    connection: PendingWriter
    lock: AbstractContextManager[object]
    """Held to use it."""
    flushed: Callable[[], object]
    """Called once its pending bytes are written, without the lock."""


class Courier:
    """A thread, from the first time on that it is needed.

    Args:
        name: The thread's.
        at_once: The thread is there from the beginning. Of a process that is killed, the last thread to end takes the
            memory down, so a supervisor hears early of an end only where there are two.
    """

    def __init__(self, name: str = "atomr-mp courier", *, at_once: bool = False) -> None:
        self._name = name
        self._epoll: Final = select.epoll()
        self._wake: Final = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._pending: Final[dict[int, PendingWork]] = {}
        """By descriptor."""
        self._lock: Final = threading.Lock()
        """To be taken last, to change any of this."""
        self._thread: threading.Thread | None = None
        self._closed = False
        if at_once:
            self._start()

    def pending(
        self,
        connection: PendingWriter,
        lock: AbstractContextManager[object],
        flushed: Callable[[], object] = lambda: None,
    ) -> None:
        """See to a connection until its pending bytes are written, and call `flushed` then. With its lock held."""
        descriptor, events = connection.writer_fileno(), connection.waits_for
        with self._lock:
            if not events or self._closed:
                return
            if descriptor in self._pending:
                self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
            else:
                self._epoll.register(descriptor, events | select.EPOLLONESHOT)
            self._pending[descriptor] = PendingWork(connection, lock, flushed)
            if self._thread is None:
                self._start()

    def forget(self, connection: PendingWriter) -> None:
        """See to a connection no more; it is about to be closed. With its lock held."""
        with self._lock:
            if self._pending.pop(connection.writer_fileno(), None) is not None:
                self._epoll.unregister(connection.writer_fileno())

    def close(self) -> None:
        """Stop the thread; pending writes are dropped, later ones ignored.

        With no connection's lock held; `flushed` may call it.
        """
        with self._lock:
            self._closed = True
            self._pending.clear()
            thread = self._thread
            if thread is not None:
                os.eventfd_write(self._wake, 1)
        if thread is None:
            self._let_go()
        elif thread is not threading.current_thread():
            thread.join()

    def _let_go(self) -> None:
        self._epoll.close()
        os.close(self._wake)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    self._let_go()
                    return
                with self._lock:  # a work is there before its descriptor speaks
                    work = self._pending.get(descriptor)
                if work is None:
                    continue
                flushed = False
                with work.lock:
                    if self._pending.get(descriptor) is work:  # else it was closed meanwhile
                        work.connection.advance()
                        self._watch_on(descriptor, work.connection.waits_for)
                        flushed = not work.connection.waits_for
                if flushed:
                    work.flushed()
                del work  # and with it the connection, and whose it was

    def _watch_on(self, descriptor: int, events: int) -> None:
        with self._lock:
            if descriptor not in self._pending:  # this is being closed
                return
            if events:
                self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
            else:
                del self._pending[descriptor]
                self._epoll.unregister(descriptor)
