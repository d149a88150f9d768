"""Random lives of worlds: what each must keep, whatever happens."""

from __future__ import annotations

import itertools
import random

import pytest

from atomr_mp.protocol.messages import control
from atomr_mp_workers.requests.batches.former import NEVER_NS
from atomr_mp_workers.worlds.member_states import MemberState
from tests.fleets import WORLD, Fleet, Key, Process, order_of


class Walk:
    """A random life of a world.

    Args:
        seed: Of its choices.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.end_weight = (0.4, 0.05, 0.0)[seed % 3]
        """How often the epoch ends."""
        self.fleet = Fleet(self.random.choice((2, 3)))
        self.fleet.join()
        self.sessions = list(range(1, 4))
        self.dead: set[int] = set()
        self.ids = itertools.count(1)
        self.refused: set[tuple[int, Key]] = set()
        """Calls that a rank has refused, by epoch."""
        self.coming: list[tuple[int, int, int, int]] = []
        """Rank, session, id and epoch of parts under way."""
        self.ending: list[tuple[int, int]] = []
        """Rank and session of ends under way."""
        self.to_leave: list[int] = []
        self.to_close: list[int] = []
        self.closed = 0
        """The latest epoch that was closed."""
        self.unstopped: set[int] = set()
        """Epochs that have ended as planned, and nothing else has ended them."""
        self.whole: dict[int, set[Key]] = {}
        """Calls that have come to all members of an epoch while it lasted."""
        self.now_ns = 0
        self.dues: dict[int, int] = {}
        """Deadlines by id."""

    def step(self) -> None:  # noqa: C901, PLR0912 - one case for each kind
        """Let one thing happen."""
        process = self.random.choice(self.fleet.processes)
        is_over = self.fleet.supply.stop[0] >= self.fleet.epoch
        has_ended = is_over or all(each.member.state is MemberState.OUTSIDE for each in self.fleet.processes)
        weights = (6, 12, 8, 8, 8, 1, 3, self.end_weight, 4, 0.2, 2 * self.end_weight, 4, 2)
        self.now_ns += 1
        match self.random.choices(range(13), weights)[0]:
            case 0:
                session = self.random.choice(self.sessions)
                gang_id = next(self.ids)
                self.dues[gang_id] = self.now_ns + self.random.choice((5, 50, NEVER_NS, NEVER_NS))
                self.coming += [(each.rank, session, gang_id, self.fleet.epoch) for each in self.fleet.processes]
            case 1 if self.coming:
                self.deliver(self.coming.pop(self.random.randrange(len(self.coming))))
            case 2:
                process.look(self.now_ns)
            case 3:
                process.feed()
            case 4:
                process.finish()
            case 5 if self.random.random() < 0.2:
                session = self.random.choice(self.sessions)
                self.sessions.remove(session)
                self.dead.add(session)
                self.sessions.append(max(*self.sessions, *self.dead) + 1)
                self.ending += [(each.rank, session) for each in self.fleet.processes]
            case 6 if self.ending:
                rank, session = self.ending.pop(self.random.randrange(len(self.ending)))
                self.fleet.processes[rank].end_session(session)
                self.coming = [part for part in self.coming if part[:2] != (rank, session)]
            case 7 if not is_over and (self.closed < self.fleet.epoch or self.random.random() < 0.1):
                self.fleet.supply.end(self.fleet.epoch, self.fleet.generations)
                self.to_leave = list(range(len(self.fleet.processes)))
            case 8 if self.to_leave:
                rank = self.to_leave.pop(self.random.randrange(len(self.to_leave)))
                self.fleet.ask_to_leave(self.fleet.processes[rank], 0, "ended")
            case 9 if has_ended:
                self.form()
            case 10 if not is_over and self.closed < self.fleet.epoch:
                self.closed = self.fleet.epoch
                self.to_close = list(range(len(self.fleet.processes)))
            case 11 if self.to_close:
                self.fleet.shut(self.to_close.pop(self.random.randrange(len(self.to_close))))
            case 12:
                self.cancel()

    def cancel(self) -> None:
        """Have rank 0 hear that a caller does not want a call of which it has a part."""
        head = self.fleet.processes[0]
        parts = [part for part in head.parts if not part.outcome]
        if parts:
            head.cancel(self.random.choice(parts))

    def deliver(self, part: tuple[int, int, int, int]) -> None:
        """Have a part arrive, or be refused on its arrival."""
        rank, session, gang_id, epoch = part
        batched, way = gang_id % 3 > 0, self.random.random()
        if way < 0.05 or (batched and way < 0.1):
            self.refused.add((epoch, (session, gang_id)))
        if way < 0.05:
            self.fleet.processes[rank].refuse(session, gang_id, epoch)
        else:
            self.fleet.processes[rank].arrive(
                session, gang_id, epoch, batched=batched, fits=way >= 0.1, due_ns=self.dues[gang_id]
            )

    def form(self) -> None:
        """Have all leave, perhaps one process be replaced, and all join again."""
        if self.fleet.supply.stop[0] < self.fleet.epoch:
            self.unstopped.add(self.fleet.epoch)
        self.to_close = []
        for rank in self.to_leave:
            self.fleet.ask_to_leave(self.fleet.processes[rank], 0, "ended")
        self.to_leave = []
        for each in self.fleet.processes:
            each.finish()
            each.look()
            assert each.sent == [control.EpochLeft(WORLD, self.fleet.epoch)]
            each.sent.clear()
            assert not len(each.queue)
        if self.random.random() < 0.5:
            rank = self.random.randrange(len(self.fleet.processes))
            self.fleet.replace(rank)
            self.coming = [part for part in self.coming if part[0] != rank]
            self.ending = [end for end in self.ending if end[0] != rank]
        self.fleet.join()

    def settle(self) -> None:
        """Let all arrive that is under way, and all end that can."""
        if self.fleet.supply.stop[0] >= self.fleet.epoch:
            self.form()
        elif self.closed == self.fleet.epoch:
            self.fleet.shut()
            self.fleet.turns(200, self.now_ns)
            assert all(each.member.state is MemberState.OUTSIDE for each in self.fleet.processes)
            self.form()
        for rank, session in self.ending:
            self.fleet.processes[rank].end_session(session)
            self.coming = [part for part in self.coming if part[:2] != (rank, session)]
        while self.coming:
            self.deliver(self.coming.pop())
        self.fleet.turns(200, self.now_ns)


@pytest.mark.parametrize("seed", range(60))
def test_every_walk_keeps_the_promises(seed: int) -> None:
    """One order, one answer for each part, nothing begun after the end, and no wait for what does not come.

    A call that moves to the next epoch has begun nowhere; an epoch that nothing else ends aborts nothing.
    """
    walk = Walk(seed)
    for _ in range(1500):
        walk.step()
    walk.settle()
    fleet = walk.fleet
    for epoch in range(1, fleet.epoch + 1):
        order_of(fleet, epoch)
    ran = [(epoch, key) for each in fleet.everyone for epoch in each.begun for key in keys_of(each, epoch)]
    begun = {key for _, key in ran}
    assert not walk.refused.intersection(ran)
    cancelled = {(part.gang.epoch, part.key) for each in fleet.everyone for part in each.parts if part.closing}
    assert not cancelled.intersection(ran)
    for each in fleet.everyone:
        for epoch in each.begun:
            assert len(set(keys_of(each, epoch))) == len(keys_of(each, epoch))
    for part in [part for each in fleet.everyone for part in each.parts]:
        assert part.outcome not in _UNRUN or part.key not in begun
        assert part.outcome != "declined" or (part.gang.epoch, part.key) in walk.refused | cancelled
        assert part.outcome != "late" or part.deadline_ns < NEVER_NS
        assert part.outcome != "aborted" or part.gang.epoch not in walk.unstopped
    for process in fleet.processes:
        assert not process.sent
        assert not process.ahead
        for part in process.parts:
            assert part.outcome, f"{part.key} of epoch {part.gang.epoch} waits on rank {process.rank}"
        assert not len(process.queue)
    head = fleet.processes[0].queue.epoch
    assert head is not None
    assert head.publisher is not None
    assert not head.publisher._open
    assert not head.publisher.waits
    assert not head.publisher.batches._known
    assert not head.publisher.calls._facts
    fleet.close()


_UNRUN = {"moves", "declined", "refused", "late", "cancelled"}


def keys_of(process: Process, epoch: int) -> list[Key]:
    """Return what a process has begun in an epoch, in its order."""
    return [key for keys in process.begun[epoch].values() for key in keys]
