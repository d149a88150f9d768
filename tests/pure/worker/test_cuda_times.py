"""The GPU's times of runs, with a stand-in for CuPy's events: their clock moves when the test says so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from atomr_mp.protocol.timeline import GpuTime
from atomr_mp.protocol.timeline.records import MAX_GPU_TIMES

MODULE = "atomr_mp_workers.device.cuda_times"
MS = 1_000_000


class FaultError(Exception):
    """Stands for CuPy's `CUDARuntimeError`."""


class Card:
    """A GPU whose clock the test moves; events take its time when they are recorded."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.doubt_ms = 0.0
        """Time that the host's clock shows beyond the zero's."""
        self.broken = False
        self.made = 0

    def event(self, *, disable_timing: bool) -> Any:
        """Return an event."""
        assert not disable_timing
        self.made += 1
        found = SimpleNamespace(ms=None, synchronize=lambda: None)
        found.record = lambda _stream: setattr(found, "ms", self.now_ms)
        return found

    def elapsed(self, first: Any, second: Any) -> float:
        """Return the time between two events, in milliseconds."""
        if self.broken:
            raise FaultError
        return float(second.ms - first.ms)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    """A stand-in for CuPy, and for its card."""
    found = Card()
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cuda.__dict__.update(
        Event=found.event,
        Stream=lambda **_options: object(),
        get_elapsed_time=found.elapsed,
        runtime=SimpleNamespace(CUDARuntimeError=FaultError),
    )
    cupy.__dict__["cuda"] = cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    times = importlib.import_module(MODULE)
    host = SimpleNamespace(monotonic_ns=lambda: int((found.now_ms + found.doubt_ms) * MS))
    monkeypatch.setattr(times, "time", host)
    yield found
    sys.modules.pop(MODULE, None)


def stream(number: int) -> Any:
    """Return a stream."""
    return SimpleNamespace(stream=object(), number=number)


def test_parts_of_a_run_have_their_own_times_and_streams(card: Card) -> None:
    """Reckoned from the zero of the clock; events are used again."""
    times = importlib.import_module(MODULE)
    clock = times.GpuClock()
    _, zero_ns = clock.zero
    for _ in range(3):
        run, began_ms = times.CudaTimes(clock), card.now_ms
        for number, took_ms in ((2, 5.0), (3, 7.0)):
            run.begin(stream(number))
            card.now_ms += took_ms
            run.end(stream(number))
        first_ns = zero_ns + int((began_ms - 1000.0) * MS)
        assert list(run.measured()) == [GpuTime(2, first_ns, 5 * MS), GpuTime(3, first_ns + 5 * MS, 7 * MS)]
        assert list(run.measured()) == []
    assert card.made == times.TRIES + 4


@pytest.mark.parametrize("doubt_ms", [-0.1, 0.0, 0.1])
def test_no_work_begins_before_it_was_given_or_ends_in_the_future(card: Card, doubt_ms: float) -> None:
    """Whatever the doubt about the two clocks."""
    times = importlib.import_module(MODULE)
    run = times.CudaTimes(times.GpuClock())
    card.doubt_ms = doubt_ms
    given_ns = times.time.monotonic_ns()
    run.begin(stream(0))
    card.now_ms += 5.0
    run.end(stream(0))
    assert list(run.measured()) == [GpuTime(0, given_ns, 5 * MS)]


def test_a_run_of_very_many_parts_tells_of_as_many_as_may_be(card: Card) -> None:
    """The last stands for all further ones."""
    times = importlib.import_module(MODULE)
    run = times.CudaTimes(times.GpuClock())
    for _ in range(MAX_GPU_TIMES + 10):
        run.begin(stream(0))
        card.now_ms += 1.0
        run.end(stream(0))
    found = run.measured()
    assert len(found) == MAX_GPU_TIMES
    assert sum(each.took_ns for each in found) == (MAX_GPU_TIMES + 10) * MS


def test_after_a_fault_of_the_device_there_are_no_times(card: Card) -> None:
    """And no exception: the request has its own error."""
    times = importlib.import_module(MODULE)
    run = times.CudaTimes(times.GpuClock())
    run.begin(stream(0))
    run.end(stream(0))
    card.broken = True
    assert list(run.measured()) == []
