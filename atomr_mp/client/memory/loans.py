"""Ends the borrows that other clients may wait for: a thread reports each end at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from atomr_mp.client import interrupts
from atomr_mp.client.memory.leases import Releases, ViewBorrow


class LentBorrow(ViewBorrow):
    """A borrow that lasts until a request on another device has been answered.

    Args:
        releases: Of the incarnation that made the buffer.
        number: The client's number for it.
        ended: SupervisorNews when it ends.
    """

    __slots__ = ("_ended",)

    def __init__(self, releases: Releases, number: int, ended: SimpleQueue[Releases | None]) -> None:
        super().__init__(releases, number)
        self._ended: Final = ended

    def release(self) -> None:
        """End it, and have the worker informed. May be called twice."""
        if not self.released:
            super().release()
            self._ended.put(self.releases)

    __del__ = release


class LoanReturner:
    """A thread of a client, from its first loan on.

    Whoever lets go of a loan may hold any lock, or be collecting garbage. So it only hands it over, by the one queue
    that bears this. The next request cannot carry the end: there may be none, while other clients wait.

    Args:
        give_back: Sends due releases to an incarnation.
    """

    def __init__(self, give_back: Callable[[Releases], object]) -> None:
        self._give_back: Final = give_back
        self._ended: Final[SimpleQueue[Releases | None]] = SimpleQueue()
        self._decided: Final = threading.Lock()
        """Taken for good by who starts the thread, or by `close`, after which none is started."""
        self._thread: threading.Thread | None = None

    def loan(self, releases: Releases, number: int) -> LentBorrow:
        """Return a new loan."""
        if self._decided.acquire(blocking=False):
            self._thread = threading.Thread(target=self._run, name="atomr-mp loans", daemon=True)
            self._thread.start()
        return LentBorrow(releases, number, self._ended)

    def close(self) -> None:
        """End the thread; with no lock held. May be called twice."""
        if self._decided.acquire(blocking=False):
            return
        self._ended.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            interrupts.wait(thread.join)

    def _run(self) -> None:
        while (releases := self._ended.get()) is not None:
            try:
                self._give_back(releases)
            except Exception:  # noqa: BLE001 - the next request carries it
                _LOG.exception("the end of a loan could not be sent")
            del releases


_LOG: Final = logging.getLogger("atomr_mp.client")
