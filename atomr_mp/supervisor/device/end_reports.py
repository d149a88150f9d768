"""Reports the end of each process of a device: to the clients first, once; then it is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.board.check import disbelieved
from atomr_mp.protocol.codec import clip
from atomr_mp.protocol.messages.operators import Figures
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.supervision.tally import DeviceTally
from atomr_mp.supervisor.device.listener import DeviceListener, DeviceView
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.incarnation_end import IncarnationEnd

FAULT_CHARS: Final = 300
"""Longest text of a past fault in a status, which has a text for each device."""


class EndReports:
    """The ends of a device's processes.

    Args:
        device: The device, as clients are shown it.
        sessions: Tells the clients.
        log: The device's events.
        plans: Decide whether requests are suspected.
        restarts: Counts the ends.
        release: Called with a process whose end was reported.
    """

    def __init__(
        self,
        device: DeviceView,
        sessions: DeviceListener,
        log: DeviceLog,
        plans: Plans,
        restarts: Restarts,
        release: Callable[[Incarnation], None],
    ) -> None:
        self._device = device
        self._sessions = sessions
        self._log = log
        self._plans = plans
        self._restarts = restarts
        self._release = release
        self._last_fault = (0.0, "")
        self._known: dict[int, IncarnationEnd] = {}
        """Fates of the requests, by generation, from the first sign of an end until the process is released."""
        self._tally: Final = DeviceTally()

    @property
    def last_fault(self) -> tuple[float, str]:
        """Time and cause of the last unplanned end."""
        return self._last_fault

    def over(self, worker: Incarnation) -> errors.AtomrError | None:
        """Report the fates of the requests on an incarnation; return why it ended, None if it was planned."""
        self._restarts.add(worker)
        ending = self.tell(worker)
        self._release(worker)
        self._known.pop(worker.generation, None)
        event = "planned_end" if ending.planned else "end"
        self._log.note(event, ending.text, generation=worker.generation, **ending.facts)
        return None if ending.planned and not worker.parting.retires else ending.lost

    def foretell(self, worker: Incarnation) -> None:
        """Report the fates of the requests on an incarnation that has stopped running, but has its connections."""
        if worker.generation not in self._known:
            self._tell(worker, self._sessions.incarnation_stopped)

    def tell(self, worker: Incarnation) -> IncarnationEnd:
        """Report the fates of the requests on an ended incarnation; once."""
        ending = self._known.get(worker.generation)
        if ending is None or not ending.is_told:
            ending = self._tell(worker, self._sessions.incarnation_ended)
            ending.is_told = True
        return ending

    def figures(self, workers: Iterable[Incarnation | None]) -> Figures:
        """Return the counts of all incarnations, running ones included."""
        # The tally has the ended ones.
        running = [each for each in workers if each is not None and each.generation not in self._known]
        boards = [worker.live_board.read() or worker.live_board.last for worker in running]
        return self._tally.figures(board for board in boards if board is not None)

    def _tell(
        self, worker: Incarnation, say: Callable[[DeviceView, Callable[[int], IncarnationEnded]], None]
    ) -> IncarnationEnd:
        """Tell the waiting clients that an incarnation has stopped running; then count its end."""
        known = self._known.get(worker.generation)
        if known is not None:
            say(self._device, known.told)
            return known
        board = worker.board
        ending = self._known[worker.generation] = IncarnationEnd(
            worker, board, suspecting=self._plans.held.max_suspicions > 0, now_ns=time.monotonic_ns()
        )
        self._sessions.died(self._device, worker.generation, ending.death)
        say(self._device, ending.told)
        # If the board is not believed, the figures from before the damage count: sums never fall.
        lost = not (ending.planned or ending.doubt)
        self._tally.add(worker.live_board.last if ending.doubt else board, ending.in_a_word, lost=lost)
        board.release()
        parting = worker.parting
        if ending.doubt and not parting.retires:
            self._log.note("board", disbelieved(ending.doubt), generation=worker.generation)
        if parting.retires or not (ending.planned or parting.wish):
            self._last_fault = (time.time(), clip(ending.lost.message, FAULT_CHARS))
        return ending
