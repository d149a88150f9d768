"""The figures of the last 15 minutes: of each method, and of each device's memory. Pure.

A history is bounded, and one message: the front ends hand it on in memory that they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from atomr_mp.operator.figures import quantile
from atomr_mp.serve.method_figures import BUCKETS, CALL, MethodFigure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atomr_mp.process.gpus.nvml import GpuUsage
    from atomr_mp.protocol.messages.operators import WorkerStatus

STEP_S: Final = 10.0
"""Time between two points."""

STEPS: Final = 90
"""Points of a series."""

MOST_METHODS: Final = 24
"""Most methods; those that were called least make room."""

MOST_DEVICES: Final = 64

OK: Final = "ok"

Series = list[float | None]
"""Points, the latest last; None where nothing is known."""


class MethodHistory(msgspec.Struct):
    """The calls of a method, and the counts at the last point."""

    rate: Series = []
    """Calls a second that have ended."""
    errors: Series = []
    """Those of them that ended with an error."""
    p50_ms: Series = []
    p99_ms: Series = []
    ended: int = 0
    failed: int = 0
    buckets: list[int] = []


class DeviceHistory(msgspec.Struct):
    """The memory of a device, and on a GPU its use."""

    memory_bytes: Series = []
    vram_bytes: Series = []
    vram_of_bytes: int = 0
    """Memory of the GPU; 0 if it is not known."""
    busy: Series = []
    """From 0 to 1."""


class ChartHistory(msgspec.Struct):
    """What the charts show."""

    at_s: float = 0.0
    """Time of the last point, in seconds since 1970; 0 before the first."""
    methods: dict[str, MethodHistory] = {}
    devices: dict[str, DeviceHistory] = {}
    """By index."""
    made_room: bool = False
    """Whether a method's counts were forgotten: one that is new may then have been here before."""

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for a point; after a clock was set back, too."""
        return now_s // STEP_S != self.at_s // STEP_S

    def record(
        self,
        now_s: float,
        figures: Iterable[MethodFigure],
        workers: Iterable[WorkerStatus],
        usage: Mapping[str, GpuUsage],
    ) -> None:
        """Add a point for the time since the last one.

        Args:
            now_s: The time, in seconds since 1970.
            figures: All counts of methods since the server's start.
            workers: The pool's devices; none while it does not answer.
            usage: The use of GPUs by UUID.
        """
        passed_s = now_s - self.at_s
        is_first = not self.at_s or passed_s <= 0
        missed = 0 if is_first else min(STEPS, int(now_s // STEP_S - self.at_s // STEP_S) - 1)
        self._methods(figures, 0.0 if is_first else passed_s, missed)
        self._devices({str(each.device.index): each for each in workers}, usage, missed)
        self.at_s = now_s

    def _methods(self, figures: Iterable[MethodFigure], passed_s: float, missed: int) -> None:
        for method, (ended, failed, buckets) in sums(figures).items():
            old = self.methods.get(method)
            is_known = old is not None or not self.made_room
            old = old or self.methods.setdefault(method, MethodHistory(buckets=[0] * BUCKETS))
            more = [late - early for late, early in zip(buckets, old.buckets, strict=True)]
            if passed_s and is_known:
                point = (
                    (ended - old.ended) / passed_s,
                    (failed - old.failed) / passed_s,
                    _ms(quantile(more, 0.5)),
                    _ms(quantile(more, 0.99)),
                )
                for series, value in zip((old.rate, old.errors, old.p50_ms, old.p99_ms), point, strict=True):
                    _add(series, value, missed)
            old.ended, old.failed, old.buckets = ended, failed, buckets
        if len(self.methods) > MOST_METHODS:
            busiest = sorted(self.methods.items(), key=lambda each: -sum(filter(None, each[1].rate)))
            self.methods = dict(busiest[:MOST_METHODS])
            self.made_room = True

    def _devices(self, workers: Mapping[str, WorkerStatus], usage: Mapping[str, GpuUsage], missed: int) -> None:
        for index in [*self.devices, *(each for each in workers if each not in self.devices)][:MOST_DEVICES]:
            device = self.devices.setdefault(index, DeviceHistory())
            worker = workers.get(index)
            use = usage.get(worker.device.uuid) if worker is not None else None
            _add(device.memory_bytes, None if worker is None else float(worker.memory_bytes), missed)
            _add(device.vram_bytes, None if use is None else float(use.used_bytes), missed)
            _add(device.busy, None if use is None else use.busy, missed)
            if use is not None:
                device.vram_of_bytes = use.memory_bytes

    def shown(self) -> dict[str, Any]:
        """Return the charts' figures as JSON values."""
        return {
            "at": self.at_s,
            "step_s": STEP_S,
            "steps": STEPS,
            "methods": {
                name: {"rate": of.rate, "errors": of.errors, "p50_ms": of.p50_ms, "p99_ms": of.p99_ms}
                for name, of in sorted(self.methods.items())
            },
            "devices": msgspec.to_builtins(self.devices),
        }


def sums(figures: Iterable[MethodFigure]) -> dict[str, tuple[int, int, list[int]]]:
    """Return of each method how many calls have ended, how many with an error, and the histogram of both."""
    found: dict[str, tuple[int, int, list[int]]] = {}
    for each in figures:
        if each.kind != CALL:
            continue
        ended, failed, buckets = found.get(each.method, (0, 0, [0] * BUCKETS))
        count = sum(each.buckets)
        both = [a + b for a, b in zip(buckets, each.buckets, strict=True)]
        found[each.method] = ended + count, failed + (0 if each.outcome == OK else count), both
    return found


def _add(series: Series, value: float | None, missed: int) -> None:
    series.extend([None] * missed)
    series.append(None if value is None else float(f"{value:.4g}"))
    del series[:-STEPS]


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
