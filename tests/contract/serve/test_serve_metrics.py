from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S, Ledger, free_port, settled

pytest.importorskip("httptools")
prometheus: Any = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families
parser: Any = pytest.importorskip("prometheus_client.openmetrics.parser")

PROGRAMS = ACTORS.parent / "programs"
DOCS = Path(__file__).parents[3] / "docs"
OPEN_METRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that the tests share, with two front ends."""
    with Ledger() as ledger, Server(ledger, "--workers", "2", actor=f"{ACTORS}/served.py:Served") as own:
        yield own


def scrape(server: Server) -> dict[tuple[str, ...], float]:
    """Return the samples in OpenMetrics: by name, method and code, or by name alone."""
    answer = server.ask("GET", "/metrics", headers=OPEN_METRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return {
        (sample.name, *(sample.labels[label] for label in ("method", "code") if label in sample.labels)): sample.value
        for family in parser.text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_calls_are_counted_by_method_and_code_in_every_form(server: Server) -> None:
    """Those in OpenAI's form, too; a stream that breaks is counted by its error."""
    before = scrape(server)
    for _ in range(3):
        assert server.call("Served.length", {"word": "a"}).status == 200
        body = json.dumps({"model": "Served", "input": ["a"]}).encode()
        assert server.ask("POST", "/v1/embeddings", body, {"content-type": "application/json"}).status == 200
    assert server.call("Served.fail").status == 500
    assert b'"end"' not in server.call("Served.count", {"upto": 3, "at": 2, "how": "exception"}).body
    assert b"counted" in server.call("Served.count", {"upto": 4}).body
    calls = "atomr_mp_http_call_seconds_count"
    awaited = {
        (calls, "Served.length", "ok"): 3,
        (calls, "Served.embed", "ok"): 3,
        (calls, "Served.fail", "actor_failed"): 1,
        (calls, "Served.count", "actor_failed"): 1,
        (calls, "Served.count", "ok"): 1,
        ("atomr_mp_http_first_part_seconds_count", "Served.count"): 2,
        ("atomr_mp_http_parts_total", "Served.count"): 6,
    }

    def found() -> dict[tuple[str, ...], float]:
        samples = scrape(server)
        return {key: samples.get(key, 0) - before.get(key, 0) for key in awaited}

    assert settled(lambda: found() == awaited), found()


@pytest.mark.parametrize(
    "more", [(), ("--middleware", f"{PROGRAMS}/middleware.py:refusing")], ids=["bare", "middleware"]
)
def test_a_request_that_its_connection_refuses_counts_as_what_it_was_answered(more: tuple[str, ...]) -> None:
    """Its client has not left: it has sent what is no body, or the rest of it too late; or no request at all."""
    options = ("--limit", "body_s=0.2", *more)
    with Ledger() as ledger, Server(ledger, *options, actor=f"{ACTORS}/served.py:Served") as own:
        assert b" 505 " in own.raw(b"GET / HTTP/3.0\r\n\r\n")
        counted = 'atomr_mp_http_requests_total{route="other",status="other"} 1.0'
        assert settled(lambda: counted in own.ask("GET", "/metrics").body.decode())
        head = f"POST /call/Served.length HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {own.token}\r\n"
        cases = {400: "transfer-encoding: chunked\r\n\r\n4\r\n[1,2\r\nxyz\r\n", 408: "content-length: 9\r\n\r\n[1,"}
        for status, rest in cases.items():
            answer = own.raw((head + "content-type: application/json\r\n" + rest).encode())
            assert f"HTTP/1.1 {status}".encode() in answer
            counted = f'atomr_mp_http_requests_total{{route="call",status="{status}"}} 1.0'
            assert settled(lambda counted=counted: counted in own.ask("GET", "/metrics").body.decode())  # type: ignore[misc]


def pool_names(text: str) -> set[str]:
    """Return the names of a pool's metrics that have samples."""
    families = parser.text_string_to_metric_families if text.endswith("# EOF\n") else prometheus
    names = {sample.name for family in families(text) for sample in family.samples}
    return {name for name in names if not name.startswith(("atomr_mp_http_", "nv_")) and not name.endswith("_created")}


def test_the_server_has_all_that_the_pools_own_address_has() -> None:
    """With a world and remote clients; and once the supervisor stands still, both still name the pool."""
    port = free_port()
    keys = ("--set", "insecure=true", "--set", f"listen=tcp://127.0.0.1:{free_port()}")
    options = ("--gpus", "2", "--world", "tp=0,1", "--set", f"metrics=127.0.0.1:{port}", *keys)

    def own() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())

    with Ledger() as ledger, Server(ledger, *options, actor=f"{ACTORS}/worldly.py:Worldly") as server:
        assert {"atomr_mp_world_ready", "atomr_mp_relay_listening", "atomr_mp_supervisor_up"} <= pool_names(own())

        def served() -> str:
            return server.ask("GET", "/metrics").body.decode()

        assert settled(lambda: pool_names(served()) == pool_names(own())), pool_names(served()) ^ pool_names(own())
        with atomr_mp.connect(run_dir=ledger.run_dir("run")) as pool:
            supervisor = pool.supervisor_pid
        os.kill(supervisor, signal.SIGSTOP)
        try:
            left = {"atomr_mp_supervisor_up", "atomr_mp_info"}
            assert settled(lambda: pool_names(served()) == left), pool_names(served())
            assert pool_names(own()) == left
            assert "atomr_mp_supervisor_up 0.0" in served()
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert settled(lambda: "atomr_mp_supervisor_up 1.0" in served())


def test_every_metric_of_the_front_ends_is_described(server: Server) -> None:
    """In the page about serving, which names no other."""
    described = set(re.findall(r"`(atomr_mp_http_\w+)`", (DOCS / "http-server.md").read_text(encoding="utf-8")))
    answer = server.ask("GET", "/metrics", headers=OPEN_METRICS)
    served = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in parser.text_string_to_metric_families(answer.body.decode())
    }
    assert {name for name in served if name.startswith("atomr_mp_http_")} == described


@pytest.mark.parametrize("method", ["on_thread", "nested"])
def test_the_trace_of_a_request_goes_on_into_the_worker(method: str) -> None:
    """Its span is a child of the one that `traceparent` names; what is no such header is no trace."""
    pytest.importorskip("opentelemetry.sdk")
    with Ledger() as ledger, Server(ledger, actor=f"{ACTORS}/traced.py:Traced") as server:
        trace, parent = f"{7:032x}", f"{9:016x}"
        assert server.call(f"Traced.{method}", traceparent=f"00-{trace}-{parent}-01").json() == trace
        spans = server.call("Traced.spans").json()
        assert (spans[-1]["trace"], spans[-1]["parent"]) == (trace, parent)
        for odd in (f"00-{0:032x}-{parent}-01", f"ff-{trace}-{parent}-01", f"00-{trace}-{parent}-01x", "x"):
            assert server.call("Traced.on_thread", traceparent=odd).json() == f"{0:032x}"
        assert server.call("Traced.on_thread").json() == f"{0:032x}"
        assert server.call("Traced.spans").json() == []


def test_the_board_asks_for_what_is_served(server: Server) -> None:
    """Each query's metrics are there with the labels that it names, in the form of a scrape."""
    assert server.call("Served.lengths", {"words": "a"}).status == 200
    assert server.call("Served.count", {"upto": 1}).status == 200
    assert server.call("Served.die").error["code"] == "worker_lost"  # a cause of an end is served once there was one
    board = json.loads((DOCS / "examples" / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 10

    def missing() -> list[tuple[str, str]]:
        answer = server.ask("GET", "/metrics", headers=OPEN_METRICS)
        families = list(parser.text_string_to_metric_families(answer.body.decode()))
        labels: dict[str, set[str]] = {}
        for family in families:
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        found = [(query, name) for query in queries for name in set(re.findall(r"atomr_mp_\w+", query)) - labels.keys()]
        for query in queries:
            known = set().union(*(labels.get(name, set()) for name in re.findall(r"atomr_mp_\w+", query)))
            by = [name for group in re.findall(r"by \(([^)]*)\)", query) for name in group.split(", ")]
            asked = {*by, *re.findall(r"[{,]\s*(\w+)(?:=|!=)", query)}
            found += [(query, name) for name in asked - known]
        return found

    assert settled(lambda: server.call("Served.lengths", {"words": "a"}).status == 200)
    assert settled(lambda: not missing()), missing()


def test_prometheus_scrapes_with_a_token(server: Server) -> None:
    """The example's fields are those that a scrape with a token needs."""
    yaml = pytest.importorskip("yaml")
    [job] = yaml.safe_load((DOCS / "examples" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["authorization"]["type"] == "Bearer"
    path = job.get("metrics_path", "/metrics")
    assert server.ask("GET", path, token="").status == 401
    assert server.ask("GET", path).status == 200
