"""Finds the leftovers of a pool whose supervisor has ended, or does not answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from atomr_mp.protocol import process_tags
from atomr_mp.supervision.audit.findings import Finding, State, Supervision
from atomr_mp.supervision.audit.observed import (
    Memfd,
    Observed,
    Process,
    Worker,
    ancestors,
    descriptors,
    slab_size,
    worker_name,
)

AWAITED: Final = "the supervisor replaces it once it answers"


class Unsupervised:
    """One look at a pool whose supervisor has ended, or does not answer."""

    def __init__(self, observed: Observed, supervision: Supervision) -> None:
        self._observed = observed
        self._supervision = supervision
        self._silent = supervision is Supervision.SILENT
        self._processes = observed.processes.values()
        self._ours = {
            each.pid
            for each in self._processes
            if each.marked
            or each.pid in observed.survivors
            or each.group in observed.survivors
            or (self._silent and observed.supervisor in ancestors(each, observed.processes))
        }

    def findings(self) -> Iterator[Finding]:
        """Yield all."""
        yield self._supervisor()
        for process in self._processes:
            if process.pid in self._ours:
                yield self._process(process)
        for name, socket in sorted(self._observed.sockets.items()):
            yield self._file("socket", name, socket.since, lives=bool(socket.listeners))
        for noted in sorted(self._observed.notes):
            of = self._observed.processes.get(noted)
            yield self._file("note", f"workers/{noted}", None, lives=of is not None and not of.zombie)
        yield from self._slabs()

    def _supervisor(self) -> Finding:
        pid = self._observed.supervisor
        match self._supervision:
            case Supervision.SILENT:
                process = self._observed.processes.get(pid)
                still = None if process is None else process.standstill
                why = "busy or stuck" if still is None else still.why
                what = f"the supervisor, pid {pid}, does not answer: it is {why}"
                remedy = f"look at the machine's load; `py-spy dump --pid {pid}`" if still is None else still.remedy
                return Finding(State.UNWELL, "supervisor", what, f"{remedy}; `kill -9 {pid}` ends the pool", pid=pid)
            case Supervision.KILLED:
                what = f"the supervisor, pid {pid}, was killed"
                return Finding(State.HELD, "supervisor", what, "the next start here cleans up", pid=pid)
            case _:
                return Finding(State.OK, "supervisor", "none runs here; if there was one, it has ended in order")

    def _process(self, process: Process) -> Finding:
        what = f"pid {process.pid} ({process.command}) is the pool's"
        if self._silent and process.zombie:
            what = f"pid {process.pid}, the pool's, has ended, which the supervisor has not noticed"
            return Finding(State.UNWELL, "process", what, AWAITED, since=process.since, pid=process.pid)
        if self._silent:
            what = f"{what}: {descriptors(process)}"
            if (still := process.standstill) is not None:
                what, remedy = f"{what}; it is {still.why}", still.remedy
                return Finding(State.UNWELL, "process", what, remedy, since=process.since, pid=process.pid)
            return Finding(State.OK, "process", what, since=process.since, pid=process.pid)
        return Finding(
            State.UNACCOUNTED, "process", what, f"`kill -9 {process.pid}`", since=process.since, pid=process.pid
        )

    def _file(self, kind: str, name: str, since: float | None, *, lives: bool) -> Finding:
        """Return the finding for a file.

        Args:
            kind: What it is.
            name: Its name.
            since: When it was made.
            lives: Whether the process lives to which it belongs.
        """
        match self._supervision:
            case Supervision.SILENT if not lives:
                return Finding(State.UNWELL, kind, f"{name} belongs to a process that has ended", AWAITED, since)
            case Supervision.SILENT:
                return Finding(State.OK, kind, name, since=since)
            case Supervision.KILLED:
                return Finding(State.HELD, kind, f"{name} was left", "the next start removes it", since)
            case _:
                remedy = "remove it, and please report it"
                return Finding(State.UNACCOUNTED, kind, f"{name} was left by an end in order", remedy, since)

    def _slabs(self) -> Iterator[Finding]:
        """Tell what living processes have mapped that are not the pool's."""
        others = [each for each in self._processes if each.pid not in {*self._ours, self._observed.supervisor}]
        for inode, slab in sorted(self._observed.slabs.items()):
            of = process_tags.owner(slab.name)
            if of is not None and of.epoch == self._observed.epoch:
                for each in others:
                    if inode in each.mapped | each.opened and of.resident:
                        what = f"pid {each.pid} has resident memory of {slab.nbytes:,} bytes mapped"
                        yield Finding(State.HELD, "memory", what, "it goes with it", pid=each.pid, nbytes=slab.nbytes)
                    elif inode in each.mapped | each.opened:
                        yield still_mapped(self._observed, each.pid, slab, of.worker, lives=self._silent)


def still_mapped(observed: Observed, pid: int, slab: Memfd, worker: Worker | None, *, lives: bool) -> Finding:
    """Return the finding for memory that a process has mapped without need.

    Args:
        observed: What there is.
        pid: The process.
        slab: The memory.
        worker: The worker that it belonged to; None for the process's own.
        lives: Whether that worker lives.
    """
    if worker is None:
        whose = "its own, for arguments"
    else:
        whose = f"of {worker_name(worker)}" + (", which has no use for it any more" if lives else ", which has ended")
    what = f"pid {pid} has {slab_size(slab)} mapped, {whose}"
    since = None if worker is None else observed.ended.get(worker)
    remedy = "it goes with the client's last array in it"
    return Finding(State.HELD, "memory", what, remedy, since, pid, slab.nbytes)
