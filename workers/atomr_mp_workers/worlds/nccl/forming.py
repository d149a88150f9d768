"""Forms the communicator of one epoch, in a thread: the loop goes on, and looks now and then what has come of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.worlds.nccl.communicator import ABORT_S, Communicator
from atomr_mp_workers.worlds.nccl.making import CommMaker
from atomr_mp_workers.worlds.nccl.page import OwnPage, read_offer

LOOK_S: Final = 0.0005
"""Time between two looks at another rank's page."""


class Forming:
    """One epoch's communicator, formed from the time it is made.

    Args:
        epoch: The epoch.
        generations: Its processes, by rank.
        maker: Makes communicators.
        page: This process's page.
        page_of_first: That of rank 0, which is not written here if it is another process's.
        spare: The communicator of these members that was formed ahead, None if there is none.
        is_ready_everywhere: Whether all members have that ready; asked on rank 0.
        former: Communicators that are being aborted; a new one waits for that.
        wake: Has the loop look.
    """

    def __init__(
        self,
        epoch: int,
        generations: tuple[int, ...],
        maker: CommMaker,
        page: OwnPage,
        page_of_first: memoryview,
        spare: Communicator | None,
        is_ready_everywhere: Callable[[], bool],
        former: Sequence[Communicator],
        wake: Callable[[], object],
    ) -> None:
        self.communicator: Communicator | None = None
        self.is_ready = False
        self.failure = ""
        """Why it could not be formed, "" if nothing has failed."""
        self.uses_spare = False
        self.generations: Final = generations
        self._epoch: Final = epoch
        self._maker: Final = maker
        self._page: Final = page
        self._page_of_first: Final = page_of_first
        self._spare: Final = spare
        self._is_ready_everywhere: Final = is_ready_everywhere
        self._former: Final = former
        self._wake: Final = wake
        self._lock: Final = threading.Lock()
        """Guards that nothing is made once it was stopped."""
        self._is_stopped = False
        self._thread: Final = threading.Thread(target=self._run, name="nccl-forming", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have the epoch's calls end, or its forming: the gate is shut from now on. Does not wait."""
        with self._lock:
            self._is_stopped = True
        for each in (self.communicator, self._spare):
            if each is not None:
                each.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._form()
        except Exception as error:  # noqa: BLE001 - it is told to the supervisor
            self.failure = str(error)
        if not self._is_stopped:
            self._wake()

    def _form(self) -> None:
        offer = self._offer()
        if offer is None:
            return  # stopped
        (identity,) = offer
        if identity is None:
            self._take_spare()
            return
        former = self._former
        if self._spare is not None:
            self._spare.close()
            former = (*former, self._spare)
        for each in former:
            if not each.wait_gone(2 * ABORT_S):
                raise errors.InternalError("the communicator of the epoch before is not gone")
        made = self._adopt(self._maker.make)
        if made is not None and self._maker.form(made, identity):
            self.is_ready = True
        elif made is not None:
            self.failure = made.failure

    def _take_spare(self) -> None:
        if self._spare is None:
            raise errors.ProtocolError("rank 0 names a communicator that was not formed ahead here")
        self.uses_spare = True
        spare = self._adopt(lambda: self._spare)
        self.is_ready = spare is not None and not spare.is_shut
        if spare is not None and spare.is_shut:
            self.failure = spare.failure or "the communicator that was formed ahead has been closed"

    def _adopt(self, make: Callable[[], Communicator | None]) -> Communicator | None:
        """Have `stop` close a communicator from now on; None if it was called before."""
        with self._lock:
            if self._is_stopped:
                return None
            self.communicator = make()
            return self.communicator

    def _offer(self) -> tuple[bytes | None] | None:
        """Return the unique id, or None in its place for the spare; None if this was stopped before it has come."""
        if not self._maker.rank:
            is_ready = self._spare is not None and self._is_ready_everywhere()
            identity = None if is_ready else self._maker.unique_id()
            self._page.offer(self._epoch, identity)
            return (identity,)
        while not self._is_stopped:
            found = read_offer(self._page_of_first, self._epoch)
            if found is not None:
                return found
            time.sleep(LOOK_S)
        return None
