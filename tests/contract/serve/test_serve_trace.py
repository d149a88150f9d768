"""`GET /trace`, by the right that all of a server's answers about the pool need: a token."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator

import pytest

import atomr_mp
from tests.serving import Server
from tests.support import DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that the tests share."""
    with Ledger() as ledger, Server(ledger) as own:
        own.run_dir = ledger.run_dir()  # type: ignore[attr-defined]
        yield own


@pytest.fixture
def pool(server: Server) -> Iterator[atomr_mp.Pool]:
    """A client of its own of the server's pool."""
    with atomr_mp.connect(run_dir=server.run_dir) as own:  # type: ignore[attr-defined]
        yield own


def is_traced(pool: atomr_mp.Pool) -> bool:
    """Return whether a pool is traced by now."""
    reply = pool.call("Served.length", "abc")
    reply.result()
    return reply.gpu_s is not None


def test_a_server_traces_its_pool(server: Server) -> None:
    """Its own calls are in the trace; the answer is a file."""
    answers = []
    asks = threading.Thread(target=lambda: answers.append(server.ask("GET", "/trace?seconds=1")))
    asks.start()
    assert settled(lambda: server.call("Served.length", {"word": "abc"}).status == 200 and not asks.is_alive())
    asks.join(DEADLINE_S)
    (answer,) = answers
    assert answer.status == 200, answer.body
    assert "trace.json" in answer.headers["content-disposition"]
    events = answer.json()["traceEvents"]
    assert "Served.length" in {event["name"] for event in events if event["ph"] == "X"}


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "inf", "x", "1e400"])
def test_odd_times_are_refused(server: Server, seconds: str) -> None:
    """As by the command."""
    assert server.ask("GET", f"/trace?seconds={seconds}").status == 422


@pytest.mark.parametrize("query", ["secs=1", "seconds=", "seconds=1&seconds=2", "seconds=1&more"])
def test_other_arguments_are_refused(server: Server, query: str) -> None:
    """Unknown ones, and one that is there twice or empty; nothing is traced."""
    answer = server.ask("GET", f"/trace?{query}")
    assert (answer.status, answer.error["code"]) == (422, "invalid_request")


def test_a_server_that_ends_answers_with_what_there_is(ledger: Ledger) -> None:
    """The file is whole, and says why it ends."""
    with Server(ledger, run_dir="ends") as server, server.client() as client:
        client.request("GET", "/trace?seconds=60", headers={"authorization": f"Bearer {server.token}"})
        with atomr_mp.connect(run_dir=ledger.run_dir("ends")) as pool:
            assert settled(lambda: is_traced(pool))
        server.process.send_signal(signal.SIGTERM)
        answer = client.getresponse()
        assert answer.status == 200
        found = json.loads(answer.read())
        assert server.process.wait(DEADLINE_S) == 0
    assert found["otherData"]["ended_early"]
    assert {"ph", "pid"} <= found["traceEvents"][0].keys()


def test_nobody_traces_without_a_token_and_no_two_at_a_time(server: Server, pool: atomr_mp.Pool) -> None:
    """A client that leaves ends its trace."""
    assert server.ask("GET", "/trace?seconds=1", token="").status == 401
    assert not is_traced(pool)
    with server.client() as leaving:
        leaving.request("GET", "/trace?seconds=60", headers={"authorization": f"Bearer {server.token}"})
        assert settled(lambda: is_traced(pool))
        refused = server.ask("GET", "/trace?seconds=0.01")
        assert refused.status == 429
        assert refused.error["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) > 0
    assert settled(lambda: not is_traced(pool))
    assert server.ask("GET", "/trace?seconds=0.01").status == 200
