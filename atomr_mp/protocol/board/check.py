"""Tells a board that its worker can have written from one that was damaged. Pure over a memoryview.

A worker's own code may write where it should not, and a board is memory of that worker. A board on which any rule of
`BoardWriter` is broken is not believed at all: everything that its worker held counts as maybe executed. The rules
bind together what one stray write would have to change at once: an entry, used or not, carries a sum over its words,
entries are used in order and never become free again, and none has a number that was not given. A damage that keeps all
rules cannot be found out.

A worker may die, or stand still, between any two words that it writes; every such board is believed. A worker that goes
on while its board is read changes words that were read already: `look` reads the count of starts once more behind the
rest, and reads anew what still does not fit.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from atomr_mp.protocol.board import page
from atomr_mp.protocol.board.page import BATCHED, BUCKETS, MAGIC, MAX_START_ITEMS, PLANNED, Counter, Gauge, entry_sum
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.library_names import ENGINES

_MOST: Final = 2**62
"""No counter gets there in the life of a process."""

LOOKS: Final = 8
"""Readings of a living board before it counts as damaged."""

_UNNAMED: Final = (range(19, 20), range(page.FIRST_LOOP + page.LOOPS, 64))

_UNUSED: Final = bytes(8 * page.SLOT_WORDS - 8) + page.UNUSED.to_bytes(8, sys.byteorder)
"""An entry that was never used."""


def defect(words: memoryview, now_ns: int) -> str:
    """Return why no worker can have written this board, "" if one can; the board must have no writer.

    Args:
        words: The board, as unsigned 64-bit words.
        now_ns: CLOCK_MONOTONIC; nothing on the board may be later.
    """
    return _defect(words, words[: page.FIRST_SLOT], now_ns)


def look(words: memoryview, clock: Callable[[], int], believed: bytes = b"") -> tuple[bytes, str]:
    """Return a copy of a board that its worker may be writing just now, and why it is not believed, "" if it is.

    Args:
        words: The board, as unsigned 64-bit words.
        clock: CLOCK_MONOTONIC, in nanoseconds.
        believed: An earlier copy that was believed: a board that has not changed is not judged again.
    """
    copy, found = b"", ""
    for _ in range(LOOKS):
        copy = words[: page.STACK_AT // 8].tobytes()
        found = "" if copy == believed else _defect(memoryview(copy).cast("Q"), words[: page.FIRST_SLOT], clock())
        if not found:
            break
    return copy, found


def disbelieved(why: str) -> str:
    """Return a defect in words for people."""
    return f"the worker's board is not believed, something has written over it: {why}"


def _defect(words: memoryview, later: memoryview, now_ns: int) -> str:
    """Return the damage of a board, in words.

    Args:
        words: The board.
        later: What is before its entries, as read after all else.
        now_ns: CLOCK_MONOTONIC, after that.
    """
    completed, started = later[Counter.COMPLETED], later[Counter.STARTED]  # in the reverse order of their writing
    steps = later[page.STEPS]
    return (
        _header(words, started, now_ns)
        or _entries(words, started, now_ns)
        or _streams(words, steps, now_ns)
        or _figures(words, completed)
    )


def _header(words: memoryview, started: int, now_ns: int) -> str:
    forgotten, session = page.complement(words[page.FORGOTTEN_AGAIN]), words[page.ALONE]
    turned = words[page.FIRST_LOOP : page.FIRST_LOOP + page.LOOPS]
    rules = (
        (words[0] == MAGIC, "its first word is another"),
        (not any(words[at] for unnamed in _UNNAMED for at in unnamed), "a word without a meaning is not 0"),
        (all(words[counter] < _MOST for counter in (*Counter, *Gauge)), "a counter is larger than can be"),
        (words[Counter.COMPLETED] <= started < _MOST, "more requests were completed than started"),
        # The complement is written first, and is the one that counts until the other follows.
        (words[page.FORGOTTEN] <= forgotten, "the word of the forgotten starts was changed"),
        (max(forgotten, words[page.ANSWERED], words[page.SURVEYED], *turned) <= now_ns, "a time is in the future"),
        (
            not session or words[page.ALONE_SUM] == entry_sum(0, session, words[page.ALONE + 1], 0),
            "what runs alone does not match its sum",
        ),
        (not session or max(session, words[page.ALONE + 1]) <= MAX_U64, "what runs alone has a number that none has"),
    )
    return next((why for holds, why in rules if not holds), "")


def _entries(words: memoryview, started: int, now_ns: int) -> str:
    # By whole columns, without a loop over a thousand entries: clients wait for the verdict.
    first, width = page.FIRST_SLOT, page.SLOT_WORDS
    numbers = words[first : first + width * page.SLOTS : width].tolist()
    used = numbers.index(0) if 0 in numbers else len(numbers)
    if words[first + width * used : first + width * page.SLOTS].tobytes() != _UNUSED * (page.SLOTS - used):
        return "an entry is in use behind one that is not, or was never whole"
    del numbers[used:]
    entries = words[first : first + width * used]
    writing = {at for at, number in enumerate(numbers) if number & 1}
    if any(not 2 * words[Counter.STARTED] <= numbers[at] + 1 <= 2 * started for at in writing):
        return "an entry is being written with a number that is not that of the latest start"
    if not _unlike(entries) <= writing:
        return "an entry does not match its sum"
    for at in writing:
        numbers[at] += 1
    return _names(entries) or _times(entries, writing, now_ns) or _order(numbers, words, started)


def _streams(words: memoryview, steps: int, now_ns: int) -> str:
    """Return the damage of the entries of streams, in words."""
    if not words[page.STEPS_ENDED] <= steps < _MOST:
        return "more steps of streams have ended than begun"
    first, width = page.FIRST_STREAM, page.SLOT_WORDS
    end = first + width * page.STREAM_SLOTS
    numbers = words[first:end:width].tolist()
    used = numbers.index(0) if 0 in numbers else len(numbers)
    if words[first + width * used : end].tobytes() != _UNUSED * (page.STREAM_SLOTS - used):
        return "an entry of a stream is in use behind one that is not, or was never whole"
    entries = words[first : first + width * used]
    writing = {at for at, number in enumerate(numbers[:used]) if number & 1}
    if not _unlike(entries) <= writing:
        return "an entry of a stream does not match its sum"
    if max(numbers, default=0) > 2 * steps or len(set(numbers[:used])) < used:
        return "an entry of a stream has a number that was never given, or that another has"
    return _names(entries) or _times(entries, writing, now_ns)


def _unlike(entries: memoryview) -> set[int]:
    """Return the places of the entries that do not match their sums."""
    width = page.SLOT_WORDS
    number, session, request, start, total = (
        int.from_bytes(entries[column::width].tobytes(), sys.byteorder) for column in (0, 1, 2, 3, 7)
    )
    # `entry_sum` of all entries at once: a session's number has far less bits than a word.
    left = number ^ session << 20 ^ request ^ start ^ total
    if not left:
        return set()
    sums = memoryview(left.to_bytes(8 * (len(entries) // width) + 8, sys.byteorder)).cast("Q").tolist()
    return {at for at, each in enumerate(sums if sys.byteorder == "little" else sums[::-1]) if each}


def _names(entries: memoryview) -> str:
    """Return the damage of the numbers that name sessions and requests: clients receive these, and refuse others."""
    for column in (1, 2):
        if max(entries[column :: page.SLOT_WORDS].tolist(), default=0) > MAX_U64:
            return "an entry has the number of a session or request that none has"
    return ""


def _times(entries: memoryview, writing: set[int], now_ns: int) -> str:
    starts, ends = (entries[column :: page.SLOT_WORDS].tolist() for column in (3, 5))
    for at in sorted(writing, reverse=True):
        del starts[at], ends[at]
    if not min(starts, default=1) or max(max(starts, default=0), max(ends, default=0)) > now_ns:
        return "an entry has times that cannot be"
    # More entries may be running than requests: what was answered with poison stays, for it may be why its worker ends.
    if sum(map(operator.lt, ends, starts)) != ends.count(0):
        return "an entry has ended before it was started"
    return ""


def _order(numbers: list[int], words: memoryview, started: int) -> str:
    if max(numbers, default=0) > 2 * started:
        return "an entry has a number that was never given"
    if page.complement(words[page.FORGOTTEN_AGAIN]):
        if len(numbers) < page.SLOTS:
            return "entries are missing"
        return "two entries have the same number" if len(set(numbers)) < len(numbers) else ""
    # Nothing was overwritten: the entries are the starts, in order. A start is counted before its entry is there.
    counted = max(2 * words[Counter.STARTED], *numbers[-1:], 0)
    gaps = [later - earlier for earlier, later in pairwise([0, *numbers, counted])]
    if any(not 0 < gap <= 2 * MAX_START_ITEMS for gap in gaps[:-1]) or gaps[-1] > 2 * MAX_START_ITEMS:
        return "entries are missing"
    return ""


def _figures(words: memoryview, completed: int) -> str:
    buckets = words[page.FIRST_BUCKET : page.FIRST_BUCKET + BUCKETS].tolist()
    if sum(buckets) > completed:
        return "more latencies were counted than requests"
    for number in range(BATCHED):
        at = page.FIRST_BATCHES + number * page.BATCH_WORDS
        batches, *sums = words[at : at + 4].tolist()
        first_wait = at + 4 + page.BATCH_SIZES
        sizes = sum(words[at + 4 : first_wait].tolist())
        waits = sum(words[first_wait : at + page.BATCH_WORDS].tolist())
        if not batches - 1 <= sizes <= batches or waits > sums[0] or max(batches, *sums) >= _MOST:
            return f"the figures of batched method {number} do not agree"
    for number in range(PLANNED):
        at = page.FIRST_PLANS + number * page.PLAN_WORDS
        plans = page.PlanCounts(*words[at : at + page.PLAN_WORDS].tolist())
        if max(plans) >= _MOST or plans.kept + plans.dropped > plans.misses or plans.engine >= len(ENGINES):
            return f"the figures of the plans of library {number} do not agree"
    graphs = page.GraphCounts(*words[page.FIRST_GRAPHS : page.FIRST_GRAPHS + len(page.GraphCounts._fields)].tolist())
    if max(graphs) >= _MOST or graphs.dropped > graphs.captured:
        return "the figures of graphs do not agree"
    return _work(words)


def _work(words: memoryview) -> str:
    figures = words[page.FIRST_WORK : page.FIRST_WORK + page.WORK_WORDS * page.WORKED].tolist()
    for at in range(0, len(figures), page.WORK_WORDS):
        name, counts = figures[at : at + page.NAME_WORDS], figures[at + page.NAME_WORDS : at + page.WORK_WORDS]
        # A worker may have died before the name was whole; then nothing was counted.
        if max(counts) >= _MOST or (counts[0] and not page.name_in(name)):
            return f"the figures of the work of method {at // page.WORK_WORDS} do not agree"
    return ""
