"""The board: a page of shared memory in which a worker shows what it is doing. Pure over a memoryview.

The worker writes, the supervisor reads, without a lock and without asking: also when the worker hangs in C code or
has just died. Words are aligned 64-bit integers; an entry of the ring is guarded by its sequence number (odd while it
is being written). Layout, in words: magic, counters and gauges (`Counter`, `Gauge`), among them in word 6 the latest
start that is no longer among the entries and in word 22 its complement, in words 20 and 21 session and id of the
request that runs alone, if one does, in word 23 a sum of the two; from word 64 the histogram of latencies; from word
128 `SLOTS` entries of (sequence, session number, request id, start, deadline, end, watched, sum), times in
CLOCK_MONOTONIC nanoseconds, end 0 while the request runs; `Watched` is how long it may take, and where it runs;
`entry_sum` is the sum, and all ones in an entry that was never used, so no entry is ever all zeros. Words that are not
named are 0. Behind the entries are `BATCHED` blocks of figures of batches, one for each batched method (`Batches`);
their words change one by one, so a reader may see a batch in part. Behind these are `PLANNED` blocks of figures of
plans (`PlanCounts`), one for each library in the order of `library_names.LIBRARIES`, and `GRAPH_WORDS` of figures of
graphs (`GraphCounts`).
Behind these are `STREAM_SLOTS` entries of streams that have taken their first step: of the same form, but an entry is
written anew for each step, with the number of the step among all streams', and stays while the stream lives. So what
runs long takes no place of others' starts. Words 26 and 27 count the steps that have begun and ended.
The last `STACK_BYTES` are text, up to a zero byte: the stacks of the worker's threads, written when it gets the signal
`STACK_SIGNAL`; then, if its interpreter runs, it sets the word `ANSWERED`. A worker whose device works by itself says
besides what that has not finished, in the words `SURVEYED` and `SURVEYED` + 1. Word 24 has the signals that the worker
is just sending to itself, and word 25 their complement: bit N - 1 stands for signal N.

The histogram has 64 counters; that of number N counts the requests whose answer was ready in less than 2^N ns, and not
in less than half of it, after they had arrived.

The ring keeps completed entries until they are overwritten, so that after a death one can tell what had been started
from what had not. `board_check` tells whether a worker can have written a board.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from enum import IntEnum
from itertools import compress
from typing import Final, NamedTuple, cast

SLOTS: Final = 1024
MAGIC: Final = 0x61746F6D726D7034


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


class Gauge(IntEnum):
    """What rises and falls, by its word."""

    SLAB_BYTES = 12
    LEASES = 13


# Plain integers: an enumeration's member is looked up and converted at each use.
_RECEIVED: Final = int(Counter.RECEIVED)
_STARTED: Final = int(Counter.STARTED)
_COMPLETED: Final = int(Counter.COMPLETED)
_LATENCY_NS: Final = int(Counter.LATENCY_NS)

ANSWERED: Final = 14
"""Word of when the worker's main thread has last run Python code because of `STACK_SIGNAL`."""

SURVEYED: Final = 15
"""Word of when the worker has last asked its device because of `STACK_SIGNAL`; 0 if it never will. Behind it what was
not finished then, as bits: `Watched.device_bits`, and `DEFAULT_STREAM`."""

STREAM_BITS: Final = 48
ACTORS_THREADS: Final = 1 << STREAM_BITS
"""The bit of what actors' own threads have put on the device."""

DEFAULT_STREAM: Final = 2 << STREAM_BITS
"""The bit of what was put on the device without saying where: it may be anybody's."""

STACK_SIGNAL: Final = 62
"""SIGRTMAX - 2: nothing known uses it. The worker's interpreter writes the stacks, if it comes to run."""

DUMP_SIGNAL: Final = 61
"""For a worker whose interpreter does not answer: code in C writes the stacks. It reads those of other threads without
a lock, so it can end a process in which one of them runs."""

OFF_BOARD: Final = -1
"""Stands for a slot where a request found all of them running: it is counted, but is not among the entries."""

ALONE: Final = 20
"""Words of session and request id of what runs alone; 0 if nothing does."""

_SIGNALLED: Final = 24
"""Word of the signals that the worker sends to itself."""

_SIGNALLED_AGAIN: Final = 25
"""Word of their `complement`. A signal counts that is in both: one stray write makes no evidence."""

STEPS: Final = 26
"""Word of how many further steps of streams have begun."""

STEPS_ENDED: Final = 27
"""Word of how many of them have ended."""

FORGOTTEN: Final = 6
"""Word of the latest start that was overwritten, or never written."""

FORGOTTEN_AGAIN: Final = 22
"""Word of its `complement`, written first: one stray write does not change both in agreement."""

ALONE_SUM: Final = 23
"""Word of `entry_sum` of session and request id of what runs alone."""

MAX_START_ITEMS: Final = 256
"""Most items that one entry stands for."""

_WORD: Final = 2**64 - 1
UNUSED: Final = _WORD
"""The sum of an entry that was never used."""

BUCKETS: Final = 64
FIRST_BUCKET: Final = 64
FIRST_SLOT: Final = FIRST_BUCKET + BUCKETS
SLOT_WORDS: Final = 8
BATCHED: Final = 32
"""Batched methods that have figures on the board: the first so many, in the order of actors and methods."""

FIRST_BATCHES: Final = FIRST_SLOT + SLOT_WORDS * SLOTS
_SIZES: Final = 11
BATCH_WORDS: Final = 4 + _SIZES
PLANNED: Final = 16
"""Libraries that have figures of plans on the board."""

FIRST_PLANS: Final = FIRST_BATCHES + BATCH_WORDS * BATCHED
PLAN_WORDS: Final = 5
FIRST_GRAPHS: Final = FIRST_PLANS + PLAN_WORDS * PLANNED
GRAPH_WORDS: Final = 8
STREAM_SLOTS: Final = 1024
FIRST_STREAM: Final = FIRST_GRAPHS + GRAPH_WORDS
_PLACE: Final = 2**14 - 1
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
    return word ^ _WORD


def prepare(memory: memoryview) -> None:
    """Write into zeroed memory what a board shows before its worker has done anything.

    The supervisor does so when it makes the memory, so that a worker may die before it has found its board.
    """
    words = memory.cast("Q")
    words[0] = MAGIC
    words[FORGOTTEN_AGAIN] = words[_SIGNALLED_AGAIN] = complement(0)
    for first, slots in ((FIRST_SLOT, SLOTS), (FIRST_STREAM, STREAM_SLOTS)):
        for at in range(first, first + slots * SLOT_WORDS, SLOT_WORDS):
            words[at + SLOT_WORDS - 1] = UNUSED


class PlaceKind(IntEnum):
    """Where a request runs."""

    LOOP = 0
    THREAD = 1
    """An actor's own."""
    STREAM = 2


class Watched(NamedTuple):
    """What there is to know of a running request to say that it hangs; one word of its entry.

    Its bits, from the lowest: 12 of the number, 2 of the kind, `from_deadline`, `waits`, 8 of the width less one, and
    the limit in milliseconds.
    """

    limit_ns: int = 0
    """How long it may run while nothing ends in its place, or on a thread, whatever ends; 0 if there is no saying."""
    from_deadline: bool = False
    """The limit begins where the deadline has passed, not at the start."""
    kind: PlaceKind = PlaceKind.LOOP
    number: int = 0
    """Which of the kind."""
    waits: bool = False
    """It waits for others, that may be elsewhere."""
    width: int = 1
    """How much runs at a time in its place, of a thread; what was started later waits there."""

    @property
    def place(self) -> tuple[PlaceKind, int]:
        """Where it runs: one after the other, or in order."""
        return self.kind, self.number

    @property
    def device_bits(self) -> int:
        """The bits of what it may have put on the device."""
        return DEFAULT_STREAM | (
            ACTORS_THREADS
            if self.kind is PlaceKind.THREAD
            else stream_bit(self.number) * (self.kind is PlaceKind.STREAM)
        )

    def pack(self) -> int:
        """Return the word."""
        flags = self.from_deadline << 14 | self.waits << 15
        limit = min(self.limit_ns // 1_000_000, 2**40 - 1) << 24 | (self.width - 1) % 2**8 << 16
        return limit | flags | self.kind << 12 | self.number % 2**12

    @classmethod
    def unpack(cls, word: int) -> Watched:
        """Return what a word says; any word says something."""
        kind = PlaceKind(min(word >> 12 & 3, PlaceKind.STREAM))
        flags = bool(word >> 14 & 1), kind, word % 2**12, bool(word >> 15 & 1)
        return cls((word >> 24) * 1_000_000, *flags, (word >> 16) % 2**8 + 1)


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
    """What a batched method has done so far."""

    batches: int
    items: int
    wait_ns: int
    """From the arrival of each item to the start of its batch, in all."""
    longest_wait_ns: int
    sizes: list[int]
    """How many batches had 1, 2, 3-4, 5-8, ... 513-1024 items."""


class GraphCounts(NamedTuple):
    """What has become of the programs' graphs so far."""

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
    """What has become of a library's plans so far."""

    misses: int = 0
    """How often one had to be made."""
    hits: int = 0
    """How often one was there already."""
    dropped: int = 0
    """How many had to make room for others."""
    kept: int = 0
    """How many there are."""
    engine: int = 0
    """What serves the library: the number of one of `library_names.ENGINES`, 0 if there is no choice."""


class BoardWriter:
    """The worker's side. One thread only.

    Args:
        memory: `BOARD_BYTES` writable bytes, zero at first, or prepared.
    """

    def __init__(self, memory: memoryview) -> None:
        prepare(memory)
        self._words = memory.cast("Q")
        entries = self._words[FIRST_SLOT : FIRST_SLOT + SLOTS * SLOT_WORDS]
        self._columns = tuple(entries[column::SLOT_WORDS] for column in range(SLOT_WORDS))
        """The entries' words, those of all slots together: so a slot's number is the index of each of them."""
        self._ends, self._watched = self._columns[5], self._columns[6]
        self._buckets = self._words[FIRST_BUCKET : FIRST_BUCKET + BUCKETS]
        self._free = deque(range(SLOTS))
        """Slots that are not running, those never used first, then the earliest ended."""
        # What every request changes: to read it from the memory costs more than to keep it, and whoever writes over the
        # memory does not change what is written next.
        self._latest = [0] * SLOTS
        """Latest start in each slot."""
        self._received = self._started = self._completed = self._latency_ns = self._forgotten = 0
        self._free_streams = deque(range(STREAM_SLOTS))
        """Places of no living stream, those never used first, then the earliest ended."""
        self._streams_since = [0] * STREAM_SLOTS
        """When the stream that has a place, or had it last, was started."""
        self._steps = self._steps_ended = 0

    def receive(self, count: int) -> None:
        """Count requests that have come."""
        self._words[_RECEIVED] = self._received = self._received + count

    def count(self, counter: Counter, by: int = 1) -> None:
        """Add to a counter."""
        self._words[counter] += by

    def show(self, gauge: Gauge, value: int) -> None:
        """Show how much there is of something."""
        self._words[gauge] = value

    def start(
        self, session: int, request_id: int, now_ns: int, deadline_ns: int, watched: int = 0, items: int = 1
    ) -> int:
        """Note that a request starts, or so many that were sent as one; return its slot, for `end`."""
        words = self._words
        words[_STARTED] = self._started = started = self._started + items
        if not self._free:
            words[FORGOTTEN_AGAIN] = now_ns ^ _WORD
            words[FORGOTTEN] = self._forgotten = now_ns
            return OFF_BOARD
        slot = self._free.popleft()
        # Before the entry goes. Requests end in another order than they start, so this is not the oldest start.
        latest = self._latest
        before_ns, latest[slot] = latest[slot], now_ns
        if before_ns > self._forgotten:
            words[FORGOTTEN_AGAIN] = before_ns ^ _WORD
            words[FORGOTTEN] = self._forgotten = before_ns
        numbers, sessions, request_ids, starts, deadlines, ends, limits, sums = self._columns
        number = 2 * started
        numbers[slot] = number - 1
        sessions[slot] = session
        request_ids[slot] = request_id
        starts[slot] = now_ns
        deadlines[slot] = deadline_ns
        ends[slot] = 0
        limits[slot] = watched
        sums[slot] = number ^ session << 20 ^ request_id ^ now_ns  # entry_sum
        numbers[slot] = number
        return slot

    def watch(self, slot: int, watched: int) -> None:
        """Say anew how a running request is to be watched."""
        if slot != OFF_BOARD:
            self._watched[slot] = watched

    def answer(self, now_ns: int) -> None:
        """Say that the interpreter has answered `STACK_SIGNAL`."""
        self._words[ANSWERED] = now_ns

    def survey(self, now_ns: int, unfinished: int) -> None:
        """Say what the device has not finished. Any thread, but one at a time."""
        self._words[SURVEYED + 1] = unfinished
        self._words[SURVEYED] = now_ns

    def end(self, slot: int, now_ns: int, received_ns: int = 0, items: int = 1) -> None:
        """Note that the request in `slot` has ended; its entry stays readable until the slot is needed again.

        Args:
            slot: As `start` has returned it.
            now_ns: CLOCK_MONOTONIC.
            received_ns: When it arrived, for the histogram; 0 if it is not to count there.
            items: As `start` was told.
        """
        words = self._words
        words[_COMPLETED] = self._completed = self._completed + items
        if received_ns:
            latency_ns = now_ns - received_ns
            words[_LATENCY_NS] = self._latency_ns = self._latency_ns + latency_ns * items
            self._buckets[latency_ns.bit_length()] += items
        if slot != OFF_BOARD:
            self._ends[slot] = now_ns
            self._free.append(slot)

    def open_stream(self, session: int, request_id: int, started_ns: int, now_ns: int) -> int:
        """Give a stream a place, which has taken its first step; return it, for the further ones.

        There is one: of not more than `STREAM_SLOTS` streams.
        """
        slot = self._free_streams.popleft()
        before_ns, self._streams_since[slot] = self._streams_since[slot], started_ns
        if before_ns > self._forgotten:
            self._words[FORGOTTEN_AGAIN] = before_ns ^ _WORD
            self._words[FORGOTTEN] = self._forgotten = before_ns
        self.start_step(slot, session, request_id, started_ns, 0, 0)
        self.end_step(slot, now_ns)
        return slot

    def start_step(self, slot: int, session: int, request_id: int, now_ns: int, deadline_ns: int, watched: int) -> None:
        """Note that a stream takes a step."""
        words, at = self._words, FIRST_STREAM + SLOT_WORDS * slot
        words[STEPS] = self._steps = self._steps + 1
        number = 2 * self._steps
        words[at] = number - 1
        words[at + 1] = session
        words[at + 2] = request_id
        words[at + 3] = now_ns
        words[at + 4] = deadline_ns
        words[at + 5] = 0
        words[at + 6] = watched
        words[at + 7] = entry_sum(number, session, request_id, now_ns)
        words[at] = number

    def end_step(self, slot: int, now_ns: int) -> None:
        """Note that the step has ended."""
        self._words[STEPS_ENDED] = self._steps_ended = self._steps_ended + 1
        self._words[FIRST_STREAM + SLOT_WORDS * slot + 5] = now_ns

    def close_stream(self, slot: int) -> None:
        """Give a stream's place back; what it shows stays until it is needed."""
        self._free_streams.append(slot)

    def alone(self, session: int, request_id: int) -> None:
        """Note what runs alone, zeros if nothing does any more."""
        self._words[ALONE] = 0
        self._words[ALONE + 1] = request_id
        self._words[ALONE_SUM] = entry_sum(0, session, request_id, 0)
        self._words[ALONE] = session

    def signal(self, signals: int) -> None:
        """Note which signals the worker is about to send to itself, 0 if none. Any thread, but one at a time.

        Args:
            signals: Bit N - 1 stands for signal N.
        """
        self._words[_SIGNALLED_AGAIN] = complement(signals)
        self._words[_SIGNALLED] = signals

    def batch(self, method: int, items: int, wait_ns: int, longest_wait_ns: int) -> None:
        """Note that a batch has started.

        Args:
            method: Number of the batched method.
            items: How many are in it.
            wait_ns: How long they have waited in all.
            longest_wait_ns: How long the first of them has.
        """
        if method >= BATCHED:
            return
        words, at = self._words, FIRST_BATCHES + method * BATCH_WORDS
        words[at] += 1
        words[at + 1] += items
        words[at + 2] += wait_ns
        words[at + 3] = max(words[at + 3], longest_wait_ns)
        words[at + 4 + min((items - 1).bit_length(), _SIZES - 1)] += 1

    def graphs(self) -> MutableSequence[int]:
        """Return the words of `GraphCounts`, in their order."""
        return cast("MutableSequence[int]", self._words[FIRST_GRAPHS : FIRST_GRAPHS + GRAPH_WORDS])

    def plans(self, library: int) -> MutableSequence[int]:
        """Return the words of a library's `PlanCounts`, in their order; on no board if it is beyond those with any.

        They belong to whoever counts plans, on whatever thread.
        """
        if library >= PLANNED:
            return [0] * PLAN_WORDS
        at = FIRST_PLANS + library * PLAN_WORDS
        return cast("MutableSequence[int]", self._words[at : at + PLAN_WORDS])


class BoardReader:
    """Anybody else's side.

    Args:
        memory: The board; for all but the stacks a copy of its first `STACK_AT` bytes will do.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._words = memory.cast("Q")

    def release(self) -> None:
        """Let go of the memory; nothing can be read after it."""
        self._words.release()

    @property
    def words(self) -> memoryview:
        """The board as words, for `board_check`."""
        return self._words

    def read(self, counter: Counter | Gauge) -> int:
        """Return a counter, or how much there is of something."""
        return self._words[counter]

    def latencies(self) -> list[int]:
        """Return the histogram's counters; all of them, in order."""
        return list(self._words[FIRST_BUCKET : FIRST_BUCKET + BUCKETS])

    @property
    def queue_depth(self) -> int:
        """Requests that the worker has received and neither ended nor discarded."""
        words = self._words
        done = words[Counter.COMPLETED] + words[Counter.DISCARDED]
        return max(0, words[Counter.RECEIVED] - done)

    def entries(self) -> list[Entry]:
        """Return all readable entries, oldest start first; one that is being written just now is left out."""
        slots = range(FIRST_SLOT, FIRST_SLOT + SLOT_WORDS * SLOTS, SLOT_WORDS)
        found = [entry for at in slots if (entry := self._entry(at)) is not None]
        found.sort(key=lambda entry: entry.started_ns)
        return found

    def left(self) -> list[tuple[int, int, int, int]]:
        """Return (start, session, request id, end) of all entries, oldest first; nobody must write the board any more.

        Of a stream there is one of its first step, and one of its latest.

        Callers wait for it: an `Entry` of each of a thousand, looked at for whether it is just being written, takes
        four times as long.
        """
        found = self._left(FIRST_SLOT, SLOTS)
        if self._words[STEPS]:
            found += self._left(FIRST_STREAM, STREAM_SLOTS)
        return sorted(found)

    def _left(self, first: int, slots: int) -> list[tuple[int, int, int, int]]:
        words, end = self._words, first + SLOT_WORDS * slots
        columns = [words[first + at : end : SLOT_WORDS].tolist() for at in (3, 1, 2, 5)]
        numbers = words[first:end:SLOT_WORDS].tolist()
        is_whole = [number > 0 and not number & 1 for number in numbers]
        return list(compress(zip(*columns, strict=True), is_whole))

    def running(self) -> list[Entry]:
        """Return the requests that were started and have not ended, and streams in a step, oldest first."""
        return [entry for entry in (*self.entries(), *self._steps()) if entry.ended_ns == 0]

    def _steps(self) -> list[Entry]:
        """Return the latest step of each stream that has taken more than one, oldest first."""
        if not self._words[STEPS]:
            return []
        slots = range(FIRST_STREAM, FIRST_STREAM + SLOT_WORDS * STREAM_SLOTS, SLOT_WORDS)
        found = [entry for at in slots if (entry := self._entry(at)) is not None]
        found.sort(key=lambda entry: entry.started_ns)
        return found

    def look(self, before_ns: int = 2**64) -> tuple[list[Entry], dict[tuple[PlaceKind, int], int]]:
        """Return what runs, oldest first, and when a request has last ended in each place, as far as it is known.

        Args:
            before_ns: If nothing runs that was started before this time, nothing is returned.
        """
        words, end = self._words, FIRST_SLOT + SLOT_WORDS * SLOTS
        if words[_STARTED] == words[_COMPLETED] and words[STEPS] == words[STEPS_ENDED]:
            return [], {}
        steps = self._steps()
        # By whole columns: of a thousand slots hardly any run, and this is done every second.
        starts, ends, watched = (words[FIRST_SLOT + at : end : SLOT_WORDS].tolist() for at in (3, 5, 6))
        slots = [slot for slot, ended_ns in enumerate(ends) if not ended_ns and starts[slot]]
        if all(starts[slot] >= before_ns for slot in slots) and all(
            step.started_ns >= before_ns or step.ended_ns for step in steps
        ):
            return [], {}
        last: dict[int, int] = {}
        for step in steps:
            if step.ended_ns > last.get(step.watched & _PLACE, 0):
                last[step.watched & _PLACE] = step.ended_ns
        for ended_ns, word in zip(ends, watched, strict=True):
            if ended_ns > last.get(word & _PLACE, 0):
                last[word & _PLACE] = ended_ns
        entries = [self._entry(FIRST_SLOT + slot * SLOT_WORDS) for slot in slots]
        running = [entry for entry in (*entries, *steps) if entry is not None and not entry.ended_ns]
        running.sort(key=lambda entry: entry.started_ns)
        return running, {Watched.unpack(place).place: ended_ns for place, ended_ns in last.items()}

    @property
    def answered_ns(self) -> int:
        """When the interpreter has last answered `STACK_SIGNAL`."""
        return self._words[ANSWERED]

    @property
    def surveyed_ns(self) -> int:
        """When the worker has last asked its device because of `STACK_SIGNAL`; 0 if it never will."""
        return self._words[SURVEYED]

    @property
    def unfinished(self) -> int:
        """What the device had not finished then."""
        return self._words[SURVEYED + 1]

    def stack(self) -> str:
        """Return the text of the stacks, as far as it was written."""
        text = bytes(self._memory[STACK_AT:])
        return text[: text.find(0)].decode("utf-8", "replace") if 0 in text else text.decode("utf-8", "replace")

    def clear_stack(self) -> None:
        """Forget the text; the memory has to be writable."""
        self._memory[STACK_AT:] = bytes(STACK_BYTES)

    def alone(self) -> tuple[int, int] | None:
        """Return session and request id of what runs alone, None if nothing does."""
        session = self._words[ALONE]
        return (session, self._words[ALONE + 1]) if session else None

    @property
    def signalled(self) -> int:
        """The signals that the worker was sending to itself when it ended; bit N - 1 stands for signal N."""
        return self._words[_SIGNALLED] & complement(self._words[_SIGNALLED_AGAIN])

    def known_since_ns(self) -> int:
        """Return a time such that all requests started later are among `entries`, 0 if all that were ever started.

        While the worker runs, read the entries first: what is overwritten meanwhile only makes this time later. A
        worker that dies between its two words has written the later time to one of them.
        """
        return max(self._words[FORGOTTEN], complement(self._words[FORGOTTEN_AGAIN]))

    def _entry(self, at: int) -> Entry | None:
        words = self._words
        sequence = words[at]
        if sequence == 0 or sequence & 1:
            return None
        entry = Entry(*words[at + 1 : at + SLOT_WORDS - 1])
        return entry if words[at] == sequence else None

    def batches(self, method: int) -> Batches | None:
        """Return a batched method's figures, None if it is beyond those that have any."""
        if method >= BATCHED:
            return None
        at = FIRST_BATCHES + method * BATCH_WORDS
        batches, items, wait_ns, longest_wait_ns, *sizes = self._words[at : at + BATCH_WORDS]
        return Batches(batches, items, wait_ns, longest_wait_ns, sizes)

    def graphs(self) -> GraphCounts:
        """Return the figures of graphs."""
        return GraphCounts(*self._words[FIRST_GRAPHS : FIRST_GRAPHS + len(GraphCounts._fields)])

    def plans(self, library: int) -> PlanCounts | None:
        """Return a library's figures, None if it is beyond those that have any."""
        if library >= PLANNED:
            return None
        at = FIRST_PLANS + library * PLAN_WORDS
        return PlanCounts(*self._words[at : at + PLAN_WORDS])
