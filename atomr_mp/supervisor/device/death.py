"""The end of a device's process: its signs, the steps that follow, the reports. Read this from top to bottom.

Theory of operation. A process ends because it is killed or crashes, because it reports a fault, because it hangs, or
because it was told to finish. Its end shows in several signs. Each of them may be the first, and none but the last is
sure to come:

1. `garbled` and `failed`: the process itself says why it ends (`control.Fault`), or breaks the protocol.
   `hung`: the watchdog finds a request that makes no progress. `damaged`: its board cannot be believed, and it may
   finish what it holds. `late`: it is not ready in time.
2. `dies`: one of its threads has ended, and the kernel has told the others to end. This comes a fraction of a
   millisecond after a SIGKILL, and long before the kernel has taken down the memory of a large process.
3. `stopped`: nothing of it runs any more. What it has not answered by now it will not answer.
4. `hung_up`: its control channel has ended.
5. `exited`: its pidfd says that it has ended. This is the authority, and the only sign that all ends have.
   `survived` stands for it where a killed process does not end.

The first sign takes the device out of `ready`. The actions of that row (`supervision.lifecycle`) are, in this order:
`HOLD` keeps clients from sending, `KILL` sees to it that the process does end, `CALL_STANDBY` puts the standby into its
place if there is one that is ready (`takeover`). Then nobody waits for the rest: the process is the *predecessor*.
Without a standby the device waits in `lost`, `poisoned` or `hung` for `exited`.

Clients are told the fate of their requests as soon as nothing of the process runs any more, which may be at sign 3,
4 or 5 (`EndReports`): `report_early` says it while the process may still hang up something, `report_final` says it for
good, once.

With `exited` the process is over: `END`, or `END_PREDECESSOR` for one that was replaced. Its end is counted and written
down, and its endpoint, cgroup and descriptors are given back. `ASK_RESTART` then judges the end (`restarts`), unless
somebody had wanted it or a standby's promotion has been judged already.

What changes a role or the state is a fact for `DeviceLife`, which takes one at a time. Two signs act at once: a standby
that has failed or hung up is killed before its promotion can be considered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from atomr_mp import errors
from atomr_mp.process.files.logs import RotatedOutput
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.lifecycle import LifecycleEvent, State, UnexpectedEventError
from atomr_mp.supervisor.device.end_reports import EndReports
from atomr_mp.supervisor.device.life import DeviceLife
from atomr_mp.supervisor.device.plans import Plans
from atomr_mp.supervisor.device.quarantine import Quarantine
from atomr_mp.supervisor.device.restarts import Restarts
from atomr_mp.supervisor.device.roles import Roles
from atomr_mp.supervisor.device.takeover import Takeover
from atomr_mp.supervisor.processes.device_log import DeviceLog
from atomr_mp.supervisor.processes.incarnation import Incarnation


class HungRequest(NamedTuple):
    """What logs tell of a request that made no progress."""

    method: str
    """The name of its method, empty if that is not known."""
    client: str
    """Words for its client."""
    stacks: str
    """The stacks of all threads of its process."""


class Deaths:
    """The ends of a device's processes, from the first sign to the last action.

    Args:
        life: The device's life.
        roles: Its processes.
        plans: Its plans.
        log: Its events.
        output: Where the processes print.
        ends: Reports each end, and lets go of the process.
        restarts: Judges the ends.
        quarantine: Knows processes that do not end.
        takeover: Knows the standby.
        ended: Called after each process end, with the pid if it has been reaped, or None if it never will end.
    """

    def __init__(
        self,
        *,
        life: DeviceLife,
        roles: Roles,
        plans: Plans,
        log: DeviceLog,
        output: RotatedOutput,
        ends: EndReports,
        restarts: Restarts,
        quarantine: Quarantine,
        takeover: Takeover,
        ended: Callable[[int | None], None],
    ) -> None:
        self._life = life
        self._roles = roles
        self._plans = plans
        self._log = log
        self._output = output
        self._ends = ends
        self._restarts = restarts
        self._quarantine = quarantine
        self._takeover = takeover
        self._ended = ended
        self._held_s = 0.0

    @property
    def held_s(self) -> float:
        """When clients began to hold their calls for the next incarnation, CLOCK_MONOTONIC; 0 if they do not."""
        return self._held_s

    # --- the signs, in the order in which they may come ------------------------------------------------------------

    def late(self, worker: Incarnation) -> None:
        """A process was not ready in time."""
        self._life.take(lambda: self._on_late(worker))

    def garbled(self, worker: Incarnation, error: errors.ProtocolError) -> None:
        """A process has sent bytes that are no message."""
        self.failed(worker, errors.SetupFailed(f"the worker broke the protocol: {error}"))

    def failed(self, worker: Incarnation, fault: errors.AtomrError, *, settled: bool = False, word: str = "") -> None:
        """A process says that it ends, or has broken the protocol.

        Args:
            worker: The process.
            fault: Why.
            settled: It sends no more answers.
            word: The fault in a word, if its code does not tell it.
        """
        worker.parting.failed(fault, word)
        if worker is self._roles.active:
            self._life.take(lambda: self._on_failed(worker, fault, settled=settled))
        else:  # at once, since a failed standby must not be promoted
            worker.kill()

    def hung(self, worker: Incarnation, fault: errors.WorkerHung, request: HungRequest) -> None:
        """Act on a process that makes no progress; do nothing if it has stopped taking calls.

        Args:
            worker: The process.
            fault: The error of the requests on it.
            request: The request that made none, for the logs.
        """
        hung_ns = time.monotonic_ns()
        self._life.take(lambda: self._on_hung(worker, fault, request, hung_ns))

    def damaged(self, worker: Incarnation, why: str) -> None:
        """Act on a process that has written over its own board; do nothing if it has stopped taking calls.

        Args:
            worker: The process.
            why: The damage to the board, for a person.
        """
        self._life.take(lambda: self._on_damaged(worker, why))

    def dies(self, worker: Incarnation) -> None:
        """A process has begun to end: a standby takes over."""
        self._life.take(lambda: self._on_dies(worker))

    def stopped(self, worker: Incarnation) -> None:
        """A dying process has stopped running, so it sends no further answers."""
        if worker is not self._roles.standby:
            self._ends.report_early(worker)

    def hung_up(self, worker: Incarnation, *, dying: bool) -> None:
        """A process has closed its control channel."""
        if worker is self._roles.standby:  # at once: it must not be promoted
            worker.kill()
        else:
            self._life.take(lambda: self._on_hung_up(worker, dying=dying))

    def exited(self, worker: Incarnation) -> None:
        """A process has ended."""
        self._life.take(lambda: self._on_exited(worker))

    def survived(self, worker: Incarnation) -> None:
        """A process goes on though it was killed: it is stuck in the kernel, and its end is not waited for."""
        self._life.take(lambda: self._on_survived(worker))

    # --- the facts that follow from a sign --------------------------------------------------------------------------

    def _on_late(self, worker: Incarnation) -> None:
        if worker.parting.fault is None:
            limit_s = self._plans.held.settings.start_timeout_s
            worker.parting.failed(
                errors.SetupFailed(f"the worker was not ready within {limit_s:g} s (start_timeout_s)")
            )
        if worker is self._roles.active:
            self._life.step(LifecycleEvent.START_TIMEOUT)
        else:
            worker.kill()

    def _on_failed(self, worker: Incarnation, fault: errors.AtomrError, *, settled: bool) -> None:
        if worker is not self._roles.active:
            worker.kill()
            return
        poisoned = isinstance(fault, errors.ContextPoisoned)
        self.step_as_told(worker, LifecycleEvent.POISONED if poisoned else LifecycleEvent.FAULT)
        if worker is self._roles.predecessor:  # a standby has taken over: nobody has to wait for this end
            if settled:
                self._ends.report_early(worker, sends=True)
            worker.freeze(lambda: self._ends.report_final(worker))

    def step_as_told(self, worker: Incarnation, event: LifecycleEvent) -> None:
        """Step by a process's message. A message out of turn breaks the protocol, which is a fault."""
        life = self._life
        if not life.expects(event):
            why = UnexpectedEventError(life.state, event)
            worker.parting.failed(errors.SetupFailed(f"the worker broke the protocol: {why}"))
            event = LifecycleEvent.FAULT
        life.step(event)

    def _on_hung(self, worker: Incarnation, fault: errors.WorkerHung, request: HungRequest, hung_ns: int) -> None:
        if worker is self._roles.active and self._life.state is State.READY:
            worker.parting.hung(fault, hung_ns)
            self._output.add(f"--- {self._log.title} generation {worker.generation} hung\n{request.stacks}")
            text = f"{fault.message}; the request is that of {request.client}"
            self._log.note("hung", text, code=fault.code, pid=worker.pid, where=fault.where, **request._asdict())
            self._life.step(LifecycleEvent.HUNG)

    def _on_damaged(self, worker: Incarnation, why: str) -> None:
        if worker is self._roles.active and self._life.state is State.READY:
            self._log.note("board", why)
            worker.parting.retired(errors.ProtocolError(why))
            self._life.step(LifecycleEvent.BOARD_DAMAGED)

    def _on_dies(self, worker: Incarnation) -> None:
        if worker is self._roles.active:
            self._restarts.add(worker)
            self._life.step(LifecycleEvent.END_OF_FILE)

    def _on_hung_up(self, worker: Incarnation, *, dying: bool) -> None:
        if worker is self._roles.active:
            if dying:
                self._restarts.add(worker)  # before anybody hears of it
            self._life.step(LifecycleEvent.END_OF_FILE)
        if dying:
            self._ends.report_final(
                worker
            )  # the kernel may take long to take its memory down, but nobody has to wait for that

    def _on_exited(self, worker: Incarnation) -> None:
        roles = self._roles
        self._takeover.over(worker)
        if worker is roles.active:
            self._life.step(LifecycleEvent.EXITED)
        elif worker is roles.standby:
            self._takeover.ended(worker)
        elif worker in self._quarantine.stuck:
            self._ends.unstuck(worker)
        else:
            self._life.step(LifecycleEvent.PREDECESSOR_EXITED)
        self._ended(worker.pid)

    def _on_survived(self, worker: Incarnation) -> None:
        limit_s = self._plans.held.settings.kill_timeout_s
        text = f"its worker was killed and has not ended within {limit_s:g} s (kill_timeout_s)"
        self._log.note("unkillable", text, generation=worker.generation, pid=worker.pid)
        self._takeover.over(worker)
        if worker is self._roles.active:
            self._restarts.add(worker)
            self._life.step(LifecycleEvent.KILL_TIMEOUT)
            if self._life.state is not State.STOPPED:
                self._life.reason = self._quarantine.reason
            self._life.tell()
        elif worker is self._roles.standby:
            self._takeover.ended(worker)
        else:
            self._life.step(LifecycleEvent.PREDECESSOR_EXITED)
        self._ended(None)

    # --- the actions, in the order in which the table asks for them ------------------------------------------------

    def hold(self) -> None:
        """`HOLD`: note since when clients hold their calls; the next state tells them to."""
        self._held_s = time.monotonic()
        worker = self._roles.active
        if worker is not None and worker.parting.fault is not None:
            self._life.reason = worker.parting.fault.message

    def published(self) -> None:
        """Clients have stopped holding calls."""
        self._held_s = 0.0

    def kill(self) -> None:
        """`KILL`: end the active incarnation; if it is poisoned, only when its standby has taken over and settled.

        A poisoned process does nothing any more, and the end of its context keeps the device from others.
        """
        worker, standby, settling = self._roles.active, self._roles.standby, self._takeover.settling
        settling.end()
        if worker is None:
            return
        fault = worker.parting.fault
        if isinstance(fault, errors.ContextPoisoned) and standby is not None and standby.is_ready:
            worker.leave()
            settling.begin()
            settling.afterwards(worker.kill)
        else:
            worker.kill()
        if fault is not None and not isinstance(fault, errors.WorkerHung):  # which `hung` has told
            self._log.note("fault", fault.message, code=worker.parting.word)

    def end(self) -> None:
        """`END`: report the fates of the active incarnation's requests, and release it."""
        worker = self._roles.end_active()
        if worker is None:
            self._restarts.ended_unstarted()
        else:
            self._restarts.ended(self._ends.over(worker))
        lost = self._restarts.lost
        finished = "" if worker is None else "its worker has finished what it held"
        self._life.reason = lost.message if lost else finished

    def end_predecessor(self) -> None:
        """`END_PREDECESSOR`: the same for the incarnation whose place a standby has taken."""
        worker = self._roles.end_predecessor()
        self._ends.over(worker)
        if self._roles.active is not None:
            self._roles.active.tell(control.IncarnationOver(worker.device, worker.generation))
