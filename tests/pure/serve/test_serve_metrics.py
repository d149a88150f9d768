from __future__ import annotations

import os
from collections import Counter as Counts
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus

from atomr_mp.helpers import metrics_server
from atomr_mp.process.gpus.driver import Driver
from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter
from atomr_mp.protocol.messages.operators import BatchStatus
from atomr_mp.serve import method_figures
from atomr_mp.serve.method_figures import CALL, DEVICE_CALL, FIRST_PART, PARTS, MethodFigures
from atomr_mp.serve.metrics import Counters, PoolTold, exposition, shared_bytes

SLOTS = 2

open_metrics: Any = text_string_to_metric_families
open_metrics_of: Any = generate_latest

NAMES = st.from_regex(r"[A-Za-z_é]{1,9}\.[a-z]{1,300}", fullmatch=True)

COUNTED = st.tuples(
    st.integers(0, SLOTS - 1),
    st.sampled_from([CALL, DEVICE_CALL, FIRST_PART, PARTS]),
    NAMES,
    st.sampled_from(["ok", "actor_failed", "worker_lost", "client_left"]),
    st.integers(0, 2**40),
)


def _count(to: MethodFigures, kind: str, method: str, code: str, amount: int) -> None:
    if kind == PARTS:
        to.count(kind, method, amount)
    else:
        to.took(kind, method, code if kind in {CALL, DEVICE_CALL} else "", amount)


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
    for kind in (CALL, DEVICE_CALL, FIRST_PART, PARTS):
        assert sums[kind] == sum(amount for _, of, _, _, amount in counted if of == kind)
        assert calls[kind] == (0 if kind == PARTS else sum(of == kind for _, of, _, _, _ in counted))


@given(name=st.text("abc.", min_size=1, max_size=60), other=st.text("abc.", min_size=1, max_size=60), data=st.data())
def test_a_process_that_is_killed_while_it_names_a_row_leaves_no_part_of_the_name(
    name: str, other: str, data: st.DataObject
) -> None:
    """The next process uses the row for another method; readers see that method's name alone."""
    memory = os.memfd_create("counters")
    try:
        os.ftruncate(memory, method_figures.shared_bytes(1))
        key = f"{PARTS} {name} ".encode()
        written = data.draw(st.integers(1, len(key)))
        os.pwrite(memory, key[1:written], 1)  # all that is written before the first byte, or less
        assert not list(MethodFigures(memory).all())
        MethodFigures(memory).count(PARTS, other, 7)
        assert [(each.method, each.total) for each in MethodFigures(memory).all()] == [(other, 7)]
    finally:
        os.close(memory)


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 2**50), st.integers(1, 9)), min_size=1, max_size=5), max_size=9)


@given(BATCHES)
def test_the_waits_for_batches_are_a_histogram(batches: list[list[tuple[int, int]]]) -> None:
    """From the worker's board to the scrape: each request is below the bounds above its wait, and in the sum."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    for batch in batches:
        writer.batch(0, [ns for ns, _ in batch], [count for _, count in batch])
    found = reader.batches(0)
    assert found is not None
    status = BatchStatus("A.m", found.batches, found.items, found.wait_ns / 1e9, 0.0, found.sizes, found.waits)
    workers: Any = [SimpleNamespace(device=SimpleNamespace(index=2, generation=7), batches=[status])]
    registry = CollectorRegistry()
    collector: Any = Mock(collect=lambda: metrics_server.batch_metrics(workers), describe=list)
    registry.register(collector)
    text = open_metrics_of(registry).decode()
    [family] = [each for each in open_metrics(text) if each.name == "atomr_mp_batch_wait_seconds"]
    assert family.type == "histogram"
    waits = [ns / 1e9 for batch in batches for ns, count in batch for _ in range(count)]
    for sample in family.samples:
        assert sample.labels["device"] == "2"
        if sample.name.endswith("_bucket"):
            assert sample.value == sum(wait < float(sample.labels["le"]) for wait in waits)
        elif sample.name.endswith("_count"):
            assert sample.value == len(waits)
        else:
            assert sample.value == pytest.approx(sum(waits))


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
    counters.methods.took(DEVICE_CALL, "Odd.name", "3", 10**6)
    counters.methods.took(FIRST_PART, "Odd.name", "", 10**6)
    counters.methods.count(PARTS, "Odd.name", 3)
    kind, body = exposition(counters, PoolTold(None, None, Driver()), accept)
    is_open = "openmetrics" in accept
    assert kind.startswith("application/openmetrics-text" if is_open else "text/plain")
    assert body.endswith(b"# EOF\n") == is_open
    families: Any = (open_metrics if is_open else prometheus)(body.decode())
    families = list(families)
    [by_device] = [f for f in families if f.name == "atomr_mp_http_device_call_seconds"]
    assert {each.labels["device"] for each in by_device.samples} == {"3"}
    samples = {
        (each.name, each.labels.get("method"), each.labels.get("le")): each.value
        for f in families
        for each in f.samples
    }
    assert samples["atomr_mp_http_call_seconds_count", 'Odd"\\.name', None] == 3
    assert samples["atomr_mp_http_call_seconds_bucket", 'Odd"\\.name', "+Inf"] == 3
    assert samples["atomr_mp_http_parts_total", "Odd.name", None] == 3
    assert samples["atomr_mp_http_first_part_seconds_count", "Odd.name", None] == 1
