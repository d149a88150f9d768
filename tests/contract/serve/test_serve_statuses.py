from __future__ import annotations

import concurrent.futures
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from atomr_mp import errors
from tests.contract.serve.test_serve import metric
from tests.serving import Answer, Server
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

RAN = f"{ACTORS}/ran.py:Ran"

REPEATED = {429, 502, 503}
"""Statuses after which a proxy or a client sends a request again."""

CODES = sorted(
    {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.AtomrError) and not each.ends_worker
    }
)
"""The codes of all errors that a method may raise without the end of its worker."""

STREAMS = 7
"""Ways that open a stream in the pool, whatever the answer's form."""


def said(how: str) -> list[dict[str, str]]:
    """Return the messages of a chat."""
    return [{"role": "user", "content": how}]


def ways(how: str) -> dict[str, tuple[str, Any]]:
    """Return a path and a body for each way to a method that fails in this manner."""
    chat = {"model": "Ran", "messages": said(how)}
    completion = {"model": "Ran", "prompt": how}
    response = {"model": "Ran", "input": how}
    return {
        "call": ("/call/Ran.call", [how]),
        "stream": ("/call/Ran.parts", [how]),
        "chat": ("/v1/chat/completions", chat),
        "chat in parts": ("/v1/chat/completions", chat | {"stream": True}),
        "completion": ("/v1/completions", completion),
        "completion in parts": ("/v1/completions", completion | {"stream": True}),
        "response": ("/v1/responses", response),
        "response in parts": ("/v1/responses", response | {"stream": True}),
        "embedding": ("/v1/embeddings", {"model": "Ran", "input": how}),
        "embeddings": ("/v1/embeddings", {"model": "Ran", "input": ["fine", how]}),
    }


def post(server: Server, way: tuple[str, Any]) -> Answer:
    """Ask."""
    path, body = way
    return server.ask("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})


def check(answer: Answer, where: str) -> None:
    """Check the answer to a request that ran."""
    assert answer.status >= 400, where
    assert answer.error["maybe_executed"] is True, (where, answer.error)
    assert answer.status not in REPEATED, (where, answer.error)
    assert answer.headers.get("x-should-retry") == "false", where


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


def test_no_error_of_a_request_that_ran_has_a_status_after_which_it_is_sent_again(ledger: Ledger) -> None:
    """Whatever error ends it, and in whatever form it was asked for: a method may raise any error of the package."""
    with Server(ledger, actor=RAN) as server, concurrent.futures.ThreadPoolExecutor(4) as asking:
        asked = [(f"{name}: {code}", way) for code in CODES for name, way in ways(code).items()]
        answers = asking.map(lambda each: (each[0], post(server, each[1])), asked)
        for where, answer in answers:
            check(answer, where)


def test_what_runs_when_the_server_ends_is_not_sent_again(ledger: Ledger) -> None:
    """A proxy would send it elsewhere, and a request that is not idempotent would run twice."""
    with (
        Server(ledger, "--drain-timeout", "0.1", actor=RAN, run_dir="ends") as server,
        ledger.gate("runs") as gate,
        concurrent.futures.ThreadPoolExecutor(10) as asking,
    ):
        asked = {name: asking.submit(post, server, way) for name, way in ways(gate.path).items()}
        gate.wait()
        # The look is one of them, and streams are counted when they are open.
        assert settled(lambda: metric(server, "atomr_mp_http_in_flight") == len(asked) + 1)
        assert settled(lambda: metric(server, "atomr_mp_http_streams") == STREAMS)
        server.process.send_signal(signal.SIGTERM)
        for name, answer in asked.items():
            check(answer.result(DEADLINE_S), name)
        gate.open(len(asked) + 1)
        assert server.process.wait(DEADLINE_S) == 0
        log = server.log()
        assert "then the pool is stopped" in log
        given_up = log.partition("could not be answered before the end: ")[2].partition("\n")[0]
        assert "Ran.call (request " in given_up  # streams are ended at once
        assert log.index("the pool has ended") < log.index("the server has ended")
