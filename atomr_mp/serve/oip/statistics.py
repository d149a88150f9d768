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
LAST_MS: Final = "oip-last"
"""When the last request was answered, in milliseconds since 1970; the greatest of all front ends holds."""

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
    infer_ns: int
    """The call, with its wait in the worker."""
    output_ns: int
    """From the result to the answer's tensors."""


class Statistics:
    """Counts inferences by model.

    Args:
        figures: The front ends' shared figures.
    """

    def __init__(self, figures: MethodFigures) -> None:
        self._figures: Final = figures

    def answered(self, model: str, rows: int, phases: Phases) -> None:
        """Count an inference that was answered."""
        figures = self._figures
        figures.took(SUCCESS, model, "", sum(phases))
        figures.took(QUEUE, model, "", 0)
        for kind, ns in zip((INPUT, INFER, OUTPUT), phases, strict=True):
            figures.took(kind, model, "", ns)
        figures.count(ROWS, model, rows)
        figures.set_latest(LAST_MS, model, int(time.time() * 1000))

    def failed(self, model: str, ns: int) -> None:
        """Count an inference that has failed after so many nanoseconds."""
        self._figures.took(FAIL, model, "", ns)

    def told(self, models: list[str]) -> list[dict[str, Any]]:
        """Return the statistics of models, as the protocol has them."""
        counts: dict[tuple[str, str], tuple[int, int]] = {}
        for each in self._figures.all():
            if each.kind.startswith("oip-"):
                counts[each.kind, each.method] = sum(each.buckets), each.total
        latest = self._figures.latest(LAST_MS)
        return [self._told(name, counts, latest.get(name, 0)) for name in models]

    def _told(self, model: str, counts: dict[tuple[str, str], tuple[int, int]], last_ms: int) -> dict[str, Any]:
        nothing = (0, 0)
        durations = {told: counts.get((kind, model), nothing) for told, kind in _TOLD.items()}
        phases: dict[str, dict[str, int]] = {told: {"count": n, "ns": ns} for told, (n, ns) in durations.items()}
        phases |= {"cache_hit": {"count": 0, "ns": 0}, "cache_miss": {"count": 0, "ns": 0}}
        return {
            "name": model,
            "version": VERSION,
            "last_inference": last_ms,
            "inference_count": counts.get((ROWS, model), nothing)[1],
            "execution_count": durations["success"][0],
            "inference_stats": phases,
            "batch_stats": [],
            "memory_usage": [],
            "response_stats": {},
        }
