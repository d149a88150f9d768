"""What Triton's statistics tell of a model, added up over all front ends."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from atomr_mp.serve.method_figures import MethodFigures
from atomr_mp.serve.oip.models import VERSION

SUCCESS: Final = "oip-success"
FAIL: Final = "oip-fail"
QUEUE: Final = "oip-queue"
INPUT: Final = "oip-compute-input"
INFER: Final = "oip-compute-infer"
OUTPUT: Final = "oip-compute-output"
ROWS: Final = "oip-rows"
"""Rows of all requests that were answered, counted in the sum."""
EXECUTIONS: Final = "oip-executions"
"""Executions: requests, or batches of them, counted in the sum."""
LAST_MS: Final = "oip-last"
"""When the last request was answered, in milliseconds since 1970; the greatest of all front ends holds."""

MOST_SIZES: Final = 128
"""Sizes of batches, from 1 row up, that are counted by themselves: each takes rows of the shared figures."""

_TOLD: Final = {
    "success": SUCCESS,
    "fail": FAIL,
    "queue": QUEUE,
    "compute_input": INPUT,
    "compute_infer": INFER,
    "compute_output": OUTPUT,
}


class Phases(NamedTuple):
    """The times of an inference that was answered, in nanoseconds."""

    input_ns: int
    """From its coming to its call."""
    queue_ns: int
    """The call without its method's run: on the way, and waiting for others and for its batch."""
    infer_ns: int
    """The method's run."""
    output_ns: int
    """From the result to the answer's tensors."""


class ModelStatistics:
    """Counts inferences by model.

    Args:
        figures: The front ends' shared figures.
    """

    def __init__(self, figures: MethodFigures) -> None:
        self._figures: Final = figures

    def answered(self, model: str, rows: int, phases: Phases, executed: int) -> None:
        """Count an inference that was answered.

        Args:
            model: Its name.
            rows: How many rows the request had.
            phases: Its times; those of a batch are the times of the inference that stands for it.
            executed: How many rows were executed together; 0 if another inference stands for the batch.
        """
        figures = self._figures
        figures.took(SUCCESS, model, "", sum(phases))
        figures.took(QUEUE, model, "", phases.queue_ns)
        for kind, ns in ((INPUT, phases.input_ns), (INFER, phases.infer_ns), (OUTPUT, phases.output_ns)):
            figures.took(kind, model, str(executed) if 0 < executed <= MOST_SIZES else "", ns)
        figures.count(ROWS, model, rows)
        figures.count(EXECUTIONS, model, executed > 0)
        figures.set_latest(LAST_MS, model, int(time.time() * 1000))

    def failed(self, model: str, ns: int) -> None:
        """Count an inference that has failed after so many nanoseconds."""
        self._figures.took(FAIL, model, "", ns)

    def told(self, models: list[str]) -> list[dict[str, Any]]:
        """Return the statistics of models, as the protocol has them."""
        found: dict[str, dict[str, dict[str, tuple[int, int]]]] = {name: {} for name in models}
        for each in self._figures.all():
            if each.kind.startswith("oip-") and each.method in found:
                by_rows = found[each.method].setdefault(each.kind, {})
                by_rows[each.outcome] = sum(each.buckets), each.total
        latest = self._figures.latest(LAST_MS)
        return [_told(name, kinds, latest.get(name, 0)) for name, kinds in found.items()]


def _told(model: str, kinds: dict[str, dict[str, tuple[int, int]]], last_ms: int) -> dict[str, Any]:
    """Return the statistics of a model.

    Args:
        model: Its name.
        kinds: Counts and sums by kind, and by the number of rows where that is counted.
        last_ms: When its last request was answered.
    """
    phases = {told: _duration(*kinds.get(kind, {}).values()) for told, kind in _TOLD.items()}
    phases |= {"cache_hit": _duration(), "cache_miss": _duration()}
    by_rows = {told: kinds.get(kind, {}) for told, kind in _TOLD.items() if kind in {INPUT, INFER, OUTPUT}}
    sizes = sorted({int(rows) for each in by_rows.values() for rows in each if rows.isdigit()})
    batches = [
        {"batch_size": size} | {told: _duration(each.get(str(size), (0, 0))) for told, each in by_rows.items()}
        for size in sizes
    ]
    return {
        "name": model,
        "version": VERSION,
        "last_inference": last_ms,
        "inference_count": sum(total for _, total in kinds.get(ROWS, {}).values()),
        "execution_count": sum(total for _, total in kinds.get(EXECUTIONS, {}).values()),
        "inference_stats": phases,
        "response_stats": {},
        "batch_stats": batches,
        "memory_usage": [],
    }


def _duration(*several: tuple[int, int]) -> dict[str, int]:
    return {"count": sum(count for count, _ in several), "ns": sum(ns for _, ns in several)}
