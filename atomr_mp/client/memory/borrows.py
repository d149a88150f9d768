"""Tells workers of the ends of borrows, without a request of the user: a thread does so as soon as one has ended."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Final

from atomr_mp import errors
from atomr_mp.client.hand_over import HandOver
from atomr_mp.client.memory.leases import Releases, ViewBorrow


class BorrowReturner(HandOver[Releases]):
    """A client's thread for borrows that have ended; it is there from the first borrow on.

    The next request cannot carry the end: there may be none, while other clients wait, or are refused.

    Args:
        give_back: Sends due releases to an incarnation. If it fails, the next request carries them.
        ask: Makes a request of an incarnation's device, and calls the given function when it is answered.
    """

    def __init__(
        self, give_back: Callable[[Releases], object], ask: Callable[[Releases, Callable[[], object]], object]
    ) -> None:
        super().__init__("atomr-mp borrows", self._return)
        self._send: Final = give_back
        self._ask: Final = ask
        self._asked: Final[set[Releases]] = set()
        """The incarnations with an unanswered request of this; only the thread adds one."""

    def borrow(self, releases: Releases, number: int) -> ViewBorrow:
        """Return a new borrow."""
        self.start()
        return ViewBorrow(releases, number, self.handing_over(releases))

    def _return(self, releases: Releases) -> None:
        """Send what is due to an incarnation, if the user's own requests have not carried it yet."""
        if releases.over:
            return
        # Here, since no thread can call while `message` waits. What the views have kept is let go of there.
        for wait in [wait for wait, _ in tuple(releases.ending)]:
            with contextlib.suppress(Exception):  # logged there
                wait()
        if not (releases.pending or releases.ending):
            return
        if not releases.is_unheard:
            self._send(releases)
        elif releases not in self._asked:  # the answer shows that the worker reads, and further ends may be sent
            self._asked.add(releases)
            try:
                self._ask(releases, functools.partial(self._on_answer, releases))
            except errors.AtomrError:  # the device takes no requests, or the client was closed
                self._asked.discard(releases)

    def _on_answer(self, releases: Releases) -> None:
        self._asked.discard(releases)
        self.put(releases)
