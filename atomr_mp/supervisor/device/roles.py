"""Roles of a device's processes: one is active, one may stand by, and one may have been replaced."""

from __future__ import annotations

from atomr_mp import checks
from atomr_mp.supervisor.processes.incarnation import Incarnation


@checks.owned(by_maker=True)
class Roles:
    """The processes of a device, by role. A process changes its role here and nowhere else."""

    def __init__(self) -> None:
        self._active: Incarnation | None = None
        self._standby: Incarnation | None = None
        self._predecessor: Incarnation | None = None
        self._generation = 0

    @property
    def active(self) -> Incarnation | None:
        """The incarnation that the states of the lifecycle table are about."""
        return self._active

    @property
    def standby(self) -> Incarnation | None:
        """The process that waits to be the next, or that has failed at that and has not ended yet."""
        return self._standby

    @property
    def predecessor(self) -> Incarnation | None:
        """The process whose place a standby has taken, and which has not ended yet."""
        return self._predecessor

    @property
    def generation(self) -> int:
        """The generation of the active incarnation, or of the last one."""
        return self._generation

    @property
    def all(self) -> list[Incarnation]:
        """All processes that have a role."""
        return [each for each in (self._active, self._standby, self._predecessor) if each is not None]

    def of(self, generation: int) -> Incarnation | None:
        """Return the process of a generation, if it has a role."""
        return next((each for each in self.all if each.generation == generation), None)

    def start(self, worker: Incarnation) -> None:
        """Make a process the active incarnation, where there is none."""
        assert self._active is None
        self._active, self._generation = worker, worker.generation

    def not_started(self, generation: int) -> None:
        """Count a generation for which no process could be made."""
        self._generation = generation

    def stand_by(self, worker: Incarnation) -> None:
        """Make a process the standby."""
        assert self._standby is None
        self._standby = worker

    def promote(self) -> Incarnation:
        """Put the standby into the active incarnation's place, if there is one; return the standby."""
        worker = self._standby
        assert worker is not None
        assert self._predecessor is None or self._active is None
        if self._active is not None:
            self._predecessor = self._active
        self._active, self._standby, self._generation = worker, None, worker.generation
        return worker

    def end_active(self) -> Incarnation | None:
        """Take the active incarnation's role from it and return it; None if none could be made."""
        worker, self._active = self._active, None
        return worker

    def end_standby(self) -> None:
        """Take the standby's role from it."""
        self._standby = None

    def end_predecessor(self) -> Incarnation:
        """Take the predecessor's role from it and return it."""
        worker, self._predecessor = self._predecessor, None
        assert worker is not None
        return worker
