"""Rank 0's decisions about streams that run together, step by step: which take part in the next step. Pure.

A method takes one step at a time. The next one waits until all ranks have ended the last, so the outcome of each stream
is known from all of them; and until rank 0 knows which readers have room now. A stream goes on if it does so on all
ranks. It is forgotten if the method has ended it on all. In any other case it is *gone*: the next step tells that to
the method on all ranks, also on one where the method has ended the stream. So all ranks see the same streams in the
same order.

    come to all --> waiting --(a place is free)--> live --(some rank ends it, or it has to end)--> gone --> forgotten
                       |                             |
                       |--(has to end)--> declined   |--(the method has ended it on all ranks)--> forgotten
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from atomr_mp.protocol.world import MemberReader, Outcome, WorldPageDamagedError
from atomr_mp.protocol.world.page import MAX_STEPPED
from atomr_mp_workers.worlds.order.steps import MOVED, UNWANTED, Ending, PartKey, StreamEnd

_OVER: Final = frozenset({Outcome.ENDED, Outcome.FAILED})
_FAILED: Final = frozenset({Outcome.FAILED, Outcome.LEFT})


class Role(IntEnum):
    """How a stream stands in a step."""

    READY = 0
    """It takes part, and its reader has room."""
    HELD = 1
    """It takes part, and its reader has no room."""
    GONE = 2
    """It is no longer live."""


class StreamRole(NamedTuple):
    """How a stream stands in a step, and why it is gone if it is."""

    role: Role
    end: StreamEnd | None = None


def pack_roles(roles: Sequence[StreamRole]) -> bytes:
    """Return the data of an entry whose streams stand so."""
    return bytes([byte for role, end in roles for byte in (role, 0 if end is None else end.pack())])


def unpack_roles(data: bytes, count: int, size: int) -> list[StreamRole]:
    """Return how the streams of an entry stand.

    Args:
        data: The entry's data.
        count: How many streams it names.
        size: How many ranks there are.

    Raises:
        WorldPageDamagedError: The data cannot be.
    """
    if len(data) != 2 * count or any(role > Role.GONE for role in data[::2]):
        raise WorldPageDamagedError("a step does not say how its streams stand")
    found = [
        StreamRole(Role(role), StreamEnd.unpack(end, size) if role == Role.GONE else None)
        for role, end in zip(data[::2], data[1::2], strict=True)
    ]
    if sum(each.end is None for each in found) > MAX_STEPPED:
        raise WorldPageDamagedError("more streams take a step together than may")
    return found


class SteppedPart(NamedTuple):
    """What rank 0 has to know of its part of a stream."""

    method: str
    max_items: int
    """How many streams of the method may be live."""
    is_resumable: bool
    """Whether it can go on in another epoch."""


class SharedStep(NamedTuple):
    """A step that can be published."""

    method: str
    live: list[PartKey]
    """The streams that take part, the new ones last."""
    gone: list[PartKey]
    keys: list[PartKey]
    """All of them, in the order of the entry."""
    roles: list[StreamRole]


def judge_stream(outcomes: Sequence[Outcome]) -> StreamEnd | None:
    """Return why a stream is gone after a step with these outcomes by rank; None if it goes on, or has ended on all.

    A rank that fails is the reason before one that only ends.
    """
    if set(outcomes) == {Outcome.GOES_ON} or _OVER.issuperset(outcomes):
        return None
    for ranks, ending in ((_FAILED, Ending.FAILED), (_OVER, Ending.DIVERGED)):
        found = [rank for rank, outcome in enumerate(outcomes) if outcome in ranks]
        if found:
            return StreamEnd(ending, found[0])
    return None


class SharedSteps:
    """The streams of an epoch that run together, by method.

    Args:
        readers: The members' lines, by rank.
    """

    def __init__(self, readers: Sequence[MemberReader]) -> None:
        self._readers: Final = readers
        self._known: dict[PartKey, SteppedPart] = {}
        """All streams that are not forgotten."""
        self._room: set[PartKey] = set()
        """Those of them whose reader has room for a part."""
        self._ends: dict[PartKey, StreamEnd] = {}
        """Those of them that have to end."""
        self._methods: dict[str, _Method] = {}
        """By name; the method of the latest step is last."""

    def __len__(self) -> int:
        """Return how many streams are live, or gone without an entry that says so."""
        return sum([len(method.live) for method in self._methods.values()])

    def __contains__(self, key: object) -> bool:
        return key in self._known

    @property
    def waits(self) -> bool:
        """Whether there is a step to publish, or a member's end to wait for."""
        return any(method.keys is not None or self._is_due(method) for method in self._methods.values())

    # --- what rank 0's loop knows ----------------------------------------------------------------------------------

    def know(self, key: PartKey, part: SteppedPart, *, has_room: bool) -> None:
        """Take in what a stream's part is, before all members have noted theirs."""
        self._known[key] = part
        self.set_room(key, has_room=has_room)

    def set_room(self, key: PartKey, *, has_room: bool) -> None:
        """Take in whether a stream's reader has room for another part. A step takes the room until this is called."""
        if has_room and key in self._known:
            self._room.add(key)
        else:
            self._room.discard(key)

    def end(self, key: PartKey, end: StreamEnd = UNWANTED) -> bool:
        """Have a stream end on all ranks; return whether it has come to all and not begun, so that none runs it."""
        part = self._known.get(key)
        if part is None:
            return False
        method = self._methods.get(part.method)
        if method is not None and key in method.waiting:
            del method.waiting[key]
            self.forget(key)
            return True
        self._ends.setdefault(key, end)
        return False

    def end_session(self, session: int) -> list[PartKey]:
        """Have all streams of a session end; return those that have come to all and not begun."""
        mine = [key for key in self._known if key[0] == session]
        waiting = [key for key in mine if self.end(key)]
        for key in mine:
            if key in self._known and not self._is_live(key):
                self.forget(key)
        return waiting

    def is_unwanted(self, key: PartKey) -> bool:
        """Return whether a stream that has come to all members has to end."""
        return key in self._ends

    def forget(self, key: PartKey) -> None:
        """Take in that a stream will not run, or no longer."""
        self._known.pop(key, None)
        self._room.discard(key)
        self._ends.pop(key, None)

    def rested(self, name: str) -> None:
        """Take in that rank 0 has taken a method's step back, and said which readers have room."""
        self._methods[name].rests = True

    def close(self) -> None:
        """Begin no more streams; those that can go on in another epoch end, and the others go on to their ends."""
        for key, part in list(self._known.items()):
            if not self._is_live(key):
                self.forget(key)
            elif part.is_resumable:
                self.end(key, MOVED)
        for method in self._methods.values():
            method.waiting.clear()

    # --- what the publisher does -----------------------------------------------------------------------------------

    def add(self, key: PartKey) -> bool:
        """Let a stream wait that has come to all members; return False if it does not run together with others."""
        part = self._known.get(key)
        if part is None:
            return False
        method = self._methods.get(part.method)
        if method is None:
            method = self._methods[part.method] = _Method(part.max_items)
        method.waiting[key] = None
        return True

    def settle(self, ended: int) -> None:
        """Take in up to which entry all members have ended all.

        Raises:
            WorldPageDamagedError: A member's lines cannot be believed.
        """
        for method in self._methods.values():
            keys = method.keys
            if keys is None or method.sequence > ended:
                continue
            found = [reader.step_outcomes(method.sequence, len(keys)) for reader in self._readers]
            method.keys = None
            for key, *outcomes in zip(keys, *found, strict=True):
                end = judge_stream(outcomes)
                if end is not None:
                    self._ends[key] = end
                elif Outcome.GOES_ON not in outcomes:
                    del method.live[key]
                    self.forget(key)

    def next(self) -> SharedStep | None:
        """Return the step that is next, None if none is due."""
        for name, method in self._methods.items():
            if self._is_due(method):
                going = [key for key in method.live if key not in self._ends]
                gone = [key for key in method.live if key in self._ends]
                live = [*going, *itertools.islice(method.waiting, method.max_items - len(going))]
                roles = [StreamRole(Role.READY if key in self._room else Role.HELD) for key in live]
                roles += [StreamRole(Role.GONE, self._ends[key]) for key in gone]
                return SharedStep(name, live, gone, live + gone, roles)
        return None

    def published(self, step: SharedStep, sequence: int) -> None:
        """Take in that the next step was published as this entry."""
        method = self._methods.pop(step.method)
        self._methods[step.method] = method
        for key in step.gone:
            self.forget(key)
        for key in step.live:
            method.waiting.pop(key, None)
        method.live = dict.fromkeys(step.live)
        method.sequence, method.keys, method.rests = sequence, step.live, False
        self._room.difference_update(step.live)

    def _is_due(self, method: _Method) -> bool:
        """Return whether a method's next step has something to do, and the last one is over."""
        if method.keys is not None or not method.rests:
            return False
        if method.waiting and len(method.live) < method.max_items:
            return True
        return not (self._ends.keys().isdisjoint(method.live) and self._room.isdisjoint(method.live))

    def _is_live(self, key: PartKey) -> bool:
        method = self._methods.get(self._known[key].method)
        return method is not None and key in method.live


class _Method:
    """The streams of a method."""

    def __init__(self, max_items: int) -> None:
        self.max_items: Final = max_items
        self.waiting: dict[PartKey, None] = {}
        """Streams that have come to all members, and have not begun."""
        self.live: dict[PartKey, None] = {}
        """Streams that have begun and not ended on all ranks, in their order."""
        self.sequence = 0
        """The entry of the latest step."""
        self.keys: Sequence[PartKey] | None = None
        """The streams that take part in it, until it has ended on all ranks."""
        self.rests = True
        """Whether rank 0 has taken that step back."""
