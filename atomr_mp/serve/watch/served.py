"""The calls that a pool's HTTP servers have answered, for `atomr-mp top`: read from their front ends' shared memory.

Front ends are clients of the pool, so its supervisor tells their pids.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from atomr_mp.protocol.messages.operators import SessionHeld
from atomr_mp.serve import metrics
from atomr_mp.serve.method_figures import MethodFigure, MethodFigures

MOST_SLOTS: Final = 1024


def served_figures(sessions: Iterable[SessionHeld]) -> list[MethodFigure]:
    """Return the figures of all HTTP servers among a pool's clients; none of what has ended or is not ours to read."""
    found: dict[int, list[MethodFigure]] = {}
    for session in sessions:
        if session.pid is not None and session.client.startswith(metrics.FRONT_END):
            with contextlib.suppress(OSError):
                found.update(_of_process(session.pid))
    return [figure for figures in found.values() for figure in figures]


def _of_process(pid: int) -> dict[int, list[MethodFigure]]:
    """Return the figures in the memory of a front end, by its inode: front ends of one server have the same."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if not str(link.readlink()).startswith(f"/memfd:{metrics.MEMORY} "):
            continue
        descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            slots = next((n for n in range(1, MOST_SLOTS) if metrics.shared_bytes(n) == found.st_size), 0)
            if not slots:  # of another version
                return {}
            offset = metrics.own_bytes(slots)
            return {found.st_ino: list(MethodFigures(descriptor, slots, offset=offset, reads_only=True).all())}
        finally:
            os.close(descriptor)
    return {}
