"""Tells a board that its worker can have written from one that was damaged. Pure over a memoryview.

A worker's own code may write where it should not, and a board is memory of that worker. A board on which any rule of
`BoardWriter` is broken is not believed at all: everything that its worker held counts as maybe executed. The rules
bind together what one stray write would have to change at once: an entry carries a sum over its words, entries are
used in order and never become free again, and the latest of them has the number of the last start. A damage that
keeps all rules cannot be found out.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from atomr_mp.protocol import board
from atomr_mp.protocol.board import BATCHED, BUCKETS, MAGIC, MAX_START_ITEMS, Counter, Gauge, entry_sum

_MOST: Final = 2**62
"""No counter gets there in the life of a process."""

LOOKS: Final = 3
"""So often a living board is looked at before it counts as damaged."""

_UNNAMED: Final = (range(17, 20), range(25, 64))


def defect(words: memoryview, now_ns: int) -> str:
    """Return why no worker can have written this board, "" if one can.

    A board that is being written may look damaged for a moment; `lasting_defect` is for such a board.

    Args:
        words: The board, as unsigned 64-bit words.
        now_ns: CLOCK_MONOTONIC; nothing on the board may be later.
    """
    return _header(words, now_ns) or _entries(words, now_ns) or _figures(words)


def lasting_defect(words: memoryview, clock: Callable[[], int]) -> str:
    """Return what is wrong with a board that its worker may be writing just now, "" if nothing is.

    Args:
        words: The board, as unsigned 64-bit words.
        clock: CLOCK_MONOTONIC, in nanoseconds.
    """
    found = ""
    for _ in range(LOOKS):
        found = defect(words, clock())
        if not found:
            break
    return found


def disbelieved(why: str) -> str:
    """Return a defect in words for people."""
    return f"the worker's board is not believed, something has written over it: {why}"


def _header(words: memoryview, now_ns: int) -> str:
    forgotten, session = words[board.FORGOTTEN], words[board.ALONE]
    rules = (
        (words[0] == MAGIC, "its first word is another"),
        (not any(words[at] for unnamed in _UNNAMED for at in unnamed), "a word without a meaning is not 0"),
        (all(words[counter] < _MOST for counter in (*Counter, *Gauge)), "a counter is larger than can be"),
        (words[Counter.COMPLETED] <= words[Counter.STARTED], "more requests were completed than started"),
        (
            words[board.FORGOTTEN_AGAIN] == board.complement(forgotten),
            "the word of the forgotten starts was changed",
        ),
        (max(forgotten, words[board.ANSWERED], words[board.SURVEYED]) <= now_ns, "a time is in the future"),
        (
            not session or words[board.ALONE_SUM] == entry_sum(0, session, words[board.ALONE + 1], 0),
            "what runs alone does not match its sum",
        ),
    )
    return next((why for holds, why in rules if not holds), "")


def _entries(words: memoryview, now_ns: int) -> str:
    # By whole columns, without a loop over a thousand entries: clients wait for the verdict.
    first, width = board.FIRST_SLOT, board.SLOT_WORDS
    end = first + width * board.SLOTS
    numbers = words[first:end:width].tolist()
    used = numbers.index(0) if 0 in numbers else len(numbers)
    if any(words[first + width * used : end].tobytes()):
        return "an entry is in use behind one that is not"
    del numbers[used:]
    latest = 2 * words[Counter.STARTED]
    whole = [(0, used)]
    if latest - 1 in numbers:  # its worker has died, or is, on the way through this entry
        at = numbers.index(latest - 1)
        numbers[at], whole = latest, [(0, at), (at + 1, used)]
    running = 0
    for begin, stop in whole:
        times = _times(words[first + width * begin : first + width * stop])
        if times is None:
            return "an entry does not match its sum"
        starts, ends = times
        running += ends.count(0)
        if not min(starts, default=1) or max(max(starts, default=0), max(ends, default=0)) > now_ns:
            return "an entry has times that cannot be"
        if sum(map(operator.lt, ends, starts)) != ends.count(0):
            return "an entry has ended before it was started"
    if running > words[Counter.STARTED] - words[Counter.COMPLETED] + 1:
        return "more entries are running than requests"
    return _order(numbers, latest, words[board.FORGOTTEN])


def _times(words: memoryview) -> tuple[list[int], list[int]] | None:
    """Return starts and ends of entries, None if one of the entries does not match its sum."""
    width = board.SLOT_WORDS
    number, session, request, start, total = (
        int.from_bytes(words[column::width].tobytes(), sys.byteorder) for column in (0, 1, 2, 3, 7)
    )
    # `entry_sum` of all entries at once: a session's number has far less bits than a word.
    salt = entry_sum(0, 0, 0, 0).to_bytes(8, sys.byteorder)
    salts = int.from_bytes(salt * (len(words) // width), sys.byteorder)
    if number ^ session << 20 ^ request ^ start ^ total != salts:
        return None
    return words[3::width].tolist(), words[5::width].tolist()


def _order(numbers: list[int], latest: int, forgotten: int) -> str:
    if forgotten:
        if len(numbers) < board.SLOTS:
            return "entries are missing"
        if len(set(numbers)) < len(numbers) or max(numbers) > latest:
            return "two entries have the same number, or one has a number that was never given"
        return ""
    # Nothing was overwritten: the entries are the starts, in order, and all of them.
    if (numbers[-1] if numbers else 0) != latest:
        return "the entry of the last start is missing"
    if any(not 0 < later - earlier <= 2 * MAX_START_ITEMS for earlier, later in pairwise([0, *numbers])):
        return "entries are missing"
    return ""


def _figures(words: memoryview) -> str:
    buckets = words[board.FIRST_BUCKET : board.FIRST_BUCKET + BUCKETS].tolist()
    if sum(buckets) > words[Counter.COMPLETED]:
        return "more latencies were counted than requests"
    for number in range(BATCHED):
        at = board.FIRST_BATCHES + number * board.BATCH_WORDS
        batches, *sums = words[at : at + 4].tolist()
        sizes = sum(words[at + 4 : at + board.BATCH_WORDS].tolist())
        if not batches - 1 <= sizes <= batches or max(batches, *sums) >= _MOST:
            return f"the figures of batched method {number} do not agree"
    return ""
