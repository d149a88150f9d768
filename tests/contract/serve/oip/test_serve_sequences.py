"""Sequences, by Triton's own clients over HTTP and gRPC."""

from __future__ import annotations

import concurrent.futures
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.inferring import Stream, bearer, client_of, tensor, texts
from tests.serving import Answer, Server
from tests.support import ACTORS, Ledger, settled

pytest.importorskip("httptools")

ACTOR: Final = f"{ACTORS}/sequences.py:Accumulating"

START: Final = "must specify the START flag on the first request of the sequence"

MODELS: Final = """
[sums]
method = "Accumulating.add"
sequence_to = "sequence"
sequence_idle_s = 30.0

[brief]
method = "Accumulating.add"
sequence_to = "sequence"
sequence_idle_s = 0.2

[more]
method = "Accumulating.add"
sequence_to = "sequence"
sequence_idle_s = 30.0

[held]
method = "Accumulating.hold"
sequence_to = "sequence"
sequence_idle_s = 30.0
"""

CONFIG: Final = """
name: "triton_sums"
max_batch_size: 8
input [ { name: "value" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "total" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "pid" data_type: TYPE_INT64 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  direct {}
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
parameters { key: "method" value { string_value: "Accumulating.add_rows" } }
parameters { key: "input.START" value { string_value: "begins" } }
parameters { key: "input.END" value { string_value: "ends" } }
parameters { key: "input.READY" value { string_value: "ready" } }
parameters { key: "input.CORRID" value { string_value: "correlation" } }
"""


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


def described(path: Path) -> list[str]:
    """Return the options for both descriptions."""
    (path / "models.toml").write_text(MODELS)
    (path / "config.pbtxt").write_text(CONFIG)
    return ["--models", str(path / "models.toml"), "--models", str(path / "config.pbtxt")]


@pytest.fixture(scope="module")
def server(ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with three front ends and two devices."""
    options = described(tmp_path_factory.mktemp("models"))
    with Server(
        ledger, "--workers", "3", "--gpus", "2", "--grpc-port", "0", "--limit", "sequences=64", *options, actor=ACTOR
    ) as found:
        assert settled(lambda: found.ask("GET", "/v2/health/ready").status == 200)
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    """Triton's client of gRPC."""
    with client_of(server) as found:
        yield found


class Asker:
    """Adds numbers to sequences by Triton's client.

    Args:
        client: The client.
        server: The server.
        model: The model.
    """

    def __init__(self, client: triton.InferenceServerClient, server: Server, model: str = "sums") -> None:
        self._client: Final = client
        self._headers: Final = bearer(server)
        self._model: Final = model

    def add(self, sequence: int | str, value: int, *, start: bool = False, end: bool = False, **more: Any) -> list[int]:
        """Return the sum, and the pid of the worker that has made it."""
        shape = (1, 1) if self._model == "triton_sums" else (1,)
        answer = self._client.infer(
            self._model,
            [tensor("value", np.full(shape, value, np.int64))],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
            headers=self._headers,
            **more,
        )
        return [int(answer.as_numpy(name).flat[0]) for name in ("total", "pid")]


def test_sequences_are_added_up_each_by_itself(client: triton.InferenceServerClient, server: Server) -> None:
    """Many at a time, on several devices and front ends, by numbers and by texts."""
    asker, rng = Asker(client, server), random.Random(5)
    names = [*range(1, 21), *(f"s{each}" for each in range(20)), 2**63 - 1]
    sums: dict[int | str, int] = {}
    where: dict[int | str, int] = {}
    for _ in range(400):
        name, value = rng.choice(names), rng.randrange(1000)
        starts, ends = name not in sums or rng.random() < 0.05, rng.random() < 0.1
        sums[name] = value + (0 if starts else sums[name])
        total, pid = asker.add(name, value, start=starts, end=ends)
        assert total == sums[name]
        assert starts or pid == where[name]
        where[name] = pid
        if ends:
            del sums[name]
    assert len(set(where.values())) == 2
    for name, expected in sums.items():
        assert asker.add(name, 0, end=True)[0] == expected


def test_controls_are_tensors(client: triton.InferenceServerClient, server: Server) -> None:
    """As a config.pbtxt of Triton's describes them."""
    asker = Asker(client, server, "triton_sums")
    assert asker.add(7, 1, start=True)[0] == 1
    assert asker.add(7, 5)[0] == 6
    assert asker.add(7, 10, end=True)[0] == 16
    with pytest.raises(InferenceServerException, match=START):
        asker.add(7, 1)
    with pytest.raises(InferenceServerException, match="sequence_id is a text"):
        asker.add("seven", 1, start=True)
    config = client.get_model_config("triton_sums", headers=bearer(server), as_json=True)["config"]
    assert config["sequence_batching"]["max_sequence_idle_microseconds"] == "5000000"
    assert [each["name"] for each in config["sequence_batching"]["control_input"]] == [
        "START",
        "END",
        "READY",
        "CORRID",
    ]
    assert [each["name"] for each in config["input"]] == ["value"]


def test_requests_on_a_stream_run_in_their_order(client: triton.InferenceServerClient, server: Server) -> None:
    """Though none waits for the answer to the one before."""
    with Stream(client, bearer(server)) as stream:
        expected: dict[str, int] = {}
        sums = [0, 0, 0]
        for at in range(90):
            which = at % 3
            sums[which] += at
            expected[str(at)] = sums[which]
            stream.ask(
                "sums",
                tensor("value", np.array([at], np.int64)),
                request_id=str(at),
                sequence_id=100 + which,
                sequence_start=at < 3,
                sequence_end=at >= 87,
            )
        for _ in range(90):
            answer = stream.next()
            assert answer.as_numpy("total")[0] == expected[answer.get_response().id]


def post(server: Server, model: str, value: int, wait_s: float = 0.0, **parameters: Any) -> Answer:
    """Ask by HTTP, on a connection of its own, so that any front end may answer."""
    inputs: list[dict[str, Any]] = [{"name": "value", "datatype": "INT64", "shape": [1], "data": [value]}]
    if wait_s:
        inputs.append({"name": "wait_s", "datatype": "FP64", "shape": [1], "data": [wait_s]})
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    return server.ask("POST", f"/v2/models/{model}/infer", body.encode())


def total(answer: Answer) -> int:
    """Return the sum in an answer."""
    assert answer.status == 200, answer.body
    return int(answer.json()["outputs"][0]["data"][0])


def test_sequences_are_those_of_all_front_ends(server: Server) -> None:
    """Each request may come to another one, over HTTP or gRPC."""
    assert total(post(server, "sums", 1, sequence_id=200, sequence_start=True)) == 1
    for at in range(2, 20):
        assert total(post(server, "sums", 1, sequence_id=200)) == at
    with client_of(server) as client:
        assert Asker(client, server).add(200, 1)[0] == 20
    assert total(post(server, "sums", 1, sequence_id="200", sequence_start=True, sequence_end=True)) == 1
    assert total(post(server, "sums", 1, sequence_id=200, sequence_end=True)) == 21
    generated = json.dumps({"value": 3, "sequence_id": 201, "sequence_start": True, "sequence_end": True})
    assert server.ask("POST", "/v2/models/sums/generate", generated.encode()).json()["total"] == 3


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 0, "sequence_start": True}, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": "", "sequence_start": True}, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": -1, "sequence_start": True}, "sequence_id is a whole number"),
        ({"sequence_id": 2**64, "sequence_start": True}, "sequence_id is a whole number"),
        ({"sequence_id": 1.5, "sequence_start": True}, "sequence_id is a whole number"),
        ({"sequence_id": True, "sequence_start": True}, "sequence_id is a whole number"),
        ({"sequence_id": "x" * 129, "sequence_start": True}, "more than 128 bytes"),
        ({"sequence_id": 5, "sequence_start": 1}, "sequence_start is true or false"),
        ({"sequence_id": 5, "sequence_start": True, "sequence_end": "no"}, "sequence_end is true or false"),
        ({"sequence_id": 5}, f"inference request for sequence 5 to model 'sums' {START}"),
        ({"sequence_id": "five", "sequence_end": True}, f"inference request for sequence five to model 'sums' {START}"),
    ],
)
def test_what_is_no_request_of_a_sequence_is_refused(server: Server, parameters: dict[str, Any], text: str) -> None:
    """In Triton's words where it has some, and nothing is open then."""
    answer = post(server, "sums", 1, **parameters)
    assert answer.status == 400
    assert text in answer.json()["error"]


def test_a_sequence_has_one_row(client: triton.InferenceServerClient, server: Server) -> None:
    """As Triton's own scheduler asks for."""
    with pytest.raises(InferenceServerException, match="must specify batch-size 1"):
        client.infer(
            "triton_sums",
            [tensor("value", np.ones((2, 1), np.int64))],
            sequence_id=5,
            sequence_start=True,
            headers=bearer(server),
        )


def test_a_sequence_begins_anew_goes_on_after_an_error_and_ends(server: Server) -> None:
    """By START; an error of the method is its own matter; END is the last request, even if it fails."""
    assert total(post(server, "sums", 5, sequence_id=210, sequence_start=True)) == 5
    assert total(post(server, "sums", 7, sequence_id=210, sequence_start=True)) == 7
    failed = post(server, "sums", -1, sequence_id=210)
    assert (failed.status, "ValueError" in failed.json()["error"]) == (500, True)
    assert post(server, "sums", 1, 0.0, sequence_id=210, timeout="no").status == 400
    assert total(post(server, "sums", 1, sequence_id=210)) == 8
    assert post(server, "sums", -1, sequence_id=210, sequence_end=True).status == 500
    assert START in post(server, "sums", 1, sequence_id=210).json()["error"]


def test_a_sequence_without_requests_ends(server: Server) -> None:
    """After the time that its model gives it."""
    assert total(post(server, "brief", 5, sequence_id=220, sequence_start=True)) == 5
    time.sleep(0.3)  # the time is what is tested
    answer = post(server, "brief", 1, sequence_id=220)
    assert answer.status == 400
    assert "had no request for too long" in answer.json()["error"]
    assert START in answer.json()["error"]


def test_a_model_without_sequences_takes_no_notice(server: Server) -> None:
    """As in Triton."""
    assert total(post(server, "Accumulating.same", 5, sequence_id=230)) == 5


def test_requests_at_once_run_one_by_one(server: Server) -> None:
    """In one front end they wait; one that comes to another front end is refused, and can be sent again."""
    assert total(post(server, "sums", 0, sequence_id=240, sequence_start=True)) == 0
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: post(server, "sums", 1, 0.01, sequence_id=240), range(24)))
    sums = sorted(total(answer) for answer in answers if answer.status == 200)
    assert sums == list(range(1, len(sums) + 1))
    for answer in answers:
        if answer.status != 200:
            assert answer.status == 503
            assert "runs in another process of the server" in answer.json()["error"]
            assert int(answer.headers["retry-after"]) >= 1
    assert total(post(server, "sums", 1, sequence_id=240, sequence_end=True)) == len(sums) + 1


def test_a_request_whose_turn_does_not_come_in_time_has_not_run(
    client: triton.InferenceServerClient, server: Server, ledger: Ledger
) -> None:
    """Its sequence goes on without it. One that may have run leaves a sequence that has to begin anew."""
    value = tensor("value", np.array([1], np.int64))
    with ledger.gate("turns") as gate, Stream(client, bearer(server)) as stream:
        stream.ask("held", value, tensor("gate", texts(gate.path)), sequence_id=250, sequence_start=True)
        gate.wait()
        stream.ask("held", value, tensor("gate", texts(gate.path)), sequence_id=250, timeout=50_000)
        with pytest.raises(InferenceServerException, match="an earlier request of its sequence has no answer yet"):
            stream.next()
        gate.open()
        assert stream.next().as_numpy("total")[0] == 1
        stream.ask("held", value, tensor("gate", texts(gate.path)), sequence_id=250, timeout=1_000_000)
        gate.wait()
        with pytest.raises(InferenceServerException, match="sequence 250 has ended, since the request may have run"):
            stream.next()
        gate.open()
        stream.ask("held", value, tensor("gate", texts(gate.path)), sequence_id=250)
        with pytest.raises(InferenceServerException, match=f"{START}: an earlier request of it has no known end"):
            stream.next()


def test_requests_behind_a_refused_start_do_not_run_on_the_old_state(
    client: triton.InferenceServerClient, server: Server, ledger: Ledger
) -> None:
    """They were sent for the new one. A further start begins it."""
    value, shared = tensor("value", np.array([1], np.int64)), {"sequence_id": 260}
    with ledger.gate("behind") as gate, Stream(client, bearer(server)) as stream:
        inputs = (value, tensor("gate", texts(gate.path)))
        stream.ask("held", *inputs, sequence_start=True, **shared)
        gate.wait()
        stream.ask("held", *inputs, sequence_start=True, timeout=50_000, **shared)
        for ends in (False, True):
            stream.ask("held", *inputs, sequence_end=ends, **shared)
        stream.ask("held", *inputs, sequence_start=True, **shared)
        with pytest.raises(InferenceServerException, match="an earlier request of its sequence has no answer yet"):
            stream.next()
        gate.open(2)
        assert stream.next().as_numpy("total")[0] == 1
        for _ in range(2):
            with pytest.raises(InferenceServerException, match=f"{START}: the request that was to begin it anew was"):
                stream.next()
        assert stream.next().as_numpy("total")[0] == 1


def test_no_more_sequences_are_open_than_the_limit_says(ledger: Ledger, tmp_path: Path) -> None:
    """The next one is refused until one ends; the others go on."""
    options = described(tmp_path)
    with Server(ledger, "--workers", "2", "--limit", "sequences=3", *options, actor=ACTOR, run_dir="few") as server:
        for number in range(1, 4):
            assert total(post(server, "sums", number, sequence_id=number, sequence_start=True)) == number
        refused = post(server, "sums", 1, sequence_id=4, sequence_start=True)
        assert (refused.status, "the limit `sequences`" in refused.json()["error"]) == (503, True)
        assert total(post(server, "sums", 1, sequence_id=1, sequence_end=True)) == 2
        assert total(post(server, "sums", 1, sequence_id=4, sequence_start=True)) == 1
        assert total(post(server, "sums", 1, sequence_id=3)) == 4


def test_two_models_of_one_method_have_sequences_of_their_own(ledger: Ledger, tmp_path: Path) -> None:
    """The method gets the model's name beside the id."""
    with Server(ledger, *described(tmp_path), actor=ACTOR, run_dir="two") as server:
        for model, value in (("sums", 1), ("more", 100)):
            assert total(post(server, model, value, sequence_id=7, sequence_start=True)) == value
        for model, value in (("sums", 2), ("more", 101)):
            assert total(post(server, model, 1, sequence_id=7, sequence_end=True)) == value


def test_triton_s_client_of_http_asks_too(server: Server) -> None:
    """With the parameters that it makes of its arguments."""
    gevent: Any = pytest.importorskip("gevent")
    http: Any = pytest.importorskip("tritonclient.http")
    value = http.InferInput("value", [1], "INT64")
    value.set_data_from_numpy(np.array([2], np.int64))
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for at in range(4):
            flags = {"sequence_start": at == 0, "sequence_end": at == 3}
            answer = client.infer("sums", [value], sequence_id=260, headers=bearer(server), **flags)
            assert answer.as_numpy("total")[0] == 2 * (at + 1)
        assert "sequence" in client.get_server_metadata(headers=bearer(server))["extensions"]
    gevent.get_hub().destroy(destroy_loop=True)  # its thread and its descriptors
