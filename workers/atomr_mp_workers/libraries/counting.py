"""Counting in words of the board, which the loop and the actors' threads do alike."""

from __future__ import annotations

import threading
from collections.abc import MutableSequence
from typing import Final


def count(words: MutableSequence[int], place: int, by: int = 1) -> None:
    """Add to a figure. Any thread."""
    with _LOCK:  # to add is to read and to write
        words[place] += by


_LOCK: Final = threading.Lock()
