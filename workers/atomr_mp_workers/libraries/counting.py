"""Counts in words of the board, from the loop and from actors' threads."""

from __future__ import annotations

import threading
from collections.abc import MutableSequence
from typing import Final


def count(words: MutableSequence[int], place: int, by: int = 1) -> None:
    """Add to a figure. Any thread."""
    with _LOCK:  # an addition reads and writes
        words[place] += by


_LOCK: Final = threading.Lock()
