"""Ends the borrows that other clients may wait for: a thread reports each end at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp.client.hand_over import HandOver
from atomr_mp.client.memory.leases import Releases, ViewBorrow


class LentBorrow(ViewBorrow):
    """A borrow that lasts until a request on another device has been answered.

    Args:
        releases: Of the incarnation that made the buffer.
        number: The client's number for it.
        ended: Called with the releases when it ends, by whoever lets go of it.
    """

    __slots__ = ("_ended",)

    def __init__(self, releases: Releases, number: int, ended: Callable[[Releases], object]) -> None:
        super().__init__(releases, number)
        self._ended: Final = ended

    def release(self) -> None:
        """End it, and have the worker informed. May be called twice."""
        if not self.released:
            super().release()
            self._ended(self.releases)

    __del__ = release


class LoanReturner(HandOver[Releases]):
    """A client's thread for loans that have ended; it is there from the first loan on.

    The next request cannot carry the end: there may be none, while other clients wait.

    Args:
        give_back: Sends due releases to an incarnation. If it fails, the next request carries them.
    """

    def __init__(self, give_back: Callable[[Releases], object]) -> None:
        super().__init__("atomr-mp loans", give_back)

    def loan(self, releases: Releases, number: int) -> LentBorrow:
        """Return a new loan."""
        self.start()
        return LentBorrow(releases, number, self.put)
