"""Bounds of one check: its processor time and its memory."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CHECK_S: Final = 2.0
"""Processor time of one check: a thousand times what the slowest takes."""

CHECK_BYTES: Final = 512 * 2**20
"""Memory of one check; the largest message of any channel has 32 MiB."""


class TooSlowError(Exception):
    """A check has taken all its time."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Raise `MemoryError` if this process grows by `CHECK_BYTES`, and `TooSlowError` after `CHECK_S`, by a signal.

    On the main thread only.
    """

    def late(*_: object) -> None:
        raise TooSlowError(f"a check took more than {CHECK_S:g} s of processor time")

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, late)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + CHECK_BYTES, hard))
        signal.setitimer(signal.ITIMER_PROF, CHECK_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
