"""The jobs of the compiler that wait or run, and whose turn it is. Pure.

Equal jobs of several callers are one *work*, which is done once for all who *wait* for it. Owners, which are clients'
sessions, or all those of a remote client's key, take turns: each time the oldest work of the next owner is taken. A
work runs at the charge of the owner whose turn it was, and an owner is charged with one at a time: so others get the
other processes. When it ends, whoever has come meanwhile is before that owner.
A work of several owners is taken when the first of them has its turn; when that one leaves, another owner is charged. A
work whose last caller has left is dropped.

An owner may have as many places as it leaves free (the dynamic thresholds of Choudhury and Hahne, 1998): alone half of
them, and less the more others have. So one that asks for all leaves room for whoever comes next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from atomr_mp import errors
from atomr_mp.protocol.words import counted

T = TypeVar("T")

MAX_JOBS: Final = 128
"""Most callers that wait, for jobs that wait or run."""

MAX_JOBS_BYTES: Final = 256 * 2**20
"""Most bytes of their sources and inputs."""


class WorkStage(StrEnum):
    """How far a work has come."""

    NEW = "new"
    """The cache may have its code, and was not asked."""
    LOOKED_UP = "looked up"
    """It is just being looked up in the cache."""
    WAITING = "waiting"
    """The cache does not have it: it waits for a process."""
    RUNNING = "running"
    OVER = "over"
    """It is done, or dropped."""


class WorkEvent(StrEnum):
    """What happens to a work."""

    TAKEN = "taken"
    MISSED = "missed"
    """The cache does not have it."""
    ENDED = "ended"
    DESERTED = "deserted"
    """Its last caller has left."""


TRANSITIONS: Final[dict[tuple[WorkStage, WorkEvent], WorkStage]] = {
    (WorkStage.NEW, WorkEvent.TAKEN): WorkStage.LOOKED_UP,
    (WorkStage.NEW, WorkEvent.DESERTED): WorkStage.OVER,
    (WorkStage.LOOKED_UP, WorkEvent.MISSED): WorkStage.WAITING,
    (WorkStage.LOOKED_UP, WorkEvent.ENDED): WorkStage.OVER,
    (WorkStage.LOOKED_UP, WorkEvent.DESERTED): WorkStage.OVER,
    (WorkStage.WAITING, WorkEvent.TAKEN): WorkStage.RUNNING,
    (WorkStage.WAITING, WorkEvent.DESERTED): WorkStage.OVER,
    (WorkStage.RUNNING, WorkEvent.ENDED): WorkStage.OVER,
    (WorkStage.RUNNING, WorkEvent.DESERTED): WorkStage.OVER,
}


_TAKEN: Final = {stage: TRANSITIONS[stage, WorkEvent.TAKEN] for stage in (WorkStage.NEW, WorkStage.WAITING)}

_NOBODY: Final = object()
"""No owner: None is one."""


class Waiter:
    """A caller that waits for a work.

    Args:
        work: The work.
        owner: The owner, whose turns and places it takes.
        deadline_s: When its answer has to be there, on the monotonic clock.
        size: Bytes of its job.
        answer: What the caller gets its answer by; it means nothing here.
    """

    __slots__ = ("answer", "deadline_s", "owner", "size", "work")

    def __init__(self, work: CompileWork[Any], owner: Hashable, deadline_s: float, size: int, answer: Any) -> None:
        self.work: Final = work
        self.owner: Final = owner
        self.deadline_s: Final = deadline_s
        self.size: Final = size
        self.answer: Final = answer


class CompileWork(Generic[T]):
    """A job, and all who wait for it.

    Args:
        key: Its key, which equal jobs share.
        job: The job.
    """

    __slots__ = ("charged", "job", "key", "process", "stage", "started_s", "waiters")

    def __init__(self, key: str, job: T) -> None:
        self.key: Final = key
        self.job: Final = job
        self.stage = WorkStage.NEW
        self.waiters: list[Waiter] = []
        """The oldest first."""
        self.charged: Hashable = None
        """The owner whose turn it took, once it was taken."""
        self.process: Any = None
        """What does it, once it runs; it means nothing here."""
        self.started_s = 0.0
        """When that was started."""

    def step(self, event: WorkEvent) -> None:
        """Take in an event.

        Raises:
            KeyError: It cannot happen now.
        """
        self.stage = TRANSITIONS[self.stage, event]


class WorkTurns(Generic[T]):
    """The works of all owners. One thread at a time."""

    def __init__(self) -> None:
        self._works: Final[dict[str, CompileWork[T]]] = {}
        """Those that are not over, by key."""
        self._turns: Final[dict[WorkStage, OrderedDict[Hashable, list[Waiter]]]] = {
            each: OrderedDict() for each in _TAKEN
        }
        """Waiters by owner for works that can be taken; the owner whose turn is next is first."""
        self._places: Final[dict[Hashable, tuple[int, int]]] = {}
        """Number of each owner's waiters, and their bytes; of owners that have some."""

    def __len__(self) -> int:
        return sum(count for count, _ in self._places.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all jobs."""
        return sum(nbytes for _, nbytes in self._places.values())

    def check_room(self, owner: Hashable, size: int) -> None:
        """Check that an owner may have one more job.

        Raises:
            Overloaded: It may not.
        """
        own, own_bytes = self._places.get(owner, (0, 0))
        others, others_bytes = len(self) - own, self.nbytes - own_bytes
        free, free_bytes = MAX_JOBS - others - own, MAX_JOBS_BYTES - others_bytes - own_bytes
        if own < free and size <= free_bytes and (not own or own_bytes + size <= free_bytes - size):
            return
        raise errors.Overloaded(
            f"nothing was compiled: {counted(own, 'source')} of this client with {own_bytes >> 20} MiB, and {others} "
            f"of others with {others_bytes >> 20} MiB, wait for this worker's compiler, which takes {MAX_JOBS} with "
            f"{MAX_JOBS_BYTES >> 20} MiB, of each client at most as many as that leaves free; come again when some "
            "are done"
        )

    def add(self, key: str, job: T, owner: Hashable, deadline_s: float, size: int, answer: Any) -> Waiter:
        """Let a caller wait for a job, or for an equal one that is there already."""
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = CompileWork(key, job)
        waiter = Waiter(work, owner, deadline_s, size, answer)
        work.waiters.append(waiter)
        count, nbytes = self._places.get(owner, (0, 0))
        self._places[owner] = count + 1, nbytes + size
        self._line_up(waiter)
        return waiter

    def take(self, stage: WorkStage) -> CompileWork[T] | None:
        """Take the next work that is new, or that waits for a process; None if there is none that may be taken now."""
        turns = self._turns[stage]
        charged = {each.charged for each in self._works.values() if each.stage is WorkStage.RUNNING}
        free = (owner for owner in turns if stage is WorkStage.NEW or owner not in charged)
        owner = next(free, _NOBODY)
        if owner is _NOBODY:
            return None
        work: CompileWork[T] = turns[owner][0].work
        work.charged = owner
        turns.move_to_end(owner)
        for waiter in work.waiters:
            self._leave_line(waiter)
        work.step(WorkEvent.TAKEN)
        return work

    def missed(self, work: CompileWork[T]) -> None:
        """Let a work wait for a process, since the cache does not have its code; it may have been dropped meanwhile."""
        if work.stage is WorkStage.LOOKED_UP:
            work.step(WorkEvent.MISSED)
            for waiter in work.waiters:
                self._line_up(waiter)

    def end(self, work: CompileWork[T]) -> list[Waiter]:
        """End a work that is done; return those who have waited for it, none if it was dropped."""
        if work.stage is WorkStage.OVER:
            return []
        self._had_turn(work)
        work.step(WorkEvent.ENDED)
        return self._forget(work)

    def leave(self, waiter: Waiter) -> bool:
        """Take out a caller; return whether its work runs and has no other caller, so that it has to be stopped."""
        work = waiter.work
        if waiter not in work.waiters:
            return False
        self._leave_line(waiter)
        work.waiters.remove(waiter)
        self._give_back(waiter)
        if work.waiters:
            if all(each.owner != work.charged for each in work.waiters):
                self._had_turn(work)
                work.charged = work.waiters[0].owner
            return False
        self._had_turn(work)
        runs = work.stage is WorkStage.RUNNING
        work.step(WorkEvent.DESERTED)
        self._forget(work)
        return runs

    def due_s(self) -> float | None:
        """Return the earliest deadline of a caller, None if there is no caller."""
        return min((waiter.deadline_s for waiter in self.waiters()), default=None)

    def waiters(self) -> Iterator[Waiter]:
        """Yield all who wait."""
        for work in self._works.values():
            yield from work.waiters

    def _had_turn(self, work: CompileWork[T]) -> None:
        """Put the owner whose turn a work has taken behind all who wait, who have come while it ran or before."""
        turns = self._turns[WorkStage.WAITING]
        if work.stage is WorkStage.RUNNING and work.charged in turns:
            turns.move_to_end(work.charged)

    def _line_up(self, waiter: Waiter) -> None:
        turns = self._turns.get(waiter.work.stage)
        if turns is not None:
            turns.setdefault(waiter.owner, []).append(waiter)

    def _leave_line(self, waiter: Waiter) -> None:
        turns = self._turns.get(waiter.work.stage)
        if turns is not None:
            line = turns[waiter.owner]
            line.remove(waiter)
            if not line:
                del turns[waiter.owner]

    def _forget(self, work: CompileWork[T]) -> list[Waiter]:
        del self._works[work.key]
        waiters, work.waiters = work.waiters, []
        for waiter in waiters:
            self._give_back(waiter)
        return waiters

    def _give_back(self, waiter: Waiter) -> None:
        count, nbytes = self._places[waiter.owner]
        if count == 1:
            del self._places[waiter.owner]
        else:
            self._places[waiter.owner] = count - 1, nbytes - waiter.size
