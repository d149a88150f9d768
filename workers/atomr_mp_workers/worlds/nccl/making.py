"""Makes communicators of this process's GPU, and uses each for the first time while it forms. With CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp_workers.worlds.nccl.captures import leave_captures_alone
from atomr_mp_workers.worlds.nccl.communicator import Communicator, GateShutError
from atomr_mp_workers.worlds.nccl.library import BYTES, NCCL_OPERATORS, Nccl, Piece, failed

FIRST_BYTES: Final = 1024
"""How many bytes the first calls move."""

LOOK_S: Final = 0.0005
"""Time between two looks whether the first calls have ended."""


class CommMaker:
    """Makes the communicators of one world. Any thread.

    Args:
        nccl: The library.
        rank: This process's rank.
        size: How many ranks there are.
        replace: Asks for another process in the place of this one, and says why; any thread.
    """

    def __init__(self, nccl: Nccl, rank: int, size: int, replace: Callable[[str], object]) -> None:
        self.rank: Final = rank
        self.size: Final = size
        self._nccl: Final = nccl
        self._replace: Final = replace

    def unique_id(self) -> bytes:
        """Return an id by which the ranks of a new communicator find each other.

        Raises:
            LibraryError: NCCL makes none.
        """
        status, identity = self._nccl.unique_id()
        if status:
            raise failed(status, "make a unique id")
        return identity

    def make(self) -> Communicator:
        """Return a communicator that is not formed yet."""
        return Communicator(self._nccl, self.size, self.rank, _use_device, self._replace)

    def form(self, communicator: Communicator, identity: bytes) -> bool:
        """Form it with the other ranks; see `Communicator.form`."""
        return communicator.form(identity, self._first_use)

    def _first_use(self, communicator: Communicator) -> None:
        """Use a communicator in each way in which ranks connect, and wait for that.

        Raises:
            GateShutError: It was closed meanwhile.
            LibraryError: NCCL refuses it.
        """
        size = self.size
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            sums = cupy.zeros(FIRST_BYTES, np.uint8)
            room = cupy.zeros((2, size, FIRST_BYTES), np.uint8)
        at = int(sums.data.ptr)
        others = [rank for rank in range(size) if rank != self.rank]
        sent, received = ([_piece(room[side], rank) for rank in others] for side in range(2))
        statuses = [
            communicator.call("all_reduce", at, at, FIRST_BYTES, BYTES, NCCL_OPERATORS["max"], stream.ptr),
            communicator.call("exchange", sent, received, stream.ptr) if others else 0,
        ]
        for status in statuses:
            if status:
                raise failed(status, "use a communicator for the first time")
        done, looks = stream.record(), threading.Event()
        while not done.done:
            if communicator.is_shut:
                raise GateShutError
            looks.wait(LOOK_S)


def _piece(rows: Any, rank: int) -> Piece:
    return rank, int(rows[rank].data.ptr), FIRST_BYTES


def _use_device() -> None:
    """Prepare a thread that forms or aborts a communicator."""
    cupy.cuda.Device(0).use()
    leave_captures_alone()
