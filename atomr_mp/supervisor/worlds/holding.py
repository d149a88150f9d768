"""What holds a world that is not ready: requests, members that stand still, or members that are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from atomr_mp import checks
from atomr_mp.process.files.events import Scalar
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import WorldState
from atomr_mp.supervision.world_members import WorldMember
from atomr_mp.supervision.world_watch import HoldingRequest, held_by, left_behind
from atomr_mp.supervisor.plan import WorldPlan
from atomr_mp.supervisor.worlds.processes import WorldProcesses

PATIENT_S: Final = 1.0
"""How long a world is held until an event tells of it."""

MOST_SHOWN: Final = 4
"""How many members that stand still a sentence names."""

CLOSES: Final = frozenset({WorldState.CLOSING, WorldState.ENDING})
"""States in which a planned end waits for what runs."""

HELD: Final = CLOSES | {WorldState.FORMING, WorldState.ABORTING}
"""States in which something is waited for that a member has to do."""


@checks.owned(by_maker=True)
class WorldHolding:
    """What holds one world.

    Args:
        plan: The world.
        processes: The processes of its devices.
        note: Writes an event: its name, its text and its facts.
        client_of: Returns words for the client of a session.
    """

    def __init__(
        self,
        plan: WorldPlan,
        processes: WorldProcesses,
        note: Callable[[str, str, Mapping[str, Scalar]], None],
        client_of: Callable[[int], str],
    ) -> None:
        self._plan: Final = plan
        self._processes: Final = processes
        self._note: Final = note
        self._client_of: Final = client_of
        self._held: control.EpochHeld | None = None
        """The requests that hold the planned end of an epoch."""
        self._since_s = 0.0
        """When the members were asked last to join or to leave, by the monotonic clock."""
        self._noted = (0, WorldState.WAITING)
        """The latest epoch with an event, and the state then."""

    def asked(self, now_s: float) -> None:
        """Take in that the members were asked to join, or to leave."""
        self._since_s = now_s

    def heard(self, held: control.EpochHeld) -> None:
        """Take in which requests hold a planned end, as rank 0 says."""
        self._held = held

    def sentence(
        self, state: WorldState, epoch: int, inside: Iterable[WorldMember], now_s: float, watched: str = ""
    ) -> str:
        """Return a sentence on the holders of the world, "" if there are none.

        Args:
            state: The state of the world.
            epoch: Its latest epoch.
            inside: Those who are in it.
            now_s: The time, by the monotonic clock.
            watched: A sentence on members that wait for others.
        """
        inside = sorted(inside)
        still = [text for text, _ in self._still(inside)]
        more = [f"{len(still) - MOST_SHOWN} more members stand still"] if len(still) > MOST_SHOWN else []
        behind = watched
        if state in CLOSES and not still and not behind and now_s >= self._since_s + PATIENT_S:
            behind = left_behind([each.rank for each in inside], now_s - self._since_s)
        return "; ".join(filter(None, (*still[:MOST_SHOWN], *more, self._requests(state, epoch, now_s) or behind)))

    def note(
        self, state: WorldState, epoch: int, inside: Iterable[WorldMember], now_s: float, watched: str = ""
    ) -> None:
        """Write an event, once, of what holds the world for `PATIENT_S`; arguments as for `sentence`."""
        if state not in HELD or now_s < self._since_s + PATIENT_S or self._noted == (epoch, state):
            return
        inside = sorted(inside)
        still = self._still(inside)
        if state not in CLOSES and not still:
            return  # others have more time to join or to leave
        text = self.sentence(state, epoch, inside, now_s, watched)
        if not text:
            return
        self._noted = epoch, state
        facts: dict[str, Scalar] = {"world": self._plan.name, "epoch": epoch}
        if still:
            facts["rank"] = still[0][1].rank
        elif self._requests(state, epoch, now_s):
            assert self._held is not None
            first_held = self._held.holders[0]
            facts |= {"method": first_held.method, "client": self._client_of(first_held.session)}
        self._note("world_held", f"world {self._plan.name}: {text}", facts)

    def _still(self, inside: Iterable[WorldMember]) -> list[tuple[str, WorldMember]]:
        """Return members whose processes stand still, each behind words that name its process and what helps."""
        found = []
        for member in inside:
            device = self._plan.devices[member.rank]
            if why := self._processes.standstill(device, member.incarnation):
                found.append((f"rank {member.rank} (device {device} generation {member.incarnation}): {why}", member))
        return found

    def _requests(self, state: WorldState, epoch: int, now_s: float) -> str:
        """Return a sentence on the requests that hold a planned end, "" if none does."""
        held = self._held
        if held is None or not held.holders or held.epoch != epoch or state not in CLOSES:
            return ""
        holders = [
            HoldingRequest(each.method, self._client_of(each.session), max(0.0, now_s - each.since_ns / 1e9))
            for each in held.holders
        ]
        return held_by(holders, held.count, now_s - self._since_s)
