"""The files of a world in a member's process: what is mapped, how, and for how long; and the table of its life."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from atomr_mp import errors
from atomr_mp.interop.sealed import make_sealed
from atomr_mp.protocol.messages.control import WithdrawWorld, WorldFile, WorldFileKind, WorldOffered
from atomr_mp.protocol.world.memory import WORLD_BYTES
from atomr_mp_workers.worlds.hosted import HostedWorlds
from atomr_mp_workers.worlds.member_states import (
    TRANSITIONS,
    MemberAction,
    MemberEvent,
    MemberState,
    UnexpectedMemberEventError,
    member_step,
)
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.offers import WorldOffers
from atomr_mp_workers.worlds.order.files import WorldFiles
from tests.world_files import WorldSupply


@pytest.fixture
def supply() -> Iterator[WorldSupply]:
    """Yield what makes files."""
    supply = WorldSupply()
    yield supply
    supply.close()


def received(supply: WorldSupply, generations: list[int]) -> WorldFiles:
    """Return the files of rank 0 and all others."""
    files = WorldFiles()
    for file, descriptor in supply.own_files(0, generations[0]):
        files.add(file, descriptor)
    for rank, generation in enumerate(generations[1:], start=1):
        for file, descriptor in supply.files(rank, generation):
            files.add(file, descriptor)
    return files


def is_open(descriptor: int) -> bool:
    """Return whether a descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_only_its_own_memory_can_be_written(supply: WorldSupply) -> None:
    """A process can read that of others, and the stop word."""
    files = received(supply, [1, 1])
    pages = files.pages(0, [1, 1])
    pages.lines[0][0] = 7
    pages.ring[0] = 8
    pages.mailboxes[0][0] = 9
    for words in (pages.lines[1], pages.mailboxes[1], pages.stop):
        with pytest.raises(TypeError, match="read-only"):
            words[0] = 1
    supply.stop[0] = 5
    assert pages.stop[0] == 5
    again = files.pages(0, [1, 1])
    assert (again.lines[0][0], again.ring[0], again.mailboxes[0][0]) == (7, 8, 9)
    files.close()


def test_memory_that_could_end_this_process_is_not_mapped(supply: WorldSupply) -> None:
    """It has another size, or may get one."""
    unsealed = os.memfd_create("world")
    os.ftruncate(unsealed, WORLD_BYTES)
    for descriptor in (unsealed, make_sealed("world", WORLD_BYTES + 4096), make_sealed("world", 4096)):
        files = received(supply, [1, 1])
        files.add(WorldFile(1, 1, 2, WorldFileKind.MEMORY), descriptor)
        with pytest.raises(errors.ProtocolError, match="sealed"):
            files.pages(0, [1, 2])
        assert not is_open(descriptor)
        files.close()


def test_what_belongs_to_former_processes_is_closed(supply: WorldSupply) -> None:
    """With the next epoch; that of later processes stays, and so does this process's own."""
    files = received(supply, [1, 1])
    former = files.pages(0, [1, 1])
    bells = {file.kind: descriptor for file, descriptor in supply.files(1, 3)}
    for kind, descriptor in bells.items():
        files.add(WorldFile(1, 1, 3, kind), descriptor)
    for file, descriptor in supply.files(1, 2):
        files.add(file, descriptor)
    files.close_former([1, 2])
    assert not any(map(is_open, (former.loop_bells[1], former.thread_bells[1])))
    assert all(map(is_open, (former.loop_bells[0], former.thread_bells[0], *bells.values())))
    with pytest.raises(errors.ProtocolError, match="generation 1"):
        files.pages(0, [1, 1])
    assert files.pages(0, [1, 2]).lines[0][0] == former.lines[0][0]
    files.close()
    assert not any(map(is_open, bells.values()))


def test_mailboxes_wait_until_they_are_taken(supply: WorldSupply) -> None:
    """Whoever has taken one closes it; others are closed with those of former processes, and with the world."""
    files = received(supply, [1, 1, 1])
    sent = {(rank, generation): os.dup(0) for rank, generation in ((2, 1), (1, 1), (1, 2), (1, 3))}
    for (rank, generation), descriptor in sent.items():
        files.add(WorldFile(1, rank, generation, WorldFileKind.MAILBOX), descriptor)
    assert files.mailboxes == list(sent)
    assert files.take_mailbox(1, 2) == sent[1, 2]
    assert files.take_mailbox(1, 2) is None
    assert files.take_mailbox(0, 1) is None
    assert files.mailboxes == [(2, 1), (1, 1), (1, 3)]
    files.close_former([1, 2, 1])
    assert files.mailboxes == [(2, 1), (1, 3)]
    assert not is_open(sent[1, 1])
    files.close()
    assert not files.mailboxes
    assert [is_open(each) for each in sent.values()] == [False, False, True, False]
    os.close(sent[1, 2])


def test_a_mailbox_is_closed_with_its_process(supply: WorldSupply) -> None:
    """A standby is in no epoch that would close it, and the memory would stay taken."""
    files = received(supply, [1])
    sent = {(rank, generation): os.dup(0) for rank, generation in ((0, 1), (2, 1), (2, 2))}
    for (rank, generation), descriptor in sent.items():
        files.add(WorldFile(1, rank, generation, WorldFileKind.MAILBOX), descriptor)
    offered, unused = WorldOffered(1, "tp", 1, 3, 1, [], 1.0, devices=[4, 5, 6]), Mock()
    member = Membership(offered, files, *[unused] * 6)
    worlds = HostedWorlds([member], {1: files}, [])
    for device, generation in ((6, 1), (6, 1), (2, 2), (4, 7)):
        worlds.incarnation_over(device, generation)
    assert files.mailboxes == [(0, 1), (2, 2)]
    assert [is_open(each) for each in sent.values()] == [True, False, True]
    files.close()


def test_a_member_hears_of_mailboxes_that_come() -> None:
    """Of those of its world, once they wait among the files; others wait for their world, and lost ones are no news."""
    files, heard = {1: WorldFiles()}, list[list[tuple[int, int]]]()
    member: Any = SimpleNamespace(number=1, mailbox_came=lambda: heard.append(files[1].mailboxes))
    worlds = HostedWorlds([member], files, [])
    assert worlds.obey(WorldFile(1, 1, 4, WorldFileKind.MAILBOX), lambda: os.dup(0))
    assert worlds.obey(WorldFile(1, 1, 4, WorldFileKind.LOOP_BELL), lambda: os.dup(0))
    assert worlds.obey(WorldFile(1, 1, 5, WorldFileKind.MAILBOX), lambda: None)
    assert worlds.obey(WorldFile(2, 1, 4, WorldFileKind.MAILBOX), lambda: os.dup(0))
    assert heard == [[(1, 4)]]
    assert files[2].mailboxes == [(1, 4)]
    assert worlds.obey(WithdrawWorld(2), lambda: None)
    assert 2 not in files
    files[1].close()


def test_worlds_are_offered_before_the_start(supply: WorldSupply) -> None:
    """A message about anything else is left to others, with its descriptor."""
    offers = WorldOffers()
    mailbox = WorldFile(1, 1, 3, WorldFileKind.MAILBOX)
    for file, descriptor in (*supply.own_files(0, 1), (mailbox, os.dup(0))):
        assert offers.take(file, descriptor)
    offered = WorldOffered(1, "tp", 0, 2, 1, ["A"], 1.0)
    assert offers.take(offered, None)
    assert offers.offered == [offered]
    assert is_open(offers.of(1).loop_bell(0, 1))
    assert offers.of(1).mailboxes == [(1, 3)]
    offers.of(1).close()


def test_the_table_lets_no_epoch_go_unanswered() -> None:
    """On every walk what has not begun is answered before the process says that it has left."""
    reached = {MemberState.OUTSIDE}
    walks: list[tuple[MemberState, tuple[MemberAction, ...]]] = [(MemberState.OUTSIDE, ())]
    for _ in range(6):
        further = []
        for state, actions in walks:
            for event in MemberEvent:
                if (state, event) not in TRANSITIONS:
                    with pytest.raises(UnexpectedMemberEventError):
                        member_step(state, event)
                    continue
                move = member_step(state, event)
                reached.add(move.state)
                further.append((move.state, (*actions, *move.actions)))
        walks = list(dict.fromkeys(further))
    assert reached == set(MemberState)
    for state, actions in walks:
        kept = [each for each in actions if each not in {MemberAction.WAKE, MemberAction.CLOSE}]
        while kept:
            opened = kept.pop(0) if kept[0] is MemberAction.OPEN else None  # else it was left while it formed
            if opened and not kept:
                break
            assert kept[:2] == [MemberAction.REFUSE, MemberAction.REPORT][: len(kept)], state
            del kept[:2]
