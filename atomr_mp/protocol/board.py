"""The board: a page of shared memory in which a worker shows what it is doing. Pure over a memoryview.

The worker writes, the supervisor reads, without a lock and without asking: also when the worker hangs in C code or
has just died. Words are aligned 64-bit integers; an entry of the ring is guarded by its sequence number (odd while it
is being written). Layout, in words: magic, counters and gauges (`Counter`, `Gauge`), among them in word 6 the latest
start that is no longer among the entries; from word 64 the histogram of latencies; from word 128 `SLOTS` entries of
(sequence, session number, request id, start, deadline, end), times in CLOCK_MONOTONIC nanoseconds, end 0 while the
request runs. Words that are not named are 0. Behind them are `BATCHED` blocks of figures of batches, one for each
batched method (`Batches`); their words change one by one, so a reader may see a batch in part.

The histogram has 64 counters; that of number N counts the requests whose answer was ready in less than 2^N ns, and not
in less than half of it, after they had arrived.

The ring keeps completed entries until they are overwritten, so that after a death one can tell what had been started
from what had not.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final, NamedTuple

SLOTS: Final = 1024
MAGIC: Final = 0x61746F6D726D7032


class Counter(IntEnum):
    """Counters, by their word."""

    RECEIVED = 1
    STARTED = 2
    COMPLETED = 3
    REFUSED = 4
    DISCARDED = 5
    """Dropped before they ran: cancelled, expired, refused while they waited, or of an ended session."""
    FAILED = 7
    """Of those completed: answered with an error."""
    CANCELLED = 8
    """Of those discarded."""
    EXPIRED = 9
    """Of those discarded: the deadline had passed."""
    REJECTED = 10
    """Answered with an error without being received: no such method, or of another incarnation."""
    LATENCY_NS = 11
    """Sum of all that the histogram counts."""


class Gauge(IntEnum):
    """What rises and falls, by its word."""

    SLAB_BYTES = 12
    LEASES = 13


# Plain integers: an enumeration's member is looked up and converted at each use.
_STARTED: Final = int(Counter.STARTED)
_COMPLETED: Final = int(Counter.COMPLETED)
_LATENCY_NS: Final = int(Counter.LATENCY_NS)

OFF_BOARD: Final = -1
"""Stands for a slot where a request found all of them running: it is counted, but is not among the entries."""

_FORGOTTEN: Final = 6
"""Word of the latest start that was overwritten, or never written."""
BUCKETS: Final = 64
_FIRST_BUCKET: Final = 64
_FIRST_SLOT: Final = _FIRST_BUCKET + BUCKETS
_SLOT_WORDS: Final = 6
BATCHED: Final = 32
"""Batched methods that have figures on the board: the first so many, in the order of actors and methods."""

_FIRST_BATCHES: Final = _FIRST_SLOT + _SLOT_WORDS * SLOTS
_SIZES: Final = 11
_BATCH_WORDS: Final = 4 + _SIZES
BOARD_BYTES: Final = 8 * (_FIRST_BATCHES + _BATCH_WORDS * BATCHED)


class Entry(NamedTuple):
    """A request that was started."""

    session: int
    request_id: int
    started_ns: int
    deadline_ns: int
    ended_ns: int
    """0 while it runs."""


class Batches(NamedTuple):
    """What a batched method has done so far."""

    batches: int
    items: int
    wait_ns: int
    """From the arrival of each item to the start of its batch, in all."""
    longest_wait_ns: int
    sizes: list[int]
    """How many batches had 1, 2, 3-4, 5-8, ... 513-1024 items."""


class BoardWriter:
    """The worker's side. One thread only.

    Args:
        memory: `BOARD_BYTES` writable bytes, zero at first.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")
        self._words[0] = MAGIC
        self._free = deque(range(SLOTS))
        """Slots that are not running, those never used first, then the earliest ended."""

    def count(self, counter: Counter, by: int = 1) -> None:
        """Add to a counter."""
        self._words[counter] += by

    def show(self, gauge: Gauge, value: int) -> None:
        """Show how much there is of something."""
        self._words[gauge] = value

    def start(self, session: int, request_id: int, now_ns: int, deadline_ns: int) -> int:
        """Note that a request starts; return its slot, for `end`."""
        words = self._words
        words[_STARTED] += 1
        if not self._free:
            words[_FORGOTTEN] = max(words[_FORGOTTEN], now_ns)
            return OFF_BOARD
        slot = self._free.popleft()
        at = _FIRST_SLOT + slot * _SLOT_WORDS
        # Before the entry goes. Requests end in another order than they start, so this is not the oldest start.
        if words[at + 3] > words[_FORGOTTEN]:  # noqa: PLR1730 - max() would cost the half of a request's entry
            words[_FORGOTTEN] = words[at + 3]
        sequence = words[at]
        words[at] = sequence + 1
        words[at + 1] = session
        words[at + 2] = request_id
        words[at + 3] = now_ns
        words[at + 4] = deadline_ns
        words[at + 5] = 0
        words[at] = sequence + 2
        return slot

    def end(self, slot: int, now_ns: int, received_ns: int = 0) -> None:
        """Note that the request in `slot` has ended; its entry stays readable until the slot is needed again.

        Args:
            slot: As `start` has returned it.
            now_ns: CLOCK_MONOTONIC.
            received_ns: When it arrived, for the histogram; 0 if it is not to count there.
        """
        words = self._words
        words[_COMPLETED] += 1
        if received_ns:
            latency_ns = now_ns - received_ns
            words[_LATENCY_NS] += latency_ns
            words[_FIRST_BUCKET + latency_ns.bit_length()] += 1
        if slot == OFF_BOARD:
            return
        words[_FIRST_SLOT + slot * _SLOT_WORDS + 5] = now_ns
        self._free.append(slot)

    def batch(self, method: int, waits_ns: list[int]) -> None:
        """Note that a batch has started.

        Args:
            method: Number of the batched method.
            waits_ns: How long its items have waited.
        """
        if method >= BATCHED:
            return
        words, at = self._words, _FIRST_BATCHES + method * _BATCH_WORDS
        words[at] += 1
        words[at + 1] += len(waits_ns)
        words[at + 2] += sum(waits_ns)
        words[at + 3] = max(words[at + 3], *waits_ns)
        words[at + 4 + min((len(waits_ns) - 1).bit_length(), _SIZES - 1)] += 1


class BoardReader:
    """Anybody else's side."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")

    def release(self) -> None:
        """Let go of the memory; nothing can be read after it."""
        self._words.release()

    def read(self, counter: Counter | Gauge) -> int:
        """Return a counter, or how much there is of something."""
        return self._words[counter]

    def latencies(self) -> list[int]:
        """Return the histogram's counters; all of them, in order."""
        return list(self._words[_FIRST_BUCKET : _FIRST_BUCKET + BUCKETS])

    @property
    def queue_depth(self) -> int:
        """Requests that the worker has received and neither ended nor discarded."""
        words = self._words
        done = words[Counter.COMPLETED] + words[Counter.DISCARDED]
        return max(0, words[Counter.RECEIVED] - done)

    def entries(self) -> list[Entry]:
        """Return all readable entries, oldest start first; one that is being written just now is left out."""
        found = []
        words = self._words
        for at in range(_FIRST_SLOT, _FIRST_SLOT + _SLOT_WORDS * SLOTS, _SLOT_WORDS):
            sequence = words[at]
            if sequence == 0 or sequence & 1:
                continue
            entry = Entry(*words[at + 1 : at + _SLOT_WORDS])
            if words[at] == sequence:
                found.append(entry)
        found.sort(key=lambda entry: entry.started_ns)
        return found

    def running(self) -> list[Entry]:
        """Return the requests that were started and have not ended, oldest first."""
        return [entry for entry in self.entries() if entry.ended_ns == 0]

    def known_since_ns(self) -> int:
        """Return a time such that all requests started later are among `entries`, 0 if all that were ever started.

        While the worker runs, read the entries first: what is overwritten meanwhile only makes this time later.
        """
        return self._words[_FORGOTTEN]

    def batches(self, method: int) -> Batches | None:
        """Return a batched method's figures, None if it is beyond those that have any."""
        if method >= BATCHED:
            return None
        at = _FIRST_BATCHES + method * _BATCH_WORDS
        batches, items, wait_ns, longest_wait_ns, *sizes = self._words[at : at + _BATCH_WORDS]
        return Batches(batches, items, wait_ns, longest_wait_ns, sizes)
