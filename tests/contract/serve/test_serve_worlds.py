"""HTTP over a world: a method of its actor runs as a call of the world, and answers as any other."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import atomr_mp
from tests.contract.serve.test_serve_streams import events, open_stream
from tests.serving import CLI, Server
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import on_host

ACTOR = f"{ACTORS}/worldly_served.py:WorldlyServed"
WORLD = "WorldlyServed"
SIZE = 2

pytestmark = on_host


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Server, atomr_mp.Pool]]:
    """A server over a pool with a world of two ranks."""
    worlds = {"tp": {"devices": [0, 1], "actors": [WORLD], "begin_timeout_s": 1.0}}
    with (
        Ledger() as ledger,
        ledger.start(ACTOR, gpus=SIZE, worlds=worlds, max_restarts=1000, backoff_initial_s=0.0) as pool,
        Server(ledger, actor=None) as server,
    ):
        pool.world("tp").wait_ready(DEADLINE_S)
        yield server, pool


@pytest.fixture
def server(serving: tuple[Server, atomr_mp.Pool]) -> Server:
    """The server, whose world is ready."""
    serving[1].world("tp").wait_ready(DEADLINE_S)
    return serving[0]


@pytest.fixture
def pool(serving: tuple[Server, atomr_mp.Pool]) -> atomr_mp.Pool:
    """Its pool."""
    return serving[1]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token, max_retries=0) as made:
        yield made


def test_a_call_runs_on_all_ranks_and_answers_with_rank_0_s_result(server: Server) -> None:
    """By JSON, by name and by position, and by raw arrays, large ones too."""
    assert server.call(f"{WORLD}.rank").json() == 0
    assert server.call(f"{WORLD}.scaled", {"array": [1, 2.5], "factor": 2}).json() == [4, 10]
    assert server.call(f"{WORLD}.scaled", [[1, 2]]).json() == [2, 4]
    array, sent = np.arange(100_000.0), io.BytesIO()
    np.save(sent, array)
    answer = server.ask(
        "POST",
        f"/call/{WORLD}.scaled",
        sent.getvalue(),
        {"content-type": "application/x-npy", "accept": "application/x-npy"},
    )
    assert answer.status == 200
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.body)), SIZE * array)


def test_many_clients_at_once(server: Server) -> None:
    """Each gets its own answer."""
    found: dict[int, list[Any]] = {}

    def use(number: int) -> None:
        found[number] = [server.call(f"{WORLD}.scaled", [[number, n]]).json() for n in range(20)]

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [[SIZE * number, SIZE * n] for n in range(20)] for number in range(8)}


def test_an_error_tells_its_rank(server: Server) -> None:
    """And that the call has run."""
    answer = server.call(f"{WORLD}.fail", {"rank": 1})
    assert (answer.status, answer.error["code"], answer.error["maybe_executed"]) == (500, "actor_failed", True)
    assert answer.error["facts"]["rank"] == 1
    assert "on purpose" in answer.error["message"]
    assert settled(lambda: f"(request {answer.error['request_id']}, device 1 generation " in server.log())
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_s_end_costs_a_delay_or_is_told(server: Server, tmp_path: Path, rank: int) -> None:
    """By the method; what has run and may not run twice is 500, never a status after which it is repeated."""
    assert server.call(f"{WORLD}.end_first", {"rank": rank, "times": str(tmp_path / "once")}).json() == SIZE
    answer = server.call(f"{WORLD}.end_once", {"rank": rank})
    assert (answer.status, answer.error["maybe_executed"]) == (500, True)
    assert answer.error["code"] in {"worker_lost", "collective_aborted"}
    assert answer.headers["x-should-retry"] == "false"
    assert settled(lambda: f"ran when its worker ended, and ended otherwise later: {WORLD}.end_first" in server.log())


def test_calls_wait_for_the_next_epoch(server: Server, pool: atomr_mp.Pool) -> None:
    """Until their deadline."""
    os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
    assert server.call(f"{WORLD}.scaled", [[1]]).json() == [SIZE]
    pid = pool.devices[0].pid or 0
    os.kill(pid, signal.SIGSTOP)  # no epoch forms or ends with it
    try:
        answer = server.call(f"{WORLD}.wait", {"seconds": 0.0}, x_deadline_s="0.3")
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_deadline_ends_the_answer_alone(server: Server) -> None:
    """What is behind it is answered."""
    answer = server.call(f"{WORLD}.wait", {"seconds": 0.5}, x_deadline_s="0.1")
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert server.call(f"{WORLD}.wait", {"seconds": 0.0}).json() == SIZE


def test_a_client_that_leaves_holds_nobody_up(server: Server) -> None:
    """Its call goes on to its end on all ranks, and the next one is answered."""
    body = json.dumps({"seconds": 0.3}).encode()
    head = f"POST /call/{WORLD}.wait HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    for _ in range(3):
        with server.connect() as connection:
            connection.sendall(head.encode() + body)
    assert server.call(f"{WORLD}.wait", {"seconds": 0.0}).json() == SIZE


def test_wrong_use_is_told(server: Server) -> None:
    """As of any method; a priority has no meaning in a world."""
    answer = server.call(f"{WORLD}.rank", x_priority="1")
    assert (answer.status, answer.error["code"]) == (422, "invalid_request")
    assert "belongs to the world tp" in answer.error["message"]
    assert server.call(f"{WORLD}.rank", x_priority="0").status == 200
    assert server.call(f"{WORLD}.scaled", {"array": "text"}).status == 422
    assert server.call(f"{WORLD}.scaled").status == 422
    assert server.call(f"{WORLD}.nope").status == 404


def test_the_document_has_its_methods(server: Server) -> None:
    """With their parameters and OpenAI's paths."""
    paths = server.ask("GET", "/openapi.json").json()["paths"]
    body = paths[f"/call/{WORLD}.scaled"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["anyOf"][0]["properties"].keys() == {"array", "factor"}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"} <= paths.keys()


def test_openai_s_forms(client: openai.OpenAI) -> None:
    """Whole, and as events of one part; several prompts and inputs are a call each."""
    messages: Any = [{"role": "user", "content": "this"}]
    said = "2 have read 'this' at 0.5"
    answer = client.chat.completions.create(model=WORLD, messages=messages, temperature=0.5)
    assert answer.choices[0].message.content == said
    chunks = list(client.chat.completions.create(model=WORLD, messages=messages, temperature=0.5, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    assert client.responses.create(model=WORLD, input="this").output_text == "2 have read 'this' at 1"
    completed = client.completions.create(model=WORLD, prompt=["a", "b"])
    assert [each.text for each in completed.choices] == ["a: 2", "b: 2"]
    embedded = client.embeddings.create(model=WORLD, input=["a", "bcd"])
    assert [each.embedding for each in embedded.data] == [[2, 2, 2], [6, 6, 6]]


def test_it_is_ready_while_its_world_is(server: Server, pool: atomr_mp.Pool) -> None:
    """No world takes calls while a member starts, though a device answers."""
    for path in ("/health/ready", f"/health/ready?method={WORLD}.rank"):
        assert server.ask("GET", path, token="").json() == {"ready": True, "reason": ""}
    assert server.ask("GET", "/health/ready?method=No.such", token="").status == 404
    seen: list[str] = []

    def is_down() -> bool:
        answer = server.ask("GET", f"/health/ready?method={WORLD}.rank", token="")
        if answer.status == 503:
            seen.append(answer.json()["reason"])
        return bool(seen)

    os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
    assert settled(is_down, DEADLINE_S)
    assert "no world takes calls: tp is " in seen[0]
    assert settled(lambda: server.ask("GET", "/health/ready", token="").status == 200, DEADLINE_S)
    assert json.loads(server.call(f"{WORLD}.rank").body) == 0


def test_the_command_starts_a_world(ledger: Ledger) -> None:
    """Of all actors of the pool that it starts; it is of no use for a pool that runs."""
    with Server(ledger, "--gpus", str(SIZE), "--world", "tp=0,1", actor=ACTOR) as server:
        assert server.call(f"{WORLD}.scaled", [[1]]).json() == [SIZE]
    refused = subprocess.run(
        [*CLI, "serve", "--port", "0", "--world", "0,1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert refused.returncode == 1
    assert "--world and --set are of a pool that is started" in " ".join(refused.stderr.split())


def test_a_generator_streams_as_events(server: Server) -> None:
    """The events are what rank 0 yields, and at the end what it returns; an error of any rank names it."""
    with open_stream(server, f"{WORLD}.sums", {"upto": 4, "fails": -1}) as response:
        found = events(response.read().decode())
    assert found == [*(("", float(2 * n)) for n in range(4)), ("end", {"parts": 4, "result": 0})]
    with open_stream(server, f"{WORLD}.sums", {"upto": 4, "fails": 1}) as response:
        *parts, (kind, error) = events(response.read().decode())
    assert parts == [("", 0.0), ("", 2.0)]
    assert (kind, error["code"], error["facts"]["rank"]) == ("error", "actor_failed", 1)
