"""A device's unplanned ends: how many there were, and whether another process may be started."""

from __future__ import annotations

import time
from typing import Final

from atomr_mp import errors
from atomr_mp.supervision import intensity
from atomr_mp.supervision.directives import Directive, directive
from atomr_mp.supervisor.device.incarnation import Incarnation

FORGIVEN: Final = -1.0
"""Stands for the time of a restart that is not to be counted."""


class Restarts:
    """Counts a device's ends, and judges them by its restart intensity."""

    def __init__(self) -> None:
        self.count = 0
        """Unplanned ends so far."""
        self._history = intensity.History.EMPTY
        self._judged: dict[int, float] = {}
        """When restarts were judged, by the generation whose end they followed; `FORGIVEN` if one is not to be."""

    def add(self, worker: Incarnation) -> None:
        """Count an end, once, if nobody wanted it."""
        if not (worker.counted or worker.drained or worker.wish):
            worker.counted = True
            self.count += 1

    def verdict(self, policy: intensity.Intensity, generation: int, lost: errors.AtomrError) -> intensity.Verdict:
        """Judge an incarnation's unplanned end by its error and by those before it."""
        if directive(lost) in {Directive.STOP, Directive.ESCALATE}:
            return intensity.Refused(lost.message)
        if self._judged.pop(generation, None) == FORGIVEN:  # its clients were told before its process had ended
            return intensity.Granted(0.0)
        now_s = time.monotonic()
        self._history, verdict = intensity.ask(policy, self._history, now_s)
        self._judged = {each: then for each, then in self._judged.items() if then in self._history.restarts}
        self._judged[generation] = now_s
        return verdict

    def forgive(self, generation: int) -> bool:
        """Count the end of an incarnation no more for the intensity; return whether it had been counted."""
        then_s = self._judged.pop(generation, None)
        if then_s is None:
            self._judged[generation] = FORGIVEN
            return False
        self._history = intensity.forgiven(self._history, then_s)
        return True

    def succeeded(self) -> None:
        """An incarnation is ready: the next unplanned end is the first of its series."""
        self._history = intensity.succeeded(self._history)

    def forget(self) -> None:
        """Forget all ends: an operator closes the circuit."""
        self._history = intensity.History.EMPTY
