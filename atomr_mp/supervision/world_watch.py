"""Who waits for whom in a world: from looks at the members' pages to sentences for operators. Pure.

The pages are other processes' memory: whatever is in them gives a reading, and numbers are only shown. Times are those
between looks, so they are short by up to the time between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.world import MemberReader, WorldPageDamagedError
from atomr_mp.protocol.world.collectives import KIND_BITS, KINDS
from atomr_mp.protocol.world.ring import latest

PATIENT_S: Final = 1.0
"""A member that has begun a call so late is not worth a sentence."""


class MemberReading(NamedTuple):
    """What a member's lines show."""

    begun: int = 0
    """The latest call that it has begun, as its number in the world's order."""
    ended: int = 0
    met: int = 0
    """How many steps of collectives it has met in this epoch."""
    quiet: int = 0
    """The latest call for which its process runs nothing else."""
    is_away: bool = False
    """Whether it begins nothing, since a suspect waits or runs in its process."""
    collective: str = ""
    """The name of the collective that it has met last, "" if none."""
    damage: str = ""
    """Why its lines cannot be read."""


class WatchedWorld(NamedTuple):
    """Where a world's members are."""

    published: int
    """How many calls the world's order has in this epoch."""
    members: list[tuple[MemberReading, str]]
    """By rank: the reading, and in words what the member does."""
    waits: str
    """A sentence on the ranks that wait for others; "" if none waits for long."""


def read_member(words: memoryview, epoch: int) -> MemberReading | None:
    """Return a member's progress by the first words of its lines; None if it has not joined the epoch.

    Args:
        words: The words up to the notes.
        epoch: The epoch.
    """
    reader = MemberReader(words, epoch)
    if not reader.is_open:
        return None
    try:
        ended, begun, met = reader.ended(), reader.begun(), reader.met()
        return MemberReading(begun, ended, met, reader.quiet(), reader.is_away, _collective(reader, met))
    except WorldPageDamagedError as damage:
        return MemberReading(damage=str(damage))


def read_published(words: memoryview, epoch: int) -> int:
    """Return how many calls an epoch's ring has, by the ring's first words; 0 if that cannot be read."""
    try:
        return latest(words, epoch)
    except WorldPageDamagedError:
        return 0


def _collective(reader: MemberReader, met: int) -> str:
    if not met:
        return ""
    try:
        kind = reader.signature(met).kind & 2**KIND_BITS - 1
    except WorldPageDamagedError:  # it may be writing the next one
        return "a collective"
    return KINDS.get(kind, f"collective {kind}")


class WorldWatch:
    """Looks at one world again and again."""

    def __init__(self) -> None:
        self._epoch = 0
        self._members: list[MemberReading | None] = []
        self._since_s: list[float] = []
        """By rank: since when its reading is the same."""
        self._behind_s: list[float | None] = []
        """By rank: since when a call waits that it has not begun, None if none does."""

    def look(self, epoch: int, published: int, members: Sequence[MemberReading | None], now_s: float) -> WatchedWorld:
        """Take a look in, and return where the members are.

        Args:
            epoch: The epoch.
            published: How many calls its order has.
            members: The members' readings by rank, None for those that have not joined.
            now_s: A time that only grows.
        """
        if epoch != self._epoch or len(members) != len(self._members):
            self._epoch, self._members = epoch, [None] * len(members)
            self._since_s, self._behind_s = [now_s] * len(members), [None] * len(members)
        known = [each for each in members if each is not None and not each.damage]
        published = max([published, *(each.begun for each in known)])
        for rank, (before, member) in enumerate(zip(self._members, members, strict=True)):
            if member != before:
                self._since_s[rank] = now_s
            is_behind = member is not None and not member.damage and member.begun == member.ended < published
            if not is_behind or (before is not None and member is not None and before.begun != member.begun):
                self._behind_s[rank] = None
            if is_behind and self._behind_s[rank] is None:
                self._behind_s[rank] = now_s
        self._members = list(members)
        met = max([each.met for each in known], default=0)
        waiting = [rank for rank, each in enumerate(members) if each is not None and _waits(each, met, known)]
        shown = [
            (each or MemberReading(), _doing(each, waits=rank in waiting, members=known))
            for rank, each in enumerate(members)
        ]
        return WatchedWorld(published, shown, self._sentence(published, met, waiting, now_s))

    def _sentence(self, published: int, met: int, waiting: list[int], now_s: float) -> str:
        members = self._members
        missing = [rank for rank, each in enumerate(members) if each is not None and not each.damage and each.met < met]
        if waiting and missing:
            first = members[waiting[0]]
            assert first is not None
            for_s = now_s - max(self._since_s[rank] for rank in waiting)
            unbegun = all(each is not None and each.begun < first.begun for each in (members[rank] for rank in missing))
            what = f"begun call {first.begun}" if unbegun else "met it"
            return (
                f"{_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in {first.collective} for "
                f"{_ranks(missing)}, which {'has' if len(missing) == 1 else 'have'} not {what} for {for_s:.1f} s"
            )
        late = [
            (rank, since)
            for rank, since in enumerate(self._behind_s)
            if since is not None and now_s - since >= PATIENT_S
        ]
        if not late:
            return ""
        rank, since_s = late[0]
        member = members[rank]
        assert member is not None
        why = ": a suspect waits or runs in its process" if member.is_away else ""
        return f"rank {rank} has not begun call {member.begun + 1} of {published} for {now_s - since_s:.1f} s{why}"


class HoldingRequest(NamedTuple):
    """A request for which the planned end of an epoch waits."""

    method: str
    client: str
    """Words for its client."""
    for_s: float
    """How long it has been open."""


def held_by(holders: Sequence[HoldingRequest], count: int, for_s: float) -> str:
    """Return a sentence on a planned end that waits for requests.

    Args:
        holders: The first of them, at least one.
        count: How many there are.
        for_s: How long it has waited.
    """
    named = [f"{each.method} of {each.client}, open for {each.for_s:.1f} s" for each in holders]
    more = f"; and {count - len(named)} more" if count > len(named) else ""
    return f"the planned end has waited {for_s:.1f} s for {'; '.join(named)}{more}"


def left_behind(ranks: Sequence[int], for_s: float) -> str:
    """Return a sentence on a planned end that waits for members to leave, "" without any."""
    return f"the planned end has waited {for_s:.1f} s for {_ranks(ranks)} to leave" if ranks else ""


def _waits(member: MemberReading, met: int, members: Sequence[MemberReading]) -> bool:
    """Return whether a member waits in a collective that not all have met."""
    runs = member.begun > member.ended and not member.damage
    return runs and member.met == met and any(each.met < met for each in members)


def _doing(member: MemberReading | None, *, waits: bool, members: Sequence[MemberReading]) -> str:
    if member is None:
        return "has not joined"
    if member.damage:
        return f"cannot be read: {member.damage}"
    if waits:
        return f"waits in {member.collective}"
    if member.begun == member.ended:
        return "begins nothing: a suspect waits or runs in its process" if member.is_away else "is idle"
    if member.is_away and not all(each.quiet >= member.begun for each in members):
        return f"waits to run call {member.begun} alone"
    return f"runs call {member.begun}"


def _ranks(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"
