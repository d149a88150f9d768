"""A process's place in one world on GPUs: maps what comes, and makes the parts of each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import cupy

from atomr_mp import errors
from atomr_mp_workers.worlds.cuda.collectives import CudaCollectives
from atomr_mp_workers.worlds.cuda.exchange import CudaExchange
from atomr_mp_workers.worlds.cuda.meeting import CudaMeeting, CudaRehearsal
from atomr_mp_workers.worlds.cuda.watch import Onlooker
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.order.files import WorldFiles

_onlooker: Final = Onlooker()


class CudaEngine:
    """A place in one world. With the loop's turn, or before there is a loop.

    Args:
        name: The world's name.
        rank: The rank of this process.
        size: How many ranks there are.
        generation: This process.
        page: The page on which kernels and the host see each other.
        files: The world's files.
    """

    def __init__(self, name: str, rank: int, size: int, generation: int, page: memoryview, files: WorldFiles) -> None:
        self._name: Final = name
        self._files: Final = files
        self._exchange: Final = CudaExchange(rank, size, generation, page)
        self.collectives: Final[Callable[[Any], CudaCollectives]] = CudaCollectives
        """Makes the collectives of a meeting."""

    def export(self) -> int:
        """Return a descriptor of the mailbox; it is the caller's."""
        return self._exchange.export()

    def rehearse(self) -> CudaRehearsal:
        """Return a meeting with itself."""
        return CudaRehearsal(self._name, self._exchange)

    def map(self) -> None:
        """Map the mailboxes that have come.

        Raises:
            Unsupported: This GPU cannot reach one.
        """
        cupy.cuda.Device(0).use()
        for where in self._files.mailboxes:
            descriptor = self._files.take_mailbox(*where)
            if descriptor is None:
                continue
            try:
                self._exchange.map(where, descriptor)
            except cupy.cuda.driver.CUDADriverError as error:
                raise errors.Unsupported(
                    f"the GPU of this process cannot reach that of rank {where[0]} of the world {self._name!r}: {error}"
                ) from error

    def forget(self, rank: int, generation: int) -> None:
        """Give back the mailbox of a process that has ended; the next join does, if kernels may still use it."""
        self._exchange.forget(rank, generation)

    def join(self, epoch: int, generations: Sequence[int], _wake: Callable[[], object]) -> bool:
        """Join an epoch.

        Raises:
            ProtocolError: A mailbox has not come.
            Unsupported: This GPU cannot reach a member's.
        """
        self.map()
        self._exchange.join(epoch, generations)
        return True

    def formed(self) -> bool:
        """Return True: an epoch is joined at once."""
        return True

    def over(self) -> None:
        """Do nothing: kernels look at the stop word themselves."""

    def close(self) -> None:
        """Give all memory back, once the world's thread has ended."""
        self._exchange.close()

    def make_meeting(self, place: EpochPlace) -> CudaMeeting:
        """Return the process's side of an epoch's collectives."""
        return CudaMeeting(place, self._exchange, _onlooker.look_on)
