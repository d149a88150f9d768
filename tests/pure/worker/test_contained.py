"""A fault of ours in any step of handling one request costs that request, and nothing else."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
import atomr_mp_workers
from atomr_mp import checks, errors
from atomr_mp.protocol import values
from atomr_mp.protocol.board import BOARD_BYTES, BoardWriter, Counter
from atomr_mp.protocol.messages import data
from atomr_mp_workers import Actor, Batch, method
from atomr_mp_workers.fatal import HalfDoneError
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests import faults
from atomr_mp_workers.requests.peers import Peer
from tests.pure.worker.test_dispatch import NEVER_NS, TOKEN, Worker, outcomes

OURS: Final = tuple(str(Path(each.__file__ or "").parent) for each in (atomr_mp, atomr_mp_workers))
SAFE: Final = {str(Path(atomr_mp_workers.__file__ or "").parent / "own_process.py"), checks.__file__}
"""What is no step of a request: a look at a byte, and what tests alone check."""

OF_THE_LOOP: Final = {
    *("Envelope.open", "BoardWriter.receive", "Dispatcher.take", "Dispatcher.work", "Dispatcher.batching"),
    *("BatchedMethod.__len__", "BatchFormer.__len__"),
}
"""Steps of no request alone: their fault ends the session whose message it was, or the worker."""

OF_BATCHES: Final = (
    "Dispatcher.",
    "BatchedMethod.",
    "BatchFormer.",
    "FairQueue.",
    "_has_ready",
    "BoardWriter.batch",
    "BatchRun.requests",
    "is_free",
)
"""How the steps of choosing what is in a batch begin. All waiting requests belong to that."""

ENTRIES: Final = {"Envelope.begin", "Envelope.complete", "Run.call", "_is_over"}
"""What a batch's requests are led through: each contains the faults of its own steps."""


class Broken(Actor):
    """Does what the others do, on arrays too."""

    log: list[Any]

    @method
    def run(self, item: Any) -> Any:
        """Note an item."""
        self.log.append(item)
        return item

    @method
    def fail(self, item: Any) -> Any:
        """Fail."""
        raise ValueError(item)

    @method(batch=Batch(max_items=4, max_wait_s=0))
    def together(self, items: list[Any]) -> list[Any]:
        """Note a batch."""
        self.log.append(items)
        return items

    @method(writes=("out",))
    def add(self, out: np.ndarray[Any, Any], item: np.ndarray[Any, Any]) -> None:
        """Write an array."""
        out += item


class Injection:
    """Raises at the entry of the N-th function of ours that the thread calls."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.hit: str | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Trace a call."""
        if event == "call" and (file := frame.f_code.co_filename).startswith(OURS) and file not in SAFE:
            self._left -= 1
            if self._left < 0 and self.hit is None:
                self.hit = frame.f_code.co_qualname
                raise RuntimeError(f"injected into {self.hit}")

    def during(self, act: Callable[[], object]) -> None:
        """Do something with the fault on its way; finalizers of earlier tests' objects do not run meanwhile."""
        before = sys.gettrace()
        gc.disable()
        sys.settrace(self)
        try:
            act()
        finally:
            sys.settrace(before)
            gc.enable()


class Rig(Worker):
    """A worker with two clients, one of them with two arrays."""

    def __init__(self) -> None:
        super().__init__(target=f"{__name__}:Broken")
        self.one, self.other = self.client(1), self.client(2)
        holder = self.one.session.holder
        self.array: DeviceArray = self.store.buffers.allocate(holder, "float64", (4,))
        self.store.lease(holder, self.array)
        self.item = self.store.buffers.allocate(holder, "float64", (4,))
        self.store.lease(holder, self.item)

    def message(self, name: str) -> data.Calls:
        """Return a message with a call."""
        self._ids += 1
        body = values.encode((self.array, self.item) if name == "add" else ("x",))[0]
        call = data.Call(self._ids, f"Logged.{name}", NEVER_NS, 0, body, refs=name == "add")
        return data.Calls(TOKEN, [call])

    def handle(self, peer: Peer, message: data.Calls) -> None:
        """Have a message arrive, and handle it to its end."""
        self.dispatcher.take(self.envelope.open(peer, message, []))
        self.run()

    def end_turns(self) -> None:
        """Give the answers that wait for others."""
        while self.envelope.answers.withheld:
            self.envelope.answers.end_turn()

    def assert_clean(self) -> None:
        """Check that nothing is left of any request."""
        assert self.board.queue_depth == 0
        assert self.board.running() == []
        assert self.envelope._queued == 0
        assert not any(each.queued for each in self.methods.values())
        for peer in (self.one, self.other):
            assert (peer.unanswered, peer.payload_bytes, peer.session.running, peer.queued) == (0, 0, 0, {})
        for array in (self.array, self.item):
            assert not array.block.borrows.before(write=True)
            assert not array.block.borrows.open_writers


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session have as many faults as a test injects."""
    monkeypatch.setattr(faults, "MOST", 10**9)


@pytest.mark.parametrize("name", ["run", "fail", "together", "add"])
def test_a_fault_in_any_step_costs_its_request(name: str) -> None:
    """Each step in turn raises: the request has one outcome, others theirs, and nothing of it is left."""
    for at in range(10**6):
        rig = Rig()
        message, injection = rig.message(name), Injection(at)
        try:
            injection.during(lambda rig=rig, message=message: rig.handle(rig.one, message))  # type: ignore[misc]
        except (RuntimeError, HalfDoneError):
            assert injection.hit is not None
            is_of_batches = name == "together" and (injection.hit.startswith(OF_BATCHES) or injection.hit in ENTRIES)
            assert injection.hit in OF_THE_LOOP or is_of_batches, f"{injection.hit} is not contained"
            rig.close()
            continue
        rig.handle(rig.other, rig.message("run"))
        rig.handle(rig.one, rig.message(name))
        rig.end_turns()
        assert outcomes(rig.other) == {2: None}, injection.hit
        found = outcomes(rig.one)
        assert set(found) == {1, 3}, injection.hit
        _check(name, found[1], found[3], injection.hit)
        counted = rig.board.read(Counter.INTERNAL_ERRORS)  # a fault after the answer costs nobody anything
        assert counted <= 1
        assert counted or not isinstance(found[1], errors.InternalError)
        rig.assert_clean()
        rig.close()
        if injection.hit is None:
            break
    assert at > 20, "it has steps"


def _check(name: str, first: errors.AtomrError | None, second: errors.AtomrError | None, hit: str | None) -> None:
    """Check the outcomes of the request that met a fault, and of the same request after it."""
    if name == "fail":
        assert isinstance(first, errors.RequestError)
        assert type(second) is errors.ActorFailed
        return
    assert first is None or type(first) in {errors.InternalError, errors.ActorFailed, errors.InvalidRequest}, hit
    assert second is None or (name == "add" and first is not None and type(second) is errors.GpuRefUndefined), hit


class Told:
    """Faults, and what they have led to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(faults, "MOST", 10)
        self.now_ns = 10**12
        monkeypatch.setattr(faults, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))
        self.replaced: list[str] = []
        self.expelled: list[int] = []
        self.faults = faults.OwnFaults(BoardWriter(memoryview(bytearray(BOARD_BYTES))), self.replaced.append)
        self.faults.expel = lambda number, _why: self.expelled.append(number)

    def meet(self, session: int, after_s: float = 0.1) -> None:
        """Meet a fault after a time."""
        self.now_ns += int(after_s * 1e9)
        self.faults.note(RuntimeError("x"), session, "Logged.run")


def test_ten_faults_a_minute_of_one_session_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not fewer, and not as many in a longer time."""
    told = Told(monkeypatch)
    for _ in range(30):
        told.meet(1, after_s=7)
    assert (told.expelled, told.replaced) == ([], [])
    told.meet(2, after_s=100)
    for _ in range(10):
        told.meet(1)
    assert (told.expelled, told.replaced) == ([1], [])


def test_ten_faults_a_minute_of_several_sessions_replace_the_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is to blame then."""
    told = Told(monkeypatch)
    for at in range(40):
        told.meet(at % 3)
    assert told.expelled == []
    assert len(told.replaced) == 1


def test_a_fault_is_found_in_the_log_by_its_reference(caplog: pytest.LogCaptureFixture) -> None:
    """With its stack; the caller knows that nothing was executed."""
    made = faults.OwnFaults(BoardWriter(memoryview(bytearray(BOARD_BYTES))), lambda _why: None)
    try:
        raise LookupError("lost")
    except LookupError as fault:
        error = made.note(fault, 7, "Logged.run")
    assert isinstance(error, errors.InternalError)
    assert error.reference in error.message
    assert not error.maybe_executed
    (text,) = caplog.messages
    assert error.reference in text
    assert "in test_a_fault_is_found_in_the_log_by_its_reference" in text
