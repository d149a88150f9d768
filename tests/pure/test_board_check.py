from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol import board, board_check
from atomr_mp.protocol.board import BOARD_BYTES, OFF_BOARD, STACK_AT, BoardReader, BoardWriter, Counter, Gauge
from atomr_mp.protocol.messages import session
from atomr_mp.supervision.tally import Tally
from atomr_mp.supervisor.device.incarnation_end import IncarnationEnd

FEW: Final = 4
"""Slots of the boards here, so that they are soon used again."""

LATE_NS: Final = 10**6
"""Later than anything on these boards."""


@pytest.fixture(autouse=True, scope="module")
def few_slots() -> Iterator[None]:
    """Make the ring short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(board, "SLOTS", FEW)
        yield


class History:
    """What a worker did, written to a board by its writer.

    Args:
        memory: The board.
        steps: Each a kind of step, a choice and a number of items.
    """

    def __init__(self, memory: memoryview, steps: list[tuple[str, int, int]]) -> None:
        self.writer = BoardWriter(memory)
        self.started: dict[int, int] = {}
        """When each request was started, by id."""
        running: list[tuple[int, int]] = []
        for now_ns, (kind, choice, items) in enumerate(steps, start=1):
            if kind == "start" or (kind == "end" and not running):
                self.writer.receive(items)
                slot = self.writer.start(1 + choice % 3, 100 + now_ns, now_ns, 2**60, choice, items)
                self.started[100 + now_ns] = now_ns
                running.append((slot, items))
            elif kind == "end":
                slot, items_ = running.pop(choice % len(running))
                self.writer.end(slot, now_ns, now_ns, items_)
            elif kind == "alone":
                self.writer.alone(choice % 2, 100 + now_ns)
            elif kind == "batch":
                self.writer.batch(choice % board.BATCHED, items, choice, choice)
            else:
                self.writer.count(Counter.DISCARDED)
                self.writer.show(Gauge.SLAB_BYTES, choice)
                self.writer.answer(now_ns)


STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "end", "end", "alone", "batch", "count"]),
        st.integers(0, 2**40),
        st.integers(1, board.MAX_START_ITEMS),
    ),
    max_size=20,
)

DAMAGE: Final = st.tuples(
    st.integers(0, STACK_AT // 8 - 1) | st.integers(board.FIRST_SLOT, board.FIRST_SLOT + FEW * board.SLOT_WORDS - 1),
    st.integers(1, 40),
    st.sampled_from([b"\xff", b"\0"]) | st.binary(min_size=8, max_size=24),
)


def told(memory: memoryview) -> dict[int, tuple[set[int], int, str]]:
    """Return what clients are told when a worker with this board has died, by session: as they decode it."""
    worker = SimpleNamespace(
        fault=None,
        device=0,
        generation=1,
        end="was killed",
        late="",
        drained=False,
        wish="",
        hung_ns=0,
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
    tally = Tally()
    tally.add(None if ending.doubt else BoardReader(memory), "kill", lost=True)
    assert tally.figures().received < board_check._MOST
    return found


@given(STEPS)
def test_what_a_writer_has_written_is_believed(steps: list[tuple[str, int, int]]) -> None:
    """After any history, with its ring used again or not."""
    memory = memoryview(bytearray(BOARD_BYTES))
    history = History(memory, steps)
    assert board_check.defect(memory.cast("Q"), LATE_NS) == ""
    for sessions in told(memory).values():
        assert sessions[0] <= set(history.started)


class Stores:
    """Stands for the memory of a writer whose stores are noted."""

    def __init__(self) -> None:
        self.words = [0] * (BOARD_BYTES // 8)
        self.stores: list[tuple[int, int]] = []

    def cast(self, _format: str) -> Stores:
        """Be the words themselves."""
        return self

    def __getitem__(self, at: int) -> int:
        return self.words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.words[at] = value
        self.stores.append((at, value))


@given(STEPS, st.data())
def test_a_worker_may_die_between_any_two_words(steps: list[tuple[str, int, int]], drawn: st.DataObject) -> None:
    """No request whose start was noted by then is told as unstarted; hardly a death makes a board unbelievable."""
    stores = Stores()
    History(cast("memoryview", stores), steps)
    until = drawn.draw(st.integers(0, len(stores.stores)))
    memory = memoryview(bytearray(BOARD_BYTES))
    words = memory.cast("Q")
    noted: set[tuple[int, int, int]] = set()
    for at, value in stores.stores[:until]:
        words[at] = value
        inside = at - board.FIRST_SLOT
        if 0 <= inside < FEW * board.SLOT_WORDS and not inside % board.SLOT_WORDS and not value & 1:
            noted.add((words[at + 1], words[at + 2], words[at + 3]))
    if until:
        said = told(memory)
        for number, request_id, started_ns in noted:
            started, known_since_ns, _ = said[number]
            assert request_id in started or started_ns <= known_since_ns


@given(STEPS, DAMAGE)
def test_no_damage_makes_a_started_request_look_unstarted(
    steps: list[tuple[str, int, int]], damage: tuple[int, int, bytes]
) -> None:
    """Bursts of ones, of zeros and of anything; what the supervisor says of it decodes at the client."""
    memory = memoryview(bytearray(BOARD_BYTES))
    history = History(memory, steps)
    words = memory.cast("Q")
    entries = range(board.FIRST_SLOT, board.FIRST_SLOT + FEW * board.SLOT_WORDS, board.SLOT_WORDS)
    held = {at: (words[at + 1], words[at + 2]) for at in entries if words[at]}
    at, length, what = damage
    end = min(STACK_AT, 8 * (at + length))
    memory[8 * at : end] = (what * (end - 8 * at))[: end - 8 * at]
    said = told(memory)
    for slot, (number, request_id) in held.items():
        started, known_since_ns, _ = said[number]
        half_written = words[slot] == 2 * words[Counter.STARTED] - 1  # as the writer leaves it for a moment
        assert request_id in started or history.started[request_id] <= known_since_ns or half_written


@pytest.mark.parametrize(
    "at",
    [
        0,
        board.FORGOTTEN,
        board.FORGOTTEN_AGAIN,
        board.ALONE,
        40,
        int(Counter.STARTED),
        int(Counter.COMPLETED),
        int(Gauge.LEASES),
        board.ANSWERED,
        board.FIRST_BUCKET + 3,
        board.FIRST_SLOT,
        board.FIRST_SLOT + 1,
        board.FIRST_SLOT + 2,
        board.FIRST_SLOT + 3,
        board.FIRST_SLOT + 5,
        board.FIRST_SLOT + 7,
        board.FIRST_SLOT + board.SLOT_WORDS * FEW - 8,
        board.FIRST_BATCHES,
        board.FIRST_BATCHES + 4,
    ],
)
def test_ones_over_any_word_are_found(at: int) -> None:
    """The stray write of a worker's own code, over each kind of word."""
    memory = memoryview(bytearray(BOARD_BYTES))
    History(memory, [("start", 1, 1), ("start", 1, 1), ("end", 0, 1)])
    words = memory.cast("Q")
    words[at] = 2**64 - 1
    assert board_check.defect(words, LATE_NS)


@pytest.mark.parametrize("slot", range(3))
def test_an_entry_of_zeros_is_found(slot: int) -> None:
    """In the middle of the ring, and at its end: else a request that ran would look as if it had not."""
    memory = memoryview(bytearray(BOARD_BYTES))
    History(memory, [("start", 1, 1)] * 3)
    at = 8 * (board.FIRST_SLOT + slot * board.SLOT_WORDS)
    memory[at : at + 64] = bytes(64)
    assert "missing" in board_check.defect(memory.cast("Q"), LATE_NS) or "behind" in board_check.defect(
        memory.cast("Q"), LATE_NS
    )


def test_a_board_that_is_only_being_written_is_not_condemned() -> None:
    """A defect counts if it is there each time that somebody looks."""
    memory = memoryview(bytearray(BOARD_BYTES))
    words = memory.cast("Q")
    assert History(memory, [("start", 1, 1)]).started != {OFF_BOARD: 0}
    words[Counter.STARTED] += 1  # the entry follows
    looks = iter(range(3))

    def clock() -> int:
        if next(looks) == 1:
            words[Counter.STARTED] -= 1
        return LATE_NS

    assert board_check.lasting_defect(words, clock) == ""
    words[board.FORGOTTEN] = 1
    assert board_check.lasting_defect(words, lambda: LATE_NS)
