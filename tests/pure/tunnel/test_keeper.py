"""The thread that keeps channels goes on whatever one of them does."""

from __future__ import annotations

import threading

from atomr_mp.tunnel.keeper import ChannelKeeper
from tests.support import DEADLINE_S


class Kept:
    """A channel that is looked at."""

    due_ns = 0

    def __init__(self) -> None:
        self.ended = False
        self.looked = threading.Event()

    @property
    def awaited(self) -> int | None:
        """No descriptor."""
        return None

    def keep(self, _now_ns: int, _paused_ns: int) -> None:
        """Note it."""
        self.looked.set()


class Closing(Kept):
    """A channel that another thread closes while it is looked at."""

    @property
    def awaited(self) -> int | None:
        """Fail as a closed descriptor does."""
        raise ValueError("I/O operation on closed epoll object")

    def keep(self, now_ns: int, paused_ns: int) -> None:
        """Fail too."""
        super().keep(now_ns, paused_ns)
        raise OSError


def test_a_channel_that_is_being_closed_ends_no_other() -> None:
    """Else no channel of the client would ever be connected again."""
    keeper, closing, other = ChannelKeeper(), Closing(), Kept()
    keeper.add(closing)
    keeper.add(other)
    for _ in range(2):
        for each in (closing, other):
            assert each.looked.wait(DEADLINE_S)
            each.looked.clear()
    closing.ended = other.ended = True
    keeper.join()
