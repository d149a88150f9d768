"""A process's place in one world whose engine is NCCL: its page, those of others, and the communicators."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.interop.sealed import check_sealed, make_sealed
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.exchange.meeting import Rehearsal
from atomr_mp_workers.worlds.mailboxes import FormingFailedError
from atomr_mp_workers.worlds.nccl.collectives import NcclCollectives
from atomr_mp_workers.worlds.nccl.communicator import Communicator
from atomr_mp_workers.worlds.nccl.communicator_states import CommState
from atomr_mp_workers.worlds.nccl.forming import Forming
from atomr_mp_workers.worlds.nccl.leftovers import LEAST_AGE_S, sweep
from atomr_mp_workers.worlds.nccl.library import Nccl
from atomr_mp_workers.worlds.nccl.making import CommMaker
from atomr_mp_workers.worlds.nccl.meeting import NcclMeeting
from atomr_mp_workers.worlds.nccl.page import NCCL_PAGE_BYTES, OwnPage
from atomr_mp_workers.worlds.nccl.spares import Spares
from atomr_mp_workers.worlds.order.files import WorldFiles

MOST_FAILURES: Final = 3
"""After so many failures in a row to form a communicator the process is replaced."""


class NcclEngine:
    """A place in one world. With the loop's turn, or before there is a loop.

    Args:
        name: The world's name.
        rank: The rank of this process.
        size: How many ranks there are.
        generation: This process.
        files: The world's files.
        nccl: The library.
        replace: Asks for another process in the place of this one, and says why; any thread.
        spares: Whether communicators with standbys are formed ahead.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        generation: int,
        files: WorldFiles,
        nccl: Nccl,
        replace: Callable[[str], object],
        *,
        spares: bool,
    ) -> None:
        self._name: Final = name
        self._rank: Final = rank
        self._size: Final = size
        self._files: Final = files
        self._maker: Final = CommMaker(nccl, rank, size, replace)
        self._file: Final = make_sealed("nccl", NCCL_PAGE_BYTES)
        self._words: Final = memoryview(mmap.mmap(self._file, NCCL_PAGE_BYTES)).cast("Q")
        self._page: Final = OwnPage(self._words)
        self._pages: Final[dict[tuple[int, int], memoryview]] = {(rank, generation): self._words}
        """Those of all processes, by rank and generation."""
        self._forming: Forming | None = None
        self._former: list[Communicator] = []
        """Communicators that are being aborted."""
        self._failures = 0
        self._spares: Final = Spares(generation, self._maker, self._page, self._pages) if spares else None
        self.collectives: Final[Callable[[Any], NcclCollectives]] = NcclCollectives
        """Makes the collectives of a meeting."""
        threading.Thread(target=sweep, name="nccl-sweep", daemon=True).start()  # what others have left in the end

    def export(self) -> int:
        """Return a descriptor of the page, to be read only; it is the caller's."""
        return os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)

    def rehearse(self) -> Rehearsal:
        """Return a meeting with itself."""
        return Rehearsal(self._name, self._rank, self._size)

    # --- the other processes ----------------------------------------------------------------------------------------

    def map(self) -> None:
        """Map the pages that have come.

        Raises:
            ProtocolError: One is not what it should be.
        """
        for where in self._files.mailboxes:
            descriptor = self._files.take_mailbox(*where)
            if descriptor is None:
                continue
            try:
                check_sealed(descriptor, NCCL_PAGE_BYTES)
                mapped = mmap.mmap(descriptor, NCCL_PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
            except OSError as error:
                raise errors.ProtocolError(f"the page of rank {where[0]} cannot be mapped: {error}") from error
            finally:
                os.close(descriptor)
            self._pages[where] = memoryview(mapped).cast("Q")
        if self._spares is not None:
            self._spares.serve()

    def forget(self, rank: int, generation: int) -> None:
        """Unmap the page of a process that has ended."""
        self._pages.pop((rank, generation), None)
        if self._spares is not None:
            self._spares.forget(rank, generation)

    # --- epochs -----------------------------------------------------------------------------------------------------

    def join(self, epoch: int, generations: Sequence[int], wake: Callable[[], object]) -> bool:
        """Begin to form an epoch's communicator; `formed` says when that is done.

        Raises:
            ProtocolError: A page has not come.
        """
        self.map()
        for rank, generation in [place for place in self._pages if place[1] < generations[place[0]]]:
            self.forget(rank, generation)
        for where in enumerate(generations):
            if where not in self._pages:
                raise errors.ProtocolError(f"the page of rank {where[0]}, generation {where[1]}, has not come")
        self._former = [each for each in self._former if each.state is not CommState.GONE]
        spares = self._spares
        self._forming = Forming(
            epoch,
            tuple(generations),
            self._maker,
            self._page,
            self._pages[0, generations[0]],
            None if spares is None else spares.take(generations),
            lambda: spares is not None and spares.is_ready_everywhere(generations),
            tuple(each for each in self._former if each.is_shut),
            wake,
        )
        return False

    def formed(self) -> bool:
        """Return whether the epoch's communicator is ready.

        Raises:
            FormingFailedError: It will not be.
        """
        forming = self._forming
        if forming is None or not (forming.is_ready or forming.failure):
            return False
        if forming.is_ready:
            self._failures = 0
            if self._spares is not None:
                self._spares.joined(forming.generations)
            return True
        self._failures += 1
        why = f"could not form a communicator: {forming.failure}"
        raise FormingFailedError(why, is_unfit=self._failures >= MOST_FAILURES)

    def over(self) -> None:
        """Shut the gate of the epoch's communicator, and have it aborted, which ends all that waits on the device."""
        forming, self._forming = self._forming, None
        if self._spares is not None:
            self._spares.left()
        if forming is not None:
            forming.stop()
            if forming.communicator is not None:
                self._former.append(forming.communicator)
                threading.Thread(target=_sweep_behind, args=(forming.communicator,), daemon=True).start()

    def make_meeting(self, place: EpochPlace) -> NcclMeeting:
        """Return the process's side of an epoch's collectives."""
        forming = self._forming
        assert forming is not None
        return NcclMeeting(place, lambda: forming.communicator)

    def close(self) -> None:
        """Give all memory back, once the world's thread has ended; wait for aborts a while. Once is enough."""
        self.over()
        if self._spares is not None:
            self._spares.close()
        for each in self._former:
            each.wait_gone(2.0)
        self._former.clear()
        self._pages.clear()
        with contextlib.suppress(OSError):
            os.close(self._file)


def _sweep_behind(communicator: Communicator) -> None:
    """Remove what the dead have left: at once, and once the youngest of it may be removed."""
    communicator.wait_gone(60.0)
    sweep()
    time.sleep(LEAST_AGE_S)
    sweep()
