"""Does connections' owed work while their thread does something else: logins, and what the kernel did not take."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol


class Debtor(Protocol):
    """A connection, which may owe something."""

    def fileno(self) -> int:
        """Return the descriptor."""

    @property
    def waits_for(self) -> int:
        """Events to poll the descriptor for before `advance`; 0 if nothing is owed."""

    def advance(self) -> None:
        """Do as much of the owed work as possible."""


class Debt(NamedTuple):
    """A connection that owes something."""

    connection: Debtor
    lock: AbstractContextManager[object]
    """Held to use it."""
    paid: Callable[[], object]
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
        self._debts: Final[dict[int, Debt]] = {}
        """By descriptor."""
        self._lock: Final = threading.Lock()
        """To be taken last, to change any of this."""
        self._thread: threading.Thread | None = None
        self._closed = False
        if at_once:
            self._start()

    def owes(
        self,
        connection: Debtor,
        lock: AbstractContextManager[object],
        paid: Callable[[], object] = lambda: None,
    ) -> None:
        """See to a connection until its pending bytes are written, and call `paid` then. With its lock held."""
        descriptor, events = connection.fileno(), connection.waits_for
        with self._lock:
            if not events or self._closed:
                return
            if descriptor in self._debts:
                self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
            else:
                self._epoll.register(descriptor, events | select.EPOLLONESHOT)
            self._debts[descriptor] = Debt(connection, lock, paid)
            if self._thread is None:
                self._start()

    def forget(self, connection: Debtor) -> None:
        """See to a connection no more; it is about to be closed. With its lock held."""
        with self._lock:
            if self._debts.pop(connection.fileno(), None) is not None:
                self._epoll.unregister(connection.fileno())

    def close(self) -> None:
        """Stop the thread; pending writes are dropped, later ones ignored.

        With no connection's lock held; `paid` may call it.
        """
        with self._lock:
            self._closed = True
            self._debts.clear()
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
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    self._let_go()
                    return
                with self._lock:  # a debt is there before its descriptor speaks
                    debt = self._debts.get(descriptor)
                if debt is None:
                    continue
                paid = False
                with debt.lock:
                    if self._debts.get(descriptor) is debt:  # else it was closed meanwhile
                        debt.connection.advance()
                        self._watch_on(descriptor, debt.connection.waits_for)
                        paid = not debt.connection.waits_for
                if paid:
                    debt.paid()

    def _watch_on(self, descriptor: int, events: int) -> None:
        with self._lock:
            if descriptor not in self._debts:  # this is being closed
                return
            if events:
                self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
            else:
                del self._debts[descriptor]
                self._epoll.unregister(descriptor)
