"""Mailboxes of a world's processes: who gets which, how often and when, and what epochs wait for."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.control import WorldFileKind
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervisor.plan import WorldPlan
from atomr_mp.supervisor.worlds.keeper import Offer
from atomr_mp.supervisor.worlds.made_worlds import MadeWorlds
from atomr_mp.supervisor.worlds.worlds import Worlds
from atomr_mp.transport.descriptors import Descriptor
from tests.pure.supervisor.test_worlds import HeldLoop, Stage, descriptors, words

Process = tuple[int, int]
"""A rank and a generation."""


def some_memory() -> Descriptor:
    """Return a descriptor that takes the place of memory on a device."""
    return Descriptor(os.memfd_create("device"))


class Post(Stage):
    """A world whose processes have mailboxes, and who has got which.

    Args:
        size: How many devices it has.
    """

    def __init__(self, size: int = 2) -> None:
        super().__init__(size, mailboxes=True)
        self.sent: dict[Process, int] = {}
        """The inode of each process's mailbox."""
        self.given: Counter[tuple[Process, Process]] = Counter()
        """How often a process has got another one's mailbox."""

    def tell(
        self, device: int, generation: int, message: control.FromSupervisor, descriptor: Descriptor | None = None
    ) -> None:
        """Note a message, and whose mailbox it is."""
        self._note_mailbox((device - 3, generation), message, descriptor)
        super().tell(device, generation, message, descriptor)

    def start(self, rank: int, generation: int) -> list[Offer]:
        """Start a process; take its files, and the mailboxes that are there."""
        before = dict(self.reached)
        offers = super().start(rank, generation)
        for message, _ in offers:
            self._note_mailbox((rank, generation), message, None)
        assert before.keys() <= self.reached.keys()
        return offers

    def hand_over(self, rank: int, generation: int) -> None:
        """Let a process hand its mailbox over."""
        with some_memory() as mailbox:
            self.sent[rank, generation] = os.fstat(mailbox.fileno()).st_ino
            self.keeper.mailbox(rank, generation, mailbox)

    def up(self, rank: int, generation: int) -> None:
        """Start a process, and let it hand its mailbox over and be ready."""
        self.start(rank, generation)
        self.hand_over(rank, generation)
        self.keeper.ready(rank, generation, "")

    def close(self) -> None:
        """Close what processes have got, and the stop word."""
        super().close()
        self.stop.release()

    def _note_mailbox(self, to: Process, message: control.FromSupervisor, descriptor: Descriptor | None) -> None:
        if isinstance(message, control.WorldFile) and message.kind is WorldFileKind.MAILBOX:
            of = message.rank, message.generation
            self.given[to, of] += 1
            if descriptor is not None:
                assert os.fstat(descriptor.fileno()).st_ino == self.sent[of]


# --- who gets which --------------------------------------------------------------------------------------------------


def test_each_process_gets_the_mailboxes_of_other_ranks_once_in_whatever_order_they_come() -> None:
    """Also standbys, and those of standbys; none gets that of its own rank."""
    before = descriptors()
    active, standby, other = (0, 1), (0, 2), (1, 1)
    facts = [(start, each) for each in (active, standby, other) for start in (True, False)]
    for order in itertools.permutations(facts):
        if any(order.index((False, each)) < order.index((True, each)) for each in (active, standby, other)):
            continue
        post = Post()
        for start, each in order:
            if start:
                post.start(*each)
            else:
                post.hand_over(*each)
        expected = [(other, active), (other, standby), (active, other), (standby, other)]
        assert post.given == Counter(expected)
        post.close()
    assert descriptors() == before


def test_mailboxes_come_before_the_world_is_offered() -> None:
    """A process can map them while it makes its place."""
    post = Post(3)
    for rank in (0, 2):
        post.start(rank, 1)
        post.hand_over(rank, 1)
    kinds = [message.kind if isinstance(message, control.WorldFile) else None for message, _ in post.start(1, 1)]
    assert kinds[-3:] == [WorldFileKind.MAILBOX, WorldFileKind.MAILBOX, None]
    post.close()


def test_a_standby_that_takes_over_has_nothing_left_to_get() -> None:
    """Nor has any other member, but for files that take no time to map."""
    post = Post(3).formed()
    post.start(1, 2)
    post.hand_over(1, 2)
    assert all(count == 1 for count in post.given.values())
    before = post.given.copy()
    post.keeper.leaves(1, 1, "killed by SIGKILL", answers=False)
    post.keeper.ready(1, 2, "")
    post.left((0, 1), (2, 1))
    post.keeper.stopped(1, 1)
    assert post.info.state is WorldState.FORMING
    assert post.given == before
    assert {((0, 1), (1, 2)), ((2, 1), (1, 2)), ((1, 2), (0, 1)), ((1, 2), (2, 1))} <= before.keys()
    post.close()


def test_the_mailbox_of_a_process_that_has_ended_is_closed_and_goes_to_nobody() -> None:
    """Whether it has come before or after that."""
    post = Post()
    before = descriptors()
    post.start(0, 1)
    post.hand_over(0, 1)
    post.start(0, 2)
    assert len(post.keeper.descriptors) == 4
    post.keeper.ended(0, 1)
    post.keeper.ended(0, 2)
    post.hand_over(0, 2)
    post.start(1, 1)
    assert not post.given
    assert len(post.keeper.descriptors) == 2
    post.keeper.ended(1, 1)
    post.close()
    assert len(descriptors()) <= len(before)


# --- what epochs wait for --------------------------------------------------------------------------------------------


def test_an_epoch_is_formed_once_all_are_ready_and_all_mailboxes_are_there() -> None:
    """In whatever order; each member has the mailboxes of the others before it is asked to join."""
    members = [(0, 1), (1, 1)]
    for order in itertools.permutations([(is_ready, each) for each in members for is_ready in (True, False)]):
        post = Post()
        for each in members:
            post.start(*each)
        for is_ready, each in order:
            assert "join 3.1" not in words(post.story)
            if is_ready:
                post.keeper.ready(*each, "")
            else:
                post.hand_over(*each)
        assert words(post.told()).count("join 3.1") == 1
        assert post.given == Counter([((0, 1), (1, 1)), ((1, 1), (0, 1))])
        post.joined(*members)
        assert post.info.state is WorldState.READY
        post.close()


def test_a_world_that_waits_for_a_mailbox_says_whose() -> None:
    """Behind the ranks that are not ready at all."""
    post = Post()
    post.up(0, 1)
    post.start(1, 1)
    assert (post.info.reason, post.info.rank) == ("rank 1 (device 4) is starting", 1)
    post.keeper.ready(1, 1, "")
    told = [each for each in post.told() if isinstance(each, WorldInfo)][-1]
    assert (told.state, told.reason) == (WorldState.WAITING, "rank 1 (device 4) has not made its mailbox yet")
    assert told.rank == 1
    post.close()


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_that_leaves_before_its_mailbox_is_there_is_in_no_epoch(*, answers: bool) -> None:
    """Its mailbox may come all the same. The end of a standby before it changes nothing for the next one."""
    post = Post()
    post.up(0, 1)
    post.start(1, 1)
    post.keeper.ready(1, 1, "")
    post.keeper.leaves(1, 1, "is replaced", answers=answers)
    post.hand_over(1, 1)
    assert (post.info.state, post.info.epoch) == (WorldState.WAITING, 0)
    post.keeper.ended(1, 1)
    post.start(1, 2)
    post.keeper.ready(1, 2, "")
    post.start(1, 3)
    post.keeper.ended(1, 3)
    assert (post.info.state, post.info.epoch) == (WorldState.WAITING, 0)
    post.hand_over(1, 2)
    assert (post.info.state, post.info.epoch) == (WorldState.FORMING, 1)
    post.close()


# --- what processes may do -------------------------------------------------------------------------------------------


def test_a_second_mailbox_is_refused_and_the_first_one_stays() -> None:
    """With or without a descriptor; no process gets it."""
    post = Post()
    post.up(0, 1)
    post.start(1, 1)
    before, given = descriptors(), post.given.copy()
    first = post.sent[0, 1]
    for mailbox in (some_memory(), None):
        with pytest.raises(errors.ProtocolError, match="one mailbox"):
            post.keeper.mailbox(0, 1, mailbox)
        if mailbox is not None:
            mailbox.close()
    assert descriptors() == before
    assert post.given == given
    assert ("replace", 3, 1) not in post.story
    assert first in {os.fstat(each).st_ino for each in post.keeper.descriptors}
    post.close()


def test_a_mailbox_of_a_world_without_any_is_refused() -> None:
    """On the host backend members use the memory that was made for them."""
    stage = Stage()
    stage.start(0, 1)
    before = descriptors()
    with some_memory() as mailbox, pytest.raises(errors.ProtocolError, match="world tp have no mailboxes"):
        stage.keeper.mailbox(0, 1, mailbox)
    assert descriptors() == before
    stage.close()


def test_a_process_whose_mailbox_comes_without_its_descriptor_is_replaced() -> None:
    """There was no room for it, and it is not sent again. Its successor is asked in its place."""
    post = Post()
    post.up(0, 1)
    post.start(1, 1)
    post.keeper.mailbox(1, 1, None)
    assert ("replace", 4, 1) in post.told()
    post.keeper.ready(1, 1, "")
    assert (post.info.state, post.info.epoch) == (WorldState.WAITING, 0)
    post.keeper.leaves(1, 1, "its mailbox came without its file descriptor", answers=False)
    post.keeper.ended(1, 1)
    post.up(1, 2)
    assert (post.info.state, post.info.epoch) == (WorldState.FORMING, 1)
    post.close()


class Worker:
    """A process that writes down each message to it."""

    def __init__(self, generation: int) -> None:
        self.generation, self.pid = generation, os.getpid()
        self.told: list[control.FromSupervisor] = []

    def tell(self, message: control.FromSupervisor, descriptor: Descriptor | None = None) -> None:
        """Note a message."""
        self.told.append(message)
        if descriptor is not None:
            descriptor.close()


class Pool:
    """Two devices with a worker each, and the worlds that sessions make."""

    def __init__(self) -> None:
        self.workers = [Worker(1), Worker(1)]
        self.loop = HeldLoop()
        loop: Any = self.loop
        devices: list[Any] = [
            SimpleNamespace(
                roles=SimpleNamespace(all=[each], of=lambda _, each=each: each, active=each),
                life=SimpleNamespace(state=State.READY, reason=""),
            )
            for each in self.workers
        ]
        planned = [WorldPlan(0, "tp", [0], ["Mlp"], 5.0, mailboxes=True)]
        self.worlds = Worlds(planned, devices, loop, tell=lambda _: None, note=lambda *_: None)
        self.made = MadeWorlds(self.worlds, 1, 2, "cuda", loop, lambda *_: None)

    def make(self, session: int, devices: list[int]) -> int:
        """Make a world at once; return its number, or raise."""
        (found,) = self.ask(session, devices)
        if isinstance(found, errors.AtomrError):
            raise found
        return found

    def ask(self, session: int, devices: list[int]) -> list[int | errors.AtomrError]:
        """Ask for a world; return where the answer goes."""
        answers: list[int | errors.AtomrError] = []
        self.made.make(session, devices, answers.append)
        return answers

    def state(self, number: int) -> WorldState:
        """Return the state of a world."""
        return next(each.state for each in self.worlds.infos if each.number == number)

    def hand_over(self, device: int, world: int) -> None:
        """Let a device's process hand its mailbox in a world over."""
        with some_memory() as mailbox:
            self.worlds.mailbox((device, 1), control.WorldMailbox(world), mailbox)


def test_members_of_a_made_world_hand_their_mailboxes_over_behind_the_offer() -> None:
    """Its epoch is formed then. What comes after its end is closed, and what is for no world of the process refused."""
    before = descriptors()
    pool = Pool()
    number = pool.make(3, [0, 1])
    assert pool.state(number) is WorldState.WAITING
    pool.hand_over(1, number)
    assert pool.state(number) is WorldState.WAITING
    pool.hand_over(0, number)
    assert pool.state(number) is WorldState.FORMING
    for worker, other in ((0, 1), (1, 0)):
        told = pool.workers[worker].told
        assert told.count(control.WorldFile(number, other, 1, WorldFileKind.MAILBOX)) == 1
        assert control.WorldFile(number, worker, 1, WorldFileKind.MAILBOX) not in told
    with pytest.raises(errors.ProtocolError, match=f"in no world with the number {number + 1}"):
        pool.hand_over(0, number + 1)
    with pytest.raises(errors.ProtocolError, match="device 1 is in no world with the number 0"):
        pool.hand_over(1, 0)
    pool.made.close(3, number)
    for device in (0, 1):
        pool.worlds.heard((device, 1), control.EpochLeft(number, 1))
    assert number not in [each.number for each in pool.worlds.infos]
    pool.hand_over(0, number)
    pool.worlds.mailbox((1, 1), control.WorldMailbox(number), None)
    pool.worlds.free()
    assert descriptors() == before


def test_a_process_without_room_for_its_mailbox_says_so() -> None:
    """Its world waits, and clients see why; the process is none the worse, and its successor is asked anew."""
    pool = Pool()
    number = pool.make(3, [0, 1])
    pool.worlds.refused((1, 1), control.WorldRefused(number, "no memory " * 100))
    pool.hand_over(0, number)
    [info] = [each for each in pool.worlds.infos if each.number == number]
    assert (info.state, info.rank) == (WorldState.WAITING, 1)
    assert info.reason.startswith("rank 1 (device 1) takes no part: ")
    assert info.reason.endswith("no memory no memory ")
    assert len(info.reason) < 400
    with pytest.raises(errors.ProtocolError, match=f"in no world with the number {number + 1}"):
        pool.worlds.refused((1, 1), control.WorldRefused(number + 1, ""))
    pool.worlds.ended((1, 1))
    pool.worlds.refused((1, 1), control.WorldRefused(number, "too late"))
    [info] = [each for each in pool.worlds.infos if each.number == number]
    assert "takes no part" not in info.reason
    pool.worlds.free()


def test_a_gpu_is_in_few_worlds_of_sessions() -> None:
    """Those of the pool's plan count too."""
    pool = Pool()
    for session in (1, 2, 3):
        pool.make(session, [0])
    with pytest.raises(errors.Overloaded, match="device 0 is in 4 worlds, as many as may be on the cuda") as raised:
        pool.make(4, [1, 0])
    assert raised.value.device == 0
    pool.make(4, [1])
    pool.worlds.free()


def test_the_place_of_a_closed_world_is_waited_for() -> None:
    """Until all members have left it, but not for ever; by age, and not for a session that has ended."""
    pool = Pool()
    numbers = [pool.make(session, [0]) for session in (1, 2, 3)]
    for number in numbers:
        pool.hand_over(0, number)
    pool.made.close(1, numbers[0])
    gone, first, second = pool.ask(5, [0]), pool.ask(1, [0]), pool.ask(2, [1, 0])
    _, timer = pool.loop.timers[-1]
    assert gone == first == second == []
    assert timer.call is not None
    pool.made.session_ended(5)
    pool.worlds.heard((0, 1), control.EpochLeft(numbers[0], 1))
    assert len(first) == 1
    assert isinstance(first[0], int)
    assert second == []
    timer.call()
    (refused,) = second
    assert isinstance(refused, errors.Overloaded)
    pool.made.close(2, numbers[1])
    pool.worlds.heard((0, 1), control.EpochLeft(numbers[1], 1))
    assert gone == []
    assert len(second) == 1
    pool.make(4, [0])
    pool.worlds.free()


# --- all together ----------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_in_any_story_each_gets_what_is_there_once_and_no_epoch_lacks_a_mailbox(data: st.DataObject) -> None:  # noqa: C901 - one case for each fact
    """As a plain account of who is there, who has handed over, and who is ready tells."""
    post = Post(3)
    present, handed_over = set[Process](), set[Process]()
    latest, ready = [0, 0, 0], [0, 0, 0]
    expected: Counter[tuple[Process, Process]] = Counter()
    for _ in range(data.draw(st.integers(1, 40))):
        rank = data.draw(st.integers(0, 2))
        process = rank, data.draw(st.integers(max(1, latest[rank] - 1), latest[rank] + 1))
        others = {each for each in present if each[0] != rank}
        match data.draw(st.sampled_from(["start", "start", "hand over", "hand over", "ready", "end", "epoch", "time"])):
            case "start":
                latest[rank] += 1
                process = rank, latest[rank]
                post.start(*process)
                expected.update((process, each) for each in others & handed_over)
                present.add(process)
            case "hand over" if process in handed_over:
                with pytest.raises(errors.ProtocolError):
                    post.keeper.mailbox(*process, None)
            case "hand over" if process in present:
                post.hand_over(*process)
                expected.update((each, process) for each in others)
                handed_over.add(process)
            case "hand over":
                post.hand_over(*process)
            case "ready" if process in present:
                post.keeper.ready(*process, "")
                ready[rank] = max(ready[rank], process[1])
            case "end":
                post.keeper.ended(*process)
                present.discard(process)
                handed_over.discard(process)
            case "epoch":
                say = data.draw(st.sampled_from([post.joined, post.left]))
                say(*enumerate(ready))
            case "time":
                post.loop.run_out()
        assert post.given == expected
        assert len(post.keeper.descriptors) == 1 + len(present) + len(handed_over)
        for _, _, message in (each for each in post.told() if isinstance(each, tuple)):
            if isinstance(message, control.JoinEpoch):
                assert set(enumerate(message.generations)) <= handed_over
    for process in present:
        post.keeper.ended(*process)
    assert len(post.keeper.descriptors) == 1
    post.close()
