"""The readers' side of a board: without a lock, even of a worker that hangs or is dead. Pure over a memoryview."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

from atomr_mp.protocol.board.page import (
    ALONE,
    ANSWERED,
    BATCH_SIZES,
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
    FIRST_WORK,
    FORGOTTEN,
    FORGOTTEN_AGAIN,
    LOOPS,
    NAME_WORDS,
    PLACE_BITS,
    PLAN_WORDS,
    PLANNED,
    SIGNALLED,
    SIGNALLED_AGAIN,
    SLOT_WORDS,
    SLOTS,
    STACK_AT,
    STACK_BYTES,
    STEPS,
    STEPS_ENDED,
    STREAM_SLOTS,
    SURVEYED,
    WORK_WORDS,
    WORKED,
    Batches,
    Counter,
    Entry,
    Gauge,
    GraphCounts,
    PlaceKind,
    PlanCounts,
    Watched,
    WorkCounts,
    complement,
    name_in,
)

# Plain integers: an enumeration's member is looked up and converted at each use.
_STARTED: Final = int(Counter.STARTED)
_COMPLETED: Final = int(Counter.COMPLETED)


class BoardReader:
    """The readers' side.

    Args:
        memory: The board; a copy of its first `STACK_AT` bytes is enough for all but the stacks.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._words = memory.cast("Q")

    def release(self) -> None:
        """Release the memory; nothing can be read afterwards."""
        self._words.release()

    @property
    def words(self) -> memoryview:
        """The board as words, for `board_check`."""
        return self._words

    def read(self, counter: Counter | Gauge) -> int:
        """Return a counter or a gauge."""
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
        """Return (start, session, request id, end) of all entries, oldest first; the board must have no writer.

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
        """Return the running requests, oldest first, and when a request has last ended in each place, as far as known.

        For an event loop, the time is that of its last turn.

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
            if step.ended_ns > last.get(step.watched & PLACE_BITS, 0):
                last[step.watched & PLACE_BITS] = step.ended_ns
        for ended_ns, word in zip(ends, watched, strict=True):
            if ended_ns > last.get(word & PLACE_BITS, 0):
                last[word & PLACE_BITS] = ended_ns
        entries = [self._entry(FIRST_SLOT + slot * SLOT_WORDS) for slot in slots]
        running = [entry for entry in (*entries, *steps) if entry is not None and not entry.ended_ns]
        running.sort(key=lambda entry: entry.started_ns)
        progress = {Watched.unpack(place).place: ended_ns for place, ended_ns in last.items()}
        for number, turned_ns in enumerate(words[FIRST_LOOP : FIRST_LOOP + LOOPS].tolist()):
            if turned_ns:
                progress[PlaceKind.EVENT_LOOP, number] = turned_ns
        return running, progress

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
        """The device's unfinished work at that time, as bits."""
        return self._words[SURVEYED + 1]

    def stack(self) -> str:
        """Return the text of the stacks, as far as it was written."""
        text = bytes(self._memory[STACK_AT:])
        return text[: text.find(0)].decode("utf-8", "replace") if 0 in text else text.decode("utf-8", "replace")

    def clear_stack(self) -> None:
        """Forget the text; the memory has to be writable."""
        self._memory[STACK_AT:] = bytes(STACK_BYTES)  # no word: text

    def alone(self) -> tuple[int, int] | None:
        """Return session and request id of the request that runs alone, None if none does."""
        session = self._words[ALONE]
        return (session, self._words[ALONE + 1]) if session else None

    @property
    def signalled(self) -> int:
        """The signals that the worker was sending to itself when it ended; bit N - 1 stands for signal N."""
        return self._words[SIGNALLED] & complement(self._words[SIGNALLED_AGAIN])

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
        batches, items, wait_ns, longest_wait_ns, *counts = self._words[at : at + BATCH_WORDS]
        return Batches(batches, items, wait_ns, longest_wait_ns, counts[:BATCH_SIZES], counts[BATCH_SIZES:])

    def graphs(self) -> GraphCounts:
        """Return the figures of graphs."""
        return GraphCounts(*self._words[FIRST_GRAPHS : FIRST_GRAPHS + len(GraphCounts._fields)])

    def plans(self, library: int) -> PlanCounts | None:
        """Return a library's figures, None if it is beyond those that have any."""
        if library >= PLANNED:
            return None
        at = FIRST_PLANS + library * PLAN_WORDS
        return PlanCounts(*self._words[at : at + PLAN_WORDS])

    def method_of(self, entry: Entry, actors: Sequence[str]) -> str:
        """Return the name of a request's method, "" if that is not known.

        Args:
            entry: The request.
            actors: The names of the methods of the worker's actors, in their order.
        """
        number = Watched.unpack(entry.watched).method
        if number > WORKED:
            return actors[number - WORKED - 1] if number - WORKED <= len(actors) else ""
        at = FIRST_WORK + (number - 1) * WORK_WORDS
        return name_in(self._words[at : at + NAME_WORDS].tolist()) if number else ""

    def work(self) -> dict[str, WorkCounts]:
        """Return the figures of libraries' methods by name, of those that have any."""
        found = {}
        for at in range(FIRST_WORK, FIRST_WORK + WORK_WORDS * WORKED, WORK_WORDS):
            words = self._words[at : at + WORK_WORDS].tolist()
            counts = WorkCounts(*words[NAME_WORDS:])
            if counts.requests and (name := name_in(words[:NAME_WORDS])):
                found[name] = counts
        return found
