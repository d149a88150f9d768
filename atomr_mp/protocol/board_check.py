"""Tells a board that its worker can have written from one that was damaged. Pure over a memoryview.

A worker's own code may write where it should not, and a board is memory of that worker. A board on which any rule of
`BoardWriter` is broken is not believed at all: everything that its worker held counts as maybe executed. The rules
bind together what one stray write would have to change at once: an entry carries a sum over its words, entries are
used in order and never become free again, and the latest of them has the number of the last start. A damage that
keeps all rules cannot be found out.
"""

from __future__ import annotations

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
    first, width = board.FIRST_SLOT, board.SLOT_WORDS
    slots = list(board.SLOT.iter_unpack(words[first : first + width * board.SLOTS]))
    used = next((at for at, slot in enumerate(slots) if not slot[0]), len(slots))
    if any(any(slot) for slot in slots[used:]):
        return "an entry is in use behind one that is not"
    latest = 2 * words[Counter.STARTED]
    running = 0
    for sequence, session, request_id, started_ns, _, ended_ns, _, total in slots[:used]:
        if sequence & 1:
            if sequence != latest - 1:
                return f"an entry that is being written has the number {sequence:#x}"
            continue
        if total != entry_sum(sequence, session, request_id, started_ns):
            return f"the entry with the number {sequence:#x} does not match its sum"
        if not 0 < started_ns <= now_ns or (ended_ns and not started_ns <= ended_ns <= now_ns):
            return f"the entry with the number {sequence:#x} has times that cannot be"
        running += not ended_ns
    if running > words[Counter.STARTED] - words[Counter.COMPLETED] + 1:
        return "more entries are running than requests"
    return _order([slot[0] + (slot[0] & 1) for slot in slots[:used]], latest, words[board.FORGOTTEN])


def _order(numbers: list[int], latest: int, forgotten: int) -> str:
    if forgotten:
        if len(numbers) < board.SLOTS:
            return "entries are missing"
        if len(set(numbers)) < len(numbers) or max(numbers) > latest:
            return "two entries have the same number, or one was never given"
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
