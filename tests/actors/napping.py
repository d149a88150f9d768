"""An actor whose calls last for a given time."""

from __future__ import annotations

import time

from atomr_mp_workers import Actor, method


class Napping(Actor):
    """Runs several calls at once, none of which may run twice."""

    threads = 4

    @method(thread=True)
    def nap(self, seconds: float) -> float:
        """Return after so long."""
        time.sleep(seconds)  # the time is tested: other processes are stopped meanwhile
        return seconds
