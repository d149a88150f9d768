"""Work that waits after a promotion until the promoted process has answered the calls that waited for it.

To start the next standby takes processors, and on a GPU the driver's lock; to end a poisoned process takes that lock
too, for more than a tenth of a second. Nobody waits for either. So both come when the promoted process has nothing left
to do, as its board says, or a second later. A second fault within that time costs a start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.loop import Loop, Timer

LOOK_S: Final = 0.05
"""First look, and interval of further looks, at whether the promoted process has anything to do. A client's calls are
there by then: as a rule it hears of the new worker within a millisecond."""

SETTLE_S: Final = 1.0
"""The waiting work is done then at the latest, whatever the promoted process has to do."""


class Settling:
    """The time after a device's promotion.

    Args:
        loop: The supervisor's loop.
        roles: The device's processes.
        settled: Called at the end of each such time, after what waited for it.
    """

    def __init__(self, loop: Loop, roles: Roles, settled: Callable[[], None]) -> None:
        self._loop = loop
        self._roles = roles
        self._settled = settled
        self._waiting: list[Callable[[], object]] = []
        self._timer: Timer | None = None
        self._until_s = 0.0

    @property
    def lasts(self) -> bool:
        """Whether a promoted process is still left in peace."""
        return self._timer is not None

    def begin(self) -> None:
        """Begin this time: a standby takes over, or is about to."""
        if self._timer is None:
            self._until_s = self._loop.own_s + SETTLE_S
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def afterwards(self, call: Callable[[], object]) -> None:
        """Call `call()` at the end of this time."""
        assert self.lasts
        self._waiting.append(call)

    def end(self) -> None:
        """End this time early: no process has taken over after all, or that process is ending too."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
        self._settled()

    def _look(self) -> None:
        worker = self._roles.active
        board = None if worker is None else worker.live_board.read()
        if board is not None and board.queue_depth and self._loop.own_s < self._until_s:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        else:
            self.end()
