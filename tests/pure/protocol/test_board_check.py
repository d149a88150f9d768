from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atomr_mp.protocol.board import BOARD_BYTES, STACK_AT, BoardReader, BoardWriter, Counter, Gauge, check, page
from atomr_mp.protocol.board import reader as reading
from atomr_mp.protocol.board import writer as writing
from atomr_mp.protocol.messages import session
from atomr_mp.supervision.tally import DeviceTally
from atomr_mp.supervisor.processes.incarnation_end import IncarnationEnd
from atomr_mp.supervisor.processes.parting import Parting
from atomr_mp_workers.requests.work_count import WorkCount
from tests.stores import Stores

FEW: Final = 4
"""Slots of the boards here, so that they are soon used again."""

LATE_NS: Final = 10**6
"""Later than anything on these boards."""


@pytest.fixture(autouse=True, scope="module")
def few_slots() -> Iterator[None]:
    """Make the ring short."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (page, reading, writing):
            patch.setattr(module, "SLOTS", FEW)
        yield


class History:
    """What a worker did, written to a board by its writer.

    Args:
        memory: The board.
        steps: Each a kind of step, a choice and a number of items.
    """

    def __init__(self, memory: memoryview, steps: list[tuple[str, int, int]]) -> None:
        self.writer = BoardWriter(memory)
        self.started: dict[int, tuple[int, int]] = {}
        """Session and start of each request, by id."""
        self._running: list[tuple[int, int]] = []
        self._now_ns = 0
        self._work: dict[str, WorkCount] = {}
        self.go_on(steps)

    def go_on(self, steps: list[tuple[str, int, int]]) -> None:
        """Do more."""
        for kind, choice, items in steps:
            self._now_ns += 1
            self._step(kind, choice, items)

    def _step(self, kind: str, choice: int, items: int) -> None:
        now_ns = self._now_ns
        if kind == "start" or (kind == "end" and not self._running):
            self.writer.receive(items)
            slot = self.writer.start(1 + choice % 3, 100 + now_ns, now_ns, 2**60, choice, items)
            self.started[100 + now_ns] = 1 + choice % 3, now_ns
            self._running.append((slot, items))
        elif kind == "end":
            slot, items_ = self._running.pop(choice % len(self._running))
            self.writer.end(slot, now_ns, now_ns, items_)
        elif kind == "alone":
            self.writer.alone(choice % 2, 100 + now_ns)
        elif kind == "plan":
            plans = self.writer.plans(choice % page.PLANNED)
            plans[0] += 1
            plans[1 + items % 3] += 1
        elif kind == "work":
            name = f"library.method_{choice % 3}"
            if name not in self._work:
                self._work[name] = WorkCount(self.writer.work(name))
            self._work[name].add(choice, items, choice)
        elif kind == "batch":
            self.writer.batch(choice % page.BATCHED, [choice] * items, [1] * items)
        else:
            self.writer.count(Counter.DISCARDED)
            self.writer.show(Gauge.SLAB_BYTES, choice)
            self.writer.answer(now_ns)


STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "end", "end", "alone", "batch", "plan", "work", "count"]),
        st.integers(0, 2**40),
        st.integers(1, page.MAX_START_ITEMS),
    ),
    max_size=20,
)

DAMAGE: Final = st.lists(
    st.tuples(
        st.integers(0, STACK_AT - 1)
        | st.integers(0, 8 * 25)
        | st.integers(8 * page.FIRST_SLOT, 8 * (page.FIRST_SLOT + FEW * page.SLOT_WORDS) - 1),
        st.integers(1, 320) | st.sampled_from([8, 64, STACK_AT]),
        st.sampled_from([b"\xff", b"\0"]) | st.binary(min_size=8, max_size=24),
    ),
    min_size=1,
    max_size=3,
)
"""For each burst: its first byte, how many follow, and the written bytes."""


def told(memory: memoryview) -> dict[int, tuple[set[int], int, str]]:
    """Return what clients hear when a worker with this board has died, by session: as they decode it."""
    worker = SimpleNamespace(
        parting=Parting(),
        device=0,
        generation=1,
        end="was killed",
        drained=False,
        cgroup=None,
        cause=SimpleNamespace(signal=9, signal_name="SIGKILL", status=None),
    )
    ending = IncarnationEnd(cast("Any", worker), BoardReader(memory), suspecting=True, now_ns=LATE_NS)
    found = {}
    for number in (1, 2, 3):
        message = session.FROM_SUPERVISOR.decode(session.FROM_SUPERVISOR.encode(ending.told(number)))
        assert isinstance(message, session.IncarnationEnded)
        assert not ending.doubt or not (message.started or message.suspects or message.running)
        found[number] = (set(message.started), message.known_since_ns, ending.doubt)
    tally = DeviceTally()
    tally.add(None if ending.doubt else BoardReader(memory), "kill", lost=True)
    assert tally.figures().received < check._MOST
    return found


@given(STEPS)
def test_what_a_writer_has_written_is_believed(steps: list[tuple[str, int, int]]) -> None:
    """This holds after any history, also after the ring was used again."""
    memory = memoryview(bytearray(BOARD_BYTES))
    history = History(memory, steps)
    assert check.defect(memory.cast("Q"), LATE_NS) == ""
    for sessions in told(memory).values():
        assert sessions[0] <= set(history.started)


@given(STEPS, st.data())
def test_a_worker_may_die_between_any_two_words(steps: list[tuple[str, int, int]], drawn: st.DataObject) -> None:
    """Its board is believed, and no request whose start was noted by then is reported as unstarted."""
    stores = Stores.zeros(BOARD_BYTES // 8)
    page.prepare(cast("memoryview", stores))
    prepared = len(stores.stores)
    History(cast("memoryview", stores), steps)
    until = drawn.draw(st.integers(prepared, len(stores.stores)))
    memory = memoryview(bytearray(BOARD_BYTES))
    words = memory.cast("Q")
    noted: set[tuple[int, int, int]] = set()
    for at, value in stores.stores[:until]:
        words[at] = value
        inside = at - page.FIRST_SLOT
        if 0 <= inside < FEW * page.SLOT_WORDS and not inside % page.SLOT_WORDS and not value & 1:
            noted.add((words[at + 1], words[at + 2], words[at + 3]))
    assert check.defect(words, LATE_NS) == ""
    said = told(memory)
    for number, request_id, started_ns in noted:
        started, known_since_ns, _ = said[number]
        assert request_id in started or started_ns <= known_since_ns


@given(STEPS, DAMAGE, STEPS | st.just([]))
@example([("start", 1, 1)], [(8, STACK_AT, b"\0")], []).via("all but the first word of a worker that had begun")
@example([("start", 1, 1)] * 9, [(8 * page.FORGOTTEN, 8, b"\0")], []).via("nothing seems to be forgotten")
@example([("start", 1, 1), ("end", 0, 1)] * FEW, [(8 * page.FIRST_SLOT, 64 * FEW, b"\0")], [("start", 1, 1)] * FEW).via(
    "all that was damaged is written anew"
)
def test_no_damage_makes_a_started_request_look_unstarted(
    before: list[tuple[str, int, int]], damage: list[tuple[int, int, bytes]], then: list[tuple[str, int, int]]
) -> None:
    """Bursts of ones, of zeros and of anything, the worker may go on; clients can decode what they get."""
    memory = memoryview(bytearray(BOARD_BYTES))
    history = History(memory, before)
    words = memory.cast("Q")
    for at, length, what in damage:
        end = min(STACK_AT, at + length)
        memory[at:end] = (what * (end - at))[: end - at]
    with contextlib.suppress(ValueError):  # a counter of ones has no room for another: that ends the worker
        history.go_on(then)
    said = told(memory)
    writing = [
        words[at] == 2 * words[Counter.STARTED] - 1  # as the writer leaves it for a moment, before the request runs
        for at in range(page.FIRST_SLOT, page.FIRST_SLOT + FEW * page.SLOT_WORDS, page.SLOT_WORDS)
    ]
    unstarted = [
        request_id
        for request_id, (number, started_ns) in history.started.items()
        if request_id not in said[number][0] and started_ns > said[number][1]
    ]
    assert len(unstarted) <= sum(writing)


@pytest.mark.parametrize(
    "at",
    [
        0,
        page.FORGOTTEN,
        page.FORGOTTEN_AGAIN,
        page.ALONE,
        40,
        int(Counter.STARTED),
        int(Counter.COMPLETED),
        int(Gauge.LEASES),
        int(Gauge.SESSIONS),
        page.ANSWERED,
        page.FIRST_BUCKET + 3,
        page.FIRST_SLOT,
        page.FIRST_SLOT + 1,
        page.FIRST_SLOT + 2,
        page.FIRST_SLOT + 3,
        page.FIRST_SLOT + 5,
        page.FIRST_SLOT + 7,
        page.FIRST_SLOT + page.SLOT_WORDS * FEW - 8,
        page.FIRST_BATCHES,
        page.FIRST_BATCHES + 4,
        page.FIRST_WORK,
        page.FIRST_WORK + page.NAME_WORDS - 1,
        page.FIRST_WORK + page.NAME_WORDS,
        page.FIRST_WORK + page.WORK_WORDS + page.NAME_WORDS + 3,
    ],
)
def test_ones_over_any_word_are_found(at: int) -> None:
    """The stray write of a worker's own code, over each kind of word."""
    memory = memoryview(bytearray(BOARD_BYTES))
    History(memory, [("start", 1, 1)] * 6 + [("end", 0, 1), ("work", 1, 1)])
    words = memory.cast("Q")
    words[at] = 2**64 - 1
    assert check.defect(words, LATE_NS)


@pytest.mark.parametrize("slot", range(FEW))
@pytest.mark.parametrize("starts", [0, 1, FEW, 2 * FEW])
def test_an_entry_of_zeros_is_found(slot: int, starts: int) -> None:
    """Wherever it is in the ring, used or not: else a request that ran would look as if it had not."""
    memory = memoryview(bytearray(BOARD_BYTES))
    History(memory, [("start", 1, 1)] * starts)
    at = 8 * (page.FIRST_SLOT + slot * page.SLOT_WORDS)
    memory[at : at + 64] = bytes(64)
    assert "never whole" in check.defect(memory.cast("Q"), LATE_NS)


def test_a_living_board_is_read_again_before_it_is_judged() -> None:
    """A defect counts if it is there each time that somebody looks; and only a board that has changed is judged."""
    memory = memoryview(bytearray(BOARD_BYTES))
    words = memory.cast("Q")
    History(memory, [("start", 1, 1)])
    words[40] = 1
    looks = iter(range(check.LOOKS))

    def clock() -> int:
        if next(looks) == 1:
            words[40] = 0
        return LATE_NS

    copy, why = check.look(words, clock)
    assert (copy, why) == (memory[:STACK_AT].tobytes(), "")
    assert check.look(words, lambda: 0, copy) == (copy, "")
    words[page.FORGOTTEN] = 1
    assert check.look(words, lambda: LATE_NS, copy)[1]


@given(STEPS, st.data())
def test_a_worker_may_go_on_while_its_board_is_read(steps: list[tuple[str, int, int]], drawn: st.DataObject) -> None:
    """The counts, which are read last, may be any number of words newer than the rest."""
    stores = Stores.zeros(BOARD_BYTES // 8)
    page.prepare(cast("memoryview", stores))
    prepared = len(stores.stores)
    History(cast("memoryview", stores), steps)
    first, last = sorted(drawn.draw(st.integers(prepared, len(stores.stores))) for _ in range(2))
    words, later = (memoryview(bytearray(BOARD_BYTES)).cast("Q") for _ in range(2))
    for copy, until in ((words, first), (later, last)):
        for at, value in stores.stores[:until]:
            copy[at] = value
    assert check._defect(words, later, LATE_NS) == ""


@pytest.mark.parametrize("burst", [b"\xff" * 8, bytes(8), b"\xff" * 16, bytes(16)])
@pytest.mark.parametrize("word", [page.SIGNALLED, page.SIGNALLED_AGAIN])
def test_no_stray_write_makes_a_signal_that_the_worker_sends_to_itself(word: int, burst: bytes) -> None:
    """It would be evidence against what ran."""
    memory = memoryview(bytearray(BOARD_BYTES))
    history = History(memory, [("start", 1, 1)])
    memory[8 * word : 8 * word + len(burst)] = burst
    assert BoardReader(memory).signalled == 0
    history.writer.signal(0b1010)
    assert BoardReader(memory).signalled == 0b1010
    history.writer.signal(0)
    assert BoardReader(memory).signalled == 0


def test_what_was_answered_with_poison_stays_among_what_runs() -> None:
    """It may be why its worker ends: the board says so, and is believed."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer = BoardWriter(memory)
    for number in range(3):
        writer.start(1, number, 10 + number, 2**60)
    for _ in range(3):
        writer.end(page.OFF_BOARD, 20)
    assert check.defect(memory.cast("Q"), LATE_NS) == ""
