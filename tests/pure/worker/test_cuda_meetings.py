"""The host's side of meetings on GPUs, with a page that a test writes in the kernels' place."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.world import MemberReader, MemberWriter
from atomr_mp.protocol.world.collectives import Collective
from atomr_mp.protocol.world.memory import LINE_BYTES
from atomr_mp.protocol.world.page import MAX_RANKS
from atomr_mp.supervisor.plan import MOST_ON_GPU
from atomr_mp_workers.worlds.cuda import layout as places
from atomr_mp_workers.worlds.cuda.meeting import GLANCES, NOWHERE, CudaMeeting, CudaRehearsal
from atomr_mp_workers.worlds.cuda.watch import IDLE_LOOKS, Onlooker
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.exchange.ref_collectives import CollectiveMethod, RefCollectives
from atomr_mp_workers.worlds.exchange.signatures import Agreement
from atomr_mp_workers.worlds.exchange.world import OwnWorld
from tests.support import settled

EPOCH: Final = 3
CALL: Final = 7


class Rank:
    """Rank 0 of two, in an epoch; the kernels' part is the test's."""

    def __init__(self) -> None:
        self.page = memoryview(bytearray(4096)).cast("Q")
        self.begun: list[tuple[int, int, int]] = []
        self.left: list[int] = []
        self.waits: list[bool] = []
        self.over: errors.CollectiveAborted | None = None
        lines = [memoryview(bytearray(LINE_BYTES)).cast("Q") for _ in range(2)]
        self.own, self.peer = (MemberWriter(each, EPOCH) for each in lines)
        self.lines = MemberReader(lines[0], EPOCH)
        exchange = SimpleNamespace(
            rank=0,
            size=2,
            page=self.page,
            begin=lambda *given: self.begun.append(given),
            synchronize=lambda: None,
        )
        readers = [MemberReader(each, EPOCH) for each in lines]
        place = EpochPlace("tp", 0, EPOCH, self.own, readers, (), (), lambda: self.over, self.left.append)
        self.meeting = CudaMeeting(place, cast("Any", exchange), lambda _: None)

    def begin(self, call: int = CALL) -> None:
        """Begin a gang call."""
        self.own.begin(call)
        self.meeting.begin(call, self.waits.append)

    def tell(self, code: int, rank: int = 1, sequence: int = 5, theirs: tuple[int, ...] = (0, 0, 0)) -> None:
        """Write what kernels have found."""
        self.page[places.RANK], self.page[places.SEQUENCE] = rank, sequence
        for at, word in enumerate(theirs):
            self.page[places.THEIRS + at] = word
        for at, word in enumerate(words_of(Agreement(Collective.ALL_REDUCE, 4, "float32", operator="sum"), CALL)):
            self.page[places.OWN + at] = word
        self.page[places.CODE] = code

    def wait(self, number: int, *, glances: bool = True) -> None:
        """Have a collective wait, 0 for none, and its kernel look for headers, unless the GPU does other work."""
        first, second, _ = words_of(Agreement(Collective.BARRIER), 0)
        self.page[places.WAITS_IN], self.page[places.WAITS_IN + 1] = first, second
        self.page[places.WAITING] = number
        self.page[places.GLANCED] += glances
        self.meeting.look()


class Looked:
    """Counts looks."""

    def __init__(self) -> None:
        self.is_idle = False
        self.looks = 0

    def look(self) -> None:
        """Count one."""
        self.looks += 1


def words_of(agreement: Agreement, call: int) -> tuple[int, int, int]:
    """Return what kernels tell of a signature."""
    found = agreement.signature(0, 0)
    operator = found.operator & 7 | found.operator >> 8 << 3
    first = found.elements | found.dtype << 48 | operator << 56
    return first, found.kind | (found.root & 0xFF) << 8 | (call & 0xFFFFFFFF) << 32, call >> 32


@pytest.fixture
def rank() -> Rank:
    """A rank amid a gang call."""
    made = Rank()
    made.begin()
    return made


@pytest.mark.parametrize(
    ("agreement", "text"),
    [
        (Agreement(Collective.ALL_REDUCE, 5, "float32", operator="sum"), "rank 1 of 5 float32"),
        (Agreement(Collective.ALL_REDUCE, 4, "float32", operator="avg", factor=True), "all_reduce(avg, with a factor)"),
        (Agreement(Collective.BROADCAST, 4, "float32", root=1), "broadcast(root=1) of 4 float32"),
        (Agreement(Collective.REFUSED), "and rank 1 does not: its part was refused, or has failed"),
    ],
)
def test_a_mismatch_is_raised_by_all_that_follows_in_the_call(rank: Rank, agreement: Agreement, text: str) -> None:
    """With both sides in words; the next call goes on behind that collective."""
    rank.meeting.check()
    rank.tell(places.MISMATCH, theirs=words_of(agreement, CALL))
    for again in (rank.meeting.check, rank.meeting.settle):
        with pytest.raises(errors.WorldMismatch) as raised:
            again()
        assert text in str(raised.value)
        assert "rank 0 calls all_reduce(sum) of 4 float32" in str(raised.value)
    assert isinstance(rank.meeting.settled(), errors.WorldMismatch)
    rank.meeting.end()
    rank.begin(CALL + 1)
    assert [each[:2] for each in rank.begun] == [(CALL, 0), (CALL + 1, 5)]
    rank.meeting.check()
    assert rank.meeting.settled() is None
    assert not rank.left


def test_gpus_with_different_numbers_of_blocks_are_told_apart(rank: Rank) -> None:
    """Their ranks call the same."""
    first, second, third = words_of(Agreement(Collective.ALL_REDUCE, 4, "float32", operator="sum"), CALL)
    rank.tell(places.MISMATCH, theirs=(first, second | 20 << places.BLOCKS_SHIFT, third))
    with pytest.raises(errors.WorldMismatch, match="the GPUs of rank 0 and rank 1 differ") as raised:
        rank.meeting.settle()
    assert "rank 0 calls all_reduce(sum) of 4 float32, but" in str(raised.value)


@pytest.mark.parametrize(("theirs", "diverged"), [(CALL + 1, 1), (CALL - 1, 0), (2**40, 1)])
def test_ranks_in_two_gang_calls_end_the_epoch(rank: Rank, theirs: int, diverged: int) -> None:
    """The rank whose call is the later one has ended the other without the collective."""
    rank.tell(places.MISMATCH, theirs=words_of(Agreement(Collective.BARRIER), theirs))
    error = rank.meeting.settled()
    assert isinstance(error, errors.CollectiveAborted)
    assert (error.rank, error.diverged, rank.left) == (diverged, True, [diverged])
    rank.meeting.end()
    rank.begin(CALL + 2)
    with pytest.raises(errors.CollectiveAborted, match="in an earlier call rank") as later:
        rank.meeting.check()
    assert not later.value.diverged, "that call may run again"


def test_pairs_that_do_not_go_together(rank: Rank) -> None:
    """The error names both ranks."""
    rank.tell(places.PAIRS, theirs=(0 | (1 | NOWHERE << 16) << 32, 1 | (NOWHERE | NOWHERE << 16) << 32, 0))
    with pytest.raises(errors.WorldMismatch, match="rank 0 sends to rank 1, which receives nothing"):
        rank.meeting.settle()
    rank.meeting.end()
    rank.begin()
    rank.tell(places.PAIRS, theirs=(0 | (NOWHERE | 1 << 16) << 32, 1 | (NOWHERE | NOWHERE << 16) << 32, 0))
    with pytest.raises(errors.WorldMismatch, match="rank 0 receives from rank 1, which sends nothing"):
        rank.meeting.settle()


@pytest.mark.parametrize("code", [places.LATE, places.WORN])
def test_what_only_this_rank_finds_ends_the_epoch(rank: Rank, code: int) -> None:
    """The others have not come in time, or the numbers are used up."""
    rank.tell(code)
    assert isinstance(rank.meeting.settled(), errors.CollectiveAborted)
    assert rank.left == [0]


def test_the_end_of_the_epoch_is_what_a_stopped_kernel_tells(rank: Rank) -> None:
    """By the cause that is known."""
    rank.over = errors.CollectiveAborted("it is over", world="tp", epoch=EPOCH, rank=1, cause="gone")
    rank.tell(places.STOPPED)
    assert rank.meeting.settled() is rank.over
    with pytest.raises(errors.CollectiveAborted, match="it is over"):
        rank.meeting.check()


def test_a_rank_that_waits_is_shown_and_one_that_will_not_come_found(rank: Rank) -> None:
    """Only once the kernel has looked twice behind its end: what it has sent before has come by then."""
    rank.wait(9)
    assert rank.waits == [True]
    assert rank.lines.met() == 9
    assert rank.lines.signature(9).kind == Collective.BARRIER
    rank.peer.begin(CALL)
    rank.peer.end(CALL)
    rank.meeting.look()
    assert not rank.left
    rank.wait(0)  # it has come
    assert (rank.waits, rank.lines.met()) == ([True, False], 0)
    for _ in range(3):
        assert not rank.left
        rank.wait(10)
    assert rank.left == [1]
    rank.tell(places.STOPPED)
    error = rank.meeting.settled()
    assert isinstance(error, errors.CollectiveAborted)
    assert (error.rank, error.diverged) == (1, True)
    rank.meeting.end()
    assert rank.waits == [True, False, True, False]
    rank.meeting.look()
    assert rank.lines.met() == 0


@given(st.lists(st.tuples(st.integers(9, 10), st.booleans()), max_size=40))
def test_a_kernel_that_does_not_run_finds_nobody_missing(looks: list[tuple[int, bool]]) -> None:
    """However long its GPU does other processes' work; two more glances of one collective's kernel are needed."""
    rank = Rank()
    rank.begin()
    rank.peer.begin(CALL)
    rank.peer.end(CALL)
    latest, more = 0, 0
    for number, glances in looks:
        rank.wait(number, glances=glances)
        latest, more = number, more + glances if number == latest else 0
        assert rank.left == [1] * (more >= GLANCES)
        if rank.left:
            return


def test_a_rank_that_has_left_an_epoch_that_is_over_is_not_its_cause(rank: Rank) -> None:
    """It has ended its call for the same reason."""
    rank.over = errors.CollectiveAborted("it is over", world="tp", epoch=EPOCH, rank=1, cause="gone")
    rank.peer.begin(CALL)
    rank.peer.end(CALL)
    for _ in range(3):
        rank.wait(9)
    rank.tell(places.STOPPED)
    assert rank.meeting.settled() is rank.over
    assert not rank.left


def test_a_damaged_peer_is_found_while_it_is_awaited(rank: Rank) -> None:
    """It cannot have ended what it has not begun."""
    rank.peer.end(CALL)
    rank.wait(9)
    assert rank.left == [1]


def test_collectives_belong_to_the_call_s_thread(rank: Rank) -> None:
    """And to a call."""
    found: list[BaseException] = []

    def call() -> None:
        try:
            rank.meeting.check()
        except errors.InvalidRequest as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "another thread" in str(found[0])
    rank.meeting.end()
    with pytest.raises(errors.InvalidRequest, match="outside of a call of the world"):
        rank.meeting.check()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=24, max_size=24))
def test_any_page_is_an_error_or_none(words: list[int]) -> None:
    """Code of the process may have written over it."""
    made = Rank()
    made.begin()
    for at, word in enumerate(words):
        made.page[at] = word
    error = made.meeting.settled()
    assert (error is None) == (words[places.CODE] == 0)
    made.meeting.look()
    made.meeting.end()


def test_memory_that_cannot_be_ends_the_epoch(rank: Rank) -> None:
    """It is another process's."""
    for _ in range(2):
        with pytest.raises(errors.CollectiveAborted, match="the memory of rank 1 is damaged: a length"):
            rank.meeting.distrust(1, "a length")
    assert rank.left == [1]
    with pytest.raises(errors.InternalError, match="a length"):
        CudaRehearsal("tp", cast("Any", rank.meeting.exchange)).distrust(1, "a length")


def test_outputs_of_ranks_that_differ_are_whole() -> None:
    """That is found before anything is written."""
    view = OwnWorld("tp", 0, 2)
    method = CollectiveMethod("made-0.collective", 1, 0, RefCollectives(view, cast("Any", None)))
    mismatch = errors.WorldMismatch("they differ", world="tp", rank=0, other=1)
    assert method.undefined_after((), mismatch) == ()
    assert method.undefined_after((), errors.InvalidRequest("refused")) == ()
    assert method.undefined_after((), errors.CollectiveAborted("over", world="tp", epoch=1, rank=1, cause="")) is None


def test_kernels_wait_longer_than_a_call_may() -> None:
    """So the watchdog is first, and they end by themselves if nothing else ends them."""
    made = Rank()
    for limit_ns in (0, 5_000_000_000):
        made.meeting.begin(CALL, made.waits.append, limit_ns)
    (_, _, unlimited), (_, _, limited) = made.begun
    assert 2 * limited < unlimited
    assert limited > 5_000_000_000


def test_an_onlooker_looks_while_a_call_runs() -> None:
    """And for a while after it; then it waits for the next one."""
    looked, onlooker = Looked(), Onlooker()
    for _ in range(2):
        looked.is_idle, looked.looks = False, 0
        onlooker.look_on(looked)
        assert settled(lambda: looked.looks > 3)
        looked.is_idle, looked.looks = True, 0
        assert settled(lambda: not onlooker.busy)
        assert looked.looks >= IDLE_LOOKS - 1


def test_an_onlooker_goes_on_behind_a_page_that_was_given_back(rank: Rank) -> None:
    """It looks at the others."""
    looked, onlooker = Looked(), Onlooker()
    rank.page.release()
    onlooker.look_on(rank.meeting)
    onlooker.look_on(looked)
    assert settled(lambda: looked.looks > 3)
    looked.is_idle = True
    assert settled(lambda: not onlooker.busy)


def test_layouts_have_room_for_what_kernels_use() -> None:
    """Without overlaps, for any number of ranks."""
    for ranks in range(1, MAX_RANKS + 1):
        found = places.layout_of(ranks)
        slots = ranks * places.PROCESSES
        assert found.flags - found.headers >= slots * places.PARITIES * places.HEADER_BYTES
        assert found.flag_stride >= 8 * slots
        assert found.taken - found.flags >= places.BLOCKS * found.flag_stride
        assert found.lines - found.taken >= places.BLOCKS * found.flag_stride
        assert found.halves - found.lines >= slots * places.PARITIES * found.line_count * places.LINE_BYTES
        assert not (found.lines | found.halves) % 4096
        assert places.slot_of(ranks - 1, 2**31 - 1) < slots
    assert [places.most_blocks(each) for each in (132, 108, 40, 1)] == [64, 54, 20, 1]
    assert places.WORLDS == MOST_ON_GPU
    assert len(places.pack_table(1, 0, [0, 4], [0, 0])) == places.TABLE_BYTES == 8 * (5 + 3 + MAX_RANKS) + 4 * MAX_RANKS


@given(st.integers(0, 2**40), st.integers(1, MAX_RANKS))
def test_rows_that_do_not_flow_fit_into_a_half(width: int, rows: int) -> None:
    """Each begins at a whole group of 16 bytes; chunks of those that flow have room for some."""
    flows, blocks = places.way_of(width, rows)
    assert 1 <= blocks <= places.BLOCKS
    if flows:
        assert places.HALF_BYTES // 4 // rows // 16 > 0
    else:
        assert -(-width // 16) * 16 * rows <= places.HALF_BYTES
