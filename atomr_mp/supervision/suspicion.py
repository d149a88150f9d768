"""Which requests are held to end workers: from the ends that they were part of to a verdict. Pure.

A worker's end makes suspects of all that ran then. A suspect runs alone from then on, until it has done so and its
worker has lived; if the worker ends again, that is the proof. So nobody is condemned for what ran beside it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from atomr_mp.protocol.suspects import Request, Suspicion, Verdict

End = tuple[int, int]
"""An incarnation that has ended: device and generation."""

KEPT: Final = 512
"""Requests, and ends, that are remembered; of more, those of which nothing was heard for longest are forgotten."""

SUSPECTED_S: Final = 60.0
"""How long a request is suspected that does not come again. The verdict of a quarantine has no end."""


class Quarantined(NamedTuple):
    """A request that is refused."""

    request: Request
    since_s: float
    """When that was found."""
    ends: list[End]
    """Of workers, while it ran, the latest last."""


class Docket:
    """What is held of requests.

    Args:
        limit: Ends of workers while a request ran after which it is quarantined, if at the last nothing else ran there;
            0 for never.
        kept: How many requests, and ends, are remembered.
    """

    def __init__(self, limit: int, kept: int = KEPT) -> None:
        self._limit: Final = limit
        self._kept: Final = kept
        self._cases: OrderedDict[Request, _Case] = OrderedDict()
        self._ends: OrderedDict[End, int] = OrderedDict()

    def ended(self, end: End, running: int) -> None:
        """A worker has ended, by what may have been one of so many requests."""
        if self._limit and running:
            self._ends[end] = running
            if len(self._ends) > self._kept:
                self._ends.popitem(last=False)

    def suspect(self, end: End, requests: Sequence[Request], now_s: float) -> list[Suspicion]:
        """Take note of what ran when a worker ended; return what is held of it now, and what has changed besides."""
        changed = []
        running = self._ends.get(end)
        if running is None:
            return []
        for request in requests:
            case = self._cases.setdefault(request, _Case())
            self._cases.move_to_end(request)
            case.ends.setdefault(end)
            case.since_s = now_s
            # What was sent as one is several; which of them it was is not known.
            if not case.condemned and running == 1 and len(requests) == 1 and len(case.ends) >= self._limit:
                case.condemned_s = now_s
            changed.append(_held(request, case))
        while len(self._cases) > self._kept:
            changed.append(_cleared(self._cases.popitem(last=False)[0]))
        return changed

    def acquit(self, request: Request) -> list[Suspicion]:
        """A request has run alone, and its worker lives."""
        case = self._cases.get(request)
        return [] if case is None or case.condemned else self._drop([request])

    def admit(self, request: Request) -> list[Suspicion]:
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
        """Return what is held of all requests of which anything is."""
        return [_held(request, case) for request, case in self._cases.items()]

    def quarantined(self) -> list[Quarantined]:
        """Return the requests that are refused."""
        return [
            Quarantined(request, case.condemned_s, list(case.ends))
            for request, case in self._cases.items()
            if case.condemned_s is not None
        ]

    def ends(self, request: Request) -> frozenset[End]:
        """Return the ends that a request was part of."""
        return frozenset(self._cases[request].ends)

    def _drop(self, requests: list[Request]) -> list[Suspicion]:
        for request in requests:
            del self._cases[request]
        return [_cleared(request) for request in requests]


@dataclass
class _Case:
    """A request that ran when workers ended."""

    ends: dict[End, None] = field(default_factory=dict)
    """In the order in which they were reported."""
    since_s: float = 0.0
    """When the last of them was."""
    condemned_s: float | None = None
    """Since when it is in quarantine, if it is."""

    @property
    def condemned(self) -> bool:
        """Whether it is in quarantine."""
        return self.condemned_s is not None


def _held(request: Request, case: _Case) -> Suspicion:
    return Suspicion(request, Verdict.QUARANTINED if case.condemned else Verdict.SUSPECTED, len(case.ends))


def _cleared(request: Request) -> Suspicion:
    return Suspicion(request, Verdict.CLEARED, 0)
