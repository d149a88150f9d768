from __future__ import annotations

import io
import json
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp.operator.session import OperatorSession
from tests import serving
from tests.serving import Server, status_of
from tests.support import DEADLINE_S, Ledger, settled, stopped

pytest.importorskip("httptools")
pytest.importorskip("uvloop")


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server that tests share, with small limits."""
    limits = ("header_bytes=4096", "json_bytes=20000", "npy_bytes=50000", "header_s=1", "body_s=1", "stall_s=1")
    with Server(ledger, "--debug", "--workers", "2", *(each for limit in limits for each in ("--limit", limit))) as own:
        yield own


def npy(array: Any) -> bytes:
    """Return an array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("method", "arguments", "result"),
    [
        ("length", {"word": "four"}, 4),
        ("length", ["four", 3], 7),
        ("lengths", {"words": "four"}, 4),
        ("echo", {"value": {"a": [1, 2.5, None, True, "ä"]}}, {"a": [1, 2.5, None, True, "ä"]}),
        ("echo", {}, None),
        ("double", {"array": [[1, 2.5]]}, [[2.0, 5.0]]),
        (
            "describe",
            {"point": {"name": "p", "content": "AP8=", "weights": [1, 2]}, "more": ["AAAA"]},
            ["p", 2, "int64", 3],
        ),
        ("make", ["bytes"], "AP8="),
        ("make", ["complex"], [[1.0, 2.0]]),
        ("make", ["nan"], [None, 1.0]),
    ],
)
def test_a_call_by_json_is_answered_by_json(server: Server, method: str, arguments: Any, result: Any) -> None:
    """Arguments go by name or by position. Arrays are nested lists, bytes are base64, and a NaN is null."""
    answer = server.call(f"Served.{method}", arguments)
    assert (answer.status, answer.json()) == (200, result)
    assert answer.headers["content-type"] == "application/json"


def test_a_raw_array_goes_and_comes_as_it_is(server: Server) -> None:
    """Element type and shape stay, in either order of memory."""
    given = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    headers = {"content-type": "application/x-npy", "accept": "application/x-npy"}
    answer = server.ask("POST", "/call/Served.double", npy(given), headers)
    assert answer.status == 200
    result = np.load(io.BytesIO(answer.body))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, given * 2)
    as_json = server.ask("POST", "/call/Served.double", npy(given), {"content-type": "application/x-npy"})
    assert as_json.json() == (given * 2).tolist()


def test_no_other_site_is_let_in_by_cors(server: Server) -> None:
    """A browser asks before it sends a foreign page's call, and reads no answer without these headers."""
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    before = server.ask("OPTIONS", "/call/Served.length", None, asked)
    assert (before.status, before.error["code"]) == (403, "origin_not_allowed")
    own = {"origin": f"http://127.0.0.1:{server.port}", "content-type": "application/json"}
    answer = server.ask("POST", "/call/Served.length", b'["word"]', own)
    assert answer.status == 200
    assert not [name for each in (before, answer) for name in each.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("status", "code", "method", "path", "body", "headers"),
    [
        (400, "bad_request", "POST", "/call/Served.length", b'{"word":', {}),
        (400, "bad_request", "POST", "/call/Served.length", b"\xff", {}),
        (400, "bad_request", "POST", "/call/Served.length", b"[]", {"x-deadline-s": "soon"}),
        (400, "bad_request", "POST", "/call/Served.length", b"[]", {"x-deadline-s": "nan"}),
        (400, "bad_request", "POST", "/call/Served.length", b"[]", {"x-priority": "high"}),
        (401, "unauthorized", "POST", "/call/Served.length", b"[]", {"authorization": ""}),
        (401, "unauthorized", "POST", "/call/Served.length", b"[]", {"authorization": "Bearer " + "x" * 43}),
        (401, "unauthorized", "GET", "/metrics", None, {"authorization": "Basic abc"}),
        (403, "host_not_allowed", "GET", "/health/live", None, {"host": "evil.example"}),
        (403, "origin_not_allowed", "GET", "/health/live", None, {"origin": "http://evil.example"}),
        (403, "origin_not_allowed", "GET", "/health/live", None, {"origin": "null"}),
        (404, "not_found", "GET", "/nothing", None, {}),
        (404, "not_found", "POST", "/call/Served.lenth", b"[]", {}),
        (404, "not_found", "POST", "/call/memory.Free", b"{}", {}),
        (404, "not_found", "POST", "/call/restart", b"[0]", {}),
        (405, "method_not_allowed", "GET", "/call/Served.length", None, {}),
        (405, "method_not_allowed", "POST", "/metrics", b"{}", {}),
        (406, "not_acceptable", "POST", "/call/Served.length", b'["a"]', {"accept": "text/html"}),
        (406, "not_acceptable", "POST", "/call/Served.length", b'["a"]', {"accept": "application/x-npy"}),
        (413, "too_large", "POST", "/call/Served.length", b" " * 20001, {}),
        (415, "unsupported_media_type", "POST", "/call/Served.length", b"{}", {"content-type": "text/plain"}),
        (415, "unsupported_media_type", "POST", "/call/Served.length", b"{}", {"content-encoding": "gzip"}),
        (422, "invalid_request", "POST", "/call/Served.length", b'{"word": 3}', {}),
        (422, "invalid_request", "POST", "/call/Served.length", b'{"word": "a", "wrod": 1}', {}),
        (422, "invalid_request", "POST", "/call/Served.length", b'"word"', {}),
        (422, "invalid_request", "POST", "/call/Served.double", b'{"array": [[1], [2, 3]]}', {}),
        (422, "invalid_request", "POST", "/call/Served.double", b'{"array": ["a"]}', {}),
        (422, "invalid_request", "POST", "/call/Served.double", b'{"array": [1e300]}', {}),
        (422, "invalid_request", "POST", "/call/Served.echo", b"[" * 66 + b"]" * 66, {}),
        (422, "invalid_request", "POST", "/call/Served.echo", b"[" * 5000 + b"]" * 5000, {}),
        (422, "invalid_request", "POST", "/call/Served.length", b'["a"]', {"x-priority": "99"}),
        (422, "invalid_request", "POST", "/call/Served.describe", npy(1), {"content-type": "application/x-npy"}),
        (422, "invalid_request", "POST", "/call/Served.double", b"no file", {"content-type": "application/x-npy"}),
        (500, "actor_failed", "POST", "/call/Served.fail", b"", {}),
    ],
)
def test_what_is_wrong_is_told_in_one_form(
    server: Server, status: int, code: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> None:
    """Each status has a code, a message, facts, whether anything may have run, and the request's id."""
    given = {"content-type": "application/json", **headers, "x-request-id": "mine-1"}
    answer = server.ask(method, path, body, given, token="" if headers.get("authorization") == "" else None)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.error["message"]
    assert answer.error["maybe_executed"] is (code == "actor_failed")
    assert answer.error["request_id"] == answer.headers["x-request-id"] == "mine-1"
    assert server.token not in answer.body.decode()


def test_a_traceback_is_told_with_debug(server: Server) -> None:
    """It shows the actor's code."""
    facts = server.call("Served.fail").error["facts"]
    assert facts["exception"].endswith("ValueError")
    assert "on purpose" in facts["traceback_text"]


def test_a_deadline_ends_a_call(server: Server, ledger: Ledger) -> None:
    """The status is 504, whatever the method still does."""
    with ledger.gate("late") as gate:
        answer = server.call("Served.wait_at", [gate.path], x_deadline_s="0.3")
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


def test_a_full_queue_is_told_with_when_to_come_back(server: Server, ledger: Ledger) -> None:
    """429 and `Retry-After`; what was taken is answered."""
    answers: list[serving.Answer] = []
    with ledger.gate("narrow") as gate:
        threads = [
            threading.Thread(target=lambda: answers.append(server.call("Served.narrow", [gate.path])))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        assert settled(lambda: any(answer.status == 429 for answer in answers))
        assert server.ask("GET", "/health/ready").status == 200  # or a balancer would drop those that work
        gate.open(12)
        for thread in threads:
            thread.join(DEADLINE_S)
    assert {answer.status for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.error["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("leave", ["close", "shut"])
def test_a_client_that_leaves_takes_its_waiting_call_along(
    server: Server, ledger: Ledger, requests: int, leave: str
) -> None:
    """A call that has not started is cancelled, and never runs; whatever the client has sent behind it."""
    with ledger.gate(f"busy-{leave}-{requests}") as gate:
        busy = threading.Thread(target=server.call, args=("Served.wait_at", [gate.path]))
        busy.start()
        gate.wait()
        body = json.dumps({"gate": gate.path}).encode()
        before = left(server)
        with atomr_mp.connect(run_dir=ledger.run_dir()) as pool:
            with server.connect() as leaving:
                leaving.sendall(request(server, "/call/Served.wait_at", body) * requests)
                assert settled(lambda: pool.status().devices[0].queue_depth == 2)
                if leave == "shut":
                    leaving.shutdown(socket.SHUT_WR)
                    assert settled(lambda: pool.status().devices[0].queue_depth == 1)
            assert settled(lambda: pool.status().devices[0].queue_depth == 1)  # the worker has dropped it
        assert settled(lambda: left(server) == before + 1)
        gate.open()
        busy.join(DEADLINE_S)
        # Whoever comes next finds the actor's thread free: nobody else has arrived at the gate.
        gate.open()
        assert server.call("Served.wait_at", [gate.path]).status == 200
        assert len(gate.wait(1)) == 1


def test_health_needs_no_token(server: Server) -> None:
    """A balancer has none."""
    for path in ("/health/live", "/health/ready"):
        assert server.ask("GET", path, token="").status == 200
        assert server.ask("HEAD", path, token="").body == b""


def test_a_device_whose_process_is_stopped_takes_no_calls(server: Server, ledger: Ledger) -> None:
    """However lately it has answered; readiness says why, and is back with SIGCONT."""
    assert server.call("Served.length", ["word"]).status == 200
    with OperatorSession(ledger.run_dir() / "session.sock") as session:
        [worker] = session.status().workers

    def unready() -> bool:
        answer = server.ask("GET", "/health/ready")
        return answer.status == 503 and b"stopped by a signal" in answer.body

    with stopped(worker.device.pid):
        assert settled(unready)
    assert settled(lambda: server.ask("GET", "/health/ready").status == 200)


def test_the_pages_need_no_token_and_admit_no_foreign_code(server: Server) -> None:
    """They hold no data; their policy names their own script and style, and nothing else."""
    answer = server.ask("GET", "/docs", token="")
    policy = answer.headers["content-security-policy"]
    assert answer.status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == answer.body.count(b"<script>") + answer.body.count(b"<style>")
    assert b"http://" not in answer.body
    assert b"https://" not in answer.body


def test_the_document_describes_every_method(server: Server) -> None:
    """It has arguments, result and error; references lead somewhere."""
    document = server.ask("GET", "/openapi.json").json()
    paths = document["paths"]
    assert "/call/Served.length" in paths
    operation = paths["/call/Served.length"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    by_name, by_position = schema["anyOf"]
    assert by_name["properties"]["word"] == {"type": "string"}
    assert by_name["properties"]["extra"]["type"] == "integer"
    assert by_name["required"] == ["word"]
    assert (by_position["minItems"], by_position["maxItems"]) == (1, 2)
    double = paths["/call/Served.double"]["post"]["requestBody"]["content"]
    assert double["application/json"]["schema"]["anyOf"][0]["properties"]["array"]["dtype"] == "float32"
    assert "application/x-npy" in double
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_metrics_are_those_of_all_front_ends(server: Server) -> None:
    """Whichever is asked, the sum is the same."""
    assert settled(lambda: in_flight(server) == 0)  # an answer is counted after it is sent
    before = metric(server, 'atomr_mp_http_requests_total{route="call",status="200"}')
    for _ in range(20):  # each on a connection of its own, so on either process
        assert server.call("Served.length", ["a"]).status == 200
    assert settled(lambda: in_flight(server) == 0)
    for _ in range(4):
        assert metric(server, 'atomr_mp_http_requests_total{route="call",status="200"}') == before + 20
    assert settled(lambda: metric(server, "atomr_mp_http_front_end_starts_total") == 2)
    assert settled(lambda: metric(server, "atomr_mp_sessions") >= 2)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 404),
        (b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (b"CONNECT example.com:80 HTTP/1.1\r\nhost: example.com\r\n\r\n", 400),
        (b"POST /call/Served.length HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: elsewhere\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 5000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 5000, 431),
        (b"GET /" + b"a" * 5000, 431),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n", 408),
    ],
)
def test_what_is_no_request_is_answered_and_the_connection_closed(server: Server, data: bytes, status: int) -> None:
    """Before a request is whole, too: bytes that are none, headers without end, and clients that stop in them."""
    answer = server.raw(data)
    assert status_of(answer) == status
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_requests_that_come_in_one_piece_are_answered_in_order(server: Server) -> None:
    """Each within its bounds, the last connection as its request wants it; a long answer too."""
    calls = [request(server, "/call/Served.echo", json.dumps([f"{number}"]).encode()) for number in range(3)]
    closing = calls[2].replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    answers = server.raw(calls[0] + calls[1] + closing).split(b"HTTP/1.1 ")[1:]
    assert [(answer[:3], answer[-3:]) for answer in answers] == [(b"200", b'"%d"' % number) for number in range(3)]
    assert [b"connection: close" in answer for answer in answers] == [False, False, True]
    long_head = calls[1].replace(b"\r\n", b"\r\nx: " + b"a" * 5000 + b"\r\n", 1)
    assert b"HTTP/1.1 431 " in server.raw(calls[0] + long_head)
    old = server.raw(calls[0].replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (status_of(old), old[-3:]) == (200, b'"0"')
    array = np.arange(12000, dtype=np.float32)
    answer = server.ask("POST", "/call/Served.double", npy(array), {"content-type": "application/x-npy"})
    assert len(answer.body) > 64 * 2**10
    np.testing.assert_array_equal(answer.json(), array * 2)


def test_a_body_without_length_or_end_is_bounded(server: Server) -> None:
    """A raw array needs its length; of chunks no more are read than the limit; what does not come is not waited for."""
    head = f"POST /call/Served.double HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n".encode()
    chunked = b"transfer-encoding: chunked\r\ncontent-type: "
    assert status_of(server.raw(head + chunked + b"application/x-npy\r\n\r\n")) == 411
    chunks = b"".join(b"1000\r\n" + b" " * 4096 + b"\r\n" for _ in range(8))
    assert status_of(server.raw(head + chunked + b"application/json\r\n\r\n" + chunks)) == 413
    late = head + b"content-type: application/json\r\ncontent-length: 10\r\n\r\n{"
    assert status_of(server.raw(late)) == 408


def test_an_array_that_lies_about_its_size_takes_no_memory(server: Server) -> None:
    """Its shape is compared with what has come."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    answer = server.ask("POST", "/call/Served.double", data, {"content-type": "application/x-npy"})
    assert (answer.status, answer.error["code"]) == (422, "invalid_request")


def test_a_client_that_does_not_read_is_let_go(server: Server) -> None:
    """Its answer takes memory; after a while the connection is cut off, and the others have not waited."""
    value = "x" * 19000
    body = json.dumps({"value": value}).encode()
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.settimeout(DEADLINE_S)
        stalled.connect(("127.0.0.1", server.port))
        before = metric(server, "atomr_mp_http_connections_refused_total")
        stalled.setblocking(False)
        sent = 0
        one = request(server, "/call/Served.echo", body)

        def fill() -> bool:
            nonlocal sent
            try:
                sent += stalled.send(one)
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                return True
            return metric(server, "atomr_mp_http_connections_refused_total") > before

        assert settled(fill)
    assert server.call("Served.length", ["a"]).status == 200


def test_curl_line_that_is_shown_works(server: Server) -> None:
    """It is the line that the start prints."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    line = next(line for line in server.told.splitlines() if line.startswith("curl"))
    done = subprocess.run(["sh", "-c", f"{line} -sf"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "null"


def test_the_curl_line_runs_no_method_that_may_do_harm(tmp_path: Path) -> None:
    """Where none is idempotent, it asks for the methods."""
    (tmp_path / "harmful.py").write_text(HARMFUL, encoding="utf-8")
    with Ledger() as ledger, Server(ledger, actor=f"{tmp_path}/harmful.py:Harmful") as server:
        line = next(line for line in server.told.splitlines() if line.startswith("curl"))
        assert line.endswith("/openapi.json")
        assert "-d" not in line.split()


HARMFUL: Final = """
from atomr_mp_workers import Actor, method


class Harmful(Actor):
    @method
    def delete_all(self) -> None:
        raise SystemExit
"""
"""An actor's file."""


def request(server: Server, path: str, body: bytes) -> bytes:
    """Return a request's bytes."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


def references(value: Any) -> Iterator[str]:
    """Yield all references of a document."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def metric(server: Server, name: str) -> float:
    """Return a metric's value, 0 if it is not there."""
    for line in server.ask("GET", "/metrics").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    return 0.0


def in_flight(server: Server) -> float:
    """Return how many requests are being answered, but for the one that asks."""
    return metric(server, "atomr_mp_http_in_flight") - 1


def left(server: Server) -> float:
    """Return how many clients have left before their answer."""
    return metric(server, 'atomr_mp_http_requests_total{route="call",status="499"}')
