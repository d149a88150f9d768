"""The words of a board: their places and meanings. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

SLOTS: Final = 1024
MAGIC: Final = 0x61746F6D726D7035


class Counter(IntEnum):
    """Counters, by their word."""

    RECEIVED = 1
    STARTED = 2
    COMPLETED = 3
    REFUSED = 4
    DISCARDED = 5
    """Dropped before they ran: cancelled, expired, refused while they waited, or of an ended session."""
    FAILED = 7
    """Completed requests that were answered with an error."""
    CANCELLED = 8
    """Discarded requests that were cancelled."""
    EXPIRED = 9
    """Discarded requests whose deadline had passed."""
    REJECTED = 10
    """Answered with an error without being received: no such method, too many that wait, of another incarnation."""
    LATENCY_NS = 11
    """Sum of all that the histogram counts."""
    INTERNAL_ERRORS = 17
    """Faults of the worker itself that cost a request, or a session."""


class Gauge(IntEnum):
    """Figures that rise and fall, by their word."""

    SLAB_BYTES = 12
    LEASES = 13
    SESSIONS = 18
    """Sessions whose memory was not given back yet."""


ANSWERED: Final = 14
"""Word of when the worker's main thread has last run Python code because of `STACK_SIGNAL`."""

SURVEYED: Final = 15
"""Word of when the worker has last asked its device because of `STACK_SIGNAL`; 0 if it never will. After it the
unfinished work of that time, as bits: `Watched.device_bits`, and `DEFAULT_STREAM`."""

STREAM_BITS: Final = 48
ACTORS_THREADS: Final = 1 << STREAM_BITS
"""The bit of work that actors' own threads have put on the device."""

DEFAULT_STREAM: Final = 2 << STREAM_BITS
"""The bit of work on the default stream, which may be anybody's."""

STACK_SIGNAL: Final = 62
"""SIGRTMAX - 2, which no known program uses. The worker's interpreter writes the stacks, if it comes to run."""

DUMP_SIGNAL: Final = 61
"""For a worker whose interpreter does not answer: code in C writes the stacks. It reads those of other threads without
a lock, so it can end a process in which one of them runs."""

OFF_BOARD: Final = -1
"""Stands for a slot where a request found all of them running: it is counted, but is not among the entries."""

ALONE: Final = 20
"""Words of session and request id of the request that runs alone; 0 if none does."""

SIGNALLED: Final = 24
"""Word of the signals that the worker sends to itself."""

SIGNALLED_AGAIN: Final = 25
"""Word of their `complement`. A signal counts that is in both: one stray write makes no evidence."""

STEPS: Final = 26
"""Word of how many further steps of streams have begun."""

STEPS_ENDED: Final = 27
"""Word of how many of them have ended."""

FIRST_LOOP: Final = 28
"""Word of when the first actor's event loop has last turned."""

LOOPS: Final = 16
"""Event loops of actors that have words of their own; of more, several have a word in common."""

FORGOTTEN: Final = 6
"""Word of the latest start that was overwritten, or never written."""

FORGOTTEN_AGAIN: Final = 22
"""Word of its `complement`, written first: one stray write does not change both in agreement."""

ALONE_SUM: Final = 23
"""Word of `entry_sum` of session and request id of the request that runs alone."""

MAX_START_ITEMS: Final = 256
"""Most items that one entry stands for."""

ALL_ONES: Final = 2**64 - 1
UNUSED: Final = ALL_ONES
"""The sum of an entry that was never used."""

BUCKETS: Final = 64
FIRST_BUCKET: Final = 64
FIRST_SLOT: Final = FIRST_BUCKET + BUCKETS
SLOT_WORDS: Final = 8
BATCHED: Final = 32
"""Batched methods that have figures on the board: the first so many, in the order of actors and methods."""

FIRST_BATCHES: Final = FIRST_SLOT + SLOT_WORDS * SLOTS
BATCH_SIZES: Final = 11
BATCH_WAITS: Final = 24
FIRST_WAIT: Final = 14
"""Bits of the first bound of waits in nanoseconds, 16 us; each further bound is twice the one before."""

BATCH_WORDS: Final = 4 + BATCH_SIZES + BATCH_WAITS
PLANNED: Final = 16
"""Libraries that have figures of plans on the board."""

FIRST_PLANS: Final = FIRST_BATCHES + BATCH_WORDS * BATCHED
PLAN_WORDS: Final = 5
FIRST_GRAPHS: Final = FIRST_PLANS + PLAN_WORDS * PLANNED
GRAPH_WORDS: Final = 8
WORKED: Final = 160
"""Methods of libraries that have figures of their work on the board: the first so many that are called."""

FIRST_WORK: Final = FIRST_GRAPHS + GRAPH_WORDS
NAME_WORDS: Final = 6
"""Words of a method's name, in ASCII with zeros behind it."""

WORK_WORDS: Final = NAME_WORDS + 4
MOST_NUMBERED: Final = 1023
"""Largest number of a method. Libraries' methods are numbered by their place among those with figures of their work,
from 1 on; actors' methods, in their order, from `WORKED` + 1 on."""

STREAM_SLOTS: Final = 1024
FIRST_STREAM: Final = FIRST_WORK + WORK_WORDS * WORKED
PLACE_BITS: Final = 2**14 - 1
"""Bits of `Watched.place`."""
STACK_AT: Final = 8 * (FIRST_STREAM + SLOT_WORDS * STREAM_SLOTS)
"""Offset of the text."""

STACK_BYTES: Final = 2**16
BOARD_BYTES: Final = STACK_AT + STACK_BYTES


def entry_sum(sequence: int, session: int, request_id: int, started_ns: int) -> int:
    """Return a sum over what tells an entry from others; `BoardWriter.start` has it inline."""
    return sequence ^ session << 20 ^ request_id ^ started_ns


def complement(word: int) -> int:
    """Return all bits of a word turned over."""
    return word ^ ALL_ONES


def prepare(memory: memoryview) -> None:
    """Write the initial content of a board into zeroed memory.

    The supervisor does so when it makes the memory, so that a worker may die before it has found its board.
    """
    words = memory.cast("Q")
    words[0] = MAGIC
    words[FORGOTTEN_AGAIN] = words[SIGNALLED_AGAIN] = complement(0)
    for first, slots in ((FIRST_SLOT, SLOTS), (FIRST_STREAM, STREAM_SLOTS)):
        for at in range(first, first + slots * SLOT_WORDS, SLOT_WORDS):
            words[at + SLOT_WORDS - 1] = UNUSED


class PlaceKind(IntEnum):
    """Kinds of places where requests run."""

    LOOP = 0
    THREAD = 1
    """An actor's own."""
    STREAM = 2
    EVENT_LOOP = 3
    """An actor's own, where many run at a time."""


class Watched(NamedTuple):
    """Facts of a running request, to judge whether it hangs; one word of its entry.

    Its bits, from the lowest: 12 of the number, 2 of the kind, `from_deadline`, `waits`, 8 of the width less one, 10 of
    the method, 2 of a scale, and 28 of the limit: in milliseconds, times 256 for each unit of the scale.
    """

    limit_ns: int = 0
    """How long it may run while nothing ends in its place; on a thread, how long it may run at all. 0 if unknown."""
    from_deadline: bool = False
    """Whether the limit begins at the deadline, not at the start."""
    kind: PlaceKind = PlaceKind.LOOP
    number: int = 0
    """Number within its kind."""
    waits: bool = False
    """Whether it waits for other requests. On an event loop: whether it was not asked to end."""
    width: int = 1
    """How many requests run at a time in its place; later ones wait there."""
    method: int = 0
    """Number of its method, see `BoardReader.method_of`; 0 if it has none."""

    @property
    def place(self) -> tuple[PlaceKind, int]:
        """The place where it runs; requests there run one after the other, or begin in order."""
        return self.kind, self.number

    @property
    def device_bits(self) -> int:
        """Bits of the work that it may have put on the device."""
        return DEFAULT_STREAM | (
            ACTORS_THREADS
            if self.kind in {PlaceKind.THREAD, PlaceKind.EVENT_LOOP}
            else stream_bit(self.number) * (self.kind is PlaceKind.STREAM)
        )

    def pack(self) -> int:
        """Return the word."""
        flags = self.from_deadline << 14 | self.waits << 15
        limit, scale = min(self.limit_ns // 1_000_000, 2**40 - 1), 0
        while limit >= 2**28:
            limit, scale = -(-limit // 256), scale + 1
        method = self.method if self.method <= MOST_NUMBERED else 0
        high = limit << 36 | scale << 34 | method << 24 | (self.width - 1) % 2**8 << 16
        return high | flags | self.kind << 12 | self.number % 2**12

    @classmethod
    def unpack(cls, word: int) -> Watched:
        """Return the content of a word; every word has a meaning."""
        kind = PlaceKind(word >> 12 & 3)
        flags = bool(word >> 14 & 1), kind, word % 2**12, bool(word >> 15 & 1)
        limit_ns = (word >> 36) * 256 ** (word >> 34 & 3) * 1_000_000
        return cls(limit_ns, *flags, (word >> 16) % 2**8 + 1, word >> 24 & MOST_NUMBERED)


def stream_bit(number: int) -> int:
    """Return the bit of a stream."""
    return 1 << number % STREAM_BITS


class Entry(NamedTuple):
    """A request that was started."""

    session: int
    request_id: int
    started_ns: int
    deadline_ns: int
    ended_ns: int
    """0 while it runs."""
    watched: int = 0
    """`Watched`, packed."""


class Batches(NamedTuple):
    """Counts of a batched method."""

    batches: int
    items: int
    wait_ns: int
    """Total time from the arrival of each item to the start of its batch."""
    longest_wait_ns: int
    sizes: list[int]
    """How many batches had 1, 2, 3-4, 5-8, ... 513-1024 items."""
    waits: list[int]
    """How many items waited for less than 2^14, 2^15, ... 2^36 ns, and for longer."""


class GraphCounts(NamedTuple):
    """Counts of the programs' graphs."""

    captured: int = 0
    """How many were recorded."""
    replayed: int = 0
    """How many runs were a launch of one."""
    dropped: int = 0
    """How many had to make room for others of the same program."""
    busy: int = 0
    """How many runs were done step by step since the last launch's verdict had not been read."""
    not_capturable: int = 0
    """Programs with a step that is declared as one that cannot be recorded."""
    capture_failed: int = 0
    """Programs that the device has refused to record."""
    no_memory: int = 0
    """Programs for whose graphs there was no room."""


class PlanCounts(NamedTuple):
    """Counts of a library's plans."""

    misses: int = 0
    """How often one had to be made."""
    hits: int = 0
    """How often one was there already."""
    dropped: int = 0
    """How many had to make room for others."""
    kept: int = 0
    """How many there are."""
    engine: int = 0
    """The engine of the library: the number of one of `library_names.ENGINES`, 0 if there is no choice."""


class WorkCounts(NamedTuple):
    """Sums over the requests of a library's method that have been executed and whose time is known."""

    requests: int = 0
    ns: int = 0
    """Execution times, in nanoseconds."""
    flops: int = 0
    """Arithmetic operations, as the requests declare them."""
    moved_bytes: int = 0
    """Bytes read and written, as the requests declare them."""


def name_words(method: str) -> tuple[int, ...] | None:
    """Return the words of a library's method's name, None if it does not fit."""
    name = method.encode("ascii", "replace")
    return _NAME.unpack(name.ljust(_NAME.size, b"\0")) if len(name) <= _NAME.size else None


def name_in(words: Sequence[int]) -> str:
    """Return the name that words have, "" if it is not of the form of a library's method."""
    found = _METHOD.fullmatch(_NAME.pack(*words).rstrip(b"\0"))
    return "" if found is None else found[0].decode("ascii")


_NAME: Final = struct.Struct(f"={NAME_WORDS}Q")
_METHOD: Final = re.compile(rb"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
