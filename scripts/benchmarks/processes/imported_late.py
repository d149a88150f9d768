"""A module that takes long to import: it computes for 300 ms of processor time, in Python."""

from __future__ import annotations

import time
from typing import Final

IMPORT_S: Final = 0.3


def _computed() -> int:
    until_s, found = time.thread_time() + IMPORT_S, 1
    while time.thread_time() < until_s:
        for each in range(1000):
            found = (found * 31 + each) % 1_000_003
    return found


FACTOR: Final = 2 if _computed() >= 0 else 0
