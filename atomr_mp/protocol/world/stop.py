"""The page on which the supervisor says that an epoch is over, and why. Pure over a view of words.

Its first word is the stop word: this epoch, and all before it, are over. The cause is there before, so whoever sees the
stop word can tell it. The supervisor alone writes the page.
"""

from __future__ import annotations

from array import array
from typing import Final

STOP: Final = 0
CAUSE_OF: Final = 1
"""The epoch that the cause is of, 0 while it is written."""
CAUSE_RANK: Final = 2
"""The rank where it came from, plus 1; 0 if from none."""
CAUSE_BYTES: Final = 3
TEXT_AT: Final = 4
MOST_WORDS: Final = 128
"""Most words of the text."""


def is_over(stop: memoryview, epoch: int) -> bool:
    """Return whether the stop word says that an epoch is over."""
    return bool(stop[STOP] >= epoch)


def store_stop(words: memoryview, epoch: int, rank: int = -1, cause: str = "") -> None:
    """Say that an epoch, and all before it, are over.

    Args:
        words: The page.
        epoch: The epoch.
        rank: The rank where its end came from, -1 if from none.
        cause: What happened there. A long text is cut.
    """
    text = cause.encode()[: 8 * MOST_WORDS]
    words[CAUSE_OF] = 0
    words[CAUSE_RANK], words[CAUSE_BYTES] = rank + 1, len(text)
    for at, word in enumerate(memoryview(text.ljust(8 * MOST_WORDS, b"\0")).cast("Q")):
        words[TEXT_AT + at] = word
    words[CAUSE_OF] = epoch
    words[STOP] = epoch


def cause_of_stop(words: memoryview, epoch: int) -> tuple[int, str]:
    """Return the rank where an epoch's end came from, -1 if from none, and the cause, "" if it is not known."""
    if words[CAUSE_OF] != epoch:
        return -1, ""
    rank, nbytes = words[CAUSE_RANK] - 1, words[CAUSE_BYTES]
    text = array("Q", words[TEXT_AT : TEXT_AT + MOST_WORDS].tolist()).tobytes()[:nbytes]
    if words[CAUSE_OF] != epoch:  # a later one's was written meanwhile
        return -1, ""
    return rank, text.decode(errors="ignore")
