"""Finds workers that hang: reads their boards now and then, and asks a worker that seems to hang for its stacks.

It costs the workers nothing, and the supervisor some microseconds a second for each device on which something runs.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.process import scheduling
from atomr_mp.protocol.board import DUMP_SIGNAL, STACK_SIGNAL, BoardReader, Entry, Watched
from atomr_mp.protocol.board.check import disbelieved
from atomr_mp.protocol.codec import clip
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervision.stacks import CallSite, HangReport, diagnose
from atomr_mp.supervision.watchdog import LOOK_NS, HangWatch, Thread, able_ns
from atomr_mp.supervisor.device.death import HungRequest
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.processes.incarnation import Incarnation

LOOK_S: Final = LOOK_NS / 1e9

STACK_S: Final = 1.0
"""How long a worker may take to write its stacks."""

ANSWER_S: Final = 0.5
"""How long its interpreter may take to answer. If it does not, its place counts as C code; nothing else follows."""

WRITING_S: Final = 0.01
"""Interval of looks for the stacks: no event tells of them, and the loop must not wait."""

STACK_CHARS: Final = 4000
"""Longest stack in an error; the log and the event log have it whole."""

_IN: Final = {
    CallSite.PYTHON: "in Python code",
    CallSite.NATIVE: "in native code that does not come back",
    CallSite.CUDA: "in CUDA",
}


class Watchdog:
    """Watches all workers that take calls.

    Args:
        loop: The supervisor's loop.
        devices: The pool's devices.
        client_of: Returns words for the client of a session.
    """

    def __init__(self, loop: Loop, devices: Sequence[SupervisedDevice], client_of: Callable[[int], str]) -> None:
        self._loop = loop
        self._watchers = [_DeviceWatch(loop, device, client_of) for device in devices]

    def start(self) -> None:
        """Look from now on."""
        self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self.start()
        for watcher in self._watchers:
            watcher.look()


class _DeviceWatch:
    """Watches the workers of one device, one after the other."""

    def __init__(self, loop: Loop, device: SupervisedDevice, client_of: Callable[[int], str]) -> None:
        self._loop = loop
        self._device = device
        self._client_of: Final = client_of
        self._worker: Incarnation | None = None
        self._watch = HangWatch()
        self._looked_ns = 0
        self._threads: dict[int, Thread] = {}
        """The worker's threads at the last look, if a watched request ran then."""
        self._doubted = False
        """Its board was not believed at the last look."""
        self._asked: Incarnation | None = None
        """The worker that was asked for its stacks."""
        self._asked_s = 0.0
        """When it was asked, by the loop's own time."""

    def look(self) -> None:
        worker = self._device.roles.active
        if worker is not self._worker:
            self._worker, self._watch, self._threads, self._doubted = worker, HangWatch(), {}, False
        if worker is None or self._device.life.state is not State.READY or self._asked is worker:
            return
        board = worker.live_board.read()
        doubted, self._doubted = self._doubted, board is None
        if board is not None:
            entry = self._entry(worker, board)
            if entry is not None:
                self._ask(worker, entry)
        elif doubted and not self._device.quarantine.reason:  # a quarantined device would get no other worker
            self._device.deaths.damaged(worker, disbelieved(worker.live_board.defect))

    def _entry(self, worker: Incarnation, board: BoardReader) -> Entry | None:
        """Return a request that hangs, if there is one."""
        now_ns = time.monotonic_ns()
        running, ended_ns = board.look(now_ns - LOOK_NS)
        elapsed_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        before, self._threads = self._threads, {}
        if any(Watched.unpack(entry.watched).limit_ns for entry in running):
            self._threads = scheduling.threads(worker.pid)
        return self._watch.look(now_ns, able_ns(elapsed_ns, before, self._threads), running, ended_ns)

    def _ask(self, worker: Incarnation, entry: Entry) -> None:
        """Ask a worker for its stacks."""
        self._asked = worker
        board = worker.board
        board.clear_stack()
        board.release()
        asked_ns, self._asked_s = time.monotonic_ns(), self._loop.own_s
        _signal(worker, STACK_SIGNAL)
        self._loop.call_later(WRITING_S, lambda: self._hear(worker, entry, asked_ns, ""))

    def _hear(self, worker: Incarnation, entry: Entry, asked_ns: int, before: str, *, dumped: bool = False) -> None:
        """Take the stacks once they are written, or it takes too long; then judge.

        Args:
            worker: The incarnation that was asked.
            entry: The request that seems to hang.
            asked_ns: When its interpreter was asked.
            before: The stacks at the last look.
            dumped: It did not answer, and its stacks are written by code in C.
        """
        if worker is not self._device.roles.active:
            self._asked = None
            return
        board = worker.board
        try:
            text, answers = board.stack(), board.answered_ns >= asked_ns
            waited_s = self._loop.own_s - self._asked_s
            surveyed = not board.surveyed_ns or board.surveyed_ns >= asked_ns
            whole = (answers and surveyed) or (text and text == before and waited_s >= ANSWER_S)
            if not whole and waited_s < STACK_S:
                if not answers and not dumped and waited_s >= ANSWER_S:
                    dumped = True
                    _signal(worker, DUMP_SIGNAL)
                again = functools.partial(self._hear, worker, entry, asked_ns, text, dumped=dumped)
                self._loop.call_later(WRITING_S, again)
                return
            self._asked = None
            # It may have got on while we asked.
            if any(each.started_ns == entry.started_ns and each[:2] == entry[:2] for each in board.look()[0]):
                watched = Watched.unpack(entry.watched)
                unfinished = board.surveyed_ns >= asked_ns and bool(board.unfinished & watched.device_bits)
                hang = diagnose(text, watched.kind, answers=answers, unfinished=unfinished)
                method = board.method_of(entry, worker.methods)
                fault = _fault(worker, entry, watched, hang, method)
                self._device.deaths.hung(worker, fault, HungRequest(method, self._client_of(entry.session), text))
        finally:
            board.release()


def _signal(worker: Incarnation, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(worker.process.pidfd, number)


def _fault(worker: Incarnation, entry: Entry, watched: Watched, hang: HangReport, method: str) -> errors.WorkerHung:
    ran_s = (time.monotonic_ns() - entry.started_ns) / 1e9
    at = "".join(
        f", in {frame.function} ({frame.file}:{frame.line})"
        for frame in dict.fromkeys((hang.method, hang.at))
        if frame is not None
    )
    what = f"a request of {method}" if method else "a request"
    limit = f"{watched.limit_ns / 1e9:g} s" + (" beyond its deadline" if watched.from_deadline else "")
    return errors.WorkerHung(
        f"device {worker.device}'s worker (generation {worker.generation}) hung {_IN[hang.where]}{at}: {what} had "
        f"been running for {ran_s:.1f} s, and without progress for longer than {limit} "
        f"(hang_timeout_s)",
        device=worker.device,
        generation=worker.generation,
        cause=f"did not answer for {ran_s:.1f} s and was ended by its supervisor",
        where=hang.where,
        stack=clip(hang.stack, STACK_CHARS),
    )
