"""The requests that are held to end workers: from the ends that they were part of to a verdict. Pure.

A worker's end makes suspects of all that ran then. A suspect runs alone from then on, until it has done so and its
worker has lived; if the worker ends again, that is the proof. So nobody is condemned for what ran beside it.

Nor for a signal that came from outside. Who sent a SIGKILL cannot be known, so an end by a signal counts against a
request only if the worker's own process shows where the signal came from (see `cause_of`). An end by any other signal
isolates. It condemns only a request that has died alone again and again while nothing else of the pool was struck.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from atomr_mp.protocol.messages.suspects import RequestKey, Suspicion, Verdict

T = TypeVar("T")

End = tuple[int, int]
"""An incarnation that has ended: device and generation."""

KEPT: Final = 512
"""Requests, and ends, that are remembered; beyond that the ones unheard of for longest are forgotten."""

SUSPECTED_S: Final = 60.0
"""How long a request that does not come again stays suspected. A quarantine has no end."""

STRUCK_S: Final = 60.0
"""How long an unexplained signal anywhere in the pool speaks for all requests that it did not strike."""

REPORT_S: Final = 1.0
"""How long a verdict waits for a client's report of its requests that ran when a worker ended."""

FAULT_SIGNALS: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"})
"""Signals that the kernel sends to a process for what it does itself."""


class Cause(Enum):
    """The origin of a worker's end."""

    INSIDE = "inside"
    """From the process: it exited, crashed, signalled itself, hung, or reported a fault."""
    UNKNOWN = "unknown"
    """From a signal of unknown sender."""
    SUPERVISOR = "supervisor"
    """From the supervisor, for a reason that says nothing of the requests."""


def cause_of(ended_by: str, *, exited: bool, sent_by_itself: bool, oom_killed: bool) -> Cause:
    """Return the origin of a process's unwanted end, if the process had reported no fault.

    Args:
        ended_by: Name of the signal that ended it, empty if none did.
        exited: It has an exit status.
        sent_by_itself: It was just sending itself that signal.
        oom_killed: A process of its own cgroup was killed because memory ran out.
    """
    from_inside = exited or sent_by_itself or ended_by in FAULT_SIGNALS or (oom_killed and ended_by == "SIGKILL")
    return Cause.INSIDE if from_inside else Cause.UNKNOWN


class Death(NamedTuple):
    """The facts of a worker's end."""

    running: int
    """Number of requests that may have caused it."""
    alone: bool = False
    """The one request that ran was suspected, and nothing else had been let in."""
    cause: Cause = Cause.INSIDE


class Quarantined(NamedTuple):
    """A request that is refused."""

    request: RequestKey
    since_s: float
    """When that was found."""
    ends: list[End]
    """Ends of workers on which it ran, the latest last."""


class Docket:
    """The suspicions about requests.

    Args:
        limit: After so many ends from inside while a request ran it is quarantined, if at the last nothing else ran
            there; and after so many ends of any cause while it ran alone, if nothing else was struck. 0 for never.
        kept: How many requests, and ends, are remembered.
    """

    def __init__(self, limit: int, kept: int = KEPT) -> None:
        self._limit: Final = limit
        self._kept: Final = kept
        self._cases: OrderedDict[RequestKey, _Case] = OrderedDict()
        self._deaths: OrderedDict[End, Death] = OrderedDict()
        self._unexplained: OrderedDict[End, float] = OrderedDict()
        """When unexplained signals struck, within the last `STRUCK_S`."""
        self._unreported: dict[End, float] = {}
        """Deadlines for the reports of ends that may condemn the request that ran there."""

    def ended(self, end: End, death: Death, now_s: float) -> list[Suspicion]:
        """Record a worker's end, whatever ran there; return what has changed.

        An unexplained signal releases those who were quarantined only because there had been no such signal elsewhere.
        """
        if not self._limit:
            return []
        if death.running:
            _keep(self._deaths, end, death, self._kept)
        if death.running == 1 and death.cause is not Cause.SUPERVISOR:
            self._unreported[end] = now_s + REPORT_S
        if death.cause is not Cause.UNKNOWN:
            return []
        self._unexplained = OrderedDict(
            (each, at_s) for each, at_s in self._unexplained.items() if now_s - at_s < STRUCK_S
        )
        _keep(self._unexplained, end, now_s, self._kept)
        released = []
        for request, case in self._cases.items():
            if case.condemned_s is not None and not case.proven and now_s - case.condemned_s < STRUCK_S:
                case.condemned_s = None
                released.append(_held(request, case))
        return released

    def suspect(self, end: End, requests: Sequence[RequestKey], now_s: float) -> list[Suspicion]:
        """Record what ran when a worker ended; return the verdicts on it now, and what has changed besides."""
        changed = []
        self._unreported.pop(end, None)
        death = self._deaths.get(end)
        if death is None:
            return []
        for request in requests:
            case = self._cases.setdefault(request, _Case())
            self._cases.move_to_end(request)
            case.ends.setdefault(end, death)
            case.since_s = now_s
            # A call with items is several requests; which of them it was is not known.
            if not case.condemned and death.running == 1 and len(requests) == 1:
                self._judge(case, death, now_s)
            changed.append(_held(request, case))
        while len(self._cases) > self._kept:
            changed.append(_cleared(self._cases.popitem(last=False)[0]))
        return changed

    def reports_due_s(self, now_s: float) -> float:
        """Return how long to wait at most for reports by which a request may be condemned and ends forgiven; 0 if none.

        A request is condemned only by the end of a worker that ran nothing else, so other ends are not waited for.
        """
        self._unreported = {end: until_s for end, until_s in self._unreported.items() if until_s > now_s}
        return max(self._unreported.values(), default=now_s) - now_s

    def acquit(self, request: RequestKey) -> list[Suspicion]:
        """A request has run alone, and its worker lives."""
        case = self._cases.get(request)
        return [] if case is None or case.condemned else self._drop([request])

    def admit(self, request: RequestKey) -> list[Suspicion]:
        """Forget a request that is in quarantine; nothing if it is not."""
        case = self._cases.get(request)
        return self._drop([request]) if case is not None and case.condemned else []

    def expire(self, now_s: float) -> list[Suspicion]:
        """Forget suspicions that are old."""
        cases = self._cases.items()
        return self._drop(
            [request for request, case in cases if not case.condemned and now_s - case.since_s >= SUSPECTED_S]
        )

    def clear(self) -> list[Suspicion]:
        """Forget all, as when the actors' code is another."""
        return self._drop(list(self._cases))

    def known(self) -> list[Suspicion]:
        """Return the verdicts on all requests that have one."""
        return [_held(request, case) for request, case in self._cases.items()]

    def quarantined(self) -> list[Quarantined]:
        """Return the requests that are refused."""
        return [
            Quarantined(request, case.condemned_s, list(case.ends))
            for request, case in self._cases.items()
            if case.condemned_s is not None
        ]

    def ends(self, request: RequestKey) -> frozenset[End]:
        """Return the ends that a request was part of."""
        return frozenset(self._cases[request].ends)

    def last_end(self, request: RequestKey) -> End:
        """Return the last of the ends that a request was part of."""
        return list(self._cases[request].ends)[-1]

    def _judge(self, case: _Case, death: Death, now_s: float) -> None:
        """Condemn a request, beside which nothing ran at the last end, if the ends that it was part of say so."""
        case.proven = death.cause is Cause.INSIDE and case.count(Cause.INSIDE) >= self._limit
        if case.proven or (death.alone and case.died_alone >= self._limit and not self._elsewhere(case, now_s)):
            case.condemned_s = now_s

    def _elsewhere(self, case: _Case, now_s: float) -> bool:
        """Whether an unexplained signal has struck the pool lately without striking this request."""
        return any(now_s - at_s < STRUCK_S and end not in case.ends for end, at_s in self._unexplained.items())

    def _drop(self, requests: list[RequestKey]) -> list[Suspicion]:
        for request in requests:
            del self._cases[request]
        return [_cleared(request) for request in requests]


@dataclass
class _Case:
    """A request that ran when workers ended."""

    ends: dict[End, Death] = field(default_factory=dict)
    """In the order in which they were reported."""
    since_s: float = 0.0
    """When the last of them was."""
    condemned_s: float | None = None
    """When it was put into quarantine; None if it was not."""
    proven: bool = False
    """The ends came from inside; otherwise there was only nothing that spoke for it."""

    def count(self, cause: Cause) -> int:
        """Return how many of the ends had a cause."""
        return sum(death.cause is cause for death in self.ends.values())

    @property
    def died_alone(self) -> int:
        """Number of ends at which it ran alone, without those that the supervisor caused."""
        return sum(death.alone and death.cause is not Cause.SUPERVISOR for death in self.ends.values())

    @property
    def condemned(self) -> bool:
        """Whether it is in quarantine."""
        return self.condemned_s is not None


def _held(request: RequestKey, case: _Case) -> Suspicion:
    return Suspicion(request, Verdict.QUARANTINED if case.condemned else Verdict.SUSPECTED, len(case.ends))


def _cleared(request: RequestKey) -> Suspicion:
    return Suspicion(request, Verdict.CLEARED, 0)


def _keep(into: OrderedDict[End, T], end: End, value: T, kept: int) -> None:
    """Remember something of an end, and forget the oldest if there are too many."""
    into[end] = value
    if len(into) > kept:
        into.popitem(last=False)
