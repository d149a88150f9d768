"""OpenTelemetry's spans: one of the client and one of the worker for each request, in one trace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors, tracing
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace  # after the look whether it is there
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

Spans = dict[str, Any]


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """What makes spans in this process, as long as the test runs."""
    found = TracerProvider()
    tracing.instrument(found)
    yield found
    tracing.uninstrument()
    found.shutdown()


@pytest.fixture
def exporter(provider: TracerProvider) -> InMemorySpanExporter:
    """Where they are."""
    found = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    return found


@pytest.fixture(scope="module")
def running() -> Iterator[atomr_mp.Pool]:
    """A pool whose worker makes spans."""
    with Ledger() as ledger, ledger.start(f"{ACTORS}/traced.py:Traced") as started:
        yield started


@pytest.fixture
def pool(running: atomr_mp.Pool) -> atomr_mp.Pool:
    """The same, for all tests; its worker has forgotten the spans of earlier ones."""
    running.call("Traced.spans").result()
    return running


def of_worker(pool: atomr_mp.Pool) -> list[Spans]:
    """Return the worker's spans of the calls that were made before."""
    tracing.uninstrument()
    spans: list[Spans] = pool.call("Traced.spans").result()
    return spans


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Return a span's trace and its own id."""
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@pytest.mark.skipif(BACKEND != "host", reason="worlds run on the host backend")
def test_a_part_of_a_world_s_call_tells_its_place(exporter: InMemorySpanExporter) -> None:
    """World, epoch, rank, and its number in the order, on each rank; one span of the caller."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["TracedRank"]}}
    with Ledger() as ledger, ledger.start(f"{ACTORS}/traced.py:TracedRank", gpus=2, worlds=worlds) as pool:
        world = pool.world("tp")
        world.call("TracedRank.fail").exception(DEADLINE_S)
        world.call("TracedRank.nested").result(DEADLINE_S)
        tracing.uninstrument()
        of_ranks = world.call("TracedRank.spans", each=True).result(DEADLINE_S)
    names = [f"atomr_mp.{name}" for name in ("world", "epoch", "rank", "entry")]
    for rank, spans in enumerate(of_ranks):
        found = [each for each in spans if each["kind"] == "SERVER"]
        assert [[each["attributes"][name] for name in names] for each in found] == [
            ["tp", 1, rank, at] for at in (1, 2)
        ]
    client = exporter.get_finished_spans()[-1]
    assert client.attributes is not None
    assert (client.name, client.attributes["atomr_mp.world"], client.attributes["atomr_mp.epoch"]) == (
        "TracedRank.nested",
        "tp",
        1,
    )


def test_a_request_has_a_span_on_either_side(
    pool: atomr_mp.Pool, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The worker's is the child of the client's, that of whatever the caller is in; what the method makes is its."""
    with provider.get_tracer("application").start_as_current_span("job"):
        traced = pool.call("Traced.nested").result()
    client, job = sorted(exporter.get_finished_spans(), key=lambda span: span.name)
    assert (client.name, client.kind.name, job.name) == ("Traced.nested", "CLIENT", "job")
    assert client.parent is not None
    assert f"{client.parent.span_id:016x}" == ids(job)[1]
    assert client.attributes is not None
    assert (client.attributes["atomr_mp.device"], client.attributes["atomr_mp.generation"]) == (0, 1)
    inner, server = of_worker(pool)
    assert (server["name"], server["kind"], server["status"]) == ("Traced.nested", "SERVER", "UNSET")
    assert (server["trace"], server["parent"]) == ids(client)
    assert (inner["trace"], inner["parent"]) == (traced, server["id"])
    assert traced == ids(job)[0]
    assert server["attributes"]["rpc.method"] == "nested"
    assert 0 <= server["attributes"]["atomr_mp.waited_s"] < 30


def test_threads_batches_and_event_loops_have_them_too(pool: atomr_mp.Pool, exporter: InMemorySpanExporter) -> None:
    """Each request of a batch its own."""
    assert pool.call("Traced.on_thread").result() == ids(exporter.get_finished_spans()[0])[0]
    exporter.clear()

    async def pairs() -> list[int]:
        return await asyncio.gather(*(pool.call("Traced.pairs", at) for at in range(2)))

    assert asyncio.run(pairs()) == [2, 2]
    _, *servers = of_worker(pool)
    assert {(server["trace"], server["parent"]) for server in servers} == set(map(ids, exporter.get_finished_spans()))
    assert len(servers) == 2


def test_an_error_is_the_status_of_both(pool: atomr_mp.Pool, exporter: InMemorySpanExporter) -> None:
    """With its code; and a call that was never answered has an end too."""
    with pytest.raises(errors.ActorFailed):
        pool.call("Traced.fail").result()
    assert isinstance(pool.call("Traced.pairs", 1, deadline_s=0.01).exception(), errors.DeadlineExceeded)
    failed, late = exporter.get_finished_spans()
    assert failed.attributes is not None
    assert late.attributes is not None
    assert (failed.status.status_code.name, failed.attributes["error.type"]) == ("ERROR", errors.ActorFailed.code)
    assert (late.status.status_code.name, late.attributes["error.type"]) == ("ERROR", errors.DeadlineExceeded.code)
    (server,) = of_worker(pool)
    assert (server["status"], server["attributes"]["error.type"]) == ("ERROR", errors.ActorFailed.code)


def test_many_requests_have_their_spans_at_their_times(pool: atomr_mp.Pool, exporter: InMemorySpanExporter) -> None:
    """The worker's lies within the client's."""
    replies = [pool.call("Traced.on_thread") for _ in range(100)]
    assert len({reply.result() for reply in replies}) == 100
    servers = {server["parent"]: server for server in of_worker(pool)}
    clients = exporter.get_finished_spans()
    assert len(servers) == len(clients) == 100
    for client in clients:
        number, name = ids(client)
        server = servers[name]
        assert server["trace"] == number
        assert client.start_time is not None
        assert client.end_time is not None
        assert client.start_time <= server["start"] <= server["end"] <= client.end_time


def test_a_batch_processor_gets_every_span_before_its_result_is_returned(
    pool: atomr_mp.Pool, provider: TracerProvider
) -> None:
    """Whoever flushes the provider after the last result has them all, whichever threads have waited."""
    found = InMemorySpanExporter()
    provider.add_span_processor(BatchSpanProcessor(found, schedule_delay_millis=3_600_000))
    callers = [threading.Thread(target=lambda: pool.call("Traced.on_thread").result()) for _ in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert provider.force_flush()
    assert [span.name for span in found.get_finished_spans()] == ["Traced.on_thread"] * 16


def test_a_processor_that_raises_fails_no_request(ledger: Ledger) -> None:
    """In the worker, where it would end the process and take everybody's requests along."""
    tracing.instrument(TracerProvider())
    try:
        with ledger.start(f"{ACTORS}/traced.py:BadlyTraced") as pool:
            assert pool.call("BadlyTraced.empty", "at the start").result() == "at the start"
            reply = pool.call("BadlyTraced.empty", "at the end")
            assert (reply.result(), reply.generation) == ("at the end", 1)
    finally:
        tracing.uninstrument()


def test_a_call_of_what_is_not_recorded_is_not_either(
    pool: atomr_mp.Pool, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """No span is made for it; the worker's code still finds itself in the trace, and makes none."""
    unrecorded = trace.NonRecordingSpan(trace.SpanContext(7, 9, is_remote=False))
    with trace.use_span(unrecorded):
        assert pool.call("Traced.nested").result() == f"{7:032x}"
        assert pool.call("Traced.on_thread").result() == f"{7:032x}"
    with provider.get_tracer("application").start_as_current_span("job"):
        pool.call("Traced.on_thread").result()
    assert sorted(span.name for span in exporter.get_finished_spans()) == ["Traced.on_thread", "job"]
    assert [server["name"] for server in of_worker(pool)] == ["Traced.on_thread"]


def test_whoever_has_everything_recorded_has_that_too(pool: atomr_mp.Pool) -> None:
    """The application's sampler is asked, not guessed."""
    everything, found = TracerProvider(sampler=ALWAYS_ON), InMemorySpanExporter()
    everything.add_span_processor(SimpleSpanProcessor(found))
    tracing.instrument(everything)
    try:
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(7, 9, is_remote=False))):
            assert pool.call("Traced.on_thread").result() == f"{7:032x}"
    finally:
        tracing.uninstrument()
        everything.shutdown()
    assert [span.name for span in found.get_finished_spans()] == ["Traced.on_thread"]


def test_without_a_client_that_asks_there_are_none(pool: atomr_mp.Pool) -> None:
    """The call carries no context, and the worker makes no span."""
    assert pool.call("Traced.on_thread").result() == "0" * 32
    assert of_worker(pool) == []


def test_spans_may_be_switched_off_while_others_call(pool: atomr_mp.Pool, provider: TracerProvider) -> None:
    """No call fails by it, wherever it is just then."""
    called, over = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def call() -> None:
        try:
            while not over.is_set():
                pool.call("Traced.on_thread").result()
                called.set()
        except BaseException as error:  # noqa: BLE001 - told in the test's thread
            failed.append(error)
        called.set()

    caller = threading.Thread(target=call)
    caller.start()
    for _ in range(50):
        assert called.wait(30)
        called.clear()
        tracing.uninstrument()
        tracing.instrument(provider)
    over.set()
    caller.join(30)
    assert not failed
