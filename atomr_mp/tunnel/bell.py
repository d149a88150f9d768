"""Descriptors that speak when libzmq's does, and when they are rung. They stay when one connection follows another."""

from __future__ import annotations

import os
import select
import threading
from typing import Final

from atomr_mp.tunnel.forks import drop_in_child


class Bell:
    """A descriptor that speaks when libzmq's does, or when it is rung. Ringing and hushing are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()  # first: it closes itself if there is no descriptor for the other
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self.fileno: Final = self._epoll.fileno
        self.rings = False
        """Whether it was rung."""

    def watch(self, changes: int) -> None:
        """Speak whenever a descriptor of libzmq's does."""
        self._epoll.register(changes, select.EPOLLIN)

    def leave(self, changes: int) -> None:
        """Watch a descriptor no more, before it is closed."""
        if not self._epoll.closed:
            self._epoll.unregister(changes)

    def ring(self) -> None:
        """Make it speak until it is hushed. Do nothing once it is closed."""
        if not self.rings:
            self._change(rings=True)

    def hush(self) -> None:
        """Stop ringing."""
        if self.rings:
            self._change(rings=False)

    def _change(self, *, rings: bool) -> None:
        with self._lock:
            if self.rings is rings or self._epoll.closed:
                return
            self.rings = rings
            if rings:
                os.eventfd_write(self._eventfd, 1)
            else:
                os.eventfd_read(self._eventfd)

    def close(self) -> None:
        """Close it; may be called twice."""
        with self._lock:
            self.forget_in_child()

    def forget_in_child(self) -> None:
        """Do the same in a forked child, where a thread of the parent may hold the lock."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._eventfd)


class Bells:
    """All bells of a channel, whichever connection it has just now. For one thread at a time."""

    def __init__(self) -> None:
        self.first: Final = Bell()
        """For whoever receives."""
        self._all: Final = [self.first]
        self._changes = -1
        drop_in_child(self)

    def another(self) -> Bell:
        """Return a further bell, for whoever takes in all that has come whenever it speaks."""
        bell = Bell()
        self._all.append(bell)
        if self._changes >= 0:
            bell.watch(self._changes)
        return bell

    def watch(self, changes: int) -> None:
        """Speak whenever a descriptor of libzmq's does."""
        self._changes = changes
        for bell in self._all:
            bell.watch(changes)

    def leave(self) -> None:
        """Watch that descriptor no more, before it is closed."""
        changes, self._changes = self._changes, -1
        for bell in self._all if changes >= 0 else ():
            bell.leave(changes)

    def ring(self) -> None:
        """Ring all of them, after packets were taken in: their signal is gone with that."""
        for bell in self._all:
            bell.ring()

    def close(self) -> None:
        """Close all; may be called twice."""
        for bell in self._all:
            bell.close()

    def forget_in_child(self) -> None:
        """Close the copies that a forked child has."""
        for bell in self._all:
            bell.forget_in_child()
