"""The keeper of a world, with real files, and with processes and clients that write down each message to them."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.process.files.events import Scalar
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.control import WorldFileKind
from atomr_mp.protocol.messages.devices import DeviceState, WorldInfo, WorldState
from atomr_mp.protocol.world import is_over
from atomr_mp.protocol.world.memory import STOP_BYTES, WORLD_BYTES
from atomr_mp.supervisor.loop import Timer
from atomr_mp.supervisor.plan import WorldPlan
from atomr_mp.supervisor.worlds.files import ProcessFiles
from atomr_mp.supervisor.worlds.keeper import STOPPED, Offer, WorldKeeper
from atomr_mp.supervisor.worlds.worlds import Worlds
from atomr_mp.transport.descriptors import Descriptor

OF_OTHERS = [WorldFileKind.MEMORY, WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL]


def descriptors() -> dict[str, str]:
    """Return the descriptors of this process and what each is of, once those of garbage are closed.

    Devices of earlier tests unmap their slabs on a thread of their own, maybe now: these are left out.
    """
    gc.collect()
    found: dict[str, str] = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing
            found[each.name] = str(each.readlink())
    return {number: of for number, of in found.items() if not of.startswith("/memfd:atomr-mp-slab")}


class HeldLoop:
    """A loop whose timers run out when a test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Timer]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Keep a timer."""
        timer = Timer(call)
        self.timers.append((delay_s, timer))
        return timer

    @property
    def running(self) -> list[float]:
        """The delays of the timers that run."""
        return [delay_s for delay_s, timer in self.timers if timer.call is not None]

    def run_out(self) -> None:
        """Let the time of all timers pass."""
        timers, self.timers = self.timers, []
        for _, timer in timers:
            if timer.call is not None:
                timer.call()


class Stage:
    """A world over devices 3, 4 and so on, and the story of what it does.

    Args:
        size: How many devices it has.
        mailboxes: Whether their processes have mailboxes.
    """

    def __init__(self, size: int = 2, *, mailboxes: bool = False) -> None:
        self.story: list[Any] = []
        """Messages to processes as (device, generation, message), `WorldInfo` to clients, and ("replace", device,
        generation): in their order, files left out."""
        self.notes: list[tuple[str, str, Mapping[str, Scalar]]] = []
        self.causes: list[tuple[str, str]] = []
        """Why processes were to be replaced, in words and in a word."""
        self.files: list[tuple[int, int, control.WorldFile]] = []
        """Files that were given, with the device and generation of who got them."""
        self.reached: dict[tuple[int, int, WorldFileKind], int] = {}
        """The descriptors that processes have got of each other, by rank and generation."""
        self.states: dict[int, str] = {}
        self.stopped: set[tuple[int, int]] = set()
        """Device and generation of processes that are stopped by a signal."""
        self.loop = HeldLoop()
        loop: Any = self.loop
        self.on_replace: Callable[[int, int], None] = lambda *_: None
        plan = WorldPlan(7, "tp", [3 + rank for rank in range(size)], ["Mlp"], 5.0, mailboxes=mailboxes)
        self.keeper = WorldKeeper(plan, self, loop, tell=self._clients, note=self._note)
        self.stop = memoryview(bytearray(8)).cast("Q")
        self._own: list[Descriptor] = []

    # --- what the keeper asks of it --------------------------------------------------------------------------------

    def tell(
        self, device: int, generation: int, message: control.FromSupervisor, descriptor: Descriptor | None = None
    ) -> None:
        """Note a message; keep a copy of its descriptor."""
        if isinstance(message, control.WorldFile):
            assert descriptor is not None
            self.files.append((device, generation, message))
            self._keep(message, descriptor)
            return
        assert descriptor is None
        if isinstance(message, control.DepartEpoch):
            assert is_over(self.stop, message.epoch)
        self.story.append((device, generation, message))

    def replace(self, device: int, generation: int, why: str, word: str) -> None:
        """Note it."""
        assert word
        self.causes.append((why, word))
        self.story.append(("replace", device, generation))
        self.on_replace(device, generation)

    def state(self, device: int) -> str:
        """Return what a test says."""
        return self.states.get(device, "is starting")

    def is_stopped(self, device: int, generation: int) -> bool:
        """Return what a test says."""
        return (device, generation) in self.stopped

    def standstill(self, device: int, generation: int) -> str:
        """Return words for one that a test has stopped."""
        return "pid 9 is stopped" if (device, generation) in self.stopped else ""

    def drain_timeout_s(self, device: int) -> float:
        """Return a time of the device's own."""
        return 100.0 + device

    def _clients(self, info: WorldInfo) -> None:
        if info.state in {WorldState.ABORTING, WorldState.ENDED} and info.epoch:
            assert is_over(self.stop, info.epoch) or not self.keeper._members.inside
        if info.state is WorldState.READY:
            assert not is_over(self.stop, info.epoch)
        self.story.append(info)

    def _note(self, event: str, text: str, facts: Mapping[str, Scalar]) -> None:
        self.notes.append((event, text, facts))

    def _keep(self, message: control.WorldFile, descriptor: Descriptor) -> None:
        key = (message.rank, message.generation, message.kind)
        if message.kind is WorldFileKind.STOP:
            self.stop = memoryview(mmap.mmap(descriptor.fileno(), STOP_BYTES, prot=mmap.PROT_READ)).cast("Q")
        if key in self.reached:
            os.close(self.reached.pop(key))
        self.reached[key] = os.dup(descriptor.fileno())
        descriptor.close()

    # --- what tests do ---------------------------------------------------------------------------------------------

    def start(self, rank: int, generation: int) -> list[Offer]:
        """Start a process; take its files."""
        offers = self.keeper.starting(rank, generation)
        for message, descriptor in offers:
            if isinstance(message, control.WorldFile):
                assert descriptor is not None
                self._keep(message, descriptor)
        return offers

    def up(self, rank: int, generation: int) -> None:
        """Start a process, and let it be ready."""
        self.start(rank, generation)
        self.keeper.ready(rank, generation, "")

    def joined(self, *members: tuple[int, int]) -> None:
        """Let members say that they have joined the present epoch."""
        for rank, generation in members:
            self.keeper.heard(rank, generation, control.EpochJoined(7, self.info.epoch))

    def left(self, *members: tuple[int, int]) -> None:
        """Let members say that they have left it."""
        for rank, generation in members:
            self.keeper.heard(rank, generation, control.EpochLeft(7, self.info.epoch))

    def formed(self) -> Self:
        """Return it with the first epoch ready, of first generations."""
        everybody = [(rank, 1) for rank in range(len(self.keeper.plan.devices))]
        for rank, generation in everybody:
            self.up(rank, generation)
        self.joined(*everybody)
        assert self.info.state is WorldState.READY
        self.story.clear()
        return self

    @property
    def info(self) -> WorldInfo:
        """The world as clients see it."""
        return self.keeper.info

    def told(self) -> list[Any]:
        """Return the story since the last look."""
        story, self.story = self.story, []
        return story

    def close(self) -> None:
        """Close what processes have got."""
        self.keeper.free()
        for descriptor in self.reached.values():
            os.close(descriptor)
        self.reached.clear()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Make a world of two devices."""
    made = Stage()
    yield made
    made.close()


def words(story: list[Any]) -> list[str]:
    """Return a story in short: "join 3.1" is a message to generation 1 of device 3, "clients ready" one to clients."""
    found = []
    for each in story:
        match each:
            case WorldInfo():
                found.append(f"clients {each.state}")
            case "replace", device, generation:
                found.append(f"replace {device}.{generation}")
            case device, generation, control.JoinEpoch():
                found.append(f"join {device}.{generation}")
            case device, generation, control.CloseEpoch():
                found.append(f"close {device}.{generation}")
            case device, generation, control.DepartEpoch():
                found.append(f"depart {device}.{generation}")
    return found


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_process_gets_its_own_files_and_is_introduced_to_its_world(stage: Stage) -> None:
    """Before anything else: its memory, which it alone can write; the stop word, which it can only read; two bells."""
    *offers, (offered, none) = stage.start(1, 5)
    assert [message for message, _ in offers] == [
        control.WorldFile(7, 1, 5, kind) for kind in (WorldFileKind.STOP, *OF_OTHERS)
    ]
    assert offered == control.WorldOffered(7, "tp", 1, 2, 5, ["Mlp"], 5.0, devices=[3, 4])
    assert none is None
    memory, stop = stage.reached[1, 5, WorldFileKind.MEMORY], stage.reached[1, 5, WorldFileKind.STOP]
    for descriptor, nbytes in ((memory, WORLD_BYTES), (stop, STOP_BYTES)):
        assert os.fstat(descriptor).st_size == nbytes
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        assert not os.get_inheritable(descriptor)
    with mmap.mmap(memory, WORLD_BYTES) as own:
        own[0] = 1
    with pytest.raises(PermissionError):
        mmap.mmap(stop, STOP_BYTES)
    assert str(Path(f"/proc/self/fd/{memory}").readlink()).startswith("/memfd:atomr-mp-world-tp-d4-g5")


def test_members_get_each_other_s_files_once_before_they_join(stage: Stage) -> None:
    """They can read each other's memory and not write it, and ring each other's bells."""
    stage.up(0, 1)
    assert not stage.files
    stage.up(1, 2)
    assert stage.files == [
        *((3, 1, control.WorldFile(7, 1, 2, kind)) for kind in OF_OTHERS),
        *((4, 2, control.WorldFile(7, 0, 1, kind)) for kind in OF_OTHERS),
    ]
    memory, bell = stage.reached[0, 1, WorldFileKind.MEMORY], stage.reached[0, 1, WorldFileKind.LOOP_BELL]
    with pytest.raises(PermissionError):
        mmap.mmap(memory, WORLD_BYTES)
    mmap.mmap(memory, WORLD_BYTES, prot=mmap.PROT_READ).close()
    os.eventfd_write(bell, 1)
    assert os.eventfd_read(bell) == 1
    stage.files.clear()
    stage.joined((0, 1), (1, 2))
    stage.keeper.leaves(1, 2, "killed by SIGKILL", answers=False)
    stage.left((0, 1))
    stage.up(1, 3)
    stage.keeper.ended(1, 2)
    assert [(device, generation) for device, generation, _ in stage.files] == [(3, 1)] * 3 + [(4, 3)] * 3
    assert {message.generation for device, _, message in stage.files if device == 3} == {3}


def test_files_are_closed_with_their_process_and_the_rest_with_the_world() -> None:
    """Also those of a process that was never made, and of standbys."""
    before = descriptors()
    stage = Stage().formed()
    kept = len(stage.keeper.descriptors)
    stage.start(0, 2)
    stage.start(1, 2)
    assert len(stage.keeper.descriptors) == kept + 2
    stage.keeper.ended(0, 2)
    stage.keeper.ended(0, 2)
    assert len(stage.keeper.descriptors) == kept + 1
    stage.keeper.ended(1, 1)
    assert len(stage.keeper.descriptors) == kept
    stage.close()
    stage.keeper.free()
    stage.stop.release()
    assert len(descriptors()) <= len(before) + 2  # the mapped stop word's, until they are collected


def test_without_a_descriptor_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is not started then."""
    stage = Stage()
    before = descriptors()
    made = list[int]()

    def scarce(*_: int) -> int:
        if made:
            raise OSError(24, "Too many open files")
        made.append(os.dup(0))
        return made[0]

    monkeypatch.setattr(os, "eventfd", scarce)
    with pytest.raises(OSError, match="Too many"):
        stage.keeper.starting(0, 1)
    assert descriptors() == before
    assert len(stage.keeper.descriptors) == 1
    stage.close()


# --- forming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_forms_whoever_comes_and_joins_last(size: int) -> None:
    """All are asked at once, when the last is ready; clients learn it when the last has joined."""
    ranks = range(size)
    for coming, joining in itertools.product(itertools.permutations(ranks), itertools.permutations(ranks)):
        stage = Stage(size)
        *first, last = coming
        for rank in first:
            stage.up(rank, 1 + rank)
            assert not any(word.startswith("join") for word in words(stage.told()))
        stage.up(last, 1 + last)
        generations = [1 + rank for rank in ranks]
        assert stage.story[:size] == [(3 + rank, 1 + rank, control.JoinEpoch(7, 1, generations)) for rank in ranks]
        assert stage.info.state is WorldState.FORMING
        stage.told()
        *early, latest = joining
        for rank in early:
            stage.joined((rank, 1 + rank))
            assert stage.info.state is WorldState.FORMING
            assert not stage.info.generations
        stage.joined((latest, 1 + latest))
        ready = WorldInfo(7, "tp", [3 + rank for rank in ranks], ["Mlp"], WorldState.READY, 1, generations)
        assert stage.told() == [ready]
        assert [event for event, _, _ in stage.notes] == ["world_ready"]
        assert not stage.loop.running
        stage.close()


def test_a_member_that_does_not_join_in_time_is_replaced(stage: Stage) -> None:
    """Those that have joined leave, and form the next epoch with its successor."""
    stage.up(0, 1)
    stage.up(1, 1)
    stage.joined((0, 1))
    stage.told()
    assert stage.loop.running == [10.0]
    stage.loop.run_out()
    assert words(stage.told()) == ["replace 4.1", "depart 3.1", "clients aborting"]
    assert is_over(stage.stop, 1)
    assert (stage.info.reason, stage.info.rank) == ("did not join in time", 1)
    stage.left((0, 1))
    stage.up(1, 2)
    assert stage.info.state is WorldState.ABORTING
    stage.keeper.ended(1, 1)
    assert words(stage.told())[:2] == ["join 3.1", "join 4.2"]


def test_a_late_member_whose_device_acts_at_once_is_lost_once(stage: Stage) -> None:
    """What its device tells in the middle of an order has its turn behind it."""
    stage.on_replace = lambda device, generation: stage.keeper.leaves(device - 3, generation, "late", answers=False)
    stage.up(0, 1)
    stage.up(1, 1)
    stage.told()
    stage.loop.run_out()
    assert words(stage.told()) == ["replace 3.1", "replace 4.1", "clients aborting"]
    stage.keeper.ended(0, 1)
    stage.keeper.ended(1, 1)
    assert stage.info.state is WorldState.WAITING


# --- ends of epochs --------------------------------------------------------------------------------------------------


def test_an_end_is_stored_then_told_to_clients_then_to_members(stage: Stage) -> None:
    """Bells wake whoever waits for the dead; the cause is the same everywhere. The dead is asked nothing."""
    stage.formed()
    bells = [stage.reached[0, 1, kind] for kind in (WorldFileKind.LOOP_BELL, WorldFileKind.THREAD_BELL)]
    stage.keeper.leaves(1, 1, "killed by SIGKILL", answers=False)
    aborting, depart = stage.told()
    assert (aborting.state, aborting.reason, aborting.rank) == (WorldState.ABORTING, "killed by SIGKILL", 1)
    assert aborting.generations == []
    assert depart == (3, 1, control.DepartEpoch(7, 1, 1, "killed by SIGKILL"))
    assert [os.eventfd_read(bell) for bell in bells] == [1, 1]
    event, text, facts = stage.notes[-1]
    assert event == "world_broken"
    assert text == "epoch 1 of world tp has ended: rank 1 (device 4): killed by SIGKILL"
    assert facts == {"world": "tp", "epoch": 1, "rank": 1, "cause": "killed by SIGKILL"}


def test_a_promoted_standby_joins_the_next_epoch(stage: Stage) -> None:
    """As soon as the others have left and nothing of the dead runs; its process may end later."""
    stage.formed()
    stage.start(1, 2)
    stage.keeper.leaves(1, 1, "killed by SIGKILL", answers=False)
    stage.keeper.ready(1, 2, "")
    stage.told()
    stage.left((0, 1))
    assert stage.info.state is WorldState.ABORTING
    stage.keeper.stopped(1, 1)
    assert words(stage.told()) == ["join 3.1", "join 4.2", "clients forming"]
    stage.joined((1, 2), (0, 1))
    stage.keeper.ended(1, 1)
    assert (stage.info.state, stage.info.epoch, stage.info.generations) == (WorldState.READY, 2, [1, 2])


@pytest.mark.parametrize("dead", [0, 1])
def test_a_death_in_each_state_ends_what_there_is_and_nothing_else(dead: int) -> None:
    """While it waits, forms, is ready, and while the epoch before ends."""
    other = 1 - dead
    waiting = Stage()
    waiting.up(dead, 1)
    waiting.keeper.leaves(dead, 1, "ended", answers=False)
    waiting.keeper.ended(dead, 1)
    waiting.up(other, 1)
    assert not waiting.notes
    waiting.up(dead, 2)
    waiting.keeper.leaves(dead, 2, "ended", answers=False)
    assert (waiting.info.state, waiting.info.epoch) == (WorldState.ABORTING, 1)
    waiting.joined((other, 1))  # crossed
    waiting.left((other, 1))
    waiting.up(dead, 3)
    waiting.keeper.ended(dead, 2)
    waiting.joined((other, 1), (dead, 3))
    assert (waiting.info.state, waiting.info.epoch) == (WorldState.READY, 2)
    waiting.keeper.heard(other, 1, control.EpochBroken(7, 2, "raised"))
    waiting.keeper.leaves(dead, 3, "ended", answers=False)
    waiting.left((other, 1))
    waiting.keeper.ended(dead, 3)
    assert (waiting.info.state, waiting.info.epoch) == (WorldState.WAITING, 2)
    waiting.up(dead, 4)
    assert (waiting.info.state, waiting.info.epoch) == (WorldState.FORMING, 3)
    assert [facts["epoch"] for event, _, facts in waiting.notes if event == "world_broken"] == [1, 2]
    waiting.close()


def test_a_member_that_does_not_leave_in_time_is_replaced(stage: Stage) -> None:
    """The one that was lost is awaited in any case."""
    stage.formed()
    stage.keeper.leaves(1, 1, "killed by SIGKILL", answers=False)
    assert stage.loop.running == [10.0]
    stage.told()
    stage.loop.run_out()
    assert words(stage.told()) == ["replace 3.1"]
    stage.up(1, 2)
    stage.keeper.ended(1, 1)
    stage.up(0, 2)
    stage.keeper.ended(0, 1)
    assert (stage.info.state, stage.info.epoch) == (WorldState.FORMING, 2)


def test_a_timer_of_an_epoch_that_is_over_replaces_nobody(stage: Stage) -> None:
    """The members of the next epoch have their own time."""
    stage.formed()
    stage.keeper.heard(0, 1, control.EpochBroken(7, 1, "raised", 0))
    stage.left((0, 1), (1, 1))
    assert stage.loop.running == [10.0]
    stage.joined((0, 1), (1, 1))
    stage.told()
    stage.loop.run_out()
    assert not stage.story
    assert (stage.info.state, stage.info.epoch) == (WorldState.READY, 2)


def test_a_broken_epoch_is_followed_by_one_of_the_same_processes(stage: Stage) -> None:
    """A member that has raised while others waited ends no process."""
    stage.formed()
    stage.keeper.heard(0, 1, control.EpochBroken(7, 1, "raised", 1))
    assert words(stage.told()) == ["clients aborting", "depart 3.1", "depart 4.1"]
    stage.keeper.heard(1, 1, control.EpochBroken(7, 1, "raised", 1))
    assert not stage.story
    stage.left((1, 1), (0, 1))
    assert words(stage.told()) == ["join 3.1", "join 4.1", "clients forming"]


def test_a_member_that_is_late_to_begin_is_replaced(stage: Stage) -> None:
    """Whoever has noticed it says which."""
    stage.formed()
    stage.keeper.heard(0, 1, control.EpochBroken(7, 1, "has not begun in 5 s", 1, late=True))
    assert words(stage.told()) == ["clients aborting", "depart 3.1", "replace 4.1"]
    assert (stage.info.reason, stage.info.rank) == ("has not begun in 5 s", 1)
    assert [word for _, word in stage.causes] == ["late"]


def test_a_member_that_stays_stopped_by_a_signal_is_replaced(stage: Stage) -> None:
    """After as many looks as its time to begin has; one that goes on in between counts anew."""
    stage.formed()
    for stopped in (5, 0, 6):
        stage.stopped = {(4, 1)} if stopped else set()
        for _ in range(stopped or 1):
            assert not stage.story
            stage.keeper.look_for_stopped()
    assert words(stage.told()) == ["clients aborting", "depart 3.1", "replace 4.1"]
    assert (stage.info.reason, stage.info.rank) == ("was stopped by a signal (SIGSTOP)", 1)
    assert stage.causes == [(f"its worker {STOPPED} (world {stage.keeper.plan.name})", "sigstop")]


def test_a_stopped_member_has_one_cause_whoever_notices_it(stage: Stage) -> None:
    """A peer says that it is late, and the supervisor sees why."""
    stage.formed()
    stage.stopped = {(4, 1)}
    stage.keeper.heard(0, 1, control.EpochBroken(7, 1, "has not begun in 5 s", 1, late=True))
    assert (stage.info.reason, stage.info.rank) == (STOPPED, 1)
    assert stage.causes == [(f"its worker {STOPPED} (world {stage.keeper.plan.name})", "sigstop")]


def test_whoever_leaves_unasked_ends_the_epoch(stage: Stage) -> None:
    """So does a member that cannot join; clients see its reason."""
    stage.up(0, 1)
    stage.up(1, 1)
    stage.keeper.heard(1, 1, control.EpochLeft(7, 1, "no memory to map"))
    assert (stage.info.state, stage.info.reason, stage.info.rank) == (WorldState.ABORTING, "no memory to map", 1)
    stage.left((0, 1))
    assert stage.info.state is WorldState.FORMING


def test_a_member_that_cannot_join_is_replaced(stage: Stage) -> None:
    """The same processes would form one epoch after the other, without a pause and with no end."""
    stage.up(0, 1)
    stage.up(1, 1)
    stage.told()
    for _ in range(2):  # once is enough
        stage.keeper.heard(1, 1, control.EpochLeft(7, 1, "could not join: no peer access", unfit=True))
    assert words(stage.told()) == ["depart 3.1", "clients aborting", "replace 4.1"]
    assert (stage.info.reason, stage.info.rank) == ("could not join: no peer access", 1)
    stage.left((0, 1))
    stage.keeper.ended(1, 1)
    assert stage.info.state is WorldState.WAITING
    stage.up(1, 2)
    assert (stage.info.state, stage.info.epoch) == (WorldState.FORMING, 2)


def test_the_restart_of_one_device_closes_the_epoch_and_its_successor_forms_the_next(stage: Stage) -> None:
    """Clients hold their calls, and then all are asked to run what was published, also the worker that drains."""
    stage.formed()
    for rank, other in ((0, (1, 1)), (1, (0, 2))):
        before = stage.info.epoch
        stage.start(rank, 2)
        stage.keeper.leaves(rank, 1, "its worker is replaced (restart)", answers=True)
        stage.keeper.ready(rank, 2, "")
        info, *closes = stage.told()
        assert (info.state, info.generations, info.rank) == (WorldState.CLOSING, [], rank)
        assert [(device, message) for device, _, message in closes] == [
            (device, control.CloseEpoch(7, before)) for device in (3, 4)
        ]
        assert 104.0 in stage.loop.running
        assert not is_over(stage.stop, before)
        stage.left((rank, 1), other)
        assert (stage.info.state, stage.info.epoch) == (WorldState.FORMING, before + 1)
        stage.keeper.ended(rank, 1)
        stage.joined((rank, 2), other)
        assert stage.info.state is WorldState.READY
        stage.told()
    assert stage.info.generations == [2, 2]
    assert [event for event, _, _ in stage.notes] == ["world_ready", *["world_closing", "world_ready"] * 2]


def test_a_planned_end_that_waits_names_for_whom(stage: Stage) -> None:
    """As long as rank 0 says so of the epoch that ends; one event tells of it."""
    stage.formed()
    holding = control.EpochHolder(7, "A.run", int((time.monotonic() - 60) * 1e9))
    held = control.EpochHeld(1, 1, [holding], 3)
    stage.keeper.heard(0, 1, held)
    assert stage.keeper.progress(time.monotonic()).waits == "", "nothing ends"
    stage.keeper.leaves(1, 1, "its worker is replaced (restart)", answers=True)
    now_s = time.monotonic()
    stage.keeper.heard(1, 1, control.EpochHeld(1, 1, [], 0))
    found = stage.keeper.progress(now_s + 5).waits
    assert found.startswith("the planned end has waited ")
    assert " s for A.run of session 7, open for 6" in found
    assert found.endswith("; and 2 more")
    for _ in range(2):
        stage.keeper.note_held(now_s)
        stage.keeper.note_held(now_s + 5)
    assert [facts for event, _, facts in stage.notes if event == "world_held"] == [
        {"world": "tp", "epoch": 1, "method": "A.run", "client": "session 7"}
    ]
    stage.keeper.heard(0, 1, control.EpochHeld(1, 1, [], 0))
    assert re.fullmatch(
        r"the planned end has waited 5\.\d s for ranks 0 and 1 to leave", stage.keeper.progress(now_s + 5).waits
    )
    with pytest.raises(errors.ProtocolError, match="was not formed yet"):
        stage.keeper.heard(0, 1, control.EpochHeld(1, 9, [holding], 1))


@pytest.mark.parametrize("ends", ["as planned", "broken", "before it begins"])
def test_a_member_that_stands_still_is_named_whatever_waits_for_it(stage: Stage, ends: str) -> None:
    """With its process, which may be that of a generation before; one event tells of it."""
    if ends == "before it begins":
        stage.up(0, 1)
        stage.up(1, 1)
    else:
        stage.formed()
    stage.stopped = {(4, 1)}
    if ends == "as planned":
        stage.start(1, 2)
        stage.keeper.leaves(1, 1, "its worker is replaced (restart)", answers=True)
        stage.keeper.ready(1, 2, "")
    elif ends == "broken":
        stage.keeper.heard(0, 1, control.EpochBroken(7, 1, "raised", 0))
    named = "rank 1 (device 4 generation 1): pid 9 is stopped"
    now_s = time.monotonic()
    assert stage.keeper.progress(now_s).waits == named
    for after_s in (0.0, 5.0, 6.0):
        stage.keeper.note_held(now_s + after_s)
    assert [(text, facts) for event, text, facts in stage.notes if event == "world_held"] == [
        (f"world tp: {named}", {"world": "tp", "epoch": 1, "rank": 1})
    ]


def test_a_planned_end_without_requests_tells_who_has_not_left(stage: Stage) -> None:
    """As rank 0 cannot say anything while it is stuck itself."""
    stage.formed()
    stage.keeper.leaves(1, 1, "its worker is replaced (restart)", answers=True)
    stage.left((1, 1))
    now_s = time.monotonic()
    stage.keeper.note_held(now_s)
    assert not [event for event, _, _ in stage.notes if event == "world_held"]
    stage.keeper.note_held(now_s + 5)
    assert [text for event, text, _ in stage.notes if event == "world_held"] == [
        "world tp: the planned end has waited 5.0 s for rank 0 to leave"
    ]


def test_a_planned_end_that_takes_too_long_is_an_end_as_others(stage: Stage) -> None:
    """The stop word is stored, and members are asked to leave; those who do not are replaced."""
    stage.formed()
    stage.keeper.leaves(0, 1, "its worker is replaced (restart)", answers=True)
    stage.left((0, 1))
    stage.told()
    stage.loop.run_out()
    assert is_over(stage.stop, 1)
    depart, info = stage.told()
    assert depart[2].rank == 1
    assert (info.state, info.rank) == (WorldState.ABORTING, 1)
    stage.loop.run_out()
    assert stage.told() == [("replace", 4, 1)]


def test_members_with_different_code_are_in_no_epoch_together(stage: Stage) -> None:
    """While a pool reloads the world waits for the last member."""
    stage.formed()
    for rank in (0, 1):
        stage.start(rank, 2)
        stage.keeper.leaves(rank, 1, "its worker is replaced (reload)", answers=True)
        if rank == 0:
            stage.left((0, 1), (1, 1))
        stage.keeper.ended(rank, 1)
        stage.keeper.ready(rank, 2, "new")
        if rank == 0:
            assert stage.info.state is WorldState.WAITING
            assert stage.info.reason == "its members were set up with different code: reload the pool (atomr-mp reload)"
    stage.joined((0, 2), (1, 2))
    assert (stage.info.state, stage.info.epoch) == (WorldState.READY, 2)


# --- the end of the pool ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [WorldState.WAITING, WorldState.FORMING, WorldState.READY, WorldState.ABORTING])
def test_a_pool_stops_in_any_state_of_its_worlds(state: WorldState) -> None:
    """Calls that have not begun end at once; members have the time of the drain, and nothing is replaced."""
    stage = Stage()
    stage.up(0, 1)
    if state is not WorldState.WAITING:
        stage.up(1, 1)
    if state in {WorldState.READY, WorldState.ABORTING}:
        stage.joined((0, 1), (1, 1))
    if state is WorldState.ABORTING:
        stage.keeper.leaves(1, 1, "ended", answers=False)
        stage.keeper.ended(1, 1)
    assert stage.info.state is state
    stage.told()
    stage.keeper.close("the pool stops")
    end = WorldState.ENDING if state is WorldState.READY else WorldState.ENDED
    assert stage.info.state is end
    story = words(stage.told())
    asked = {"forming": ["depart 3.1", "depart 4.1"], "ready": ["close 3.1", "close 4.1"]}.get(state, [])
    assert [word for word in story if word.startswith(("depart", "close"))] == asked
    assert [word for word in story if word.startswith("clients")] == [f"clients {end}"]
    stage.keeper.close("the pool stops")
    stage.loop.run_out()
    if state is WorldState.READY:
        stage.left((0, 1), (1, 1))
        assert words(stage.told()) == ["clients ended"]
    for rank, generation in ((0, 1), (1, 1)):
        stage.keeper.leaves(rank, generation, "its worker is replaced (stop)", answers=True)
        stage.keeper.ended(rank, generation)
    assert not stage.story
    assert not stage.keeper.descriptors
    assert stage.keeper.starting(0, 2) == []
    stage.close()


# --- what clients and operators see -----------------------------------------------------------------------------------


def test_a_world_that_waits_names_the_rank_and_the_device(stage: Stage) -> None:
    """It goes on to wait if the device is out of use; clients hear each change once."""
    stage.formed()
    stage.keeper.leaves(1, 1, "killed by SIGSEGV", answers=False)
    stage.left((0, 1))
    stage.keeper.ended(1, 1)
    stage.told()
    stage.states[4] = f"is {DeviceState.TRIPPED}: 4 unplanned ends within 60 s"
    stage.keeper.look()
    stage.keeper.look()
    (waiting,) = stage.told()
    assert waiting.state is WorldState.WAITING
    assert waiting.reason == "rank 1 (device 4) is tripped: 4 unplanned ends within 60 s"
    assert waiting.rank == 1
    stage.states[4] = "x" * 5000
    stage.keeper.look()
    (longer,) = stage.told()
    assert longer.reason.startswith("rank 1 (device 4) ")
    assert len(longer.reason) < 350


# --- what processes may say ------------------------------------------------------------------------------------------


def test_what_is_late_changes_nothing_and_what_cannot_be_is_refused(stage: Stage) -> None:
    """A standby is in no epoch. No process can know of an epoch to come, or of a rank that is not there."""
    stage.formed()
    stage.start(1, 2)
    for message in (control.EpochJoined(7, 1), control.EpochLeft(7, 1), control.EpochBroken(7, 1, "raised", 0)):
        stage.keeper.heard(1, 2, message)
    stage.keeper.heard(0, 1, control.EpochLeft(7, 0))
    stage.keeper.heard(0, 1, control.EpochBroken(7, 0, "raised", 0))
    stage.keeper.stopped(0, 9)
    assert stage.info.state is WorldState.READY
    assert not stage.story
    for wrong in (
        control.EpochJoined(7, 2),
        control.EpochLeft(7, 2),
        control.EpochBroken(7, 1, "raised", 2),
        control.EpochBroken(7, 1, "late", late=True),
    ):
        with pytest.raises(errors.ProtocolError):
            stage.keeper.heard(0, 1, wrong)


@given(data=st.data())
def test_no_facts_in_any_order_lead_the_keeper_astray(data: st.DataObject) -> None:
    """Each epoch is stopped before the next, clients hear of a ready one only while it is, no file is left open."""
    stage = Stage()
    latest, active = [0, 0], [0, 0]
    for _ in range(data.draw(st.integers(1, 40))):
        rank = data.draw(st.integers(0, 1))
        mine, epoch = active[rank], data.draw(st.sampled_from([stage.info.epoch, max(0, stage.info.epoch - 1)]))
        match data.draw(st.integers(0, 9)):
            case 0 | 1:
                latest[rank] = active[rank] = latest[rank] + 1
                stage.start(rank, mine + 1)
                stage.keeper.ready(rank, mine + 1, "")
            case 2 | 3:
                stage.joined(*[(each, active[each]) for each in (0, 1)])
            case 4 | 5:
                stage.left((rank, mine))
            case 6:
                stage.keeper.leaves(rank, mine, "ended", answers=data.draw(st.booleans()))
            case 7:
                stage.keeper.stopped(rank, mine)
            case 8:
                late = data.draw(st.booleans())
                stage.keeper.heard(rank, mine, control.EpochBroken(7, epoch, "raised", 1 - rank, late=late))
            case _:
                stage.loop.run_out()
    infos = [each for each in stage.story if isinstance(each, WorldInfo)]
    assert [each.epoch for each in infos] == sorted(each.epoch for each in infos)
    assert all(before != after for before, after in itertools.pairwise(infos))
    joins = [
        message.epoch
        for _, _, message in (
            each for each in stage.story if isinstance(each, tuple) and isinstance(each[2], control.JoinEpoch)
        )
    ]
    assert joins == sorted(joins)
    for rank in (0, 1):
        for generation in range(1, latest[rank] + 1):
            stage.keeper.ended(rank, generation)
    assert len(stage.keeper.descriptors) == 1
    stage.close()


# --- several worlds --------------------------------------------------------------------------------------------------


def test_a_device_of_two_worlds_is_a_member_of_both() -> None:
    """Its rank may be another in each; what it says is for the world that it names."""
    loop: Any = HeldLoop()
    plans = [WorldPlan(0, "a", [0, 1], ["A"], 5.0), WorldPlan(1, "b", [1], ["B"], 5.0)]
    told = list[WorldInfo]()
    device: Any = SimpleNamespace(
        roles=SimpleNamespace(of=lambda _: None), life=SimpleNamespace(state=DeviceState.LOST, reason="it has crashed")
    )
    before = descriptors()
    worlds = Worlds(plans, [device] * 3, loop, tell=told.append, note=lambda *_: None)
    offers = worlds.starting((1, 1))
    offered = [message for message, _ in offers if isinstance(message, control.WorldOffered)]
    assert [(each.world, each.rank) for each in offered] == [(0, 1), (1, 0)]
    with pytest.raises(errors.ProtocolError, match="in no world with the number 7"):
        worlds.heard((1, 1), control.EpochJoined(7, 0))
    with pytest.raises(errors.ProtocolError, match="in no world"):
        worlds.heard((0, 1), control.EpochJoined(1, 0))
    worlds.heard((1, 1), control.EpochLeft(1, 0))
    assert worlds.starting((2, 1)) == []
    assert len(worlds.descriptors) == 4
    worlds.withdraw((1, 1), offers)
    assert [info.reason for info in worlds.infos] == [
        "rank 0 (device 0) is lost: it has crashed",
        "rank 0 (device 1) is lost: it has crashed",
    ]
    worlds.free()
    assert descriptors() == before


def test_why_a_world_waits_is_an_event() -> None:
    """Once for each reason, at the next look; and again once the world has been ready meanwhile."""
    loop, notes, told = HeldLoop(), list[tuple[str, str, Mapping[str, Scalar]]](), list[WorldInfo]()
    life = SimpleNamespace(state=DeviceState.LOST, reason="it has crashed")
    device: Any = SimpleNamespace(roles=SimpleNamespace(of=lambda _: None), life=life)
    devices: list[Any] = []
    any_loop: Any = loop
    plans = [WorldPlan(0, "tp", [0], ["Mlp"], 5.0)]
    worlds = Worlds(plans, devices, any_loop, tell=told.append, note=lambda *note: notes.append(note))
    devices.append(device)
    waits = ("world_waits", "world tp waits: rank 0 (device 0) is lost: it has crashed")
    for _ in range(3):
        loop.run_out()
    assert [(event, text) for event, text, _ in notes] == [waits]
    assert notes[0][2] == {"world": "tp", "rank": 0, "reason": "rank 0 (device 0) is lost: it has crashed"}
    life.reason = "of another fault"
    loop.run_out()
    assert [event for event, _, _ in notes] == ["world_waits"] * 2
    for _, descriptor in worlds.starting((0, 1)):
        if descriptor is not None:
            descriptor.close()
    worlds.ready((0, 1), "")
    worlds.heard((0, 1), control.EpochJoined(0, 1))
    assert told[-1].state is WorldState.READY
    loop.run_out()
    worlds.ended((0, 1))
    loop.run_out()
    loop.run_out()
    assert [event for event, _, _ in notes] == [*["world_waits"] * 2, "world_ready", "world_broken", "world_waits"]
    worlds.free()


def test_a_full_bell_that_a_process_has_made_blocking_stops_nobody() -> None:
    """All who have a descriptor of it share that flag."""
    files = ProcessFiles("tp-d0-g1")
    for kind, shared in files.share().items():
        if kind is not WorldFileKind.MEMORY:
            os.eventfd_write(shared.fileno(), 2**64 - 2)
            os.set_blocking(shared.fileno(), True)
        shared.close()
    files.ring()
    files.close()
