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


TRIES: Final = 5
"""So often the zero is taken, for the least doubt: it came within the time that this took."""


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
        found: list[tuple[int, Any, int]] = []
        for _ in range(TRIES):
            event = cupy.cuda.Event(disable_timing=False)
            before_ns = time.monotonic_ns()
            event.record(self._stream)
            event.synchronize()
            took_ns = time.monotonic_ns() - before_ns
            found.append((took_ns, event, before_ns + took_ns // 2))
        _, event, came_ns = min(found, key=lambda each: each[0])
        return event, came_ns


class CudaTimes:
    """The times of one run's work.

    Args:
        clock: Makes the events.
    """

    def __init__(self, clock: GpuClock) -> None:
        self._clock = clock
        self._zero, self._zero_ns = clock.zero
        self._parts: list[tuple[int, int, Any, Any]] = []
        """Stream, time at which the host gave it to the device, begin and end of each part of the work."""
        self._begun: tuple[int, Any] = (0, None)

    def begin(self, stream: Any) -> None:
        """Take the time at which the work on a `CudaStream` begins."""
        self._begun = time.monotonic_ns(), self._clock.mark(stream.stream)

    def end(self, stream: Any) -> None:
        """Take the time at which the work that is on the stream by now ends."""
        (given_ns, begun), self._begun = self._begun, (0, None)
        ended = self._clock.mark(stream.stream)
        if len(self._parts) == MAX_GPU_TIMES:
            number, given_ns, begun, spare = self._parts.pop()
            self._clock.free(spare)
        else:
            number = stream.number
        self._parts.append((number, given_ns, begun, ended))

    def measured(self) -> list[GpuTime]:
        """Return the times of the work, which has ended; none if the device has failed.

        None begins before the host has given the work to the device, nor ends in the future: the two clocks are
        related with some doubt.
        """
        parts, self._parts = self._parts, []
        found, now_ns = [], time.monotonic_ns()
        try:
            for number, given_ns, begun, ended in parts:
                began_ns = self._zero_ns + int(cupy.cuda.get_elapsed_time(self._zero, begun) * 1e6)
                took_ns = max(int(cupy.cuda.get_elapsed_time(begun, ended) * 1e6), 0)
                began_ns = max(min(began_ns, now_ns - took_ns), given_ns)
                found.append(GpuTime(number, began_ns, took_ns))
                self._clock.free(begun, ended)
        except runtime.CUDARuntimeError:
            return []
        return found
