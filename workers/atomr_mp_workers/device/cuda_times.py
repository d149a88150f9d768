"""The GPU's own times of requests, by pairs of CUDA events; for the trace of a pool."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import cupy
from cupy.cuda import runtime

from atomr_mp.protocol.timeline import GpuTime
from atomr_mp.protocol.timeline.records import MAX_GPU_TIMES

ANEW_NS: Final = 10_000_000_000
"""The zero of the GPU's times is taken anew after so long: the driver gives differences as 32-bit floats."""


class GpuClock:
    """Relates the GPU's times to CLOCK_MONOTONIC, and keeps events for use again. Any thread."""

    def __init__(self) -> None:
        self._stream: Final = cupy.cuda.Stream(non_blocking=True)
        self._free: deque[Any] = deque()
        self._zero, self._zero_ns = self._taken()

    @property
    def zero(self) -> tuple[Any, int]:
        """The event from which times are reckoned, and the time at which it came, CLOCK_MONOTONIC."""
        if time.monotonic_ns() > self._zero_ns + ANEW_NS:
            self._zero, self._zero_ns = self._taken()
        return self._zero, self._zero_ns

    def mark(self, stream: Any) -> Any:
        """Return an event that is on a stream from now on."""
        try:
            event = self._free.popleft()
        except IndexError:
            event = cupy.cuda.Event(disable_timing=False)
        event.record(stream)
        return event

    def free(self, *events: Any) -> None:
        """Take events back."""
        self._free.extend(events)

    def _taken(self) -> tuple[Any, int]:
        """Return an event, and the time at which it came."""
        event = cupy.cuda.Event(disable_timing=False)
        before_ns = time.monotonic_ns()
        event.record(self._stream)
        event.synchronize()
        return event, (before_ns + time.monotonic_ns()) // 2


class CudaTimes:
    """The times of one run's work.

    Args:
        clock: Makes the events.
    """

    def __init__(self, clock: GpuClock) -> None:
        self._clock = clock
        self._zero, self._zero_ns = clock.zero
        self._parts: list[tuple[int, Any, Any]] = []
        """Stream, begin and end of each part of the work."""
        self._begun: Any = None

    def begin(self, stream: Any) -> None:
        """Take the time at which the work on a `CudaStream` begins."""
        self._begun = self._clock.mark(stream.stream)

    def end(self, stream: Any) -> None:
        """Take the time at which the work that is on the stream by now ends."""
        begun, self._begun = self._begun, None
        ended = self._clock.mark(stream.stream)
        if len(self._parts) == MAX_GPU_TIMES:
            number, begun, spare = self._parts.pop()
            self._clock.free(spare)
        else:
            number = stream.number
        self._parts.append((number, begun, ended))

    def measured(self) -> list[GpuTime]:
        """Return the times of the work, which has ended; none if the device has failed."""
        parts, self._parts = self._parts, []
        found = []
        try:
            for number, begun, ended in parts:
                began_ns = self._zero_ns + int(cupy.cuda.get_elapsed_time(self._zero, begun) * 1e6)
                took_ns = int(cupy.cuda.get_elapsed_time(begun, ended) * 1e6)
                found.append(GpuTime(number, max(began_ns, 0), max(took_ns, 0)))
                self._clock.free(begun, ended)
        except runtime.CUDARuntimeError:
            return []
        return found
