"""Bounds of the Open Inference Protocol: what is shared by all models, and what one request makes a front end do."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.serve import method_figures
from atomr_mp.serve.method_figures import MethodFigures
from atomr_mp.serve.metrics import Counters, PoolTold, exposition
from atomr_mp.serve.oip import http_body, tensors
from atomr_mp.serve.oip.classification import MOST_CLASSES, classes_of
from atomr_mp.serve.oip.statistics import ModelStatistics, Phases
from atomr_mp.serve.oip.tensors import MOST_TEXTS, NamedTensor

PHASES: Final = Phases(1, 2, 3, 4)


def test_any_number_of_models_and_sizes_is_counted_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the rows that there are together; a call that has run is answered all the same."""
    monkeypatch.setattr(method_figures, "ROWS", 64)
    figures = MethodFigures()
    statistics = ModelStatistics(figures)
    for model in range(40):
        for rows in (1, 2, 500):
            statistics.answered(f"m{model}", rows, PHASES, rows)
        statistics.failed(f"m{model}", 5)
        figures.answered(f"M.m{model}", "ok", 0, 7)
        figures.took(method_figures.FIRST_PART, f"M.m{model}", "", 7)
        figures.count(method_figures.PARTS, f"M.m{model}", 1)
    (first,) = statistics.told(["m0"])
    assert first["inference_count"] == 503
    assert [each["batch_size"] for each in first["batch_stats"]] == [1, 2]
    assert first["inference_stats"]["compute_infer"] == {"count": 3, "ns": 9}
    assert first["execution_count"] == 3
    counted = sum(sum(each.buckets) for each in figures.all() if each.kind == "oip-success")
    assert counted == 120


def test_metrics_have_no_rows_of_models() -> None:
    """Each series is there once."""
    counters = Counters()
    ModelStatistics(counters.methods).answered("m", 3, PHASES, 3)
    counters.methods.count(method_figures.PARTS, "M.m", 4)
    _, body = exposition(counters, PoolTold(None, None, None), "")  # type: ignore[arg-type]
    lines = [each.rpartition(" ")[0] for each in body.decode().splitlines() if not each.startswith("#")]
    assert len(lines) == len(set(lines))
    assert 'atomr_mp_http_parts_total{method="M.m"} 4.0' in body.decode()


def test_a_tensor_of_bytes_is_bounded_before_its_elements_are_made() -> None:
    """By its shape."""
    with pytest.raises(errors.InvalidRequest, match=f"at most {MOST_TEXTS} elements"):
        tensors.of_raw("x", "BYTES", (MOST_TEXTS + 1,), memoryview(bytes(4 * (MOST_TEXTS + 1))))
    found = tensors.of_raw("x", "BYTES", (MOST_TEXTS,), memoryview(bytes(4 * MOST_TEXTS)))
    assert len(found.values) == MOST_TEXTS


def test_classes_are_bounded_and_right() -> None:
    """Equal elements come in their order."""
    array = np.random.default_rng(5).integers(0, 50, 5000).astype(np.float32)
    tensor = NamedTensor("y", "FP32", array.shape, array)
    found = classes_of(tensor, 300, (), has_rows=False).values
    expected = np.argsort(-array, kind="stable")[:300]
    assert found == [f"{array[at]:f}:{at}".encode() for at in expected]
    wide = NamedTensor("y", "FP32", (1, MOST_CLASSES + 1), np.zeros((1, MOST_CLASSES + 1), np.float32))
    with pytest.raises(errors.InvalidRequest, match=f"the most are {MOST_CLASSES}"):
        classes_of(wide, 2**40, (), has_rows=True)


def test_inputs_are_counted_before_they_are_read() -> None:
    """One beyond the bound is refused."""
    many = b",".join([b"{}"] * 257)
    body = b'{"inputs": [%s]}' % many
    with pytest.raises(errors.InvalidRequest, match="the most are 256"):
        http_body.decode("m", "", body, len(body), 10_000)
