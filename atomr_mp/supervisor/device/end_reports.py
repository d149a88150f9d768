"""How a device's processes have ended: each is told of once, counted and judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.protocol.board_check import disbelieved
from atomr_mp.protocol.codec import clip
from atomr_mp.protocol.messages.operators import Figures
from atomr_mp.supervision import intensity
from atomr_mp.supervision.tally import Tally
from atomr_mp.supervisor.device.incarnation import Incarnation
from atomr_mp.supervisor.device.incarnation_end import IncarnationEnd, error_of_requests
from atomr_mp.supervisor.device.listener import DeviceListener
from atomr_mp.supervisor.device.restarts import Restarts

if TYPE_CHECKING:
    from atomr_mp.protocol.messages.session import IncarnationEnded
    from atomr_mp.supervisor.device.device import SupervisedDevice

FAULT_CHARS: Final = 300
"""Longest text of a past fault in a status, which has one for each device."""


class EndReports:
    """The ends of a device's processes.

    Args:
        device: The device.
        sessions: Who is told.
    """

    def __init__(self, device: SupervisedDevice, sessions: DeviceListener) -> None:
        self.restarts: Final = Restarts()
        """How many were unplanned, and what follows."""
        self.last_fault = (0.0, "")
        """When an incarnation last ended that was not to, and how."""
        self.lost: errors.AtomrError | None = None
        """How the last incarnation ended, if that was unplanned."""
        self.no_process: errors.AtomrError | None = None
        """Why no process could be made, if that is why there is none."""
        self._device = device
        self._sessions = sessions
        self._tally: Final = Tally()

    def end(self, worker: Incarnation | None) -> None:
        """The active incarnation has ended; None if none could be made."""
        self.lost = self.no_process if worker is None else self.over(worker)

    def over(self, worker: Incarnation) -> errors.AtomrError | None:
        """Tell what became of the requests that were on an incarnation; return why it ended, None if it was told to."""
        self.restarts.add(worker)
        ending = self.tell(worker)
        self._device.let_go(worker)
        event = "planned_end" if ending.planned else "end"
        self._device.note(event, ending.text, generation=worker.generation, **ending.facts)
        return None if ending.planned else ending.lost

    def foretell(self, worker: Incarnation) -> None:
        """Tell what will become of the requests on an incarnation that has hung up nothing yet, but does not run."""
        if worker.ending is None:
            self._tell(worker, self._sessions.incarnation_stopped)

    def tell(self, worker: Incarnation) -> IncarnationEnd:
        """Tell what became of the requests that were on an incarnation that has ended; once."""
        ending = worker.ending
        if ending is None or not ending.is_told:
            ending = self._tell(worker, self._sessions.incarnation_ended)
            ending.is_told = True
        return ending

    def _tell(
        self, worker: Incarnation, say: Callable[[SupervisedDevice, Callable[[int], IncarnationEnded]], None]
    ) -> IncarnationEnd:
        """Tell how an incarnation ends, of which nothing runs any more; then count it, for the clients wait."""
        if worker.ending is not None:
            say(self._device, worker.ending.told)
            return worker.ending
        board = worker.board
        ending = worker.ending = IncarnationEnd(
            worker, board, suspecting=self._device.plan.max_suspicions > 0, now_ns=time.monotonic_ns()
        )
        self._sessions.died(self._device, worker.generation, ending.death)
        say(self._device, ending.told)
        # Of a board that is not believed what was told before it was damaged: sums never fall.
        lost = not (ending.planned or ending.doubt)
        self._tally.add(worker.live_board.last if ending.doubt else board, ending.in_a_word, lost=lost)
        board.release()
        if ending.doubt and worker.wish != "board":
            self._device.note("board", disbelieved(ending.doubt), generation=worker.generation)
        if not (ending.planned or worker.wish):
            self.last_fault = (time.time(), clip(ending.lost.message, FAULT_CHARS))
        return ending

    def judge(self) -> intensity.Verdict:
        """Return whether another process may follow the last, whose end was unplanned."""
        lost = self.lost
        assert lost is not None
        return self._verdict(lost)

    def count_no_process(self) -> None:
        """Count that none could be made, if that is how the last ended and nobody has forbidden it."""
        lost = self.lost
        self.restarts.count += lost is self.no_process and not isinstance(lost, errors.DeviceUnavailable)

    def allow_take_over(self, worker: Incarnation) -> bool:
        """Return whether a standby may take an incarnation's place, whose end is counted then."""
        if not (worker.drained or worker.wish):
            lost = worker.fault or error_of_requests(worker)
            if isinstance(self._verdict(lost), intensity.Refused):
                return False  # it will be said when the process has ended
            self.restarts.add(worker)
        return True

    def figures(self, workers: Iterable[Incarnation | None]) -> Figures:
        """Return what all incarnations have done, those that run among them."""
        running = [worker for worker in workers if worker is not None and worker.ending is None]  # else in the tally
        boards = [worker.live_board.read() or worker.live_board.last for worker in running]
        return self._tally.figures(board for board in boards if board is not None)

    def _verdict(self, lost: errors.AtomrError) -> intensity.Verdict:
        return self.restarts.verdict(self._device.plan.intensity, self._device.generation, lost)
