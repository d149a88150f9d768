"""An actor that writes over its worker's board, as a stray pointer of its code could."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from atomr_mp_workers import Actor, method


def _board() -> int:
    """Return where the board is mapped."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "atomr-mp-board" in line:
            return int(line.partition("-")[0], 16)
    raise LookupError("this process has no board")


class Stray(Actor):
    """Damages its board."""

    @method
    def echo(self, value: int) -> int:
        """Return the argument."""
        return value

    @method
    def write(self, word: int, count: int, byte: int, die: bool) -> int:  # noqa: FBT001 - a request has no keyword-only parameters
        """Write so many words of this byte over the board, from this word on; then die, or go on."""
        ctypes.memset(_board() + 8 * word, byte, 8 * count)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()
