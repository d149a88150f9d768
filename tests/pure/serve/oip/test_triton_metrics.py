"""Triton's metrics say what the statistics say, in both forms that Prometheus reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus

from atomr_mp.process.gpus.nvml import GpuUsage
from atomr_mp.serve.metrics import Counters, PoolTold, exposition
from atomr_mp.serve.oip.statistics import ModelStatistics, Phases
from atomr_mp.serve.oip.triton_metrics import families

open_metrics: Any = text_string_to_metric_families

ODD: Final = 'odd"name\\é'

DURATIONS: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")


def samples(statistics: ModelStatistics, pool: Any, accept: str) -> dict[tuple[str, str], float]:
    """Return what a scrape reads of Triton's metrics, by name and by model or GPU."""
    told = families(statistics, ["A.m", ODD], pool)
    _, body = exposition(Counters(), PoolTold(None, None, None), accept, told)  # type: ignore[arg-type]
    read: Any = open_metrics if "openmetrics" in accept else prometheus
    found = [each for family in read(body.decode()) for each in family.samples if each.name.startswith("nv_")]
    for each in found:
        assert each.labels.get("version", "1") == "1"
    return {(each.name, each.labels.get("model", each.labels.get("gpu_uuid"))): each.value for each in found}


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_models_are_told_as_the_statistics_count_them(accept: str) -> None:
    """Durations are microseconds, and a model without requests has zeros."""
    statistics = ModelStatistics(Counters().methods)
    statistics.answered(ODD, 3, Phases(1_000, 2_000, 20_000, 300_000), 4)
    statistics.answered(ODD, 1, Phases(1_000, 2_000, 20_000, 300_000), 0)
    statistics.failed(ODD, 5_000)
    found = samples(statistics, PoolTold(None, None, None), accept)  # type: ignore[arg-type]
    assert found["nv_inference_request_success", ODD] == 2
    assert found["nv_inference_request_failure", ODD] == 1
    assert found["nv_inference_count", ODD] == 4
    assert found["nv_inference_exec_count", ODD] == 1
    assert [found[f"nv_inference_{each}_duration_us", ODD] for each in DURATIONS] == [646, 4, 2, 40, 600]
    assert {value for (_, model), value in found.items() if model == "A.m"} == {0}
    assert not any(name.startswith("nv_gpu") for name, _ in found)


def test_gpus_of_the_pool_are_told_and_no_others() -> None:
    """A slice has no utilisation."""
    usage = {"mine": GpuUsage(0.5, 3, 10), "slice": GpuUsage(None, 1, 5), "another's": GpuUsage(1.0, 9, 10)}
    workers = [SimpleNamespace(device=SimpleNamespace(uuid=uuid)) for uuid in ("mine", "mine", "slice")]
    pool = SimpleNamespace(
        status=SimpleNamespace(backend="cuda", workers=workers), driver=SimpleNamespace(usage=lambda: usage)
    )
    found = samples(ModelStatistics(Counters().methods), pool, "text/plain")
    assert {key: value for key, value in found.items() if key[0].startswith("nv_gpu")} == {
        ("nv_gpu_utilization", "mine"): 0.5,
        ("nv_gpu_memory_total_bytes", "mine"): 10,
        ("nv_gpu_memory_total_bytes", "slice"): 5,
        ("nv_gpu_memory_used_bytes", "mine"): 3,
        ("nv_gpu_memory_used_bytes", "slice"): 1,
    }
