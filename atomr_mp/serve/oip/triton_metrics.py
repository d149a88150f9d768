"""Triton's metrics of models and GPUs, by its names and labels, beside our own: dashboards made for it go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from atomr_mp.serve.metrics import PoolTold
    from atomr_mp.serve.oip.statistics import ModelStatistics

_COUNTS: Final = {
    "nv_inference_request_success": ("success", "Requests that were answered"),
    "nv_inference_request_failure": ("fail", "Requests that have failed, whatever the reason"),
}

_DURATIONS: Final = {
    "nv_inference_request_duration_us": ("success", "from coming to answer"),
    "nv_inference_queue_duration_us": ("queue", "waiting for the model"),
    "nv_inference_compute_input_duration_us": ("compute_input", "making arguments of inputs"),
    "nv_inference_compute_infer_duration_us": ("compute_infer", "running the model"),
    "nv_inference_compute_output_duration_us": ("compute_output", "making outputs of the result"),
}


def families(statistics: ModelStatistics, models: list[str], pool: PoolTold) -> Iterator[Metric]:
    """Yield the metrics. Blocks for as long as reading all figures takes, and asking the driver.

    Args:
        statistics: Counts inferences.
        models: The models' names.
        pool: What is known of the pool, whose GPUs are told.
    """
    from prometheus_client.core import Metric

    told = statistics.told(models)

    def family(name: str, text: str, values: Iterable[tuple[dict[str, str], float]], kind: str = "unknown") -> Metric:
        found = Metric(name, text, kind)  # no counter: its name would have to end in _total
        for labels, value in values:
            found.add_sample(name, labels, value)
        return found

    def by_model(value: Any, **more: str) -> Iterator[tuple[dict[str, str], float]]:
        for each in told:
            yield {"model": each["name"], "version": each["version"], **more}, value(each)

    for name, (kind, text) in _COUNTS.items():
        more = {"reason": "OTHER"} if kind == "fail" else {}
        yield family(name, text, by_model(lambda each, kind=kind: each["inference_stats"][kind]["count"], **more))
    yield family("nv_inference_count", "Rows of requests answered", by_model(lambda each: each["inference_count"]))
    yield family("nv_inference_exec_count", "Executions of models", by_model(lambda each: each["execution_count"]))
    for name, (kind, text) in _DURATIONS.items():
        whole = f"Microseconds of requests answered, {text}"
        yield family(name, whole, by_model(lambda each, kind=kind: each["inference_stats"][kind]["ns"] // 1000))
    status = pool.status
    own = {each.device.uuid for each in status.workers} if status is not None and status.backend == "cuda" else set()
    gpus = [({"gpu_uuid": uuid}, found) for uuid, found in (pool.driver.usage() if own else {}).items() if uuid in own]
    busy = [(labels, found.busy) for labels, found in gpus if found.busy is not None]
    yield family("nv_gpu_utilization", "Part of the last moments in which the GPU worked", busy, "gauge")
    memory = [(labels, found.memory_bytes) for labels, found in gpus]
    yield family("nv_gpu_memory_total_bytes", "The GPU's memory", memory, "gauge")
    used = [(labels, found.used_bytes) for labels, found in gpus]
    yield family("nv_gpu_memory_used_bytes", "The GPU's memory in use, by anybody", used, "gauge")
