"""Reports the end of each process of a device: to the clients first, once; then it is counted and released."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.board.check import disbelieved
from atomr_mp.protocol.codec import clip
from atomr_mp.protocol.messages.operators import Figures
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.supervision.suspicion import Death
from atomr_mp.supervision.tally import DeviceTally
from atomr_mp.supervisor.device.listener import DeviceListener, ResidentListener, WorldListener
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.quarantine import Quarantine
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.incarnation_end import IncarnationEnd, cause_of_end
from atomr_mp.supervisor.processes.starter import Starter

FAULT_CHARS: Final = 300
"""Longest text of a past fault in a status, which has a text for each device."""


class EndReports:
    """The ends of a device's processes.

    Args:
        sessions: Tells the clients.
        residents: Keeps the memory that outlives the processes.
        worlds: Keeps the worlds that the device is a member of.
        log: The device's events.
        plans: Decide whether requests are suspected.
        restarts: Counts the ends.
        quarantine: Keeps processes that do not end.
        starter: Has made the processes, and removes what they leave.
    """

    def __init__(
        self,
        sessions: DeviceListener,
        residents: ResidentListener,
        worlds: WorldListener,
        log: DeviceLog,
        plans: Plans,
        restarts: Restarts,
        quarantine: Quarantine,
        starter: Starter,
    ) -> None:
        self._sessions = sessions
        self._residents = residents
        self._worlds = worlds
        self._log = log
        self._plans = plans
        self._restarts = restarts
        self._quarantine = quarantine
        self._starter = starter
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
        ending = self.report_final(worker)
        self.release(worker)
        self._known.pop(worker.generation, None)
        event = "planned_end" if ending.planned else "end"
        self._log.note(event, ending.text, generation=worker.generation, **ending.facts)
        return None if ending.planned and not worker.parting.retires else ending.lost

    def report_early(self, worker: Incarnation, *, sends: bool = False) -> None:
        """Report the fates of the requests on an incarnation that has ceased to run them, but has its connections.

        Worlds go on at once, too: no method of theirs runs there any more. To stop all threads of a poisoned process
        takes tens of milliseconds where some are in the driver.

        Args:
            worker: The incarnation.
            sends: Whether it may still send answers.
        """
        if worker.generation not in self._known:
            self._tell(worker, functools.partial(self._sessions.incarnation_stopped, sends=sends))
            self._worlds.stopped(worker.key)

    def report_final(self, worker: Incarnation) -> IncarnationEnd:
        """Report the fates of the requests on an ended incarnation; once."""
        ending = self._known.get(worker.generation)
        if ending is None or not ending.is_told:
            ending = self._tell(worker, self._sessions.incarnation_ended)
            ending.is_told = True
            self._worlds.stopped(worker.key)
        return ending

    def standby_over(self, worker: Incarnation, *, unplanned: bool) -> None:
        """Release a standby that has ended, or never will. A signal that struck it may strike others too."""
        if unplanned:
            board = worker.board
            self._sessions.died(worker.key, Death(0, cause=cause_of_end(worker, board)))
            board.release()
        self.release(worker)

    def release(self, worker: Incarnation) -> None:
        """Forget a process that has ended, or never will, here and in all listeners."""
        if worker.is_stuck:
            self._quarantine.hold(worker)
        else:
            worker.close()
        self._restarts.release(worker)
        self._starter.clear(worker)
        self._sessions.incarnation_over(worker.key)
        self._worlds.ended(worker.key)
        self._residents.ended(worker.key, stuck=worker.is_stuck)

    def unstuck(self, worker: Incarnation) -> None:
        """Release the device and its GPU: a process that was stuck has ended. This is part of a fact."""
        worker.close()
        self._residents.ended(worker.key)
        self._quarantine.unstuck(worker)

    def figures(self, workers: Iterable[Incarnation | None]) -> Figures:
        """Return the counts of all incarnations, running ones included."""
        # The tally has the ended ones.
        running = [each for each in workers if each is not None and each.generation not in self._known]
        boards = [worker.live_board.read() or worker.live_board.last for worker in running]
        return self._tally.figures(board for board in boards if board is not None)

    def _tell(self, worker: Incarnation, say: Callable[[Callable[[int], IncarnationEnded]], None]) -> IncarnationEnd:
        """Tell the waiting clients that an incarnation has stopped running; then count its end.

        The epochs that it is in are over before, even if this is the first sign of its end.
        """
        self._worlds.leaves(worker.key, worker.why, answers=False)
        known = self._known.get(worker.generation)
        if known is not None:
            say(known.told)
            return known
        board = worker.board
        ending = self._known[worker.generation] = IncarnationEnd(
            worker, board, suspecting=self._plans.held.settings.max_suspicions > 0, now_ns=time.monotonic_ns()
        )
        self._sessions.died(worker.key, ending.death)
        say(ending.told)
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
