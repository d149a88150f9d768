from __future__ import annotations

import os
from collections import Counter as Counts
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from atomr_mp.serve import method_figures
from atomr_mp.serve.method_figures import CALL, FIRST_PART, PARTS, MethodFigures
from atomr_mp.serve.metrics import Counters, exposition, shared_bytes

SLOTS = 2

NAMES = st.from_regex(r"[A-Za-z_é]{1,9}\.[a-z]{1,300}", fullmatch=True)

COUNTED = st.tuples(
    st.integers(0, SLOTS - 1),
    st.sampled_from([CALL, FIRST_PART, PARTS]),
    NAMES,
    st.sampled_from(["ok", "actor_failed", "worker_lost", "client_left"]),
    st.integers(0, 2**40),
)


def _count(to: MethodFigures, kind: str, method: str, code: str, amount: int) -> None:
    if kind == PARTS:
        to.count(kind, method, amount)
    else:
        to.took(kind, method, code if kind == CALL else "", amount)


@given(st.lists(COUNTED, max_size=40), st.integers(4, 12))
def test_nothing_that_is_counted_is_lost(counted: list[tuple[int, str, str, str, int]], rows: int) -> None:
    """With too little room, too, and by processes after others in the same slot; kinds are never mixed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method_figures, "ROWS", rows)
        memory = os.memfd_create("counters")
        try:
            os.ftruncate(memory, method_figures.shared_bytes(SLOTS))
            all_of = [MethodFigures(memory, SLOTS, slot) for slot in range(SLOTS)]
            for number, (slot, kind, method, code, amount) in enumerate(counted):
                _count(all_of[slot], kind, method, code, amount)
                if number % 7 == 0:
                    all_of[slot] = MethodFigures(memory, SLOTS, slot)
        finally:
            os.close(memory)
    sums: Counts[str] = Counts()
    calls: Counts[str] = Counts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method_figures, "ROWS", rows)
        for found in all_of[0].all():
            sums[found.kind] += found.total
            calls[found.kind] += sum(found.buckets)
    for kind in (CALL, FIRST_PART, PARTS):
        assert sums[kind] == sum(amount for _, of, _, _, amount in counted if of == kind)
        assert calls[kind] == (0 if kind == PARTS else sum(of == kind for _, of, _, _, _ in counted))


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text; version=1.0.0", "*/*", "é"])
def test_both_forms_can_be_parsed(accept: str) -> None:
    """By the parser of the form that was asked for; they say the same."""
    memory = os.memfd_create("counters")
    try:
        os.ftruncate(memory, shared_bytes(1))
        counters = Counters(memory, 1, 0)
    finally:
        os.close(memory)
    counters.count("call", 200)
    for ns in (0, 20_000, 10**12):
        counters.methods.took(CALL, 'Odd"\\.name', "ok", ns)
    counters.methods.took(FIRST_PART, "Odd.name", "", 10**6)
    counters.methods.count(PARTS, "Odd.name", 3)
    kind, body = exposition(counters, None, accept)
    is_open = "openmetrics" in accept
    assert kind.startswith("application/openmetrics-text" if is_open else "text/plain")
    assert body.endswith(b"# EOF\n") == is_open
    families: Any = (open_metrics if is_open else prometheus)(body.decode())
    samples = {
        (each.name, each.labels.get("method"), each.labels.get("le")): each.value
        for f in families
        for each in f.samples
    }
    assert samples["atomr_mp_http_call_seconds_count", 'Odd"\\.name', None] == 3
    assert samples["atomr_mp_http_call_seconds_bucket", 'Odd"\\.name', "+Inf"] == 3
    assert samples["atomr_mp_http_parts_total", "Odd.name", None] == 3
    assert samples["atomr_mp_http_first_part_seconds_count", "Odd.name", None] == 1
