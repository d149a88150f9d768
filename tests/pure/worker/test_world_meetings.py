"""What ends the waits of a world's ranks: mismatches, ends without meeting, the stop word, deaths, damaged memory."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.world import page
from atomr_mp.protocol.world.memory import MAILBOX_AT, SLOT_BYTES
from atomr_mp_workers.worlds.exchange.signatures import Agreement
from atomr_mp_workers.worlds.exchange.world import OwnWorld
from tests.ranks import EPOCH, Method, Rank, Ranks, forked, joined
from tests.support import DEADLINE_S

F: Final = np.float32
LARGE: Final = np.ones(3 * SLOT_BYTES // 4, F)
"""Takes several steps: three chunks, for three ranks."""

MISMATCHES: Final[dict[str, tuple[Method, Method, str]]] = {
    "counts": (
        lambda world: world.all_reduce(np.ones(16, F)),
        lambda world: world.all_reduce(np.ones(17, F)),
        "rank 0 calls all_reduce(sum) of 16 float32, rank 1 of 17 float32",
    ),
    "large and small": (
        lambda world: world.all_reduce(LARGE),
        lambda world: world.all_reduce(LARGE[:5]),
        "of 786432 float32, rank 1 of 5 float32",
    ),
    "types": (
        lambda world: world.all_gather(np.ones(16, F)),
        lambda world: world.all_gather(np.ones(16)),
        "rank 0 calls all_gather of 16 float32, rank 1 of 16 float64",
    ),
    "operators": (
        lambda world: world.all_reduce([1.0]),
        lambda world: world.all_reduce([1.0], "max"),
        "rank 0 calls all_reduce(sum) of 1 float64, rank 1 all_reduce(max) of 1 float64",
    ),
    "factors": (
        lambda world: world.reduce_scatter(np.ones(3)),
        lambda world: world.reduce_scatter(np.ones(3), factor=2),
        "rank 0 calls reduce_scatter(sum) of 3 float64, rank 1 reduce_scatter(sum, with a factor) of 3 float64",
    ),
    "roots": (
        lambda world: world.broadcast([1]),
        lambda world: world.broadcast([1], 2),
        "rank 0 calls broadcast(root=0) of 1 int64, rank 1 broadcast(root=2) of 1 int64",
    ),
    "kinds": (
        lambda world: world.barrier(),
        lambda world: world.all_to_all(np.ones(3)),
        "rank 0 calls barrier, rank 1 all_to_all of 3 float64",
    ),
    "rows": (
        lambda world: world.all_to_all_v([np.ones((1, 2))] * 3),
        lambda world: world.all_to_all_v([np.ones((1, 3))] * 3),
        "rank 0 calls all_to_all_v of float64, 2 elements a row, rank 1 of float64, 3 elements a row",
    ),
    "pairs": (
        lambda world: world.sendrecv([1], None, None),
        lambda world: world.sendrecv([1], 2, None),
        "rank 1 sends to rank 2, which receives nothing",
    ),
    "pairs that receive": (
        lambda world: world.sendrecv([1], 0, 0),
        lambda world: world.sendrecv([1], None, 2),
        "rank 1 receives from rank 2, which sends to rank 0",
    ),
}
"""What rank 0 and 2 call, what rank 1 calls, and words of the error."""

COLLECTIVES: Final[dict[str, Method]] = {
    "barrier": lambda world: world.barrier(),
    "all_reduce": lambda world: world.all_reduce(LARGE),
    "small all_reduce": lambda world: world.all_reduce(LARGE[:9]),
    "reduce": lambda world: world.reduce(LARGE),
    "reduce_scatter": lambda world: world.reduce_scatter(LARGE),
    "all_gather": lambda world: world.all_gather(LARGE),
    "broadcast": lambda world: world.broadcast(LARGE),
    "all_to_all": lambda world: world.all_to_all(LARGE),
    "all_to_all_v": lambda world: world.all_to_all_v([LARGE] * 3),
    "sendrecv": lambda world: world.sendrecv(LARGE, (world.rank + 1) % 3, (world.rank - 1) % 3),
}


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Three ranks of an epoch of their own."""
    with joined(3) as made:
        yield made


def aborted(error: Any, rank: int, cause: str) -> None:
    """Assert that an error says where the end of an epoch came from."""
    assert isinstance(error, errors.CollectiveAborted)
    assert (error.world, error.epoch, error.rank, error.maybe_executed) == ("tp", EPOCH, rank, True)
    assert cause in error.cause


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_is_raised_by_all_and_the_world_works_after_it(ranks: Ranks, name: str) -> None:
    """All ranks say both sides within a second; the next collective of the same call is right."""
    most, odd, words = MISMATCHES[name]

    def method(world: OwnWorld) -> tuple[str, int, Any]:
        started = time.monotonic()
        with pytest.raises(errors.WorldMismatch) as raised:
            (odd if world.rank == 1 else most)(world)
        assert time.monotonic() - started < 1
        assert (raised.value.world, raised.value.rank) == ("tp", world.rank)
        return str(raised.value), raised.value.other, world.all_reduce(LARGE)

    for rank, (text, other, total) in enumerate(ranks.call(method)):
        assert words in text or rank == 2
        assert other != rank
        assert (total == 3).all()
    assert [each.left for each in ranks.all] == [[], [], []]


def test_a_rank_that_goes_on_from_the_middle_of_a_collective_is_a_mismatch(ranks: Ranks) -> None:
    """Steps are compared as well: what remains of a large collective does not meet the next one."""

    def method(world: OwnWorld) -> Any:
        if world.rank == 1:
            agreement = Agreement.signature

            def failing(self: Agreement, step: int, sequence: int) -> Any:
                if step == 1 and threading.get_ident() == own:
                    raise MemoryError
                return agreement(self, step, sequence)

            own = threading.get_ident()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Agreement, "signature", failing)
                with pytest.raises(MemoryError):
                    world.all_reduce(LARGE)
        with pytest.raises(errors.WorldMismatch, match=r"is at step \d of it, rank \d at step \d"):
            world.all_reduce(LARGE)
        return world.all_reduce([1])[0]

    assert ranks.call(method) == [3, 3, 3]


def test_who_ends_without_meeting_aborts_those_that_wait(ranks: Ranks) -> None:
    """The ranks that wait leave at once, and report who left them; later collectives of the epoch are refused."""

    def leaves(_: OwnWorld) -> str:
        assert all(ranks.all[other].waits.wait(DEADLINE_S) for other in (0, 2))
        return "left"

    first, left, third = ranks.call(lambda world: world.barrier(), leaves, COLLECTIVES["all_reduce"])
    assert left == "left"
    for error, own in ((first, ranks.all[0]), (third, ranks.all[2])):
        aborted(error, 1, "ended the call without it")
        assert error.diverged
        assert own.left == [1]
    again = ranks.start(0, lambda world: world.barrier())()
    aborted(again, 1, "ended the call without it")
    assert not again.diverged, "the ranks have not diverged in that call, which may run again"


def test_who_was_waited_for_is_told_with_the_method_and_the_collective(ranks: Ranks) -> None:
    """Of a rank that has left, and of ranks that call different things."""
    for each in ranks.all:
        each.named = "Mlp.forward"
    error, _, other = ranks.call(lambda world: world.all_reduce(np.ones(3)), lambda _: "left", lambda _: "left")
    assert other == "left"
    what, cause = error.message.split(" was aborted in Mlp.forward of world 'tp': ")
    assert what == "all_reduce(sum) of 3 float64"
    assert re.fullmatch(r"rank [12] has ended the call without it", cause)


def test_ranks_that_differ_are_told_with_the_method(ranks: Ranks) -> None:
    """And with both sides; a rank whose part was refused has called nothing, so nothing is said to differ."""
    for each in ranks.all:
        each.named = "Mlp.forward"
    *_, error = ranks.call(*[lambda world: world.barrier()] * 2, lambda world: world.all_reduce(np.ones(3)))
    sides = "rank 0 calls barrier, rank 2 all_reduce(sum) of 3 float64"
    assert error.message == f"in Mlp.forward of world 'tp' {sides}"
    *_, error = ranks.call(*[lambda world: world.refuse()] * 2, lambda world: world.barrier())
    refused = "rank 2 calls barrier, and rank 0 does not: its part was refused, or has failed"
    assert error.message == f"in Mlp.forward of world 'tp' {refused}"
    *_, error = ranks.call(*[lambda world: world.meet_for_program(1)] * 2, lambda world: world.meet_for_program(2))
    assert "rank 0 and rank 2 run different programs; all ranks record the same steps" in error.message


def test_an_argument_of_the_method_is_no_output() -> None:
    """It lies in memory that all ranks read; the error says what to do."""
    given = np.ones(3)
    given.flags.writeable = False
    with pytest.raises(errors.InvalidRequest, match=r"`out` is read-only.* arguments: give a copy, or leave `out` out"):
        OwnWorld("tp", 0, 1).all_reduce(given, out=given)


def test_who_has_ended_already_is_not_waited_for(ranks: Ranks) -> None:
    """A collective that begins after a peer's end of the call is aborted at once."""
    assert ranks.start(1, lambda _: "left")() == "left"
    for rank in (0, 2):
        aborted(ranks.start(rank, lambda world: world.barrier())(), 1, "ended the call without it")


def test_collectives_of_two_calls_never_meet(ranks: Ranks) -> None:
    """A rank that has left the others waiting and meets in the next call aborts, as they do."""
    waiting = [ranks.start(rank, lambda world: world.all_reduce([1])) for rank in (0, 2)]
    assert all(ranks.all[rank].waits.wait(DEADLINE_S) for rank in (0, 2))
    own = ranks.all[1]
    own.writer.begin(1)
    own.writer.begin(2)
    own.writer.end(1)
    own._sequence = 1
    aborted(ranks.start(1, lambda world: world.all_reduce([1]))(), 1, "ended the call before without it")
    for outcome in waiting:
        aborted(outcome(), 1, "ended the call without it")


class Halt:
    """Holds one rank before it meets a step.

    Args:
        own: The rank.
        step: How many it meets before.
    """

    def __init__(self, own: Rank, step: int) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        self._meet, self._left = own.meeting.meet, step
        own.meeting.meet = self.meet  # type: ignore[method-assign]

    def meet(self, agreement: Agreement, step: int) -> None:
        """Meet, or wait to be released first."""
        if not self._left:
            self.reached.set()
            assert self.released.wait(DEADLINE_S)
        self._left -= 1
        self._meet(agreement, step)


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_stop_word_ends_every_wait(ranks: Ranks, name: str, step: int) -> None:
    """Whichever step ranks wait in, all leave once the epoch is over; with the error that says why it is."""
    method, halt = COLLECTIVES[name], Halt(ranks.all[1], step)
    outcomes = [ranks.start(rank, method) for rank in range(3)]

    def watch() -> None:
        outcomes[1]()
        ended.set()
        halt.reached.set()

    ended, watched = threading.Event(), threading.Thread(target=watch)
    watched.start()
    assert halt.reached.wait(DEADLINE_S)
    if not ended.is_set():
        ranks.stop()
        for outcome in (outcomes[0], outcomes[2]):
            aborted(outcome(), 0, "killed by SIGKILL")
        halt.released.set()
        error = outcomes[1]()
        if step:
            aborted(error, 0, "killed by SIGKILL")
    watched.join(DEADLINE_S)
    assert [each.left for each in ranks.all] == [[], [], []]


def test_nothing_begins_in_an_epoch_that_is_over(ranks: Ranks) -> None:
    """A collective that begins after the stop word is refused at once."""
    ranks.stop()
    for method in COLLECTIVES.values():
        for error in ranks.call(method):
            aborted(error, 0, "killed by SIGKILL")


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_killed_or_stopped_leaves_nobody_waiting(how: signal.Signals) -> None:
    """The others are out once the supervisor has stored the stop word, wherever the signal struck."""

    def method(world: OwnWorld, send: Callable[[Any], None]) -> None:
        send("runs")
        while True:
            for collective in COLLECTIVES.values():
                collective(world)

    with forked(3, method) as (ranks, processes):
        for _, pipe in processes:
            assert pipe.poll(DEADLINE_S)
            assert pipe.recv() == "runs"
        victim = processes[2][0]
        os.kill(victim.pid, how)
        if how == signal.SIGKILL:
            victim.join(DEADLINE_S)
            assert victim.exitcode == -signal.SIGKILL
        ranks.stop()
        for _, pipe in processes[:2]:
            assert pipe.poll(DEADLINE_S)
            aborted(pipe.recv(), 0, "killed by SIGKILL")
        if how == signal.SIGSTOP:
            os.kill(victim.pid, signal.SIGKILL)


DAMAGE: Final[dict[str, tuple[int, int]]] = {
    "met more often than can be": (page.MET, 2**63),
    "met more often than it can have": (page.MET, 9),
    "a signature": (page.FIRST_SIGNATURE + page.SIGNATURE_WORDS + 1, 5),
    "what has begun": (page.BEGUN, 2**62),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_lines_abort_and_are_reported(ranks: Ranks, name: str) -> None:
    """What no rank can have written is not believed, whoever wrote it."""
    at, value = DAMAGE[name]
    own = ranks.all[1]
    if name == "a signature":
        halt = Halt(ranks.all[0], 0)
        outcome = ranks.start(0, lambda world: world.barrier())
        others = [ranks.start(rank, lambda world: world.barrier()) for rank in (1, 2)]
        assert halt.reached.wait(DEADLINE_S)
        assert all(ranks.all[rank].waits.wait(DEADLINE_S) for rank in (1, 2))
        own.lines[at] = value
        halt.released.set()
        aborted(outcome(), 1, "damaged")
        ranks.stop()
        for each in others:
            each()
    else:
        own.lines[at] = value
        aborted(ranks.start(0, lambda world: world.barrier())(), 1, "damaged")
    assert ranks.all[0].left == [1]


@pytest.mark.parametrize("value", [2**63, 5])
def test_counts_that_cannot_be_are_not_believed(ranks: Ranks, value: int) -> None:
    """A count of another process is no size before its sum and its bounds are right."""
    halt = Halt(ranks.all[0], 0)
    outcomes = [ranks.start(rank, COLLECTIVES["all_to_all_v"]) for rank in range(3)]
    assert halt.reached.wait(DEADLINE_S)
    assert all(ranks.all[rank].waits.wait(DEADLINE_S) for rank in (1, 2))
    words = memoryview(ranks.maps[2]).cast("Q")
    words[(MAILBOX_AT + 3 * SLOT_BYTES) // 8] = value  # the numbers of the first step
    halt.released.set()
    for outcome in outcomes[:2]:
        aborted(outcome(), 2, "numbers beside its data")
    ranks.stop()
    outcomes[2]()
    assert ranks.all[0].left == ranks.all[1].left == [2]


@pytest.mark.parametrize("count", [5, LARGE.size])
def test_before_it_serves_a_process_rehearses(count: int) -> None:
    """In setup this rank's data stands for that of all, for small and large arrays, without a wait."""
    world = OwnWorld("tp", 1, 3)
    x = np.arange(3 * count, dtype=np.int64).reshape(3, count)
    assert world.epoch == 0
    assert (world.all_reduce(x) == 3 * x).all()
    assert world.reduce(x) is None
    assert (world.reduce(x, 1) == 3 * x).all()
    assert (world.reduce_scatter(x) == 3 * x[1:2]).all()
    assert (world.all_gather(x) == x[np.newaxis]).all()
    assert (world.broadcast(x) == x).all()
    assert (world.all_to_all(x) == x[1]).all()
    received = world.all_to_all_v([x, x[:2], x])
    assert all((each == x[:2]).all() for each in received)
    assert (world.sendrecv(x, 2, 0) == x).all()
    assert (world.sendrecv(x, None, 0) == x).all()
    world.barrier()
    world.serve()
    with pytest.raises(errors.InvalidRequest, match=r"outside of a call of the world.*pool.world\('tp'\)"):
        world.barrier()


def test_who_joins_before_it_serves_rehearses_until_then(ranks: Ranks) -> None:
    """An epoch may form around a process whose examples still run."""
    world, meeting = OwnWorld("tp", 0, 3), ranks.all[0].meeting
    world.enter(meeting)
    assert world.epoch == EPOCH
    assert world.all_reduce([1]) == 3
    world.serve()
    with pytest.raises(errors.InvalidRequest, match="outside of a call of the world"):
        world.all_reduce([1])
    assert meeting.number == 0


def test_outside_of_a_gang_call_nobody_waits(ranks: Ranks) -> None:
    """Collectives belong to a gang call and to its thread; after it, in it by another thread, and after it was left."""
    own = ranks.all[0]
    with pytest.raises(errors.InvalidRequest, match="outside of a call of the world"):
        own.world.barrier()

    def method(_: OwnWorld) -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            call = elsewhere.submit(own.world.barrier)
            with pytest.raises(errors.InvalidRequest, match="another thread"):
                call.result(DEADLINE_S)

    assert ranks.start(0, method)() is None
    own.world.leave()
    assert own.world.epoch == EPOCH
    with pytest.raises(errors.InvalidRequest, match="outside of a call of the world"):
        own.world.barrier()


def test_a_world_without_numpy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is named."""
    monkeypatch.setitem(sys.modules, "atomr_mp_workers.worlds.exchange.collectives", None)
    with pytest.raises(errors.Unsupported, match="need NumPy"):
        OwnWorld("tp", 0, 1).barrier()


def test_what_is_left_of_an_epoch_is_given_back(ranks: Ranks) -> None:
    """Once a world was left it refers to no mailbox."""
    own = ranks.all[0]
    ranks.call(COLLECTIVES["all_reduce"])
    made = own.world._made
    assert made is not None
    own.world.leave()
    assert sys.getrefcount(made) == 2
    assert own.world._meeting is None
