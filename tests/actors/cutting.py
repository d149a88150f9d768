"""An actor that harms its worker's data connections, like code that closes other code's descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Context, method


def _data_connections() -> Iterator[socket.socket]:
    """Yield duplicates of this process's ends of its data connections."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            duplicate = os.dup(int(entry.name))
        except OSError:  # the descriptor of this search
            continue
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:  # no socket, and still ours: of a slab it would keep the memory
            os.close(duplicate)
            continue
        with found:
            if found.family != socket.AF_UNIX or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            if found.getsockname():  # the control channel has none
                yield found


class Cutting(Actor):
    """Shuts its worker's data connections, or writes into them."""

    def setup(self, context: Context) -> None:
        """Begin to count."""
        self._context = context
        self._cuts = 0
        self._cut_once = False

    @method
    def cut(self, how: str) -> int:
        """Harm all data connections; the answer to this call has no connection left."""
        return self._cut(how)

    @method(idempotent=True)
    def cut_once(self, how: str) -> int:
        """Do that the first time; later only return how often it has run."""
        if self._cuts:
            self._cuts += 1
            return self._cuts
        return self._cut(how)

    @method
    def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    @method
    def cut_and_keep(self, how: str) -> Any:
        """Harm all data connections, and return a ref."""
        self._cut(how)
        return self._context.keep(np.zeros(10))

    @method(writes=["target"])
    def add(self, target: NDArray[np.float64]) -> None:
        """Add one to each element."""
        target += 1

    @method
    def total(self, array: NDArray[np.generic]) -> float:
        """Return the sum of an array in the caller's memory."""
        return float(array.sum())

    @method
    def cut_and_total(self, how: str, array: NDArray[np.generic]) -> float:
        """Harm all data connections, and return a sum."""
        self._cut(how)
        return float(array.sum())

    @method(idempotent=True)
    def cut_once_and_total(self, how: str, array: NDArray[np.generic]) -> float:
        """Harm all data connections the first time, and return a sum."""
        if not self._cut_once:
            self._cut_once = True
            self._cut(how)
        return float(array.sum())

    def _cut(self, how: str) -> int:
        self._cuts += 1
        for connection in _data_connections():
            if how == "shut":
                connection.shutdown(socket.SHUT_RDWR)
            elif how == "write":
                connection.send(b"\xff" * 64)
            else:
                connection.send(b"\x00\x04" + b"\xc1" * 4)  # a frame whose content is no message
        return self._cuts
