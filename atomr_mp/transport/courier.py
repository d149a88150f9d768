"""Moves on what data connections owe while nobody waits for them: logins, and what the kernel did not take at once."""

from __future__ import annotations

import os
import select
import threading
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from atomr_mp.transport.data import DataConnection


class Debt(NamedTuple):
    """A connection that owes something."""

    connection: DataConnection
    lock: AbstractContextManager[object]
    """Held to use it."""


class Courier:
    """A thread, from the first time on that it is needed."""

    def __init__(self) -> None:
        self._epoll: Final = select.epoll()
        self._wake: Final = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._debts: Final[dict[int, Debt]] = {}
        """By descriptor."""
        self._starting: Final = threading.Lock()
        self._thread: threading.Thread | None = None

    def owes(self, connection: DataConnection, lock: AbstractContextManager[object]) -> None:
        """See to a connection until it owes nothing any more. With its lock held."""
        events = connection.waits_for
        if not events:
            return
        descriptor = connection.fileno()
        known = self._debts.get(descriptor)
        self._debts[descriptor] = Debt(connection, lock)
        if known is None:
            self._epoll.register(descriptor, events | select.EPOLLONESHOT)
        else:
            self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
        if self._thread is None:
            self._start()

    def forget(self, connection: DataConnection) -> None:
        """See to a connection no more; it is about to be closed. With its lock held."""
        if self._debts.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    def close(self) -> None:
        """End; nothing is owed any more."""
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        self._epoll.close()
        os.close(self._wake)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="atomr-mp courier", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    return
                debt = self._debts.get(descriptor)
                if debt is None:
                    continue
                with debt.lock:
                    if self._debts.get(descriptor) is debt:  # else it was closed meanwhile
                        self._advance(descriptor, debt.connection)

    def _advance(self, descriptor: int, connection: DataConnection) -> None:
        connection.advance()
        events = connection.waits_for
        if events:
            self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
        else:
            del self._debts[descriptor]
            self._epoll.unregister(descriptor)
