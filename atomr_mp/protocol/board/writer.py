"""The worker's side of its board. Pure over a memoryview."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Collection, Iterable, MutableSequence, Sequence
from typing import Final, cast

from atomr_mp.protocol.board.page import (
    ALL_ONES,
    ALONE,
    ALONE_SUM,
    ANSWERED,
    BATCH_SIZES,
    BATCH_WAITS,
    BATCH_WORDS,
    BATCHED,
    BUCKETS,
    FIRST_BATCHES,
    FIRST_BUCKET,
    FIRST_GRAPHS,
    FIRST_LOOP,
    FIRST_PLANS,
    FIRST_SLOT,
    FIRST_STREAM,
    FIRST_WAIT,
    FIRST_WORK,
    FORGOTTEN,
    FORGOTTEN_AGAIN,
    GRAPH_WORDS,
    LOOPS,
    NAME_WORDS,
    OFF_BOARD,
    PLAN_WORDS,
    PLANNED,
    SIGNALLED,
    SIGNALLED_AGAIN,
    SLOT_WORDS,
    SLOTS,
    STEPS,
    STEPS_ENDED,
    STREAM_SLOTS,
    SURVEYED,
    WORK_WORDS,
    WORKED,
    Counter,
    Gauge,
    WorkCounts,
    complement,
    entry_sum,
    name_words,
    prepare,
)

_WAITS: Final = [4 + BATCH_SIZES + min(max(bits - FIRST_WAIT, 0), BATCH_WAITS - 1) for bits in range(65)]
"""Where a wait is counted, by its bits in nanoseconds."""

# Plain integers: an enumeration's member is looked up and converted at each use.
_RECEIVED: Final = int(Counter.RECEIVED)
_STARTED: Final = int(Counter.STARTED)
_COMPLETED: Final = int(Counter.COMPLETED)
_LATENCY_NS: Final = int(Counter.LATENCY_NS)


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
        entries = self._words[FIRST_STREAM : FIRST_STREAM + STREAM_SLOTS * SLOT_WORDS]
        self._stream_columns = tuple(entries[column::SLOT_WORDS] for column in range(SLOT_WORDS))
        """The same of streams."""
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
        self._worked = 0
        """Methods of libraries that have figures."""

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
        """Record that a request starts, or so many that were sent as one; return its slot, for `end`."""
        words = self._words
        words[_STARTED] = self._started = started = self._started + items
        if not self._free:
            words[FORGOTTEN_AGAIN] = now_ns ^ ALL_ONES
            words[FORGOTTEN] = self._forgotten = now_ns
            return OFF_BOARD
        slot = self._free.popleft()
        # Before the entry goes. Requests end in another order than they start, so this is not the oldest start.
        latest = self._latest
        before_ns, latest[slot] = latest[slot], now_ns
        if before_ns > self._forgotten:
            words[FORGOTTEN_AGAIN] = before_ns ^ ALL_ONES
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
        """Update how a running request is watched."""
        if slot != OFF_BOARD:
            self._watched[slot] = watched

    def answer(self, now_ns: int) -> None:
        """Say that the interpreter has answered `STACK_SIGNAL`."""
        self._words[ANSWERED] = now_ns

    def survey(self, now_ns: int, unfinished: int) -> None:
        """Record the device's unfinished work. Any thread, but one at a time."""
        self._words[SURVEYED + 1] = unfinished
        self._words[SURVEYED] = now_ns

    def end(self, slot: int, now_ns: int, received_ns: int = 0, items: int = 1) -> None:
        """Record that the request in `slot` has ended; its entry stays readable until the slot is needed again.

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
        """Give a place to a stream that has taken its first step; return it, for the further ones.

        At most `STREAM_SLOTS` streams may be open, so there is a free place.
        """
        slot = self._free_streams.popleft()
        before_ns, self._streams_since[slot] = self._streams_since[slot], started_ns
        if before_ns > self._forgotten:
            self._words[FORGOTTEN_AGAIN] = before_ns ^ ALL_ONES
            self._words[FORGOTTEN] = self._forgotten = before_ns
        numbers, sessions, request_ids = self._stream_columns[:3]
        self._words[STEPS] = self._steps + 1
        numbers[slot] = 2 * self._steps + 1  # it is being written: its session and id stay, through all its steps
        sessions[slot], request_ids[slot] = session, request_id
        self.start_step(slot, session, request_id, started_ns, 0, 0)
        self.end_step(slot, now_ns)
        return slot

    def start_step(self, slot: int, session: int, request_id: int, now_ns: int, deadline_ns: int, watched: int) -> None:
        """Record that a stream takes a step; its session and id are those with which it was opened."""
        self.start_steps(((slot, session, request_id, deadline_ns, watched),), now_ns)

    def start_steps(self, steps: Iterable[tuple[int, int, int, int, int]], now_ns: int) -> None:
        """Record that streams take a step.

        Args:
            steps: Place, session, id, deadline, and how it is watched, for each.
            now_ns: CLOCK_MONOTONIC.
        """
        words = self._words
        numbers, _, _, starts, deadlines, ends, limits, sums = self._stream_columns
        for (
            slot,
            session,
            request_id,
            deadline_ns,
            watched,
        ) in steps:  # the order is that of `start`; a call would cost more
            words[STEPS] = self._steps = count = self._steps + 1
            number = 2 * count
            numbers[slot] = number - 1
            starts[slot] = now_ns
            deadlines[slot] = deadline_ns
            ends[slot] = 0
            limits[slot] = watched
            sums[slot] = number ^ session << 20 ^ request_id ^ now_ns  # entry_sum
            numbers[slot] = number

    def watch_step(self, slot: int, watched: int) -> None:
        """Record anew how a stream's running step is watched."""
        self._stream_columns[6][slot] = watched

    def end_step(self, slot: int, now_ns: int) -> None:
        """Record that the step has ended."""
        self.end_steps((slot,), now_ns)

    def end_steps(self, slots: Collection[int], now_ns: int) -> None:
        """Record that the steps of these streams have ended."""
        self._words[STEPS_ENDED] = self._steps_ended = self._steps_ended + len(slots)
        ends = self._stream_columns[5]
        for slot in slots:
            ends[slot] = now_ns

    def close_stream(self, slot: int) -> None:
        """Give a stream's place back; its entry stays until the place is needed."""
        self._free_streams.append(slot)

    def alone(self, session: int, request_id: int) -> None:
        """Record the request that runs alone, zeros if there is none."""
        self._words[ALONE] = 0
        self._words[ALONE + 1] = request_id
        self._words[ALONE_SUM] = entry_sum(0, session, request_id, 0)
        self._words[ALONE] = session

    def signal(self, signals: int) -> None:
        """Note which signals the worker is about to send to itself, 0 if none. Any thread, but one at a time.

        Args:
            signals: Bit N - 1 stands for signal N.
        """
        self._words[SIGNALLED_AGAIN] = complement(signals)
        self._words[SIGNALLED] = signals

    def batch(self, method: int, waits_ns: Sequence[int], counts: Sequence[int]) -> None:
        """Record that a batch has started.

        Args:
            method: Number of the batched method.
            waits_ns: How long each of its requests has waited.
            counts: How many items each of them has.
        """
        if method >= BATCHED:
            return
        words, at = self._words, FIRST_BATCHES + method * BATCH_WORDS
        if len(waits_ns) == 1:  # as most are at little load
            items, longest_ns = counts[0], waits_ns[0]
            total_ns = longest_ns * items
        else:
            items, longest_ns = sum(counts), max(waits_ns)
            total_ns = sum(map(operator.mul, waits_ns, counts))
        words[at] += 1
        words[at + 1] += items
        words[at + 2] += total_ns
        words[at + 3] = max(words[at + 3], longest_ns)
        words[at + 4 + min((items - 1).bit_length(), BATCH_SIZES - 1)] += 1
        for number, wait_ns in enumerate(waits_ns):
            words[at + _WAITS[wait_ns.bit_length()]] += counts[number]

    def loops(self) -> MutableSequence[int]:
        """Return the words of event loops. Each belongs to the thread of its loop."""
        return cast("MutableSequence[int]", self._words[FIRST_LOOP : FIRST_LOOP + LOOPS])

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

    @property
    def worked(self) -> int:
        """How many methods of libraries have figures: the number of the last of them."""
        return self._worked

    def work(self, method: str) -> MutableSequence[int]:
        """Write the name of a library's method, once; return the words of its `WorkCounts`, in their order.

        They are on no board if there is no room for the method, or for its name. Who writes them sets `requests` last.
        """
        name = name_words(method)
        if name is None or self._worked == WORKED:
            return [0] * len(WorkCounts._fields)
        at = FIRST_WORK + self._worked * WORK_WORDS
        self._worked += 1
        for place, word in enumerate(name, at):
            self._words[place] = word
        return cast("MutableSequence[int]", self._words[at + NAME_WORDS : at + WORK_WORDS])
