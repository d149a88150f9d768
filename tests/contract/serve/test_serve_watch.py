"""Who looks on at several front ends: one of them watches the pool for all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from http.client import HTTPResponse
from typing import Any, Final, Self

import pytest

from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.serve.watch.history import STEP_S
from tests.serving import CLI, Server
from tests.support import DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")


def test_one_front_end_watches_for_all_and_another_when_it_is_gone() -> None:
    """The others show what it has seen; who looks on there notices nothing of its end."""
    with Ledger() as ledger, Server(ledger, "--workers", "2") as server, contextlib.ExitStack() as closing:
        first, second = server.front_ends()

        def view(front_end: int, other: int) -> Viewer:
            # A process that is stopped while it adds a point to the history would keep all others from watching.
            assert settled(lambda: 1 < time.time() % STEP_S < STEP_S - 1)
            os.kill(other, signal.SIGSTOP)
            try:
                viewer = closing.enter_context(Viewer(server))
                assert viewer.next()["devices"]
            finally:
                os.kill(other, signal.SIGCONT)
            assert front_end in server.front_ends()
            return viewer

        with view(first, second):
            follower = view(second, first)  # although the one that watches stands still
            assert settled(lambda: server.watching() == [first])
            os.kill(first, signal.SIGKILL)
            assert settled(lambda: first not in server.front_ends())
        assert settled(lambda: server.watching() == [second])
        generation = follower.next()["devices"][0]["generation"]
        with OperatorSession(ledger.run_dir() / "session.sock") as session:
            os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
        assert settled(lambda: follower.next()["devices"][0]["generation"] > generation)


def test_who_comes_late_is_told_all_that_the_event_log_has() -> None:
    """A kill, a deadly request and a reload, with each recovery, at any front end; and how the calls went."""
    with Ledger() as ledger, Server(ledger, "--workers", "2") as server:
        assert server.call("Served.length", ["word"]).status == 200
        with OperatorSession(ledger.run_dir() / "session.sock") as session:
            generation = session.status().workers[0].device.generation
            os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
            assert settled(lambda: is_ready(session, generation + 1))
            assert settled(lambda: server.call("Served.die").status == 422)
            generation = session.status().workers[0].device.generation
            (refused,) = session.status().quarantined
            assert settled(lambda: is_ready(session, generation))
            with Viewer(server) as viewer:
                look = viewer.next()
            assert look["refused"] == [
                {
                    "method": "Served.die",
                    "fingerprint": refused.request.fingerprint.hex(),
                    "since": pytest.approx(refused.since),  # by the supervisor's own clock, each time anew
                    "ends": refused.ends,
                }
            ]
            session.reload(DEADLINE_S)
        events = list(read_events(ledger.run_dir() / "events.jsonl"))
        with Viewer(server) as viewer:
            look = viewer.next()
        assert (look["http"]["in_flight"], look["http"]["streams"]) == (0, 0)  # who looks on is not counted
        logged = [(each["time"], each["event"], each["text"]) for each in events]
        assert [(each["at"], each["event"], each["text"]) for each in look["news"]] == without_repeats(logged)
        assert look["news"][-1]["kind"] == "ready"
        named = {each["event"] for each in look["news"]}
        assert {"end", "ready", "poison_request", "reload_start", "reload", "reload_end"} <= named
        lives = look["timeline"]["0"]["worker"]
        served = [span for span in lives if span["life"] == "serving"]
        ends = [event["time"] for event in events if event["event"] == "end"]
        assert [span["end"] for span in served if span["fault"]] == ends
        assert all("SIGKILL" in span["cause"] for span in served if span["fault"])
        assert [span["begin"] for span in served] == [each["time"] for each in events if each["event"] == "ready"]
        assert (served[-1]["generation"], served[-1]["end"]) == (look["devices"][0]["generation"], None)
        assert settled(lambda: "Served.length" in server.ask("GET", "/watch/history").json()["methods"])


def test_top_shows_the_calls_of_all_front_ends_by_method() -> None:
    """In a terminal, from the memory that they share."""
    with Ledger() as ledger, Server(ledger, "--workers", "2") as server:
        for _ in range(7):
            assert server.call("Served.length", ["word"]).status == 200
        assert server.call("Served.fail").status == 500
        top = [*CLI, "top", "--once", "--interval", "0.1", "--run-dir", str(ledger.run_dir())]
        told = subprocess.run(top, stdout=subprocess.PIPE, check=True, text=True, timeout=DEADLINE_S).stdout
        rows = {words[0]: words[1:] for line in told.splitlines() if (words := line.split())}
        assert rows["Served.length"] == ["0", "0", "-", "-", "7", "0"]
        assert rows["Served.fail"][-2:] == ["1", "1"]


def without_repeats(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return events but for those that repeat the words of another end of the same request."""
    found: list[tuple[Any, ...]] = []
    for each in events:
        if each[1] != "poison_request" or each[2] not in [other[2] for other in found]:
            found.append(each)
    return found


def is_ready(session: OperatorSession, generation: int) -> bool:
    """Whether the worker serves, as this generation or a later one."""
    device = session.status().workers[0].device
    return device.state is DeviceState.READY and device.generation >= generation


class Viewer:
    """Somebody who looks on. Use it with `with`."""

    def __init__(self, server: Server) -> None:
        self._connection: Final = server.connect()
        token = f"authorization: Bearer {server.token}"
        self._connection.sendall(f"GET /watch/events HTTP/1.1\r\nhost: localhost\r\n{token}\r\n\r\n".encode())
        self._response: Final = HTTPResponse(self._connection)
        self._response.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._response.close()
        self._connection.close()

    def next(self) -> dict[str, Any]:
        """Wait for the next look."""
        while not (line := self._response.readline()).startswith(b"data: "):
            assert line, "it has ended"
        found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return found
