"""Rank 0's decisions about the open streams of a world: who takes a step, and who ends on all ranks. Pure.

A stream takes a step once all ranks have ended its last one and go on, and its reader has room. So a rank that fails,
or ends earlier than the others, is known before any rank goes on without it. A stream that has to end gets one more
entry, by which all ranks close their generators at the same place of the order.

    published --> STEPPING --(all ranks go on)--> RESTING --(room)--> STEPPING
                     |                               |
                     |--(all ranks have ended)--> forgotten
                     |--(some have)--> RESTING --(has to end)--> forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from atomr_mp.protocol.world import MemberReader, Outcome, WorldPageDamagedError

PartKey = tuple[int, int]
"""Session number and gang id: names a gang call."""


class Ending(IntEnum):
    """Why a stream ends on all ranks."""

    UNWANTED = 0
    """Its reader, or its client, has gone, or its deadline has passed."""
    MOVED = 1
    """The epoch ends as planned, and the stream goes on in the next one."""
    FAILED = 2
    """It has failed on a rank."""
    DIVERGED = 3
    """It has ended on a rank, and goes on on others."""


_BITS: Final = 2


class StreamEnd(NamedTuple):
    """The end of a stream on all ranks, as it stands in an entry of the ring."""

    ending: Ending
    rank: int = 0
    """The rank that it comes from, for the last two."""

    def pack(self) -> int:
        """Return the entry's argument."""
        return self.ending | self.rank << _BITS

    @classmethod
    def unpack(cls, argument: int, size: int) -> StreamEnd:
        """Return the end that an entry's argument stands for.

        Args:
            argument: The argument.
            size: How many ranks there are.

        Raises:
            WorldPageDamagedError: It stands for none.
        """
        rank = argument >> _BITS
        if rank >= size:
            raise WorldPageDamagedError("a stream ends for a rank that does not exist")
        return cls(Ending(argument & 2**_BITS - 1), rank)


UNWANTED: Final = StreamEnd(Ending.UNWANTED)
MOVED: Final = StreamEnd(Ending.MOVED)


def judge_step(outcomes: Sequence[Outcome]) -> StreamEnd | None:
    """Return why a stream has to end after a step with these outcomes by rank; None if it goes on, or has ended on all.

    A rank that fails is the reason before one that only ends.
    """
    if Outcome.GOES_ON not in outcomes or set(outcomes) == {Outcome.GOES_ON}:
        return None
    if Outcome.FAILED in outcomes:
        return StreamEnd(Ending.FAILED, outcomes.index(Outcome.FAILED))
    return StreamEnd(Ending.DIVERGED, outcomes.index(Outcome.ENDED))


class StepOrder:
    """The open streams of an epoch, by what their next entry waits for.

    Args:
        readers: The members' lines, by rank.
    """

    def __init__(self, readers: Sequence[MemberReader]) -> None:
        self._readers: Final = readers
        self._stepping: dict[PartKey, int] = {}
        """Streams whose latest entry has not ended on all ranks, with that entry's number; the earliest first."""
        self._resting: set[PartKey] = set()
        """Streams whose latest entry has ended on all ranks."""
        self._due: dict[PartKey, None] = {}
        """Resting streams whose next entry can be published, in their order."""
        self._room: set[PartKey] = set()
        """Streams whose reader has room for a part."""
        self._resumable: set[PartKey] = set()
        """Streams that can go on in another epoch."""
        self._ends: dict[PartKey, StreamEnd] = {}
        """Streams that have to end."""

    def __len__(self) -> int:
        """Return how many streams have begun and not ended on all ranks."""
        return len(self._stepping) + len(self._resting)

    @property
    def waits(self) -> bool:
        """Whether there is an entry to publish, or a member's end to wait for."""
        return bool(self._stepping or self._due)

    @property
    def is_due(self) -> bool:
        """Whether there is an entry to publish."""
        return bool(self._due)

    # --- what rank 0's loop knows ----------------------------------------------------------------------------------

    def came(self, key: PartKey, *, has_room: bool, is_resumable: bool) -> None:
        """Take in that rank 0 has its part of a stream."""
        self.set_room(key, has_room=has_room)
        if is_resumable:
            self._resumable.add(key)

    def set_room(self, key: PartKey, *, has_room: bool) -> None:
        """Take in whether a stream's reader has room for another part. A step takes the room until this is called."""
        if has_room:
            self._room.add(key)
        else:
            self._room.discard(key)
        self._look(key)

    def end(self, key: PartKey, end: StreamEnd = UNWANTED) -> bool:
        """Have a stream end on all ranks after its step; return False: it begins even so if it has not begun."""
        self._ends.setdefault(key, end)
        self._look(key)
        return False

    def end_session(self, session: int) -> None:
        """Have all streams of a session end that have begun, and forget those that have not."""
        for key in [key for key in (*self._stepping, *self._resting) if key[0] == session]:
            self.end(key)
        for key in [key for key in (*self._room, *self._resumable, *self._ends) if key[0] == session]:
            if key not in self._stepping and key not in self._resting:
                self._forget(key)

    def decline(self, key: PartKey) -> None:
        """Take in that a call will not run, which may be a stream that has come."""
        self._forget(key)

    def close(self) -> None:
        """Have all streams end that can go on in another epoch; the others go on to their ends."""
        for key in [*self._stepping, *self._resting]:
            if key in self._resumable:
                self.end(key, MOVED)

    # --- what the publisher does -----------------------------------------------------------------------------------

    def has_first_step(self, key: PartKey) -> bool:
        """Return whether a stream that is about to begin takes its first step at once."""
        return key in self._room and key not in self._ends

    def published(self, key: PartKey, sequence: int) -> None:
        """Take in that a stream's beginning, or a step, was published."""
        self._resting.discard(key)
        self._due.pop(key, None)
        self._room.discard(key)
        self._stepping[key] = sequence

    def published_end(self, key: PartKey) -> None:
        """Take in that a stream's end was published."""
        self._resting.discard(key)
        self._due.pop(key, None)
        self._forget(key)

    def settle(self, ended: int) -> None:
        """Take in up to which entry all members have ended all.

        Raises:
            WorldPageDamagedError: A member's lines cannot be believed.
        """
        while self._stepping:
            key, sequence = next(iter(self._stepping.items()))
            if sequence > ended:
                return
            outcomes = [reader.outcome(sequence) for reader in self._readers]
            del self._stepping[key]
            if Outcome.GOES_ON not in outcomes:
                self._forget(key)
                continue
            end = judge_step(outcomes)
            if end is not None:
                self._ends[key] = end
            self._resting.add(key)
            self._look(key)

    def next(self) -> tuple[PartKey, StreamEnd | None] | None:
        """Return the stream whose entry is next, and why it ends; None for a step, and None if none is due."""
        if not self._due:
            return None
        key = next(iter(self._due))
        return key, self._ends.get(key)

    def _look(self, key: PartKey) -> None:
        if key in self._resting and (key in self._room or key in self._ends):
            self._due[key] = None
        else:
            self._due.pop(key, None)

    def _forget(self, key: PartKey) -> None:
        self._room.discard(key)
        self._resumable.discard(key)
        self._ends.pop(key, None)
