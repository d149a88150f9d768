"""Descriptors that speak when libzmq's does, and when they are rung."""

from __future__ import annotations

import os
import select
from typing import Final


class Bell:
    """A descriptor that speaks when libzmq's does, or when it is rung.

    Args:
        changes: libzmq's descriptor.
    """

    def __init__(self, changes: int) -> None:
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self._epoll.register(changes, select.EPOLLIN)
        self.fileno: Final = self._epoll.fileno
        self.rings = False
        """Whether it was rung."""

    def ring(self) -> None:
        """Have it speak until it is hushed; nothing once it is closed."""
        if not (self.rings or self._epoll.closed):
            self.rings = True
            os.eventfd_write(self._eventfd, 1)

    def hush(self) -> None:
        """End that it was rung."""
        if self.rings and not self._epoll.closed:
            self.rings = False
            os.eventfd_read(self._eventfd)

    def close(self) -> None:
        """Close it; may be called twice."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._eventfd)
