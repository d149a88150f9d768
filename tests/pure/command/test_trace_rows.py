"""The rows and the file of a trace, from records that tests write."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from atomr_mp.cli.trace import lost
from atomr_mp.operator.trace import events_file
from atomr_mp.operator.trace.events_file import EventsFile
from atomr_mp.operator.trace.rows import CLIENTS, DeviceRows, TraceRows
from atomr_mp.protocol.board import PlaceKind
from atomr_mp.protocol.timeline import Begun, Ended, GpuTime, Record, SpanKind, Spanned

MS = 1_000_000


def begun(
    request: int, at_ms: int, *, submitted_ms: int = 0, received_ms: int = 0, session: int = 7, kernel: str = ""
) -> Begun:
    """Return the begin of a request on thread 1."""
    received_ns = (received_ms or at_ms) * MS
    place = PlaceKind.THREAD.value
    return Begun(session, request, "Probe.note", place, 1, submitted_ms * MS, received_ns, at_ms * MS, kernel)


def ended(request: int, began_ms: int, at_ms: int, **changed: Any) -> Ended:
    """Return its end; times among the changes are in nanoseconds."""
    facts: dict[str, Any] = {"items": 1, "batch": 0, "batch_items": 0, "error": "", "flops": 0, "nbytes": 0, "gpu": []}
    facts |= {"started_ns": began_ms * MS, "began_ns": began_ms * MS, "ended_ns": at_ms * MS}
    facts |= {"worked_ns": (at_ms - began_ms) * MS, "answered_ns": at_ms * MS} | changed
    return Ended(7, request, "Probe.note", PlaceKind.THREAD.value, 1, **facts)


def shown(*records: Record, rows: TraceRows | None = None) -> list[dict[str, Any]]:
    """Return the events of device 2 for these records."""
    device = DeviceRows(rows or TraceRows("host"), 2)
    device.generation = 4
    return [event for each in records for event in device.events(each)]


def spans(events: list[dict[str, Any]], pid: int) -> list[dict[str, Any]]:
    """Return the spans of a row, in their order."""
    return [event for event in events if event["ph"] == "X" and event["pid"] == pid]


def test_a_call_is_seen_from_its_submission_to_its_answer_and_leads_to_where_it_runs() -> None:
    """With its wait, its generation and its client."""
    rows = TraceRows("host")
    rows.clients[7] = "client web (pid 12)"
    events = shown(begun(1, 13, submitted_ms=10, received_ms=11), ended(1, 13, 18, error="poison"), rows=rows)
    (call,), (run,) = spans(events, CLIENTS + 7), spans(events, 3)
    assert (call["ts"], call["dur"], call["name"]) == (10_000, 8000, "Probe.note")
    assert (run["ts"], run["dur"], run["args"]["error"]) == (13_000, 5000, "poison")
    assert (call["args"]["wait_us"], call["args"]["generation"], call["args"]["client"]) == (3000, 4, rows.clients[7])
    start, finish = (next(event for event in events if event["ph"] == each) for each in "sf")
    assert (start["pid"], start["tid"], start["ts"]) == (call["pid"], call["tid"], call["ts"])
    assert (finish["pid"], finish["tid"], finish["ts"], finish["id"]) == (3, run["tid"], run["ts"], start["id"])
    assert [event["ts"] for event in events if event["ph"] in "be"] == [10_000, 13_000]
    names = [event["args"]["name"] for event in [*events, *rows.client_names()] if event["name"] == "process_name"]
    assert names == ["device 2 (host)", "client web (pid 12)"]


def test_what_runs_at_a_time_is_on_rows_of_its_own() -> None:
    """And a row that is free is used again."""
    events = shown(begun(1, 10), begun(2, 11), ended(1, 10, 20), begun(3, 20), ended(2, 11, 30), ended(3, 20, 31))
    tids = {event["args"]["request"]: event["tid"] for event in spans(events, 3)}
    assert tids[1] == tids[3] != tids[2]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 3]
    assert names == ["life", "thread 1", "thread 1 · 2"]


@pytest.mark.parametrize("submitted_ms", [0, 12, 2**40])
def test_a_submission_that_cannot_be_counts_as_the_arrival(submitted_ms: int) -> None:
    """A client's clock is not believed."""
    (call,) = spans(shown(begun(1, 13, submitted_ms=submitted_ms, received_ms=11), ended(1, 13, 18)), CLIENTS + 7)
    assert call["ts"] == 11_000


def test_a_batch_is_one_span_on_its_device_and_each_call_one_of_its_client() -> None:
    """Its time on the GPU is shown once."""
    gpu = [GpuTime(3, 14 * MS, 2 * MS)]
    events = shown(*(begun(n, 13) for n in range(5)), *(ended(n, 13, 18, batch=9, gpu=gpu) for n in range(5)))
    run, on_gpu = spans(events, 3)
    assert (run["dur"], run["args"]["batch"], run["args"]["gpu_us"]) == (5000, 9, 2000)
    assert (on_gpu["ts"], on_gpu["dur"]) == (14_000, 2000)
    assert len(spans(events, CLIENTS + 7)) == 5


def test_a_slice_is_of_the_own_code_and_the_call_lasts_to_its_answer() -> None:
    """What waits behind another, or for the loop to take it back, is on no device meanwhile; both are on one row."""
    events = shown(
        begun(1, 10),
        begun(2, 11, kernel="scale"),
        ended(1, 10, 20, answered_ns=24 * MS),
        ended(2, 11, 30, began_ns=21 * MS, worked_ns=4 * MS, answered_ns=35 * MS, flops=8 * MS),
    )
    first, second = spans(events, 3)
    assert [(each["ts"], each["dur"]) for each in (first, second)] == [(10_000, 10_000), (21_000, 9000)]
    assert first["tid"] == second["tid"]
    assert (second["args"]["kernel"], second["args"]["gflops"]) == ("scale", 2)
    assert [each["ts"] + each["dur"] for each in spans(events, CLIENTS + 7)] == [24_000, 35_000]
    assert [each["args"]["wait_us"] for each in spans(events, CLIENTS + 7)] == [0, 10_000]


def test_calls_that_are_unanswered_at_a_time_have_rows_of_their_own_however_many() -> None:
    """Of one client on several devices, as many as it may have: spans on a row do not overlap."""
    rows, count = TraceRows("host"), 2000
    events = shown(*(begun(n, 10 + n) for n in range(count)), rows=rows)
    events += shown(
        *(begun(n, 10 + n) for n in range(count)), *(ended(n, 10 + n, 5000 + n) for n in range(count)), rows=rows
    )
    calls = spans(events, CLIENTS + 7)
    by_row: dict[int, list[tuple[float, float]]] = {}
    for each in calls:
        by_row.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    assert len(calls) == len(by_row) == count
    assert max(by_row) < 2**31
    again = spans(shown(begun(1, 9000), ended(1, 9000, 9001), rows=rows), CLIENTS + 7)
    assert again[0]["tid"] in by_row


def test_rows_have_names_where_something_is_drawn_alone() -> None:
    """A batch's requests have begun each by itself, and are one span with all items."""
    events = shown(
        *(begun(n, 13) for n in range(5)), *(ended(n, 13, 18, batch=9, batch_items=7, items=n) for n in range(5))
    )
    drawn = {event["tid"] for event in spans(events, 3)}
    named = {event["tid"] for event in events if event["name"] == "thread_name" and event["pid"] == 3}
    assert named - drawn == {0}  # the device's life
    (run,) = spans(events, 3)
    assert run["args"]["items"] == 7


def test_rates_are_by_the_time_on_the_gpu_if_there_is_one() -> None:
    """Else by the time of the request."""
    work = {"flops": 8 * 10**9, "nbytes": 10**9}
    first, second = spans(
        shown(
            begun(1, 10), ended(1, 10, 18, **work), begun(2, 20), ended(2, 20, 28, **work, gpu=[GpuTime(0, MS, 2 * MS)])
        ),
        CLIENTS + 7,
    )
    assert (first["args"]["gflops"], first["args"]["gbytes_per_s"]) == (1000, 125)
    assert (second["args"]["gflops"], second["args"]["gbytes_per_s"]) == (4000, 500)


def test_steps_are_on_the_row_of_their_request_and_other_copies_aside() -> None:
    """A step lies within its program."""
    step = Spanned(SpanKind.STEP, "blas.gemm", 7, 1, 1, 1, 14 * MS, 15 * MS, 8 * MS, MS, "scale")
    copy = Spanned(SpanKind.COPY, "copy to device", 0, 0, 0, 0, 14 * MS, 15 * MS, 0, 4 * MS, "")
    events = shown(begun(1, 13), step, copy, ended(1, 13, 18))
    found = {event["name"]: event for event in spans(events, 3)}
    assert found["blas.gemm"]["tid"] == found["Probe.note"]["tid"] != found["copy to device"]["tid"]
    assert [found["blas.gemm"]["args"][each] for each in ("kernel", "gflops", "gbytes_per_s")] == ["scale", 8, 1]
    assert (found["copy to device"]["args"]["bytes"], found["copy to device"]["args"]["gbytes_per_s"]) == (4 * MS, 4)


def test_what_has_begun_and_never_ended_is_shown_as_unfinished() -> None:
    """As with a worker that has died."""
    device = DeviceRows(TraceRows("host"), 0)
    list(device.events(begun(1, 13)))
    (run,) = spans(list(device.unfinished(20 * MS, "its worker ended before it")), 1)
    assert (run["dur"], run["args"]["unfinished"]) == (7000, "its worker ended before it")
    assert not list(device.unfinished(20 * MS, "again"))


def test_records_that_no_worker_writes_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends without a begin, begins without end, and the same twice."""
    monkeypatch.setattr("atomr_mp.operator.trace.rows.MOST_OPEN", 10)
    rows = TraceRows("host")
    assert not spans(shown(ended(1, 2, 3), *(begun(n, 13) for n in range(20)), begun(5, 13), rows=rows), 3)
    assert rows.lost == 1 + 10 + 1


def test_the_command_says_of_losses_what_the_file_says() -> None:
    """By the same names, each by itself, and nothing without any."""
    assert lost({"dropped": 0, "unmatched": 0}) == ""
    assert lost({"dropped": 0, "unmatched": 3, "events_left_out": 2}) == ", unmatched 3, events_left_out 2"


def test_a_file_is_valid_after_each_write_and_names_are_only_text(tmp_path: Path) -> None:
    """Also if its end gets shorter; so a tracer may be killed at any time."""
    odd = 'a"}],\n\u2028<script>\x00'
    with (tmp_path / "trace.json").open("wb", buffering=0) as file:
        out = EventsFile(file, {"pool": odd * 50})
        for count in range(5):
            found = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
            assert len(found["traceEvents"]) == 2 * count
            out.write([{"ph": "i", "name": odd}, {"ph": "i", "name": "plain"}], {"pool": odd * (5 - count)})
        out.close({})
    found = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert found["traceEvents"][0]["name"] == odd
    assert found["otherData"] == {}


def test_a_pipe_gets_the_same_and_its_end_once() -> None:
    """What cannot seek is whole when it is closed."""
    pipe = io.BytesIO()
    pipe.seekable = lambda: False  # type: ignore[method-assign]
    out = EventsFile(pipe, {})
    out.write([{"ph": "i", "name": "one"}], {})
    out.write([], {})
    out.close({"pool": "p"})
    assert json.loads(pipe.getvalue()) == {
        "displayTimeUnit": "ms",
        "traceEvents": [{"ph": "i", "name": "one"}],
        "otherData": {"pool": "p"},
    }


def test_a_file_that_gets_too_long_leaves_events_out_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of rows are written even so."""
    monkeypatch.setattr(events_file, "MOST_BYTES", 1000)
    with (tmp_path / "trace.json").open("wb", buffering=0) as file:
        out = EventsFile(file, {})
        out.write([{"ph": "i", "name": "x" * 100} for _ in range(50)] + [{"ph": "M", "name": "row"}], {})
        out.close({})
    found = json.loads((tmp_path / "trace.json").read_text())
    assert len(found["traceEvents"]) + found["otherData"]["events_left_out"] == 51
    assert found["traceEvents"][-1]["name"] == "row"
