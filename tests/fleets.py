"""A world with its members' places, in one process over real files, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from atomr_mp import errors
from atomr_mp.protocol.messages import control, data
from atomr_mp_workers.requests.batches.former import NEVER_NS, BatchLimits
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.member_states import MemberState
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.order.batches import BatchedPart
from atomr_mp_workers.worlds.order.files import WorldFiles
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.world_thread import WorldThread
from tests.world_files import WorldSupply

WORLD = 1
TIMEOUT_S = 5.0
LIMITS = BatchLimits(4, None, 0)
SINGLE, BATCHED = (
    type("Method", (), {"batch": batch, "steps": None, "name": "A.run", "refused": None, "typical_ns": 0})()
    for batch in (None, LIMITS)
)
Key = tuple[int, int]


@dataclass(eq=False)
class Session:
    """A session, as far as a world needs it."""

    number: int
    ended: bool = False
    weight: float = 1.0


@dataclass(eq=False)
class Part:
    """A request, as far as a world needs it."""

    session: Session
    gang: data.Gang
    method: Any = SINGLE
    dropped: bool = False
    alone: bool = False
    outcome: str = ""
    deadline_ns: int = NEVER_NS
    closing: Any = None

    def __post_init__(self) -> None:
        self.peer = SimpleNamespace(session=self.session)

    @property
    def key(self) -> Key:
        """Its name."""
        return self.session.number, self.gang.id

    def answer(self, outcome: str) -> None:
        """Record its answer."""
        assert not self.outcome, f"{self.key} was {self.outcome}, and is {outcome}"
        self.outcome = outcome


class Supply(WorldSupply):
    """Files, and the sessions that have ended."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self.ended: set[int] = set()


@dataclass(eq=False)
class Process:
    """One process of a member, with a thread whose calls end when the test wants that."""

    rank: int
    generation: int
    supply: Supply
    ahead: int = 0
    begun: dict[int, dict[int, tuple[Key, ...]]] = field(default_factory=dict)
    """By epoch and sequence number."""
    parts: list[Part] = field(default_factory=list)
    sent: list[control.FromWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files, self.queue = WorldFiles(), GangQueue()
        for file, descriptor in self.supply.own_files(self.rank, self.generation):
            self.files.add(file, descriptor)
        offered = control.WorldOffered(WORLD, "tp", self.rank, 3, self.generation, ["A"], TIMEOUT_S)
        self.sessions: dict[int, Session] = {}
        self.epoch = 0
        self.ended: Callable[[], errors.CollectiveAborted | None] = lambda: None
        self.left_waiting: Callable[[int], None] = lambda _rank: None
        self.member = Membership(
            offered,
            self.files,
            SimpleNamespace(enter=lambda _meeting: None, leave=lambda: None, serve=lambda: None),
            cast("WorldThread", self),
            self.queue,
            self._make_meeting,
            self.sent.append,
            lambda: None,
        )
        self.member.use(self._abort, self._discard)
        self.member.serve()
        self.running: tuple[list[Part], int] | None = None

    def _make_meeting(self, place: EpochPlace) -> Any:
        self.ended, self.left_waiting = place.ended, place.left_waiting
        return SimpleNamespace()

    @property
    def in_hand(self) -> list[Any]:
        """Stand for the thread's."""
        return []

    def meet(self, _meeting: Any) -> None:
        """Stand for the thread's."""

    def _abort(self, request: Request, error: errors.RequestError) -> None:
        assert not error.maybe_executed
        if isinstance(error, errors.DeadlineExceeded | errors.Cancelled):
            cast("Part", request).answer("late" if isinstance(error, errors.DeadlineExceeded) else "cancelled")
            return
        if isinstance(error, errors.InvalidRequest):
            cast("Part", request).answer("invalid")
            return
        assert isinstance(error, errors.CollectiveAborted)
        refused = "declined" if "another rank" in str(error) else "aborted"
        cast("Part", request).answer("moves" if error.planned else refused)

    def _discard(self, request: Request) -> None:
        part = cast("Part", request)
        assert part.session.number in self.supply.ended
        part.answer("discarded")

    def join(self, epoch: int, generations: list[int]) -> None:
        """Have it join an epoch."""
        for rank, generation in enumerate(generations):
            if rank != self.rank:
                for file, descriptor in self.supply.files(rank, generation):
                    self.files.add(file, descriptor)
        self.epoch, self.begun[epoch] = epoch, {}
        self.member.join(control.JoinEpoch(WORLD, epoch, generations))

    def arrive(
        self,
        number: int,
        gang_id: int,
        epoch: int,
        *,
        batched: bool = False,
        fits: bool = True,
        due_ns: int = NEVER_NS,
        alone: bool = False,
    ) -> Part:
        """Have a part come: a single one, or one for a batch, with arguments that fit or do not."""
        session = self.sessions.setdefault(number, Session(number))
        part = Part(session, data.Gang(WORLD, epoch, gang_id), BATCHED if batched else SINGLE, deadline_ns=due_ns)
        part.alone = alone
        self.parts.append(part)
        try:
            self.member.check("A.run", number, gang_id, epoch)
        except errors.CollectiveAborted as error:
            part.answer("moves" if error.planned else "aborted")
            self.member.refused((number, gang_id), epoch)
            return part
        self.member.came(cast("Request", part))
        if not batched:
            self.queue.add(cast("Request", part), None)
            return part
        if not fits:
            part.dropped = True
            part.answer("refused")
        waiting = BatchedPart("A.run", LIMITS, gang_id // 2 % 2, session, 10, due_ns)
        self.queue.add_to_batch(cast("Request", part), waiting, fits=fits)
        return part

    def cancel(self, part: Part) -> None:
        """Hear that the caller of a part does not want it."""
        self.member.unwanted(cast("Request", part))

    def leave(self, part: Part) -> None:
        """Hear that the connection of a part has ended."""
        self.member.left(cast("Request", part))

    def refuse(self, number: int, gang_id: int, epoch: int) -> None:
        """Have a part come that is answered at once."""
        self.member.refused((number, gang_id), epoch)

    def end_session(self, number: int) -> None:
        """Have it hear of a session's end."""
        self.supply.ended.add(number)
        self.sessions.setdefault(number, Session(number)).ended = True
        self.member.session_ended(number)

    def look(self, now_ns: int = 0) -> None:
        """Take a turn of the loop."""
        self.member.look(now_ns)

    def feed(self) -> None:
        """Begin what may begin, as the dispatcher does."""
        while not self.ahead:
            was_over = self.supply.stop[0] >= self.epoch
            part = cast("Part | None", self.queue.take(lambda _request: True))
            if part is None:
                return
            assert not was_over, "it began though the epoch was over"
            assert self.queue.epoch is not None
            self.ahead = 1
            parts = cast("list[Part]", list(self.queue.together))
            assert part is parts[0]
            assert len(parts) == 1 or all(each.method is BATCHED for each in parts)
            self.begun[self.epoch][self.queue.sequence] = tuple(each.key for each in parts)
            self.running = parts, self.queue.sequence
            self._joined = self.queue.epoch

    def finish(self) -> None:
        """End what runs."""
        if self.running is not None:
            parts, sequence = self.running
            self._joined.end(sequence)
            self.ahead, self.running = 0, None
            for part in parts:
                part.answer("ran")

    def close(self) -> None:
        """End."""
        self.files.close()


class Fleet:
    """A world with its supervisor."""

    def __init__(self, size: int = 3) -> None:
        self.supply = Supply(WORLD)
        self.processes = [Process(rank, 1, self.supply) for rank in range(size)]
        self.everyone = list(self.processes)
        self.epoch = 0

    @property
    def generations(self) -> list[int]:
        """The processes of the members."""
        return [each.generation for each in self.processes]

    def join(self) -> None:
        """Have all join the next epoch."""
        self.epoch += 1
        for each in self.processes:
            each.join(self.epoch, self.generations)
            assert each.sent.pop() == control.EpochJoined(WORLD, self.epoch)

    def depart(self, rank: int = -1, cause: str = "") -> None:
        """End the epoch; have all leave."""
        self.supply.end(self.epoch, self.generations)
        for each in self.processes:
            self.ask_to_leave(each, rank, cause)
        for each in self.processes:
            each.finish()
            each.look()
            assert each.sent.pop() == control.EpochLeft(WORLD, self.epoch)
            assert each.member.state is MemberState.OUTSIDE

    def shut(self, *ranks: int) -> None:
        """Have members hear that the epoch ends as planned: those of these ranks, or all."""
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].member.close(control.CloseEpoch(WORLD, self.epoch))

    def ask_to_leave(self, process: Process, rank: int = -1, cause: str = "") -> None:
        """Have one leave."""
        process.member.depart(control.DepartEpoch(WORLD, self.epoch, rank, cause))

    def replace(self, rank: int) -> None:
        """Put another process in the place of one."""
        self.processes[rank].close()
        self.processes[rank] = Process(rank, self.generations[rank] + 1, self.supply)
        self.everyone.append(self.processes[rank])

    def rung(self, kind: control.WorldFileKind, rank: int) -> bool:
        """Return whether a bell was rung since this was asked last."""
        try:
            os.eventfd_read(self.supply.descriptor(kind, rank, self.generations[rank]))
        except BlockingIOError:
            return False
        return True

    def turns(self, count: int = 1, now_ns: int = 0) -> None:
        """Have all take turns of their loops, with nothing that takes long."""
        for _ in range(count):
            for each in self.processes:
                each.look(now_ns)
                each.feed()
                each.finish()

    def close(self) -> None:
        """End all."""
        for each in self.processes:
            each.close()
        self.supply.close()


def order_of(fleet: Fleet, epoch: int) -> dict[int, tuple[Key, ...]]:
    """Return what has begun in an epoch, by sequence number; all processes agree on it."""
    found: dict[int, tuple[Key, ...]] = {}
    for each in fleet.everyone:
        for sequence, keys in each.begun.get(epoch, {}).items():
            assert found.setdefault(sequence, keys) == keys, "two members have begun different calls under one number"
    return found
