"""Streams and events of the CUDA backend."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Final

import cupy
from cupy.cuda import runtime

from atomr_mp_workers.device.base import Event, Stream, Work
from atomr_mp_workers.timeline import WorkTimes

SHORT_NS: Final = 40_000
"""How long "adaptive" waits at once for work on a stream without other work. A product of 64² takes 23 µs with its
launch, directly; a request for one took 88 µs more than an empty call when the loop came back to it (H200, 2026)."""
LONG_AGAIN: Final = 16
"""After longer work it does not wait at once for this many pieces of work."""

LOOK_S: Final = 50e-6
LATE: Final = 0.01
"""How late a watcher may see the end of work: by this time in seconds, or this fraction of the work's own."""

READY: Final = 0
NOT_READY: Final = 600


def query(function: Callable[[int], int | None], pointer: int) -> int:
    """Return the status of a CUDA query; some of CuPy's raise what others return."""
    try:
        return int(function(pointer) or READY)
    except runtime.CUDARuntimeError as error:
        return int(error.status)


class CudaEvent:
    """The end of work on a stream, or of a request that a thread runs."""

    __slots__ = ("_ended", "_event", "recorded")

    def __init__(self) -> None:
        self._event: Any = None
        self.recorded = False
        """Whether it stands for work on a stream, so that other streams can wait for it."""
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether it has ended. After a fault, the waiting thread has to ask the device for its status instead."""
        return self._ended or (self.recorded and query(runtime.eventQuery, self._event.ptr) == READY)

    @property
    def under_way(self) -> bool:
        """Whether it has neither ended nor failed."""
        return query(runtime.eventQuery, self._event.ptr) == NOT_READY

    def end(self) -> None:
        """Say that the work has ended."""
        self._ended = True

    def record(self, stream: Any) -> None:
        """Let it stand for the work that is on a stream so far."""
        self._event = cupy.cuda.Event(block=True, disable_timing=True)
        self._event.record(stream)
        self.recorded = True

    def hold(self, stream: Any) -> None:
        """Let a stream wait for it, on the device."""
        if not self._ended:
            stream.wait_event(self._event)

    def wait(self) -> None:
        """Wait for it on the host, with the interpreter's lock released."""
        self._event.synchronize()


PRIORITY: Final = {"low": 0, "normal": -2, "high": -5}
"""CUDA's priorities: the lowest is 0, which streams have by default; CUDA limits them to the range of a GPU."""


class CudaStream(Stream):
    """A CUDA stream.

    Args:
        name: For logs.
        completion: Strategy to learn of the end of its work, one of `completions.STRATEGIES`.
        priority: One of `streams.PRIORITIES`.
    """

    defers = True

    def __init__(self, name: str, completion: str, priority: str = "normal") -> None:
        super().__init__(name)
        self.stream: Final = cupy.cuda.Stream(non_blocking=True, priority=PRIORITY[priority])
        self._completion = completion
        self.pending: Final[deque[tuple[CudaEvent, Work]]] = deque()
        """Its work that has to be asked for."""
        self._watcher: _StreamWatcher | None = None
        self._torch: Any = None
        self._long = 0
        """Number of pieces of work that are still not waited for at once."""

    def takes(self, after: Sequence[Event]) -> bool:
        """Return whether the device can wait for these events: each has to be on a stream already."""
        return all(isinstance(event, CudaEvent) and (event.recorded or event.done) for event in after)

    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:  # noqa: ARG002 - the GPU has all of it
        """Put work on the stream; work that puts nothing there is done at once."""
        event = work.event
        assert isinstance(event, CudaEvent)
        try:
            for other in after:
                assert isinstance(other, CudaEvent)
                other.hold(self.stream)
            times = work.times
            with self.current():
                if times is None:
                    work.call()
                else:
                    self.timed(work.call, times)
            if work.goes_on:
                event = CudaEvent()  # of this part: requests that wait for the work wait for all of it
            if self._has_ended():
                return True  # nothing is on the stream, or it has failed, as the device will be asked before any answer
            event.record(self.stream)
            if self._completion == "synchronous":
                event.wait()
                return True
            if self._completion == "host_function":
                self.stream.launch_host_func(_finish, work)
            else:
                self.pending.append((event, work))
        except runtime.CUDARuntimeError as error:
            work.raised = work.raised or error
            return True
        return False

    def timed(self, function: Callable[[], None], times: WorkTimes) -> None:
        """Call a function that puts work on the stream, between two events that tell when the GPU has done it."""
        times.begin(self)
        function()
        times.end(self)

    def _has_ended(self) -> bool:
        """Return whether the stream is empty, or will be in a moment."""
        if query(runtime.streamQuery, self.stream.ptr) != NOT_READY:
            return True
        if self.pending or self._completion != "adaptive":
            return False
        if self._long:
            self._long -= 1
            return False
        until_ns = time.monotonic_ns() + SHORT_NS
        while time.monotonic_ns() < until_ns:
            if query(runtime.streamQuery, self.stream.ptr) != NOT_READY:
                return True
        self._long = LONG_AGAIN
        return False

    def run(self, function: Callable[[], None]) -> None:
        """Call a function and wait for its work on the stream."""
        with self.current():
            function()
        self.stream.synchronize()

    @property
    def is_current(self) -> bool:
        """Whether CuPy would put the calling thread's work on this stream."""
        return bool(cupy.cuda.get_current_stream().ptr == self.stream.ptr)

    def synchronize(self) -> None:
        """Wait for the stream's work, with the interpreter's lock released."""
        self.stream.synchronize()

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which it is the calling thread's stream, for CuPy and, if it is imported, for torch."""
        torch = sys.modules.get("torch")
        return self._with_torch(torch) if torch is not None and _has_cuda(torch) else self.stream

    @contextlib.contextmanager
    def _with_torch(self, torch: Any) -> Iterator[None]:
        if self._torch is None:
            self._torch = torch.cuda.ExternalStream(self.stream.ptr)
        with self.stream, torch.cuda.stream(self._torch):
            yield

    def ended(self) -> Iterator[Work]:
        """Remove and yield the work that has ended."""
        pending = self.pending
        while pending and pending[0][0].done:
            event, work = pending.popleft()
            event.end()
            yield work

    @property
    def unfinished(self) -> bool:
        """Whether some of its work is not done, as far as it may be asked. Any thread."""
        pointer = self.stream.ptr
        return query(runtime.streamIsCapturing, pointer) == READY and query(runtime.streamQuery, pointer) == NOT_READY

    def watch(self, wake: Callable[[], object]) -> None:
        """Have `wake` called when the oldest piece of work has ended."""
        if self.pending:
            if self._watcher is None:
                self._watcher = _StreamWatcher(self.name)
            self._watcher.watch(self.pending[0][0], wake)

    def close(self) -> None:
        """Wait for the stream's work."""
        self.stream.synchronize()


class _StreamWatcher:
    """A thread that polls for the end of a stream's work, less often the longer it takes.

    CUDA's own way to wait without spinning was 0.8 ms late after a product of 21 ms (H200, 2026). Polling every
    hundredth of the elapsed time is late by half of that at most, and takes a tenth of a core.
    """

    def __init__(self, name: str) -> None:
        self._last: CudaEvent | None = None
        self._queue: SimpleQueue[tuple[CudaEvent, Callable[[], object]]] = SimpleQueue()
        # A daemon: work that never ends must not keep a worker alive that was told to leave.
        threading.Thread(target=self._run, name=f"{name}-watcher", daemon=True).start()

    def watch(self, event: CudaEvent, wake: Callable[[], object]) -> None:
        """Have `wake` called when the event has come, or never will."""
        if event is not self._last:
            self._last = event
            self._queue.put((event, wake))

    def _run(self) -> None:
        while True:
            event, wake = self._queue.get()
            began = time.monotonic()
            while event.under_way:
                time.sleep(max(LOOK_S, (time.monotonic() - began) * LATE))
            wake()


@functools.cache
def _has_cuda(torch: Any) -> bool:
    return bool(torch.cuda.is_available())


def _finish(work: Work) -> None:
    work.finished()
