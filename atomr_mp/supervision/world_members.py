"""Who belongs to a world's epochs: from facts about incarnations to orders for the supervisor. Pure.

Each method takes a fact and returns the orders that follow, to be carried out in their order. Facts may come late or
twice: one about an epoch or an incarnation that is over changes nothing. The table is in `world_epochs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.devices import WorldState
from atomr_mp.supervision.world_epochs import WorldAction, WorldEvent, world_step


class WorldMember(NamedTuple):
    """A rank, and the incarnation of its device that has it."""

    rank: int
    incarnation: int


class FormEpoch(NamedTuple):
    """Ask these members to join, one of each rank in order; tell `join_late` if not all have joined in time."""

    epoch: int
    members: tuple[WorldMember, ...]


class PublishEpoch(NamedTuple):
    """Tell the clients that these members are ready for gang calls."""

    epoch: int
    members: tuple[WorldMember, ...]


class StopEpoch(NamedTuple):
    """Store the epoch's number in the stop word."""

    epoch: int


class RefuseEpoch(NamedTuple):
    """Tell the clients that the epoch takes no more calls, and why."""

    epoch: int
    cause: EpochCause


class FinishEpoch(NamedTuple):
    """Have these members run what was published, and leave; tell `close_late` if not all have left in time."""

    epoch: int
    members: tuple[WorldMember, ...]


class LeaveEpoch(NamedTuple):
    """Ask these members to leave, if there are any; tell `leave_late` if somebody is inside after the time for it."""

    epoch: int
    members: tuple[WorldMember, ...]


class ReplaceMembers(NamedTuple):
    """Have the devices replace these incarnations. They stay inside until their processes have ended."""

    epoch: int
    members: tuple[WorldMember, ...]


class FreeWorld(NamedTuple):
    """Give back what the world had: the last process that mapped it has left or ended."""


WorldOrder = FormEpoch | PublishEpoch | StopEpoch | RefuseEpoch | FinishEpoch | LeaveEpoch | ReplaceMembers | FreeWorld


class EpochCause(NamedTuple):
    """Why an epoch is over."""

    reason: str
    """In words: "ended", "poisoned", "drains", "raised", "did not join in time", "the world was closed", ..."""
    rank: int | None = None
    """The rank where it came from, if from one."""
    planned: bool = False
    """Whether a member of an epoch that no client has seen yet is replaced as planned."""


@dataclass
class _Rank:
    """What is known of a rank's device."""

    incarnation: int = 0
    """The latest that was ready; 0 if none was."""
    can_join: bool = False
    code: str = ""
    """A digest of the code and settings that it was set up with."""
    ended: int = 0
    """The latest incarnation that has ended: a standby's may be higher than that of the active one."""


class WorldMembers:
    """The members of one world.

    Args:
        size: How many ranks it has.
        epoch: The number of its latest epoch; the next one gets a higher one.
        mailboxes: Whether an incarnation can join only once its mailbox was handed over.
    """

    def __init__(self, size: int, epoch: int = 0, *, mailboxes: bool = False) -> None:
        self.state = WorldState.WAITING
        self.epoch = epoch
        """The number of the latest epoch that was formed."""
        self.cause = EpochCause("")
        """Why the latest epoch that is over has ended."""
        self._ranks: Final = [_Rank() for _ in range(size)]
        self._members: tuple[WorldMember, ...] = ()
        """Those of the latest epoch."""
        self._joined: Final[set[WorldMember]] = set()
        self._inside: Final[set[WorldMember]] = set()
        """Those who may map something of the latest epoch."""
        self._given_up: Final[set[WorldMember]] = set()
        """Those inside that do nothing more before their end."""
        self._handed_over: Final[set[WorldMember] | None] = set() if mailboxes else None
        """Those whose mailboxes are there; None if there are no mailboxes."""
        self._orders: list[WorldOrder] = []

    @property
    def members(self) -> tuple[WorldMember, ...]:
        """Those of the latest epoch that was formed, by rank."""
        return self._members

    @property
    def inside(self) -> frozenset[WorldMember]:
        """Those who were asked to join the latest epoch, and have neither left it nor ended."""
        return frozenset(self._inside)

    @property
    def missing(self) -> list[int]:
        """The ranks without an incarnation that can join."""
        return [rank for rank, each in enumerate(self._ranks) if not each.can_join]

    @property
    def without_mailbox(self) -> list[int]:
        """The ranks whose latest incarnation has a mailbox to hand over."""
        if self._handed_over is None:
            return []
        latest = [WorldMember(rank, each.incarnation) for rank, each in enumerate(self._ranks)]
        return [each.rank for each in latest if each not in self._handed_over]

    def strays(self, plan: str) -> list[int]:
        """Return the ranks that were set up by another plan than the one that holds, and keep the world from forming.

        They have the same code as the others, so that processes by that plan form an epoch with these.

        Args:
            plan: Names the plan, as the code of a member begins.
        """
        codes = [each.code.partition(" ") for each in self._ranks]
        plans, digests = ({code[at] for code in codes} for at in (0, 2))
        if self.state is not WorldState.WAITING or self.missing or len(plans) == 1 or len(digests) > 1:
            return []
        return [rank for rank, (by, _, _) in enumerate(codes) if by != plan]

    def ready(self, rank: int, incarnation: int, code: str = "") -> list[WorldOrder]:
        """Take in that an incarnation is set up and active: it can join.

        Args:
            rank: Its rank.
            incarnation: Its number, higher than those before it.
            code: What it was set up with: the name of a plan, and a digest. Only members with equal ones join an epoch.
        """
        known = self._ranks[rank]
        if incarnation <= max(known.incarnation, known.ended):
            return []
        before, may_be_replaced = WorldMember(rank, known.incarnation), not known.can_join
        known.incarnation, known.can_join, known.code = incarnation, True, code
        if before in self._inside and not may_be_replaced:  # its end was not told; no more is heard of it but that
            self._break(EpochCause("was replaced", rank))
        self._check()
        return self._take()

    def handed_over(self, rank: int, incarnation: int) -> list[WorldOrder]:
        """Take in that the mailbox of an incarnation is there, before or after that is ready; it has not ended."""
        assert self._handed_over is not None
        self._handed_over.add(WorldMember(rank, incarnation))
        self._check()
        return self._take()

    def ended(self, rank: int, incarnation: int) -> list[WorldOrder]:
        """Take in that an incarnation's process has ended, whatever it was."""
        known, member = self._ranks[rank], WorldMember(rank, incarnation)
        if self._handed_over is not None:
            self._handed_over.discard(member)
        known.ended = max(known.ended, incarnation)
        if incarnation == known.incarnation:
            known.can_join = False
        if member in self._inside:
            self._go_out(member, EpochCause("ended", rank))
        return self._take()

    def poisoned(self, rank: int, incarnation: int, reason: str = "poisoned") -> list[WorldOrder]:
        """Take in that an incarnation is poisoned, found hung, or killed: all that is awaited is its end."""
        return self._lose(WorldMember(rank, incarnation), reason, answers=False)

    def drains(self, rank: int, incarnation: int, reason: str = "drains") -> list[WorldOrder]:
        """Take in that an incarnation is to be replaced, and carries orders out until then: its epoch is closed."""
        return self._lose(WorldMember(rank, incarnation), reason, answers=True)

    def joined(self, rank: int, incarnation: int, epoch: int) -> list[WorldOrder]:
        """Take in that an incarnation says it has joined an epoch."""
        member = WorldMember(rank, incarnation)
        if self.state is WorldState.FORMING and epoch == self.epoch and member in self._inside:
            self._joined.add(member)
            if len(self._joined) == len(self._members):
                self._feed(WorldEvent.JOINED)
        return self._take()

    def left(self, rank: int, incarnation: int, epoch: int, reason: str = "") -> list[WorldOrder]:
        """Take in that an incarnation says it has left an epoch, or could not join it; unasked, it ends the epoch.

        Args:
            rank: Its rank.
            incarnation: Its number.
            epoch: The epoch.
            reason: Why it has left unasked, "" if it was asked.
        """
        member = WorldMember(rank, incarnation)
        if epoch == self.epoch and member in self._inside:
            asked = not reason and self.state in _CLOSES
            self._go_out(member, None if asked else EpochCause(reason or "left by itself", rank))
        return self._take()

    def broken(self, epoch: int, reason: str, rank: int | None = None) -> list[WorldOrder]:
        """Take in that an epoch cannot go on, though all its processes may: the same ones form the next."""
        if epoch == self.epoch:
            self._break(EpochCause(reason, rank))
        return self._take()

    def join_late(self, epoch: int) -> list[WorldOrder]:
        """Take in that the time is over in which members should have joined an epoch."""
        if epoch == self.epoch and self.state is WorldState.FORMING:
            late = min(self._inside - self._joined, default=None)
            self._feed(WorldEvent.LATE, EpochCause("did not join in time", None if late is None else late.rank))
        return self._take()

    def close_late(self, epoch: int) -> list[WorldOrder]:
        """Take in that the time is over in which members should have run what an epoch has published."""
        if epoch == self.epoch and self.state in _CLOSES:
            late = min(self._inside, default=None)
            reason = "has not ended what it runs in the time for a planned end"
            self._feed(WorldEvent.LATE, EpochCause(reason, None if late is None else late.rank))
        return self._take()

    def leave_late(self, epoch: int) -> list[WorldOrder]:
        """Take in that the time is over in which members should have left an epoch."""
        if epoch == self.epoch and self._inside and self.state in {WorldState.ABORTING, WorldState.ENDED}:
            self._feed(WorldEvent.LATE)
        return self._take()

    def close(self, reason: str = "the world was closed") -> list[WorldOrder]:
        """Take in that the world is over: what was published is run, and all inside are still waited for."""
        if self.state not in {WorldState.ENDING, WorldState.ENDED}:
            self._feed(WorldEvent.END, EpochCause(reason))
        return self._take()

    def _lose(self, member: WorldMember, reason: str, *, answers: bool) -> list[WorldOrder]:
        known = self._ranks[member.rank]
        if member.incarnation == known.incarnation:
            known.can_join = False
        if member in self._inside:
            if not answers:
                self._given_up.add(member)
            if not answers or self.state is WorldState.FORMING:
                self._break(EpochCause(reason, member.rank, planned=answers))
            elif self.state is WorldState.READY:
                self._feed(WorldEvent.CLOSE, EpochCause(reason, member.rank))
        return self._take()

    def _go_out(self, member: WorldMember, cause: EpochCause | None) -> None:
        """Have a member be inside no more, which ends its epoch, if it has a cause; go on if it was the last."""
        self._inside.discard(member)
        self._joined.discard(member)
        self._given_up.discard(member)
        if cause is not None:
            self._break(cause)
        if not self._inside:
            self._feed(WorldEvent.LEFT)

    def _break(self, cause: EpochCause) -> None:
        """End the epoch if it is not over yet."""
        if self.state in {WorldState.FORMING, WorldState.READY, *_CLOSES}:
            self._feed(WorldEvent.BROKEN, cause)

    def _check(self) -> None:
        is_complete = not self.missing and not self.without_mailbox and len({each.code for each in self._ranks}) == 1
        if self.state is WorldState.WAITING and is_complete:
            self._feed(WorldEvent.COMPLETE)

    def _feed(self, event: WorldEvent, cause: EpochCause | None = None) -> None:
        move = world_step(self.state, event)
        if cause is not None:
            self.cause = cause
        before, self.state = self.state, move.state
        for action in move.actions:
            self._act(action, before, cause)

    def _act(self, action: WorldAction, before: WorldState, cause: EpochCause | None) -> None:
        match action:
            case WorldAction.FORM:
                self.epoch += 1
                self._members = tuple(WorldMember(rank, each.incarnation) for rank, each in enumerate(self._ranks))
                self._inside.update(self._members)
                self._orders.append(FormEpoch(self.epoch, self._members))
            case WorldAction.PUBLISH:
                self._orders.append(PublishEpoch(self.epoch, self._members))
            case WorldAction.STOP:
                self._orders.append(StopEpoch(self.epoch))
            case WorldAction.REFUSE:
                assert cause is not None
                self._orders.append(RefuseEpoch(self.epoch, cause))
            case WorldAction.CLOSE:
                self._orders.append(FinishEpoch(self.epoch, tuple(sorted(self._inside))))
            case WorldAction.LEAVE:
                self._orders.append(LeaveEpoch(self.epoch, tuple(sorted(self._inside - self._given_up))))
            case WorldAction.REPLACE:
                self._replace(self._joined if before is WorldState.FORMING else frozenset())
            case WorldAction.CHECK:
                self._check()
            case WorldAction.FREE:
                self._orders.append(FreeWorld())

    def _replace(self, punctual: set[WorldMember] | frozenset[WorldMember]) -> None:
        late = tuple(sorted(self._inside - self._given_up - punctual))
        self._given_up.update(late)
        for rank, incarnation in late:
            known = self._ranks[rank]
            if known.incarnation == incarnation:
                known.can_join = False
        if late:
            self._orders.append(ReplaceMembers(self.epoch, late))

    def _take(self) -> list[WorldOrder]:
        orders, self._orders = self._orders, []
        return orders


_CLOSES: Final = frozenset({WorldState.CLOSING, WorldState.ENDING})
"""States in which members run what was published, and leave by themselves."""
