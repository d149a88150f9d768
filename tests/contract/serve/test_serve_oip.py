"""The Open Inference Protocol over HTTP, by Triton's own client and by plain requests."""

from __future__ import annotations

import concurrent.futures
import json
import os
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from tests.serving import Answer, Server
from tests.support import ACTORS, Ledger, settled

pytest.importorskip("httptools")
gevent: Any = pytest.importorskip("gevent")
triton: Any = pytest.importorskip("tritonclient.http")
utils: Any = pytest.importorskip("tritonclient.utils")

MODELLED: Final = f"{ACTORS}/oip_models.py:Modelled"

ADD_SUB: Final = "Modelled.add_sub"

ARRAYS: Final = {
    "bool": np.array([[True, False], [False, True]]),
    "uint8": np.array([0, 255], np.uint8),
    "int64": np.array([[-(2**63)], [2**63 - 1]]),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "float16": np.array([0.5, -65504.0], np.float16),
    "float32": np.array([[[1.1, np.nan, np.inf, -np.inf]]], np.float32),
    "float64": np.array([np.pi, 5e-324, -0.0]),
    "bytes": np.array([b"", b"\x00\xff", "\u00e9".encode()], dtype=object),
}


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module", params=[1, 3], ids=["one", "three"])
def server(ledger: Ledger, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with one front end, or several."""
    count = str(request.param)
    with Server(ledger, "--workers", count, actor=MODELLED, run_dir=f"run-{count}") as found:
        assert settled(lambda: found.ask("GET", "/v2/health/ready").status == 200)
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """Triton's client."""
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8) as found:
        found.register_plugin(_Token(server.token))
        yield found
    gevent.get_hub().destroy(destroy_loop=True)  # its thread and its descriptors


class _Token:
    """Adds the token to each request of Triton's client."""

    def __init__(self, token: str) -> None:
        self._token: Final = token

    def __call__(self, request: Any) -> None:
        request.headers["authorization"] = f"Bearer {self._token}"


def tensor(name: str, array: Any, *, binary: bool = True) -> Any:
    """Return an input."""
    made = triton.InferInput(name, list(array.shape), utils.np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def pair() -> list[Any]:
    """Return the inputs of the model that adds."""
    return [tensor("a", np.arange(6, dtype=np.int32)), tensor("b", np.full(6, 10, np.int32))]


def infer(server: Server, model: str, body: Any, **headers: str) -> Answer:
    """Ask for an inference in JSON, or in these bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.ask("POST", f"/v2/models/{model}/infer", data, named)


def test_a_client_finds_the_server_and_its_models(client: Any) -> None:
    """By health, metadata and configuration, also with the version."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(ADD_SUB)
    assert client.is_model_ready(ADD_SUB, "1")
    assert not client.is_model_ready("Modelled.nothing")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    told = client.get_model_metadata(ADD_SUB)
    assert told["inputs"] == [{"name": name, "datatype": "INT32", "shape": [-1]} for name in ("a", "b")]
    assert [each["name"] for each in told["outputs"]] == ["total", "difference"]
    assert told["versions"] == ["1"]
    config = client.get_model_config(ADD_SUB)
    assert config["max_batch_size"] == 0
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    optional = client.get_model_config("Modelled.several")["input"]
    assert [each["optional"] for each in optional] == [False, True, True, True]


@pytest.mark.parametrize("kind", list(ARRAYS))
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_each_type_crosses_both_ways(client: Any, kind: str, *, binary: bool) -> None:
    """As raw data and in JSON; what JSON does not have is refused in words."""
    array = ARRAYS[kind]
    if not binary and kind == "bytes":
        array = np.array(["", "a\x00b", "\u00e9"], dtype=object)
    if not binary and kind == "float16":
        given, asked = tensor("x", array), triton.InferRequestedOutput("output", binary_data=False)
        with pytest.raises(Exception, match="FP16, which JSON does not have"):
            client.infer("Modelled.same_float16", [given], outputs=[asked])
        return
    asked = triton.InferRequestedOutput("output", binary_data=binary)
    answer = client.infer(f"Modelled.same_{kind}", [tensor("x", array, binary=binary)], outputs=[asked], request_id="7")
    found = answer.as_numpy("output")
    assert answer.get_response()["id"] == "7"
    assert found.shape == array.shape
    if kind == "bytes":
        assert [each if isinstance(each, bytes) else each.encode() for each in found.tolist()] == [
            each if isinstance(each, bytes) else each.encode() for each in array.tolist()
        ]
    else:
        assert found.dtype == array.dtype
        assert np.array_equal(found, array, equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize("inward", [None, "gzip", "deflate"])
@pytest.mark.parametrize("outward", [None, "gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(client: Any, inward: str | None, outward: str | None) -> None:
    """The answer's coding is the one that was asked for."""
    options = {"request_compression_algorithm": inward, "response_compression_algorithm": outward}
    answer = client.infer(ADD_SUB, pair(), **options)
    assert answer.as_numpy("total").tolist() == [10, 11, 12, 13, 14, 15]
    assert answer.as_numpy("difference").tolist() == [-10, -9, -8, -7, -6, -5]


def test_only_the_outputs_that_were_asked_for_come_in_the_models_order(client: Any) -> None:
    """Each in the form that it was asked for."""
    asked = [triton.InferRequestedOutput("difference", binary_data=False), triton.InferRequestedOutput("total")]
    told = client.infer(ADD_SUB, pair(), outputs=asked).get_response()["outputs"]
    assert [each["name"] for each in told] == ["total", "difference"]
    assert "data" in told[1]
    assert told[0]["parameters"] == {"binary_data_size": 24}
    answer = client.infer(ADD_SUB, pair(), outputs=[triton.InferRequestedOutput("difference", class_count=2)])
    assert answer.as_numpy("difference").tolist() == [b"-5:5", b"-6:4"]


def test_numbers_texts_and_lists_are_tensors_too(client: Any) -> None:
    """What is optional may be left out."""
    number = tensor("number", np.array([2]))
    answer = client.infer("Modelled.several", [number])
    assert answer.as_numpy("number").tolist() == [2]
    assert answer.as_numpy("share").tolist() == [0.5]
    assert answer.as_numpy("text").tolist() == [b"none"]
    assert answer.as_numpy("data").tolist() == [b""]
    assert answer.as_numpy("texts").tolist() == [b"none", b"none"]
    assert answer.as_numpy("values").tolist() == [0.5, 0.5]
    more = [tensor("text", np.array(["\u00e9"], dtype=object)), tensor("data", np.array([b"\xff"], dtype=object))]
    answer = client.infer("Modelled.several", [number, *more, tensor("share", np.array([0.25]))])
    assert answer.as_numpy("texts").tolist() == ["\u00e9".encode()] * 2
    assert answer.as_numpy("data").tolist() == [b"\xff"]
    assert answer.as_numpy("values").tolist() == [0.25, 0.25]


def test_many_in_flight_are_answered_each_with_its_own(client: Any) -> None:
    """By Triton's client's own concurrency."""
    asked = {
        number: client.async_infer("Modelled.same_int64", [tensor("x", np.array([number]))], request_id=str(number))
        for number in range(64)
    }
    for number, reply in asked.items():
        found = reply.get_result()
        assert found.as_numpy("output").tolist() == [number]
        assert found.get_response()["id"] == str(number)


X: Final = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}

BAD: Final[dict[str, tuple[Any, int, str]]] = {
    "no json": (b"{", 400, "no JSON"),
    "no object": ([], 400, "`inputs`"),
    "no inputs": ({}, 400, "`inputs`"),
    "empty inputs": ({"inputs": []}, 400, "`inputs`"),
    "no name": ({"inputs": [X | {"name": ""}]}, 400, "no `name`"),
    "other input": ({"inputs": [X | {"name": "y"}]}, 400, "no input 'y'"),
    "missing": ({"inputs": [X | {"name": "x"}], "outputs": [{}]}, 400, "no `name`"),
    "twice": ({"inputs": [X, X]}, 400, "twice"),
    "datatype": ({"inputs": [X | {"datatype": "FP31"}]}, 400, "no datatype 'FP31'"),
    "other datatype": ({"inputs": [X | {"datatype": "FP64"}]}, 400, "is FP32, not FP64"),
    "shape of text": ({"inputs": [X | {"shape": "2"}]}, 400, "a list of whole numbers"),
    "negative": ({"inputs": [X | {"shape": [-2]}]}, 400, "negative"),
    "huge": ({"inputs": [X | {"shape": [2**40, 2**40]}]}, 400, "larger than any memory"),
    "wraps": ({"inputs": [X | {"shape": [2**62, 4]}]}, 400, "larger than any memory"),
    "zero and huge": ({"inputs": [X | {"shape": [0, 2**63], "data": []}]}, 400, "larger than any memory"),
    "too few": ({"inputs": [X | {"data": [1.0]}]}, 400, "1 elements"),
    "nested otherwise": ({"inputs": [X | {"data": [[1.0], [2.0]]}]}, 400, "nested"),
    "texts": ({"inputs": [X | {"data": ["a", "b"]}]}, 400, "numbers"),
    "too large": ({"inputs": [X | {"data": [1e39, 0]}]}, 400, "too large"),
    "no data": ({"inputs": [{k: v for k, v in X.items() if k != "data"}]}, 400, "neither"),
    "both": ({"inputs": [X | {"parameters": {"binary_data_size": 8}}]}, 400, "both"),
    "no bytes": ({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": 8}}]}, 400, "both"),
    "shared memory": (
        {"inputs": [X | {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
        400,
        "a region of shared memory",
    ),
    "other output": ({"inputs": [X], "outputs": [{"name": "z"}]}, 400, "no output 'z'"),
    "number as id": ({"inputs": [X], "id": 7}, 400, "`id`"),
    "list as parameter": ({"inputs": [X], "parameters": {"p": []}}, 400, "parameter 'p'"),
    "timeout": ({"inputs": [X], "parameters": {"timeout": -1}}, 400, "timeout"),
    "priority": ({"inputs": [X], "parameters": {"priority": "high"}}, 400, "priority"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_requests_are_refused_in_words(server: Server, name: str) -> None:
    """In Triton's form, and nothing runs."""
    body, status, words = BAD[name]
    answer = infer(server, "Modelled.same_float32", body)
    assert (answer.status, list(answer.json())) == (status, ["error"]), answer.body
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/Modelled.nothing", 404),
        ("/v2/models/Modelled.no_model", 404),
        (f"/v2/models/{ADD_SUB}/versions/2", 404),
        (f"/v2/models/{ADD_SUB}/versions/1", 200),
        (f"/v2/models/{ADD_SUB}/nothing", 404),
        (f"/v2/models/{ADD_SUB}/infer", 405),
        ("/v2/repository/index", 405),
        ("/v2/systemsharedmemory/status", 501),
        ("/v2/cudasharedmemory/region/r/register", 501),
        ("/v2/repository/models/m/load", 501),
        ("/v2/trace/setting", 501),
        ("/v2/logging", 501),
        ("/v2/nothing", 404),
        ("/v2/models/stats", 200),
    ],
)
def test_paths_have_triton_s_statuses(server: Server, path: str, status: int) -> None:
    """And its form of an error."""
    answer = server.ask("GET", path)
    assert answer.status == status
    assert (list(answer.json()) == ["error"]) == (status != 200)


def test_bytes_may_be_larger_than_a_call_s_body(client: Any) -> None:
    """In a request, and in its answer."""
    images = np.array([os.urandom(700_000) for _ in range(12)], object)
    answer = client.infer("Modelled.same_bytes", [tensor("x", images)])
    assert answer.as_numpy("output").tolist() == images.tolist()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("health/live", {"live": True}),
        ("health/ready", {"ready": True}),
        (f"models/{ADD_SUB}/ready", {"name": ADD_SUB, "ready": True}),
    ],
)
def test_health_is_told_by_a_body_too(server: Server, path: str, body: dict[str, object]) -> None:
    """KServe's client reads it; Triton's looks at the status alone."""
    answer = server.ask("GET", f"/v2/{path}")
    assert (answer.status, answer.json()) == (200, body)


def test_the_index_has_all_models_with_their_states(server: Server, client: Any) -> None:
    """With `ready` in its body, a request gets ready models alone."""
    found = client.get_model_repository_index()
    assert {"name": ADD_SUB, "version": "1", "state": "READY"} in found
    assert [each["name"] for each in found] == sorted(each["name"] for each in found)
    ready = server.ask("POST", "/v2/repository/index", b'{"ready": true}').json()
    assert ready == [each for each in found if each["state"] == "READY"]
    for wrong in (b'{"ready": 1}', b"[]", b"{"):
        assert server.ask("POST", "/v2/repository/index", wrong).status == 400
    refused = server.ask("POST", f"/v2/repository/models/{ADD_SUB}/unload")
    assert (refused.status, refused.json()["error"].split(":")[0]) == (501, "RepositoryModelUnload is not offered")


def test_raw_data_is_read_by_the_length_of_the_json(server: Server) -> None:
    """A wrong one is refused; without JSON the body is the only input."""
    data = np.array([1, 2], np.float32).tobytes()
    head = json.dumps({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": 8}}]}).encode()
    head = head.replace(b'"data": null, ', b"")
    model, header = "Modelled.same_float32", "inference-header-content-length"
    good = infer(server, model, head + data, inference_header_content_length=str(len(head)))
    assert (good.status, good.json()["outputs"][0]["data"]) == (200, [1.0, 2.0])
    for length in ("-1", "x", str(len(head) + 9), ""):
        answer = server.ask("POST", f"/v2/models/{model}/infer", head + data, {header: length})
        assert answer.status == 400, length
    more = infer(server, model, head + data + b"!", inference_header_content_length=str(len(head)))
    assert "left behind" in more.json()["error"]
    raw = infer(server, model, data, inference_header_content_length="0")
    assert raw.status == 200
    json_bytes = int(raw.headers[header])
    assert json.loads(raw.body[:json_bytes])["outputs"][0]["shape"] == [2]
    assert raw.body[json_bytes:] == data
    assert infer(server, ADD_SUB, data, inference_header_content_length="0").status == 400


def test_a_compressed_body_is_bounded_by_what_it_becomes(server: Server) -> None:
    """A broken one, and an unknown coding, are refused."""
    import zlib

    bomb = zlib.compress(b" " * (65 * 2**20))
    assert infer(server, ADD_SUB, bomb, content_encoding="deflate").status == 413
    assert infer(server, ADD_SUB, b"no gzip", content_encoding="gzip").status == 400
    assert infer(server, ADD_SUB, zlib.compress(b"{}")[:-1], content_encoding="deflate").status == 400
    assert infer(server, ADD_SUB, b"{}", content_encoding="br").status == 415


def test_an_exception_is_told_and_counted(server: Server, client: Any) -> None:
    """As a failure of the model, not of the server."""
    answer = infer(server, "Modelled.raised", {"inputs": [X]})
    assert answer.status == 500
    assert "2 elements on purpose" in answer.json()["error"]
    (told,) = client.get_inference_statistics("Modelled.raised")["model_stats"]
    assert (told["inference_stats"]["fail"]["count"], told["inference_count"]) == (1, 0)


def test_statistics_count_over_all_front_ends(server: Server, client: Any) -> None:
    """Their parts add up to the whole."""
    before = client.get_inference_statistics(ADD_SUB)["model_stats"][0]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        body = {"inputs": [{"name": name, "datatype": "INT32", "shape": [1], "data": [1]} for name in ("a", "b")]}
        answers = list(threads.map(lambda _: infer(server, ADD_SUB, body).status, range(40)))
    assert answers == [200] * 40
    after = client.get_inference_statistics(ADD_SUB)["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 40
    stats = after["inference_stats"]
    assert stats["success"]["count"] == after["execution_count"] == after["inference_count"]
    parts = sum(stats[each]["ns"] for each in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert parts == stats["success"]["ns"]
    assert all(stats[each]["ns"] > 0 for each in ("queue", "compute_input", "compute_infer"))
    assert [each["batch_size"] for each in after["batch_stats"]] == [1]
    assert after["last_inference"] > before["last_inference"] or not before["inference_count"]
    assert ADD_SUB in {each["name"] for each in client.get_inference_statistics()["model_stats"]}
    told = f'nv_inference_count{{model="{ADD_SUB}",version="1"}} {float(after["inference_count"])}'
    assert told in server.ask("GET", "/metrics").body.decode().splitlines()


def test_the_earlier_deadline_holds(server: Server) -> None:
    """`timeout` is in microseconds; the header's is ours."""
    body = {"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [2.0]}]}
    for deadlines, headers in (
        ({"parameters": {"timeout": 100_000}}, {}),
        ({}, {"x_deadline_s": "0.1"}),
        ({"parameters": {"timeout": 10_000_000}}, {"x_deadline_s": "0.1"}),
    ):
        answer = infer(server, "Modelled.slow", body | deadlines, **headers)
        assert answer.status == 504, answer.body
        assert list(answer.json()) == ["error"]


def test_a_model_that_streams_is_asked_by_generate_stream(server: Server) -> None:
    """Each part is an event; `infer` says what to ask instead."""
    body = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [3]}]}
    refused = infer(server, "Modelled.parts", body)
    assert (refused.status, "generate_stream" in refused.json()["error"]) == (501, True)
    answer = server.ask("POST", "/v2/models/Modelled.parts/generate_stream", b'{"n": 3, "id": "a"}')
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(each.removeprefix(b"data: ")) for each in answer.body.split(b"\n\n") if each]
    assert [each["number"] for each in events] == [0, 1, 2]
    assert {each["id"] for each in events} == {"a"}
    assert server.ask("POST", "/v2/models/Modelled.parts/generate_stream", b'{"n": "x"}').status == 400


def test_generate_takes_fields_and_gives_fields(server: Server) -> None:
    """An element alone is no list; other fields are parameters, which have to be plain."""
    path = "/v2/models/Modelled.several/generate"
    answer = server.ask(
        "POST", path, b'{"number": 2, "text": "\xc3\xa9", "temperature": 0.5, "parameters": {"p": true}}'
    )
    assert answer.status == 200, answer.body
    found = answer.json()
    assert (found["model_name"], found["text"], found["texts"]) == ("Modelled.several", "\u00e9", ["\u00e9", "\u00e9"])
    for bad in (b'{"number": "2"}', b"{}", b'{"number": 1, "other": []}', b"[]", b'{"number": 1, "parameters": 1}'):
        assert server.ask("POST", path, bad).status == 400, bad


def test_a_token_is_asked_for_except_of_health(server: Server) -> None:
    """In the protocol's form."""
    assert server.ask("GET", "/v2/health/ready", token="").status == 200
    answer = server.ask("GET", f"/v2/models/{ADD_SUB}", token="")
    assert (answer.status, list(answer.json())) == (401, ["error"])


def test_a_client_that_leaves_takes_its_call_along(server: Server) -> None:
    """What waits behind it is not run."""
    body = json.dumps({"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [0.3]}]}).encode()
    done = threading.Event()

    def leave() -> None:
        with server.connect() as connection:
            head = f"host: localhost\r\nauthorization: Bearer {server.token}\r\ncontent-length: {len(body)}"
            connection.sendall(f"POST /v2/models/Modelled.slow/infer HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
        done.set()

    for _ in range(20):
        leave()
    assert done.is_set()
    assert infer(server, "Modelled.slow", body.replace(b"0.3", b"0.0")).status == 200
