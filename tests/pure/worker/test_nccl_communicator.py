"""One communicator of NCCL's, over a library that stands for it: its table, its gate, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atomr_mp_workers.worlds.nccl import communicator as communicators
from atomr_mp_workers.worlds.nccl.communicator import Communicator, GateShutError
from atomr_mp_workers.worlds.nccl.communicator_states import (
    TRANSITIONS,
    CommAction,
    CommEvent,
    CommState,
    UnexpectedCommEventError,
    comm_step,
)
from atomr_mp_workers.worlds.nccl.library import BYTES, ID_BYTES, NcclStatus, failed
from tests.fakes.fake_cupy import Stream
from tests.fakes.fake_nccl import FakeNccl
from tests.support import DEADLINE_S, settled

IDENTITY: Final = bytes(range(ID_BYTES))

ENDS: Final = (CommEvent.CLOSE, CommEvent.FAILED)


class Model:
    """What must hold of a communicator, whatever comes: an abort thread's events come once each, in their order."""

    def __init__(self) -> None:
        self.is_formed = self.was_ended = self.is_overdue = False
        self.came: list[CommEvent] = []
        """What the abort's thread has said."""

    def may_come(self, event: CommEvent) -> bool:
        """Return whether the parts of the process can feed this now."""
        match event:
            case CommEvent.FORMED:
                return not self.is_formed
            case CommEvent.CLEAR:
                return self.was_ended and not self.came
            case CommEvent.RETURNED:
                return self.came == [CommEvent.CLEAR]
            case CommEvent.OVERDUE:
                return self.was_ended and not self.is_overdue
        return True

    def take(self, event: CommEvent) -> None:
        """Take in what has come."""
        self.is_formed = self.is_formed or event is CommEvent.FORMED
        self.was_ended = self.was_ended or event in ENDS
        self.is_overdue = self.is_overdue or event is CommEvent.OVERDUE
        if event in {CommEvent.CLEAR, CommEvent.RETURNED}:
            self.came.append(event)

    @property
    def is_open(self) -> bool:
        """Whether the gate has to be open."""
        return self.is_formed and not self.was_ended


@given(some.lists(some.sampled_from(list(CommEvent)), max_size=30))
def test_any_walk_through_the_table_keeps_the_gate_and_aborts_once(events: list[CommEvent]) -> None:
    """The gate is open from the forming to the first end, and a late abort asks for a process once."""
    state, model, actions = CommState.FORMING, Model(), list[CommAction]()
    for event in events:
        if not model.may_come(event):
            continue
        move = comm_step(state, event)
        state = move.state
        actions += move.actions
        model.take(event)
        assert (state is CommState.READY) == model.is_open
        assert actions.count(CommAction.ABORT) == model.was_ended
        late = CommEvent.RETURNED not in model.came
        assert actions.count(CommAction.REPLACE) <= model.is_overdue
        if state is CommState.GONE:
            assert not late
            assert CommAction.REPLACE not in actions
    assert (state is CommState.LATE) == (CommAction.REPLACE in actions)


def test_every_state_is_left_or_is_the_last() -> None:
    """What has no meaning is an error."""
    assert {before for before, _ in TRANSITIONS} == set(CommState)
    with pytest.raises(UnexpectedCommEventError, match="clear has no meaning while a communicator is ready"):
        comm_step(CommState.READY, CommEvent.CLEAR)


class Rig:
    """A communicator of one rank."""

    def __init__(self, nccl: FakeNccl) -> None:
        self.nccl: Final = nccl
        self.replaced: Final[list[str]] = []
        self.stream: Final = Stream()
        self.comm: Final = Communicator(nccl, 1, 0, bool, self.replaced.append)

    def form(self, first_use: Callable[[Communicator], object] = bool) -> bool:
        """Form it."""
        return self.comm.form(IDENTITY, first_use)

    def use(self) -> int:
        """Put a call on the stream."""
        return self.comm.call("all_gather", 0, 0, 0, self.stream.ptr)

    def is_gone(self) -> bool:
        """Wait until it is gone, and return whether it is."""
        return self.comm.wait_gone(DEADLINE_S) and settled(lambda: self.comm.state is CommState.GONE)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Yield a communicator of one rank."""
    made = Rig(FakeNccl(tmp_path))
    yield made
    made.comm.close()
    made.stream.close()


def test_it_takes_calls_from_its_forming_to_its_end(rig: Rig) -> None:
    """No call reaches the library once its abort has begun."""
    used: list[int] = []
    assert rig.form(lambda _comm: used.append(rig.use()))
    assert used == [0]
    assert rig.use() == 0
    rig.comm.close()
    rig.comm.close()
    with pytest.raises(GateShutError):
        rig.use()
    assert rig.is_gone()
    assert (rig.nccl.aborts, rig.nccl.poisoned, len(rig.nccl.enqueued)) == (1, False, 2)


def test_a_forming_that_never_ends_is_ended_by_its_close(rig: Rig) -> None:
    """A peer that has died while it forms is never reported."""
    rig.nccl.hangs_in_init = True
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(rig.form()))
    thread.start()
    assert settled(lambda: bool(rig.nccl._comms))
    rig.comm.close()
    thread.join(DEADLINE_S)
    assert found == [False]
    assert rig.is_gone()
    assert not rig.comm.failure


def test_one_that_is_closed_before_it_is_formed_never_is(rig: Rig) -> None:
    """Nothing is left to abort."""
    rig.comm.close()
    assert not rig.form()
    assert rig.is_gone()
    assert rig.nccl.aborts == 0


def test_a_forming_that_fails_says_why(rig: Rig) -> None:
    """In words of NCCL."""
    rig.nccl.init_status = NcclStatus.NCCL_SYSTEM_ERROR
    assert not rig.form()
    assert "NCCL could not form a communicator: NCCL_SYSTEM_ERROR" in rig.comm.failure
    assert rig.is_gone()
    assert failed(99, "try").status == 99


def test_an_abort_does_not_wait_for_a_call_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is inside the library ends by the abort, and no other comes in."""
    monkeypatch.setattr(communicators, "INSIDE_S", 0.05)
    assert rig.form()
    rig.nccl.blocks_in_calls = True
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(rig.use()))
    thread.start()
    assert settled(rig.comm._gate.locked)
    rig.comm.close()
    assert rig.comm.is_shut
    thread.join(DEADLINE_S)
    assert found == [0]
    assert rig.is_gone()
    assert not rig.nccl.poisoned


def test_an_abort_that_does_not_return_has_the_process_replaced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks once, and nothing waits for the abort."""
    monkeypatch.setattr(communicators, "ABORT_S", 0.05)
    assert rig.form()
    rig.nccl.hangs_in_abort = True
    rig.comm.close()
    assert rig.comm.wait_gone(DEADLINE_S)
    assert settled(lambda: rig.replaced == ["an abort of NCCL has not returned within 0.05 s"])
    assert rig.comm.state is CommState.LATE
    rig.nccl.hangs_in_abort = False
    rig.comm.close()
    assert len(rig.replaced) == 1


def test_a_call_that_fails_shuts_the_gate(rig: Rig) -> None:
    """For the others wait for it on their devices."""
    assert rig.form()
    rig.comm.fail("it could not")
    assert rig.is_gone()
    assert rig.comm.failure == "it could not"


def test_all_calls_race_with_the_end(rig: Rig) -> None:
    """Threads that use it while it is closed never reach the library after the abort."""
    assert rig.form()
    ends: list[Any] = []

    def use() -> None:
        try:
            while True:
                rig.use()
        except GateShutError as error:
            ends.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    assert settled(lambda: len(rig.nccl.enqueued) > 50)
    rig.comm.close()
    for each in threads:
        each.join(DEADLINE_S)
    assert len(ends) == 4
    assert rig.is_gone()
    assert not rig.nccl.poisoned
    assert BYTES == 0
