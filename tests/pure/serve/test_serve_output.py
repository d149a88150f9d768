from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors, output
from atomr_mp.serve import lost_log
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.lost_log import LostLog
from atomr_mp.serve.parent.child_output import ChildOutput
from atomr_mp.serve.raised_log import RaisedLog
from atomr_mp.serve.server_log import LogFormat, lost_notice, start_logging
from tests.in_turn import in_turn
from tests.support import full_disk

PIECES = st.lists(
    st.binary(max_size=40)
    | st.sampled_from([b"\n", b"\r\n", b"\x00\x1b[2J", b'{"event": "forged"}\n', b"y" * 200_000, "\u2028é".encode()]),
    max_size=12,
)


class Captured:
    """The root logger's lines, in the form of JSON."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.root = logging.getLogger()
        self.before = self.root.handlers[:]
        self.level = self.root.level
        self.hooks = (threading.excepthook, sys.unraisablehook)

    def __enter__(self) -> Self:
        self.root.handlers.clear()
        start_logging("json", self.stream)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.root.handlers[:] = self.before
        self.root.setLevel(self.level)
        threading.excepthook, sys.unraisablehook = self.hooks
        logging.captureWarnings(capture=False)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that were logged."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@given(PIECES)
@settings(deadline=None)
def test_what_a_child_writes_to_standard_error_becomes_events(pieces: list[bytes]) -> None:
    """Whatever the bytes, and however they are cut: each line once, in order, and none like one of the server's."""
    with Captured() as captured:
        child = ChildOutput("front end 0")
        try:
            for piece in pieces:
                for at in range(0, len(piece), 30_000):
                    os.write(child.stray.pipe.writing, piece[at : at + 30_000])
                    child.stray.more()
            child.rest()
        finally:
            child.stray.pipe.close()
            child.log.close()
        told = captured.events
    assert all(
        (event["event"], event["source"], event["level"]) == ("stderr", "front end 0", "warning") for event in told
    )
    assert all(event["text"] == f"[front end 0] {event['output']}" for event in told)
    plain = b"".join(pieces)
    if plain.isascii() and len(plain) < 1000 and plain.decode().replace("\n", "").isprintable():
        assert [event["output"] for event in told] == [line for line in plain.decode().split("\n") if line]


def test_a_log_line_that_a_child_has_not_finished_is_an_event() -> None:
    """It ends in the middle of a line; whole lines before are passed on as they are."""
    with Captured() as captured, patch.object(sys, "stderr", captured.stream):
        child = ChildOutput("front end 0")
        os.write(child.log.writing, b'{"event": "request"}\n{"event": "req')
        child.rest()
        for pipe in (child.log, child.stray.pipe):
            pipe.close()
    first, cut = captured.events
    assert first == {"event": "request"}
    assert (cut["event"], cut["output"]) == ("stderr", '{"event": "req')


@pytest.mark.parametrize("form", ["text", "json"])
def test_lost_lines_are_told_in_the_form_of_the_log(form: LogFormat) -> None:
    """As an object, or behind the time as all lines."""
    line = lost_notice(form)(3)
    assert "\n" not in line
    assert "[atomr-mp: 3 lines could not be written here]" in line
    if form == "json":
        assert (json.loads(line)["event"], json.loads(line)["lines"]) == ("lines_lost", 3)
    else:
        assert line[:4].isdigit()


def test_a_notice_begins_a_line_of_its_own(tmp_path: Path) -> None:
    """Though the disk has taken a part of the line before it."""
    path = tmp_path / "log"
    raw = output.FileOutput(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a")
    with raw:
        with full_disk(4):
            raw.write(b"whole line\n")
        raw.write(b"next\n")
    assert path.read_bytes() == b"whol\n[atomr-mp: 1 line could not be written here]\nnext\n"


def test_a_notice_begins_a_line_of_its_own_whoever_has_cut_the_last(tmp_path: Path) -> None:
    """A worker's output and its errors are written to one file, each by an object of its own."""
    path = tmp_path / "log"
    first, second = (output.FileOutput(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") for _ in range(2))
    with first, second:
        with full_disk(4):
            first.write(b"whole line\n")
            second.write(b"of another\n")
        second.write(b"next\n")
        first.write(b"last\n")
    notice = b"[atomr-mp: 1 line could not be written here]\n"
    assert path.read_bytes() == b"whol\n" + notice + b"next\n" + notice + b"last\n"


def test_exceptions_and_warnings_outside_of_requests_have_the_logs_form() -> None:
    """Of a thread that is not waited for, of a destructor, and of Python itself."""

    def fail() -> None:
        raise ValueError("in a thread")

    with Captured() as captured:
        thread = threading.Thread(target=fail, name="lonely")
        thread.start()
        thread.join()
        sys.unraisablehook(
            cast("Any", SimpleNamespace(exc_value=ValueError("in __del__"), err_msg=None, object="an object"))
        )
    lonely, ignored = captured.events
    assert "thread lonely" in lonely["text"]
    assert lonely["traceback"][-1] == "ValueError: in a thread"
    assert "an object" in ignored["text"]
    assert ignored["traceback"][-1] == "ValueError: in __del__"


def exchange(number: int, error: errors.AtomrError) -> Exchange:
    """Return an exchange whose call has ended with an error."""
    found = SimpleNamespace(id=f"id-{number}", called="A.b", device=0, generation=7, error=error)
    return cast("Exchange", found)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2), st.booleans()), max_size=120))
@settings(deadline=None)
def test_every_request_that_a_worker_takes_with_it_is_told_or_counted_once(lost: list[tuple[int, int, bool]]) -> None:
    """One line for a worker: whose requests they were, and which ran."""

    async def note() -> None:
        log = LostLog()
        for number, (device, generation, running) in enumerate(lost):
            error = errors.WorkerLost("lost", device=device, generation=generation, was_running=running)
            log.note(exchange(number, error), error)
        log.tell()
        log.tell()

    with Captured() as captured:
        asyncio.run(note())
        told = captured.events
    assert len(told) == len({each[:2] for each in lost})
    for event in told:
        those = [
            (f"id-{number}", running)
            for number, (*worker, running) in enumerate(lost)
            if worker == [event["device"], event["generation"]]
        ]
        assert event["requests"] == len(those)
        for name, ran in (("running", True), ("not_running", False)):
            expected = [each for each, running in those if running == ran]
            assert [each["id"] for each in event[name]] == expected[: lost_log.MOST_NAMED]


def ran(number: int, places: list[int], error: errors.AtomrError | None) -> Exchange:
    """Return an exchange whose call ran on workers of device 0 that have ended."""
    found = SimpleNamespace(
        id=f"id-{number}",
        called="A.b",
        device=0,
        generation=max(places),
        error=error,
        code=error.code if error else "ok",
        ran_at=tuple((0, each) for each in places),
    )
    return cast("Exchange", found)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 3), min_size=1, unique=True), st.sampled_from(["", "poison", "lost"])))
)
@settings(deadline=None)
def test_every_request_that_ran_when_a_worker_ended_is_named_with_that_worker(
    those: list[tuple[list[int], str]],
) -> None:
    """Whatever became of it: answered by another worker, refused as deadly, or lost with a later one."""
    expected: dict[int, set[str]] = {}

    async def note() -> None:
        log = LostLog()
        for number, (places, end) in enumerate(those):
            error: errors.AtomrError | None = None
            if end == "lost":
                error = errors.WorkerLost("lost", device=0, generation=places[-1])
            elif end:
                error = errors.PoisonRequest("deadly", maybe_executed=True)
            for each in places:
                expected.setdefault(each, set()).add(f"id-{number}")
            log.ran(ran(number, places, error))
            if isinstance(error, errors.WorkerLost):
                log.note(ran(number, places, error), error)
        log.tell()

    with Captured() as captured, patch.object(lost_log, "MOST_NAMED", 1000):
        asyncio.run(note())
    named: dict[int, list[str]] = {}
    for event in captured.events:
        assert event["event"] in {"requests_ran", "requests_lost"}
        for each in event["running"]:
            assert f"request {each['id']}" in event["text"]
            named.setdefault(event["generation"], []).append(each["id"])
    assert {worker: set(ids) for worker, ids in named.items()} == expected
    assert all(len(ids) == len(set(ids)) for ids in named.values())


EVERY: list[type[errors.AtomrError]] = [
    getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)
]


@in_turn("kind", EVERY)
def test_every_error_is_the_callers_or_is_told(kind: type[errors.AtomrError]) -> None:
    """An error with a status from 500 on is logged, unless its cause is logged as an event of worker or pool."""
    error = kind("on purpose")
    if isinstance(error, errors.RequestError):
        error.maybe_executed = True
    elsewhere = {
        *(errors.PoolLost, errors.SessionLost, errors.PoolUnreachable, errors.DeviceUnavailable, errors.ConnectionLost),
        *(errors.StaleGeneration, errors.Cancelled, errors.DeadlineExceeded, errors.InternalError),
    }
    of_callers = {errors.InvalidRequest, errors.PoisonRequest, errors.NumericalError, errors.CompilationFailed}
    of_callers.add(errors.KernelsForbidden)
    with Captured() as captured:
        RaisedLog("full").note(exchange(1, error), error)
    told = [event["event"] for event in captured.events]
    assert told == ([] if kind in elsewhere | of_callers else ["raised"])
