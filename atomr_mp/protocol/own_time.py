"""The time in which this process could have heard others. By it, not by the clock, their silence is judged. Pure.

A process that is stopped (SIGSTOP), frozen with its cgroup, swapped out or busy hears nobody meanwhile. When it goes
on, the clock says that everybody else has been silent for as long. So no look counts for more than a step, and
whoever judges looks more often than that. What has come in is taken in before anybody is judged.

| Who judges | Whom | By |
|---|---|---|
| The supervisor | the relay, starts, ends and stacks of workers, helpers, hellos, sessions | `Loop.own_s`, timers |
| The supervisor | the zygote's forks | `Patience` |
| The supervisor | requests that hang | `supervision.watchdog.able_ns`, which leaves out the worker's pauses, too |
| The supervisor | stopped members of worlds | numbers of looks |
| The relay | clients that are away | `Loop.own_s` |
| A client, a command | the supervisor's answers | `Patience` |
| A remote client | the relay | `Patience`; `OwnTime` of its `tunnel.keeper` |
| A worker | clients that do not read their answers | what it writes right before it judges |
| A worker | readers of streams, and their relays | two looks, `OpenStreams` |
| A worker | ranks that do not begin what is published | two looks, `JoinedEpoch` |
| An HTTP server | the supervisor, front ends | `OwnTime` of `SupervisorWatch` and `Heartbeats` |

No rank of a world judges another that it meets: a meeting lasts until the supervisor ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_S: Final = 2.0
"""The most that counts between two looks. Every limit on silence is longer than a step and the peer's interval."""

LOOK_S: Final = 1.0
"""The longest wait of who judges. Half a step: a look that comes somewhat late counts in full."""


RELAY_QUIET_S: Final = 5.0
"""A relay that has said nothing for so long is killed: its loop says every second that it turns."""


class OwnTime:
    """A clock that stands still while its process does.

    Args:
        now_s: What the machine's clock shows.
        step_s: The most that counts between two looks.
    """

    __slots__ = ("_looked_s", "_step_s", "now_s")

    def __init__(self, now_s: float, step_s: float = STEP_S) -> None:
        self.now_s = now_s
        """The own time, as of the last look."""
        self._looked_s = now_s
        self._step_s: Final = step_s

    def look(self, now_s: float) -> float:
        """Count the time since the last look; return how many seconds of it were left out.

        Args:
            now_s: What the machine's clock shows.
        """
        passed_s = max(0.0, now_s - self._looked_s)
        self._looked_s = max(self._looked_s, now_s)
        counted_s = min(passed_s, self._step_s)
        self.now_s += counted_s
        return passed_s - counted_s


class Patience:
    """How long one still waits for another process, by own time. For loops that look, judge, and wait `wait_s`.

    Args:
        limit_s: How long the other may be silent.
        clock: The machine's clock.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        step_s = min(STEP_S, limit_s / 2)  # one pause of whatever length leaves time for another look
        self._own: Final = OwnTime(clock(), step_s)
        self._until_s: Final = self._own.now_s + limit_s
        self._longest_s: Final = step_s / 2

    @property
    def left_s(self) -> float:
        """How many seconds of the limit are left, 0 at least. Looks at the clock."""
        self._own.look(self._clock())
        return max(0.0, self._until_s - self._own.now_s)

    @property
    def wait_s(self) -> float:
        """How long to wait until the next look, 0 once the limit has passed. Looks at the clock."""
        return min(self.left_s, self._longest_s)
