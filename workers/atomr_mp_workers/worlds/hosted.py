"""All worlds that this process has a place in. With the loop's turn."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.messages import control, data
from atomr_mp_workers.requests.gangs import GangParts
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.blocked_parts import BlockedParts
from atomr_mp_workers.worlds.epoch_ends import aborted
from atomr_mp_workers.worlds.made_places import MadePlace
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.order.files import WorldFiles

MOST_CUTS: Final = 16
CUTS_NS: Final = 60_000_000_000
"""A session whose lost connections end so many epochs within this time has to go: each costs all clients a delay."""


class HostedWorlds(GangParts):
    """Leads orders, parts of gang calls, and the loop's looks to the worlds that they are for.

    Args:
        members: This process's places in worlds.
        files: The files of worlds, by their number.
        bells: Descriptors that wake this process's loop for a world.
        make: Makes a place in a world that a session has made.
        send: Tells the supervisor.
    """

    def __init__(
        self,
        members: Iterable[Membership],
        files: dict[int, WorldFiles],
        bells: Iterable[int],
        make: Callable[[control.WorldOffered, WorldFiles], MadePlace | None] | None = None,
        send: Callable[[control.FromWorker], None] = lambda _message: None,
    ) -> None:
        self.blocked: Final = BlockedParts(send)
        self._members: Final = {each.number: each for each in members}
        self._make: Final = make
        self._made: Final[dict[int, MadePlace]] = {}
        """Places in worlds that sessions have made, by number."""
        self._use: Callable[[Membership], object] = lambda _member: None
        self._open_place: Callable[[MadePlace], object] = lambda _place: None
        self._close_place: Callable[[MadePlace], object] = lambda _place: None
        self._files: Final = files
        self._cuts: Final[dict[int, deque[int]]] = {}
        """When each session has ended an epoch by a lost connection."""
        self.bells: Final = tuple(dict.fromkeys(bells))

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def is_inside(self) -> bool:
        """Whether this process is in an epoch of any."""
        return any(each.is_inside for each in self._members.values())

    @property
    def owes(self) -> bool:
        """Whether only a look goes on from here."""
        return any(each.owes for each in self._members.values())

    @property
    def has_free_part(self) -> bool:
        """Whether a look would find a part whose memory has become free."""
        return any(each.has_free_part for each in self._made_members())

    def _made_members(self) -> Iterable[Membership]:
        return [place.member for place in self._made.values()]

    @property
    def due_ns(self) -> int | None:
        """When to look at the latest, if nothing else happens; None if something else has to happen first."""
        dues = [*(each.due_ns for each in self._members.values()), self.blocked.due_ns]
        return min([due for due in dues if due is not None], default=None)

    def look(self, now_ns: int, *, away: bool) -> None:
        """Look at the pages. Calls may begin, or be answered, after that. See `Membership.look`."""
        for each in self._members.values():
            each.look(now_ns, away=away)
        if self._made:
            self.blocked.look([part for each in self._made_members() for part in each.waiting], now_ns)

    def serve(self) -> None:
        """Take parts of gang calls, and no examples."""
        for each in self._members.values():
            each.serve()

    def use(
        self, abort: Callable[[Request, errors.RequestError], object], discard: Callable[[Request], object]
    ) -> None:
        """Take the functions that answer parts that have not begun, and that drop them with their session."""
        self._use = lambda member: member.use(abort, discard)
        for each in self._members.values():
            each.use(abort, discard)

    def take_places(
        self, open_place: Callable[[MadePlace], object], close_place: Callable[[MadePlace], object]
    ) -> None:
        """Take the functions that have requests of a place run from now on, or no longer."""
        self._open_place, self._close_place = open_place, close_place

    def add(self, offered: control.WorldOffered) -> None:
        """Take a place in a world that a session has made, if there is room for it; its files have come."""
        assert self._make is not None
        place = self._make(offered, self._files.setdefault(offered.world, WorldFiles()))
        if place is None:
            return
        self._members[offered.world], self._made[offered.world] = place.member, place
        self._use(place.member)
        self._open_place(place)

    def _withdraw(self, world: int) -> None:
        """Leave the place in a world that is over, and close its files."""
        place = self._made.pop(world, None)
        if place is not None:
            del self._members[world]
            self._close_place(place)
            place.thread.close()
            place.close()
        files = self._files.pop(world, None)
        if files is not None:
            files.close()

    def obey(self, order: control.FromSupervisor, take_descriptor: Callable[[], int | None]) -> bool:
        """Carry out an order; return False if it is not about a world of this process."""
        match order:
            case control.WorldFile():
                self._add_file(order, take_descriptor())
            case control.WorldOffered() if not order.actors:
                self.add(order)
            case control.WithdrawWorld():
                self._withdraw(order.world)
            case control.RefusePart():
                self._refuse(order.part)
            case control.JoinEpoch() if order.world in self._members:
                self._members[order.world].join(order)
            case control.CloseEpoch() if order.world in self._members:
                self._members[order.world].close(order)
            case control.DepartEpoch() if order.world in self._members:
                self._members[order.world].depart(order)
            case _:
                return False
        return True

    def _add_file(self, file: control.WorldFile, descriptor: int | None) -> None:
        """Take in a file of a world, maybe before that is offered."""
        if descriptor is None:  # there was no room for it, and who needs it will say that it is missing
            return
        self._files.setdefault(file.world, WorldFiles()).add(file, descriptor)
        member = self._members.get(file.world)
        if file.kind is control.WorldFileKind.MAILBOX and member is not None:
            member.mailbox_came()

    def _refuse(self, part: control.NamedPart) -> None:
        member = self._members.get(part.world)
        if member is not None:
            member.refuse((part.session, part.gang))

    def incarnation_over(self, device: int, generation: int) -> None:
        """Give back what other ranks' processes have of one that has ended."""
        for each in self._members.values():
            each.incarnation_over(device, generation)

    def drain(self) -> None:
        """Leave all epochs that are not closed, which the process leaves by itself."""
        for each in self._members.values():
            each.drain()

    def session_ended(self, session: int) -> None:
        """Take in that a session has ended."""
        self._cuts.pop(session, None)
        for each in self._members.values():
            each.session_ended(session)

    def cut_off(self, session: int, parts: Sequence[data.LostParts], now_ns: int) -> bool:
        """Take in that parts of a session were lost with a connection, maybe before this process had read them.

        Return whether the session has ended so many epochs by that that it has to go.
        """
        members = [(self._members.get(each.world), each.epoch) for each in parts]
        ended = [member.cut_off(session, epoch) for member, epoch in members if member is not None]
        if not any(ended):
            return False
        times = self._cuts.setdefault(session, deque(maxlen=MOST_CUTS))
        times.append(now_ns)
        return len(times) == MOST_CUTS and now_ns - times[0] < CUTS_NS

    def check(self, method: Method, session: int, gang: data.Gang | None) -> None:
        """Refuse a call that is not what the method's world needs; see `Membership.check`."""
        number = method.world
        if number is None or (gang is not None and gang.world != number):
            whose = "belongs to no world" if number is None else "belongs to another world"
            raise errors.InvalidRequest(f"{method.name} {whose}, so it is not called through this one")
        gang_id, epoch = (None, 0) if gang is None else (gang.id, gang.epoch)
        self._members[number].check(method.name, session, gang_id, epoch)

    def gone(self, gang: data.Gang) -> None:
        """Refuse a part of a call of a world that this process is not in, or no longer.

        Raises:
            CollectiveAborted: It is in no such world.
        """
        if gang.world not in self._members:
            raise aborted(f"with the number {gang.world}", gang.epoch, -1, "the world is closed")

    def came(self, request: Request) -> None:
        """Take in a part that was checked."""
        assert request.gang is not None
        self._members[request.gang.world].came(request)

    def unwanted(self, request: Request) -> None:
        """Take in that the caller of a part has cancelled it; see `Membership.unwanted`."""
        assert request.gang is not None
        member = self._members.get(request.gang.world)
        if member is not None:
            member.unwanted(request)

    def left(self, request: Request) -> None:
        """Take in that the connection of a part that has not begun has ended; see `Membership.left`."""
        assert request.gang is not None
        member = self._members.get(request.gang.world)
        if member is not None:
            member.left(request)

    def is_quiet(self, gang: data.Gang) -> bool:
        """Return whether a part that has to run alone may begin; see `Membership.is_quiet`."""
        return self._members[gang.world].is_quiet()

    def refused(self, session: int, gang: data.Gang) -> None:
        """Take in that a part was answered on its arrival."""
        member = self._members.get(gang.world)
        if member is not None:
            member.refused((session, gang.id), gang.epoch)


def world_codes(actors: Iterable[tuple[str, int | None, bytes]]) -> list[control.WorldCode]:
    """Return a digest of the code of each world's actors.

    Args:
        actors: Name, world and digest of each actor of this process; None for no world.
    """
    found: dict[int, bytes] = {}
    for name, world, code in sorted(actors, key=lambda each: each[0]):
        if world is not None:
            found[world] = hashlib.sha256(found.get(world, b"") + name.encode() + code).digest()[:16]
    return [control.WorldCode(*each) for each in found.items()]
