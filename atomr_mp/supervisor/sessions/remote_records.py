"""The supervisor's records of remote sessions: the calls that have started, by whichever gateway they came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from atomr_mp import checks
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.messages.session import IncarnationEnded, RemoteOrigin
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervision.remote_records import Fates, RemoteRecord
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop, Timer

FORGET_S: Final = 60.0
"""Time beyond the grace for which a record is kept after its gateway's end. The next gateway has to start, and its
clients have to connect to it."""


@checks.owned(by_maker=True)
class RemoteRecords:
    """The records of remote sessions.

    Args:
        grace_s: How long a gateway keeps sessions after a cut.
        loop: The supervisor's loop.
        devices: The pool's devices, by index.
    """

    def __init__(self, grace_s: float, loop: Loop, devices: Sequence[SupervisedDevice]) -> None:
        self._grace_s = grace_s
        self._loop = loop
        self._devices = devices
        self._records: dict[tuple[str, bytes], RemoteRecord] = {}
        self._origins: dict[int, tuple[str, bytes]] = {}
        """By number of the local session; ended ones stay as long as there is a record."""
        self._timers: dict[tuple[str, bytes], Timer] = {}
        self._waiting: list[tuple[tuple[str, bytes], Callable[[RemoteRecord], bool], Callable[[], object]]] = []
        """Waiters for a record: the record, the condition, and the callback."""

    # --- what sessions and workers tell ----------------------------------------------------------------------------

    def opened(self, number: int, origin: RemoteOrigin) -> None:
        """A local session begins for a remote one."""
        key = origin.key, origin.session
        self._records.setdefault(key, RemoteRecord()).local = number
        self._origins[number] = key
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def ended(self, number: int, told: Iterable[Worker], *, bye: bool) -> None:
        """A session has ended; with `bye` its gateway wanted it, and will not ask for it again."""
        key = self._origins.get(number)
        if key is None:
            return
        self._records[key].ended(number, told)
        if bye:
            self._forget(key)
        else:
            self._timers[key] = self._loop.call_later(self._grace_s + FORGET_S, lambda: self._forget(key))
        self._look()

    def discarded(self, number: int, worker: Worker) -> None:
        """A worker will start nothing of an ended session."""
        key = self._origins.get(number)
        if key is None:
            return
        record = self._records[key]
        self._read_board(record, number, worker)
        record.discarded(number, worker)
        self._look()

    def closed(self, number: int, worker: Worker) -> None:
        """A worker runs nothing of an ended session now."""
        key = self._origins.get(number)
        if key is None:
            return
        record = self._records[key]
        self._read_board(record, number, worker)
        record.closed(number, worker)
        self._look()

    def incarnation_ended(self, make: Callable[[int], IncarnationEnded]) -> None:
        """An incarnation has ended: keep the calls that it had started of each remote session."""
        now_ns = time.monotonic_ns()
        for number, key in self._origins.items():
            told = make(number)
            self._records[key].add(told.started, told.known_since_ns, now_ns)

    def worker_ended(self, worker: Worker) -> None:
        """A process has ended, and its end was reported."""
        for record in self._records.values():
            record.worker_ended(worker)
        self._look()

    # --- what a gateway asks ---------------------------------------------------------------------------------------

    def find(self, key: str, session: bytes) -> bool:
        """Return whether this is a known remote session whose gateway has ended."""
        record = self._records.get((key, session))
        return record is not None and record.local == 0

    def when_known(self, key: str, session: bytes, unanswered: Sequence[int], done: Callable[[Fates], object]) -> None:
        """Call `done` with the started calls, once calls of former gateways have ceased to start."""

        def known() -> None:
            record = self._records.get((key, session))
            done(Fates([], MAX_U64) if record is None else record.fates(unanswered))

        self._wait((key, session), lambda record: record.is_known, known)

    def when_quiet(self, key: str, session: bytes, done: Callable[[], object]) -> None:
        """Call `done` once calls of former gateways have ceased to run."""
        self._wait((key, session), lambda record: record.is_quiet, done)

    def _wait(
        self, key: tuple[str, bytes], condition: Callable[[RemoteRecord], bool], done: Callable[[], object]
    ) -> None:
        self._waiting.append((key, condition, done))
        self._look()

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for key, condition, done in waiting:
            record = self._records.get(key)
            if record is None or condition(record):
                done()
            else:
                self._waiting.append((key, condition, done))

    def _forget(self, key: tuple[str, bytes]) -> None:
        self._records.pop(key, None)
        self._timers.pop(key, None)
        self._origins = {number: of for number, of in self._origins.items() if of != key}

    def _read_board(self, record: RemoteRecord, number: int, worker: Worker) -> None:
        """Record the calls that a living worker has started; if its board is not believed, all may have started."""
        index, generation = worker
        process = self._devices[index].roles.of(generation)
        if process is None:  # its end is reported separately
            return
        board = process.live_board.read()
        now_ns = time.monotonic_ns()
        if board is None:
            record.add((), now_ns, now_ns)
            return
        started = [request_id for _, session, request_id, _ in board.left() if session == number]
        record.add(started, board.known_since_ns(), now_ns)
