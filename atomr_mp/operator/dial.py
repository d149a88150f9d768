"""Connects to workers' data sockets as a client does, without logging in: whether anybody answers there."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ANSWER_MS: Final = 100
"""How long a worker may take to greet. One that runs a method on its loop takes longer, and that is no finding."""


def turned_away(run_dir: Path, names: Iterable[str]) -> frozenset[str]:
    """Return the sockets at which a connection is ended at once. Blocks, as a rule for a millisecond."""
    return frozenset(name for name in names if _ends(run_dir / name))


def _ends(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connected:
        try:
            connected.connect(str(path))
        except OSError:  # nobody listens there, which the look at the sockets tells
            return False
        greeted = select.poll()
        greeted.register(connected, select.POLLIN)
        try:
            return bool(greeted.poll(ANSWER_MS)) and not connected.recv(64)
        except OSError:
            return True
