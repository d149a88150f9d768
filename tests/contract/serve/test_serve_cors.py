from __future__ import annotations

import subprocess

import pytest

from tests.serving import CLI, Answer, Server
from tests.support import DEADLINE_S, Ledger

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

ORIGIN = "https://app.example"
ASKS = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def test_a_page_of_a_named_origin_may_ask_and_read_whatever_comes(ledger: Ledger) -> None:
    """Its browser asks first without a token; results, errors and streams have the header, for this origin only."""
    with Server(ledger, "--cors-origin", ORIGIN, "--cors-origin", "http://localhost:3000") as server:
        asked = server.ask("OPTIONS", "/call/Served.length", None, ASKS, token="")
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert asked.headers["access-control-allow-headers"] == ASKS["access-control-request-headers"]
        assert "POST" in asked.headers["access-control-allow-methods"]
        for answer, status in (
            (server.call("Served.length", ["word"], origin=ORIGIN), 200),
            (server.call("Served.length", [1], origin=ORIGIN), 422),
            (server.ask("GET", "/openapi.json", headers={"origin": ORIGIN}, token=""), 401),
            (server.call("Served.count", [3], origin=ORIGIN), 200),
            (server.ask("GET", "/nothing", headers={"origin": ORIGIN}), 404),
        ):
            assert (answer.status, readers(answer)) == (status, ORIGIN)
        other = {**ASKS, "origin": "https://other.example"}
        for answer, status in (
            (server.ask("OPTIONS", "/call/Served.length", None, other, token=""), 403),
            (server.call("Served.length", ["word"], origin="https://other.example"), 403),
            (server.call("Served.length", ["word"], origin="null"), 403),
            (server.call("Served.length", ["word"]), 200),
        ):
            assert (answer.status, readers(answer)) == (status, None)


def readers(answer: Answer) -> str | None:
    """Return the origin whose pages may read an answer; caches learn that it depends on the asker's."""
    assert answer.headers["vary"] == "Origin"
    return answer.headers.get("access-control-allow-origin")


def test_without_the_option_no_page_of_another_origin_may_ask(ledger: Ledger) -> None:
    """Nor does it learn what it might send."""
    with Server(ledger) as server:
        asked = server.ask("OPTIONS", "/call/Served.length", None, ASKS, token="")
        assert asked.status == 403
        assert not [name for name in asked.headers if name == "vary" or name.startswith("access-control")]


@pytest.mark.parametrize(("origin", "said"), [("*", "any-with-token"), ("app.example", "no origin")])
def test_an_origin_that_cannot_be_meant_is_refused_in_a_line(ledger: Ledger, origin: str, said: str) -> None:
    """Nothing was started."""
    options = ("--cors-origin", origin, "--run-dir", ledger.run_dir(), "--port", "0")
    done = subprocess.run(
        [*CLI, "serve", *map(str, options)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (1, True, 1), done
