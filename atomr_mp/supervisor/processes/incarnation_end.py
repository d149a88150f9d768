"""The end of an incarnation, and the fates of its requests."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.events import Scalar
from atomr_mp.protocol.board import BoardReader, check
from atomr_mp.protocol.codec import MAX_U64, ErrorInfo
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.protocol.messages.suspects import MAX_SUSPECTS
from atomr_mp.supervision.suspicion import Cause, Death, cause_of
from atomr_mp.supervisor.processes.incarnation import Incarnation

CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals at which a worker writes the stacks of its threads before it ends."""


def error_of_requests(worker: Incarnation) -> errors.AtomrError:
    """Return the error of an incarnation's requests."""
    fault = worker.parting.fault
    if isinstance(fault, errors.ContextPoisoned | errors.WorkerHung):
        fault.device, fault.generation = worker.device, worker.generation
        return fault
    how = worker.end
    told = f"{how}{worker.parting.late}"
    if isinstance(fault, errors.DeviceUnavailable):
        cause = fault.message.removeprefix("its worker ")
        told = f"{told}: {cause}" if cause == fault.message else f"{cause}, and {told}"
    return errors.WorkerLost(
        f"device {worker.device}'s worker (generation {worker.generation}) {told}{where_stacks_are(worker)}",
        device=worker.device,
        generation=worker.generation,
        cause=how,
    )


def where_stacks_are(worker: Incarnation) -> str:
    """Return the words for where a crashed worker's stacks can be read; empty if it has left none."""
    if worker.cause.signal not in CRASHES and not isinstance(worker.parting.fault, errors.ContextPoisoned):
        return ""
    return f"; the stacks of its threads are in device-{worker.device}.log (atomr-mp logs {worker.device})"


def is_planned(worker: Incarnation) -> bool:
    """Return whether the end of an incarnation was planned."""
    return worker.drained and worker.cause.status == 0


def cause_of_end(worker: Incarnation, board: BoardReader) -> Cause:
    """Return where the end of an incarnation came from."""
    parting = worker.parting
    if is_planned(worker) or parting.wish or parting.late or isinstance(parting.fault, errors.DeviceUnavailable):
        return Cause.SUPERVISOR
    if parting.fault is not None:
        return Cause.INSIDE
    cause, cgroup = worker.cause, worker.cgroup
    return cause_of(
        cause.signal_name,
        exited=cause.status is not None,
        sent_by_itself=cause.signal is not None and bool(board.signalled >> cause.signal - 1 & 1),
        oom_killed=cgroup is not None and cgroup.oom_kills() > 0,
    )


class IncarnationEnd:
    """The end of an incarnation.

    Args:
        worker: The incarnation; nothing of it runs any more.
        board: Its board, which is read here and not kept.
        suspecting: Whether requests can be suspects.
        now_ns: CLOCK_MONOTONIC, after the last thing that the incarnation did.
    """

    def __init__(self, worker: Incarnation, board: BoardReader, *, suspecting: bool, now_ns: int) -> None:
        self._worker = worker
        self.is_told = False
        """Whether all clients were informed."""
        self.planned: Final = is_planned(worker)
        """Whether its end was planned."""
        self._error = error_of_requests(worker)
        parting = worker.parting
        self.lost: Final = parting.fault or self._error
        """Why it ended, if that was not planned."""
        self._info: Final = ErrorInfo.of(self._error)
        self.doubt: Final = check.defect(board.words, now_ns)
        """Why its board is not believed, "" if it is. Without a board all of its requests may have been executed."""
        self._since_ns: Final = MAX_U64 if self.doubt else board.known_since_ns()
        started, running = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        hung_ns = parting.hung_ns or MAX_U64
        for _, session, request_id, ended_ns in () if self.doubt else board.left():
            started[session].append(request_id)
            if not ended_ns or ended_ns > hung_ns:
                running[session].append(request_id)
        self._started: Final[Mapping[int, list[int]]] = dict(started)
        self._running: Final[Mapping[int, list[int]]] = dict(running)
        alone = None if self.doubt else board.alone()
        suspects = self._running if alone is None else {alone[0]: [alone[1]]}
        blameless = self.planned or parting.wish or parting.late
        self._suspects: Final = suspects if suspecting and not blameless else {}
        self.death: Final = Death(
            running=sum(map(len, self._suspects.values())),
            alone=alone is not None,
            cause=cause_of_end(worker, board),
        )
        """The suspects that its board names, of all sessions."""

    def told(self, number: int) -> IncarnationEnded:
        """Return the message about it for a session."""
        worker = self._worker
        return IncarnationEnded(
            device=worker.device,
            generation=worker.generation,
            planned=self.planned,
            error=self._info,
            started=self._started.get(number, []),
            known_since_ns=self._since_ns,
            running=self._running.get(number, []),
            suspects=self._suspects.get(number, [])[:MAX_SUSPECTS],
        )

    @property
    def in_a_word(self) -> str:
        """The cause, as the counts of ends name it."""
        parting = self._worker.parting
        if parting.late:
            return "drain_timeout"
        if parting.wish:
            return parting.wish
        return parting.word or self._worker.cause.signal_name.lower() or "exit"

    @property
    def text(self) -> str:
        """The end in words, for people."""
        if self.planned:
            return "left as told"
        cause, count = self._worker.cause, self._count
        number = f" (signal {cause.signal})" if self._worker.end == cause.describe() and cause.signal else ""
        how = f"{self._worker.end}{number}{self._worker.parting.late}"
        return (
            f"ended: {how}, {count or 'no'} request{'' if count == 1 else 's'} "
            f"{'was' if count == 1 else 'were'} running{where_stacks_are(self._worker)}"
        )

    @property
    def facts(self) -> Mapping[str, Scalar]:
        """The end as facts, for programs."""
        worker = self._worker
        cause = worker.cause
        return {
            "pid": worker.pid,
            "running": self._count,
            "age_s": round(worker.age_s, 3),
            **({"status": cause.status} if cause.signal is None else {"signal": cause.signal}),
        }

    @property
    def _count(self) -> int:
        return sum(map(len, self._running.values()))
