"""The findings of a look at a pool, and which of them last. Pure.

What changes between the two sides of a look is no finding yet, and a world may be about to be ready. So an
`Inspection` takes several looks, and tells only of differences that last.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

LASTS_S: Final = 2.5
"""A thing that is unaccounted for, or unwell, this long is a finding. Ended processes may leave things for two
seconds."""


class State(StrEnum):
    """The state of a finding."""

    OK = "ok"
    """It is there, and has to be."""
    HELD = "held"
    """Its time is over, but a living process has it, or the next start removes it: it goes with that."""
    UNACCOUNTED = "unaccounted"
    """No record says why it is there, or is not."""
    UNWELL = "unwell"
    """It has to be there, and does not do its work: a world takes no calls, or a process stands still."""


class Supervision(StrEnum):
    """The state of the pool's supervisor."""

    ANSWERS = "answers"
    SILENT = "silent"
    """It lives and does not answer."""
    KILLED = "killed"
    """It has left the run directory behind."""
    ENDED = "ended"
    """In order; or it never was."""


class Finding(NamedTuple):
    """One line of the audit."""

    state: State
    kind: str
    """Its subject: "supervisor", "process", "session", "relay", "memory", "descriptor", "socket", "note", "gpu",
    "fault", "world", "disk", "reload"."""
    what: str
    remedy: str = ""
    """For an operator; empty if there is nothing to do."""
    since: float | None = None
    """When it or its process began, in seconds since the epoch."""
    pid: int | None = None
    """Its owner, or the process."""
    nbytes: int | None = None


class Inspection:
    """Takes looks until what is unaccounted for, or unwell, has lasted."""

    def __init__(self, lasts_s: float = LASTS_S) -> None:
        self._lasts_s = lasts_s
        self._since_s: dict[Finding, float] = {}
        self._latest: list[Finding] = []
        self._now_s = 0.0

    def look(self, now_s: float, findings: Iterable[Finding]) -> bool:
        """Take a look in; return whether it can be the last: all that is to last has lasted."""
        self._latest, self._now_s = list(findings), now_s
        self._since_s = {each: self._since_s.get(each, now_s) for each in self._latest if each.state in _TO_LAST}
        return all(now_s - since_s >= self._lasts_s for since_s in self._since_s.values())

    @property
    def findings(self) -> list[Finding]:
        """The findings of the latest look. One that counts only after a while is left out before that."""
        return [
            each
            for each in self._latest
            if each.state not in _TO_LAST or self._now_s - self._since_s[each] >= self._lasts_s
        ]


_TO_LAST: Final = frozenset({State.UNACCOUNTED, State.UNWELL})
"""States that may be over at the next look."""
