from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from tests.actors.scribbling import expected
from tests.contract.calls.test_scribbling import LENGTHS, METHODS, SCRIBBLER, STREAMS
from tests.contract.serve.test_serve import metric
from tests.serving import Server, read_all
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

REFUSED = "atomr_mp_http_connections_refused_total"
TALKER = f"{ACTORS}/served.py:Talker"


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server that the tests share."""
    with Server(
        ledger, "--actor", TALKER, "--actor", SCRIBBLER, "--limit", "stall_s=1", "--limit", "streams=150"
    ) as own:
        yield own


def request(server: Server, method: str, arguments: dict[str, Any], accept: str = "text/event-stream") -> bytes:
    """Return a request for a stream."""
    body = json.dumps(arguments).encode()
    head = (
        f"POST /call/{method} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\naccept: {accept}\r\n\r\n"
    )
    return head.encode() + body


def open_stream(server: Server, method: str, arguments: dict[str, Any], accept: str = "*/*") -> HTTPResponse:
    """Return an answer that has begun."""
    connection = server.connect()
    connection.sendall(request(server, method, arguments, accept))
    response = HTTPResponse(connection)
    response.begin()
    connection.close()  # the response has a descriptor of its own
    return response


def events(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream."""
    found = []
    for each in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in each.splitlines() if line and not line.startswith(":"))
        if fields:
            found.append((fields.get("event", ""), json.loads(fields["data"])))
    return found


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream", "application/jsonl", "application/x-ndjson"])
def test_a_stream_comes_part_by_part_with_an_end(server: Server, accept: str) -> None:
    """Parts are events or lines; the last has their number, and what the method has returned."""
    with open_stream(server, "Served.count", {"upto": 5}, accept) as response:
        text = response.read().decode()
        kind = response.getheader("content-type")
        assert response.getheader("x-accel-buffering") == "no"
    end = {"parts": 5, "result": "counted"}
    if "json" in accept:
        assert kind == "application/jsonl"
        assert [json.loads(line) for line in text.splitlines()] == [*({"part": n} for n in range(5)), {"end": end}]
    else:
        assert kind is not None
        assert kind.startswith("text/event-stream")
        assert events(text) == [*(("", n) for n in range(5)), ("end", end)]


@pytest.mark.parametrize("method", METHODS)
def test_each_client_gets_its_own_result(server: Server, method: str) -> None:
    """Many ask at a time, and the actor makes all results in the same memory."""
    length = LENGTHS[1]

    def ask(seed: int) -> list[int]:
        found: list[int] = server.call(f"Scribbler.{method}", {"asked": [seed, length]}).json()
        return found

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for seed, found in enumerate(threads.map(ask, range(24))):
            assert found == expected(seed, length).tolist()


@pytest.mark.parametrize("method", STREAMS)
def test_each_part_is_what_was_yielded(server: Server, method: str) -> None:
    """The method overwrites the memory of each as soon as it goes on."""
    length = LENGTHS[1]
    arguments = {"seed": 5, "length": length, "count": 6}
    with open_stream(server, f"Scribbler.{method}", arguments, "application/jsonl") as response:
        parts = [json.loads(line) for line in response.read().splitlines()]
    assert parts[:-1] == [{"part": expected(5 + number, length).tolist()} for number in range(6)]


def test_a_part_is_there_before_the_next_is_made(server: Server, ledger: Ledger) -> None:
    """Nothing collects parts."""
    with (
        ledger.gate("third") as gate,
        open_stream(server, "Served.count", {"upto": 3, "gate": gate.path, "at": 2}, "application/jsonl") as found,
    ):
        assert [found.readline() for _ in range(2)] == [b'{"part":0}\n', b'{"part":1}\n']
        gate.wait()
        gate.open()
        assert found.readline() == b'{"part":2}\n'
        assert b'"end"' in found.readline()


def test_an_error_before_the_first_part_has_a_status(server: Server) -> None:
    """The status is that of a call; arguments are checked first, too."""
    failed = server.call("Served.count", {"upto": 3, "at": 0, "how": "exception"})
    assert (failed.status, failed.error["code"]) == (500, "actor_failed")
    assert server.call("Served.count", {"upto": "many"}).status == 422
    assert server.call("Served.count", {"upto": 1}, accept="application/json").status == 406
    late = server.call("Served.count", {"upto": 1}, x_first_s="0")
    assert late.status == 400


def test_an_error_after_it_is_the_last_event(server: Server) -> None:
    """It has all that other errors have, and how many parts have come."""
    with open_stream(server, "Served.count", {"upto": 5, "at": 3, "how": "exception"}) as response:
        *parts, (name, error) = events(response.read().decode())
    assert parts == [("", 0), ("", 1), ("", 2)]
    assert (name, error["code"], error["parts"], error["maybe_executed"]) == ("error", "actor_failed", 3, True)


def test_a_killed_worker_ends_a_stream_with_an_error(server: Server, ledger: Ledger) -> None:
    """Arrived parts stay, and the stream says that it is not whole."""
    with (
        ledger.gate("killed") as gate,
        open_stream(server, "Served.count", {"upto": 5, "gate": gate.path, "at": 2}, "application/jsonl") as found,
    ):
        assert [found.readline() for _ in range(2)] == [b'{"part":0}\n', b'{"part":1}\n']
        (pid,) = gate.wait()
        os.kill(pid, signal.SIGKILL)
        error = json.loads(found.readline())["error"]
        assert (error["code"], error["parts"]) == ("worker_lost", 2)
        assert found.readline() == b""
    with atomr_mp.connect(run_dir=ledger.run_dir()) as pool:
        pool.wait_ready()


def test_a_consumer_that_leaves_closes_the_generator(server: Server, ledger: Ledger) -> None:
    """The generator ends at its next step, whether or not anything is sent."""
    with ledger.gate("left") as gate:
        response = open_stream(server, "Served.count", {"upto": 777, "gate": gate.path, "at": 2}, "application/jsonl")
        assert response.readline() == b'{"part":0}\n'
        gate.wait()
        response.close()
        gate.open()
        assert settled(lambda: "closed-777" in ledger.runs())
    assert settled(lambda: metric(server, "atomr_mp_http_streams") == 0)


def begins(connection: socket.socket) -> bool:
    """Wait for an answer to begin, and read nothing of it."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(DEADLINE_S * 1e3))


def test_consumers_that_do_not_read_hold_up_nobody(server: Server, ledger: Ledger) -> None:
    """By the hundred: memory stays flat, others are answered, and the stalled are disconnected."""
    (front_end,) = server.front_ends()
    before, refused = memory(front_end), metric(server, REFUSED)
    with contextlib.ExitStack() as closing:
        stalled = []
        for _ in range(100):
            connection = closing.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(DEADLINE_S)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(request(server, "Served.fill", {"nbytes": 20000}))
            stalled.append(connection)
        for connection in stalled:
            assert begins(connection)
        for _ in range(20):
            assert server.call("Served.length", ["word"]).status == 200
        assert memory(front_end) - before < 100 * 2**20
        assert settled(lambda: metric(server, REFUSED) >= refused + 100)
    assert settled(lambda: metric(server, "atomr_mp_http_streams") == 0)
    with atomr_mp.connect(run_dir=ledger.run_dir()) as pool:
        assert settled(lambda: pool.status().devices[0].queue_depth == 0)


def test_there_are_only_so_many_streams(server: Server, ledger: Ledger) -> None:
    """One more is refused with 429; the limit is the front end's."""
    with ledger.gate("many") as gate, contextlib.ExitStack() as closing:
        one = request(server, "Served.count", {"upto": 1, "gate": gate.path, "at": 0})
        waiting = []
        for _ in range(150):
            waiting.append(closing.enter_context(server.connect()))
            waiting[-1].sendall(one)
        assert settled(lambda: metric(server, "atomr_mp_http_streams") >= 150)
        assert server.call("Served.count", {"upto": 1}).status == 429
        for connection in waiting:
            connection.close()
        gate.open(150)
    assert settled(lambda: metric(server, "atomr_mp_http_streams") == 0)


def test_an_open_stream_ends_with_an_error_when_the_server_ends(ledger: Ledger) -> None:
    """At once: SIGTERM does not wait for those who listen for ever, nor does the page keep the server."""
    with Server(ledger, run_dir="ending") as server, ledger.gate("ends") as gate:
        stream = {"upto": 3, "gate": gate.path, "at": 1}
        with open_stream(server, "Served.count", stream, "application/jsonl") as found:
            assert found.readline() == b'{"part":0}\n'
            gate.wait()
            with server.connect() as page:
                head = f"GET /watch/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n\r\n"
                page.sendall(head.encode())
                assert settled(lambda: metric(server, "atomr_mp_http_streams") == 2)
                begun_s = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                assert json.loads(found.readline())["error"]["code"] == "ending"
                assert found.readline() == b""
                assert b"event: end" in read_all(page)
                assert time.monotonic() - begun_s < DEADLINE_S / 2  # before anything was cut off for its time
            gate.open()
        assert server.process.wait(DEADLINE_S) == 0


def test_openai_s_client_reads_a_chat_as_it_is_made(server: Server) -> None:
    """Part by part, with the reason for its end; an error in the middle is the client's own."""
    openai: Any = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token, max_retries=0) as client:
        create = client.chat.completions.create

        def chat(text: str, **more: Any) -> Any:
            return create(model="Talker", messages=[{"role": "user", "content": text}], **more)

        with chat("one two three", stream=True, max_tokens=2) as stream:
            chunks = list(stream)
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["one", " two", None]
        assert chunks[-1].choices[0].finish_reason == "length"
        whole = chat("one two three")
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("one two three", "stop")
        with pytest.raises(openai.APIError, match="on purpose"), chat("one fail", stream=True) as stream:
            list(stream)
        with pytest.raises(openai.InternalServerError, match="on purpose"):
            chat("fail", stream=True)


def memory(pid: int) -> int:
    """Return a process's resident memory, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")
