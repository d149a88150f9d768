"""The Open Inference Protocol over gRPC, asked by Triton's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import InferenceServerException

from tests.contract.serve.test_serve_security import make_certificate
from tests.inferring import (
    ADD_SUB,
    COUNT,
    ECHOING,
    INFERRED,
    Stream,
    bearer,
    channel_of,
    client_of,
    is_final,
    message,
    numbers,
    pair,
    stub_of,
    tensor,
    texts,
)
from tests.serving import CLI, Server, read_all
from tests.support import BACKEND, DEADLINE_S, Ledger, settled

LIMIT: Final = 200_000
"""Bytes of a request."""

NUMBERS: Final = {
    "BOOL": "bool_",
    "FP16": "fp16",
    "BF16": "bf16",
    "FP32": "fp32",
    "FP64": "fp64",
    **{f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
}
"""Methods by the datatype that they return."""


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests share, with a port and a unix socket for gRPC."""
    uds = tmp_path_factory.mktemp("uds") / "grpc"
    options = ("--actor", ECHOING, "--grpc-port", "0", "--grpc-uds", uds, "--access-log")
    with Server(ledger, *options, "--limit", f"raw_bytes={LIMIT}", actor=INFERRED) as own:
        yield own


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    """A client of that server."""
    with client_of(server) as own:
        yield own


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the status and the text with which a call is refused."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    return str(caught.value.status()).removeprefix("StatusCode."), str(caught.value.message())


def notes(ledger: Ledger, tag: str) -> int:
    """Return how often actors have left a note."""
    try:
        return (ledger.path / "runs").read_text().splitlines().count(tag)
    except FileNotFoundError:
        return 0


# --- models and tensors ----------------------------------------------------------------------------------------------


def test_the_server_and_its_models_are_described(server: Server, client: triton.InferenceServerClient) -> None:
    """Over gRPC as over HTTP."""
    headers = bearer(server)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(ADD_SUB, headers=headers)
    assert client.is_model_ready(ADD_SUB, "1", headers=headers)
    assert not client.is_model_ready(ADD_SUB, "2", headers=headers)
    assert not client.is_model_ready("Inferred.none", headers=headers)
    assert not client.is_model_ready("", headers=headers)

    def by_http(path: str) -> Any:
        return server.ask("GET", path).json()

    def by_grpc(found: Any) -> Any:
        return {name: [int(each) for each in value] if name == "shape" else value for name, value in found.items()}

    told = client.get_server_metadata(headers=headers, as_json=True)
    assert told == by_http("/v2")
    model = "Echoing.fp32"
    metadata = client.get_model_metadata(model, headers=headers, as_json=True)
    for tensors in ("inputs", "outputs"):
        metadata[tensors] = [by_grpc(each) for each in metadata[tensors]]
    assert metadata == by_http(f"/v2/models/{model}")
    config = client.get_model_config(model, headers=headers).config
    assert (config.name, config.backend, len(config.input), len(config.output)) == (model, "atomr_mp", 1, 1)
    assert config.input[0].data_type == 11  # TYPE_FP32
    assert not config.model_transaction_policy.decoupled
    assert client.get_model_config(COUNT, headers=headers).config.model_transaction_policy.decoupled


def test_statistics_count_what_was_answered(server: Server, client: triton.InferenceServerClient) -> None:
    """Of one model, or of all."""
    headers = bearer(server)

    def counted() -> Any:
        (found,) = client.get_inference_statistics("Inferred.scores", headers=headers).model_stats
        return found

    before = counted()
    client.infer("Inferred.scores", [tensor("x", np.ones(2, np.float32))], headers=headers)
    after = counted()
    assert after.inference_count == before.inference_count + 1
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1
    assert after.last_inference > 0
    names = [each.name for each in client.get_inference_statistics(headers=headers).model_stats]
    assert {ADD_SUB, COUNT} <= set(names)


@pytest.mark.parametrize(("datatype", "method"), NUMBERS.items())
@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()], ids=str)
def test_tensors_of_each_type_go_and_come(server: Server, datatype: str, method: str, shape: tuple[int, ...]) -> None:
    """With any shape, also of no elements or no dimensions."""
    element = {"BF16": ml_dtypes.bfloat16, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}.get(
        datatype, method.removesuffix("_")
    )
    array = (np.arange(int(np.prod(shape))) % 2).astype(element).reshape(shape)
    found = messages.ModelInferRequest(model_name=f"Echoing.{method}", id="7")
    found.inputs.add(name="x", datatype=datatype, shape=shape)
    found.raw_input_contents.append(array.tobytes())
    with stub_of(server) as stub:
        answer = stub.ModelInfer(found, metadata=tuple(bearer(server).items()), timeout=DEADLINE_S)
    assert (answer.model_name, answer.model_version, answer.id) == (f"Echoing.{method}", "1", "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, tuple(output.shape)) == ("output", datatype, shape)
    assert list(answer.raw_output_contents) == [array.tobytes()]


def test_typed_contents_are_taken(server: Server) -> None:
    """As those send them who write the messages by hand."""
    found = messages.ModelInferRequest(model_name=ADD_SUB)
    for name in ("a", "b"):
        found.inputs.add(name=name, datatype="INT32", shape=[2]).contents.int_contents.extend([4, 5])
    with stub_of(server) as stub:
        answer = stub.ModelInfer(found, metadata=tuple(bearer(server).items()), timeout=DEADLINE_S)
    assert np.frombuffer(answer.raw_output_contents[0], np.int32).tolist() == [8, 10]


def test_texts_and_bytes_go_and_come(server: Server, client: triton.InferenceServerClient) -> None:
    """BYTES are elements of any length."""
    headers = bearer(server)
    found = client.infer("Inferred.upper", [tensor("text", texts("ä", "", "b"))], headers=headers)
    assert found.as_numpy("output").tolist() == ["Ä".encode(), b"", b"B"]
    parts = [tensor("parts", texts(b"\0\xff", b"x")), tensor("times", numbers(2))]
    assert client.infer("Inferred.join", parts, headers=headers).as_numpy("output").tolist() == [b"\0\xffx" * 2]


def test_outputs_come_as_they_are_asked_for(server: Server, client: triton.InferenceServerClient) -> None:
    """In the model's order, or as classes."""
    wanted = [triton.InferRequestedOutput(name) for name in ("difference", "total")]
    found = client.infer(ADD_SUB, pair(), outputs=wanted, headers=bearer(server))
    assert [each.name for each in found.get_response().outputs] == ["total", "difference"]
    assert found.as_numpy("difference").tolist() == [-2, -2]
    only = client.infer(ADD_SUB, pair(), outputs=wanted[:1], headers=bearer(server))
    assert only.as_numpy("total") is None
    classes = client.infer(
        "Inferred.scores",
        [tensor("x", np.array([0.5, 2, 1], np.float32))],
        outputs=[triton.InferRequestedOutput("output", class_count=2)],
        headers=bearer(server),
    )
    assert classes.as_numpy("output").tolist() == [b"2.000000:1", b"1.000000:2"]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(server: Server, client: triton.InferenceServerClient, algorithm: str) -> None:
    """By either algorithm of gRPC."""
    found = client.infer(ADD_SUB, pair([1] * 500, [2] * 500), headers=bearer(server), compression_algorithm=algorithm)
    assert found.as_numpy("total").tolist() == [3] * 500


def test_a_request_that_grows_too_large_is_refused_while_it_is_decompressed(server: Server) -> None:
    """A bomb takes no memory beyond the limit."""

    def most_bytes() -> int:
        (front_end,) = server.front_ends()
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{front_end}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    before = most_bytes()
    nbytes = 256 * 2**20
    with channel_of(server, **{"grpc.max_send_message_length": -1}) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            bytes(nbytes), metadata=tuple(bearer(server).items()), compression=grpc.Compression.Gzip, timeout=DEADLINE_S
        )
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert most_bytes() - before < nbytes / 2


def test_who_needs_no_token_holds_a_call_for_a_short_time_only(ledger: Ledger) -> None:
    """A request that does not come is not waited for."""
    options = ("--grpc-port", "0", "--limit", "header_s=0.2")
    with Server(ledger, *options, actor=INFERRED, run_dir="slow") as server, channel_of(server) as channel:
        over = threading.Event()

        def none() -> Iterator[bytes]:
            over.wait(2 * DEADLINE_S)
            yield from ()

        try:
            call = channel.stream_stream("/inference.GRPCInferenceService/ServerLive")(none(), timeout=DEADLINE_S)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
        finally:
            over.set()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "has not come" in caught.value.details()


def test_an_answer_may_be_larger_than_any_request(server: Server, client: triton.InferenceServerClient) -> None:
    """The limit is on what comes."""
    found = client.infer("Inferred.zeros", [tensor("count", numbers(40 * LIMIT))], headers=bearer(server))
    assert found.as_numpy("output").size == 40 * LIMIT


def test_the_event_loop_s_client_is_answered(server: Server) -> None:
    """Many calls at once, on one connection, and a stream."""

    async def ask() -> list[int]:
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc[0]) as client:
            calls = [client.infer(ADD_SUB, pair([each], [1]), headers=bearer(server)) for each in range(100)]
            found = await asyncio.gather(*calls)

            async def requests() -> Any:
                yield {"model_name": COUNT, "inputs": [tensor("upto", numbers(2))]}

            parts = [each async for each in client.stream_infer(requests(), headers=bearer(server))]
            assert [error for _, error in parts] == [None, None]
            return [int(each.as_numpy("total")[0]) for each in found]

    assert asyncio.run(ask()) == [each + 1 for each in range(100)]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_what_is_wrong_has_a_status_and_words(
    ledger: Ledger, server: Server, client: triton.InferenceServerClient
) -> None:
    """The status says who is to blame, and the text what to do."""
    headers = bearer(server)

    def infer(model: str, *inputs: triton.InferInput, **more: Any) -> tuple[str, str]:
        return refused(lambda: client.infer(model, list(inputs), headers=headers, **more))

    status, text = infer("Inferred.add_sup", *pair())
    assert (status, ADD_SUB in text) == ("NOT_FOUND", True)
    assert infer(ADD_SUB, *pair(), model_version="2")[0] == "NOT_FOUND"
    assert infer("Inferred.no_model", *pair())[0] == "NOT_FOUND"
    status, text = infer(ADD_SUB, pair()[0])
    assert (status, "'b'" in text) == ("INVALID_ARGUMENT", True)
    assert infer(ADD_SUB, *pair(), tensor("c", numbers(1)))[0] == "INVALID_ARGUMENT"
    assert infer(ADD_SUB, *pair(), priority=3, timeout=10**6, outputs=[triton.InferRequestedOutput("no")]) == (
        "INVALID_ARGUMENT",
        f"the model {ADD_SUB} has no output 'no'; it has: total, difference",
    )
    status, text = infer("Inferred.fail", tensor("x", np.array([1.5])))
    assert (status, "on purpose: 1.5" in text) == ("INTERNAL", True)
    status, text = infer(COUNT, tensor("upto", numbers(1)))
    assert (status, "ModelStreamInfer" in text) == ("UNIMPLEMENTED", True)
    assert refused(lambda: client.get_model_metadata("no", headers=headers))[0] == "NOT_FOUND"
    assert refused(lambda: client.get_model_config("no", headers=headers))[0] == "NOT_FOUND"
    assert refused(lambda: client.get_inference_statistics("no", headers=headers))[0] == "NOT_FOUND"
    big = tensor("x", np.zeros(LIMIT // 4, np.float32))
    assert infer("Inferred.scores", big)[0] == "RESOURCE_EXHAUSTED"
    tag = "too-large"
    assert infer("Inferred.note", tensor("tag", texts(tag, "x" * LIMIT)))[0] == "RESOURCE_EXHAUSTED"
    assert not notes(ledger, tag)


def test_the_index_has_all_models(server: Server, client: triton.InferenceServerClient) -> None:
    """Each with its version and its state."""
    found = client.get_model_repository_index(headers=bearer(server)).models
    assert ("Inferred.scores", "1", "READY", "") in [
        (each.name, each.version, each.state, each.reason) for each in found
    ]


def test_what_is_not_offered_says_why(server: Server, client: triton.InferenceServerClient) -> None:
    """Calls of Triton's that have no meaning here."""
    headers = bearer(server)
    calls: list[Callable[[], Any]] = [
        lambda: client.load_model("m", headers=headers),
        lambda: client.unload_model("m", headers=headers),
        lambda: client.get_system_shared_memory_status(headers=headers),
        lambda: client.register_system_shared_memory("r", "/k", 4, headers=headers),
        lambda: client.unregister_cuda_shared_memory("r", headers=headers),
        lambda: client.get_trace_settings(headers=headers),
        lambda: client.get_log_settings(headers=headers),
    ]
    for call in calls:
        status, text = refused(call)
        assert status == "UNIMPLEMENTED"
        assert "is not offered: " in text


def test_a_call_needs_a_token(ledger: Ledger, server: Server, client: triton.InferenceServerClient) -> None:
    """All but those of health; a call without one does not run."""
    tag = "without-token"
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": server.token}):
        calls: list[Callable[[], Any]] = [
            lambda: client.infer("Inferred.note", [tensor("tag", texts(tag))], headers=headers),  # noqa: B023
            lambda: client.get_server_metadata(headers=headers),  # noqa: B023
            lambda: client.is_model_ready(ADD_SUB, headers=headers),  # noqa: B023
            lambda: client.get_model_repository_index(headers=headers),  # noqa: B023
        ]
        for call in calls:
            assert refused(call)[0] == "UNAUTHENTICATED"
        with client_of(server) as own, Stream(own, headers) as stream:
            assert refused(stream.next)[0] == "UNAUTHENTICATED"
    assert not notes(ledger, tag)


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b""], ids=["no message", "no text", "empty"])
def test_bytes_that_are_no_request_are_refused(server: Server, data: bytes) -> None:
    """In words, and the server goes on."""
    with channel_of(server) as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            ask(data, metadata=tuple(bearer(server).items()), timeout=DEADLINE_S)
        assert caught.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
        assert dict(caught.value.trailing_metadata())["x-request-id"]


def test_a_full_queue_says_when_to_try_again(ledger: Ledger, server: Server) -> None:
    """UNAVAILABLE, since the call has not run."""
    with ledger.gate("narrow") as gate, stub_of(server) as stub:
        metadata = tuple(bearer(server).items())
        found = message("Inferred.narrow", [tensor("gate", texts(gate.path))])
        running = [stub.ModelInfer.future(found, metadata=metadata)]
        gate.wait()
        codes: list[grpc.RpcError] = []

        def is_full() -> bool:
            call = stub.ModelInfer.future(found, metadata=metadata)
            try:
                call.result(timeout=0.2)
            except grpc.FutureTimeoutError:
                running.append(call)
            except grpc.RpcError as error:
                codes.append(error)
            return bool(codes)

        assert settled(is_full)
        assert codes[0].code() is grpc.StatusCode.UNAVAILABLE
        assert int(dict(codes[0].trailing_metadata())["retry-after"]) >= 1
        gate.open(len(running))
        for each in running:
            assert each.result(timeout=DEADLINE_S).outputs


def test_a_deadline_ends_a_call(ledger: Ledger, server: Server, client: triton.InferenceServerClient) -> None:
    """The client's own, and the request's in microseconds, whichever is earlier."""
    with ledger.gate("late") as gate:
        inputs = [tensor("gate", texts(gate.path))]
        own = refused(lambda: client.infer("Inferred.wait_at", inputs, headers=bearer(server), client_timeout=0.3))
        assert own[0] == "DEADLINE_EXCEEDED"
        asked = refused(lambda: client.infer("Inferred.wait_at", inputs, headers=bearer(server), timeout=300_000))
        assert asked[0] == "DEADLINE_EXCEEDED"
        gate.wait(2)


def test_a_call_whose_client_leaves_is_cancelled(ledger: Ledger, server: Server) -> None:
    """The log says that the client has left."""
    before = server.log().count("ModelInfer 499 client_left")
    with ledger.gate("left") as gate, stub_of(server) as stub:
        call = stub.ModelInfer.future(
            message("Inferred.wait_at", [tensor("gate", texts(gate.path))]), metadata=tuple(bearer(server).items())
        )
        gate.wait()
        call.cancel()
        assert settled(lambda: server.log().count("ModelInfer 499 client_left") == before + 1)


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_answers_in_parts_and_says_which_is_the_last(server: Server) -> None:
    """An empty answer ends them, if it is asked for."""
    with client_of(server) as client, Stream(client, bearer(server)) as stream:
        stream.ask(COUNT, tensor("upto", numbers(3)), request_id="s", enable_empty_final_response=True)
        for number in range(3):
            part = stream.next()
            assert (part.get_response().id, is_final(part)) == ("s", False)
            assert part.as_numpy("number").tolist() == [number]
            assert part.as_numpy("text").tolist() == [b"part %d" % number]
        end = stream.next()
        assert (end.get_response().id, len(end.get_response().outputs), is_final(end)) == ("s", 0, True)
        stream.ask(COUNT, tensor("upto", numbers(1)))
        assert not is_final(stream.next())
        stream.ask(ADD_SUB, *pair(), request_id="t", enable_empty_final_response=True)
        only = stream.next()
        assert (only.get_response().id, is_final(only)) == ("t", True)


def test_requests_of_one_stream_run_at_once(ledger: Ledger, server: Server) -> None:
    """One that waits holds up no other, and each answer has its request's id."""
    with ledger.gate("held") as gate, client_of(server) as client, Stream(client, bearer(server)) as stream:
        stream.ask("Inferred.wait_at", tensor("gate", texts(gate.path)), request_id="slow")
        gate.wait()
        for number in range(20):
            stream.ask(ADD_SUB, *pair([number], [1]), request_id=str(number))
        found = {answer.get_response().id: answer for answer in (stream.next() for _ in range(20))}
        assert {name: int(each.as_numpy("total")[0]) for name, each in found.items()} == {
            str(number): number + 1 for number in range(20)
        }
        gate.open()
        assert stream.next().get_response().id == "slow"


def test_an_error_in_a_stream_leaves_the_stream_open(server: Server) -> None:
    """The stream tells it with the request's id, and answers the next requests."""
    with stub_of(server) as stub:
        wrong = [
            message("Inferred.none", pair(), id="none"),
            message(ADD_SUB, pair()[:1], id="few"),
            message(
                COUNT,
                [tensor("upto", numbers(3)), tensor("at", numbers(1)), tensor("how", texts("exception"))],
                id="broken",
            ),
        ]
        odd = message(COUNT, [tensor("upto", numbers(1))], id="odd")
        odd.parameters["triton_enable_empty_final_response"].string_param = "x"
        short = message(ADD_SUB, pair(), id="short")
        short.inputs[0].shape[0] = 3
        asked = iter([*wrong, odd, short, message(ADD_SUB, pair(), id="good")])
        found = list(stub.ModelStreamInfer(asked, metadata=tuple(bearer(server).items()), timeout=DEADLINE_S))
    told = {each.infer_response.id: each.error_message for each in found if each.error_message}
    assert sorted(told) == ["broken", "few", "none", "odd", "short"]
    assert told["broken"].startswith("after 1 response: ")
    assert "on purpose" in told["broken"]
    assert "'b'" in told["few"]
    good = {each.infer_response.id: len(each.infer_response.outputs) for each in found if not each.error_message}
    assert good == {"broken": 2, "good": 2}


def test_an_error_ends_the_stream_of_a_client_that_asks_for_that(server: Server) -> None:
    """With the error's code; what is refused before it runs leaves such a stream open, as Triton does."""
    metadata = (*bearer(server).items(), ("triton_grpc_error", "true"))
    with stub_of(server) as stub:
        asked = [message("Inferred.none", pair(), id="none"), message("Inferred.fail", [tensor("x", np.array([1.0]))])]
        found = stub.ModelStreamInfer(iter(asked), metadata=metadata, timeout=DEADLINE_S)
        assert next(found).infer_response.id == "none"
        with pytest.raises(grpc.RpcError):
            next(found)
        assert found.code() == grpc.StatusCode.INTERNAL
        assert "on purpose" in found.details()


def test_a_stream_that_its_client_leaves_is_closed_in_the_worker(ledger: Ledger, server: Server) -> None:
    """The method's generator is closed, at whatever part it is."""
    upto = 10_007
    inputs = [tensor("upto", numbers(upto)), tensor("at", numbers(1))]
    with ledger.gate("stream-left") as gate, stub_of(server) as stub:
        asked = iter([message(COUNT, [*inputs, tensor("gate", texts(gate.path))])])
        call = stub.ModelStreamInfer(asked, metadata=tuple(bearer(server).items()))
        assert next(call).infer_response.outputs
        gate.wait()
        call.cancel()
        gate.open()
        assert settled(lambda: notes(ledger, f"closed-{upto}") == 1)


def test_a_client_that_reads_slowly_holds_the_method_back(ledger: Ledger, server: Server) -> None:
    """The worker does not make parts far ahead of the reader."""
    with stub_of(server) as stub:
        asked = iter([message("Inferred.fill", [tensor("nbytes", numbers(100_000))])])
        call = stub.ModelStreamInfer(asked, metadata=tuple(bearer(server).items()))
        read = 0
        for _ in call:
            read += 1
            if read == 200:
                break
        assert settled(lambda: notes(ledger, "filled") >= read)
        call.cancel()
    assert notes(ledger, "filled") < read + 200


# --- health and reflection -------------------------------------------------------------------------------------------


def test_health_is_told_and_watched(server: Server) -> None:
    """Check needs no token; Watch, which stays, does."""
    with channel_of(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        metadata = tuple(bearer(server).items())
        watching = stub.Watch(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=DEADLINE_S)
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="x"), metadata=metadata, timeout=DEADLINE_S)
        assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        unknown.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_reflection_gives_the_services_and_their_messages(server: Server) -> None:
    """Enough for a client without any to ask."""

    class Admitted(grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
        def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
            return continuation(details._replace(metadata=tuple(bearer(server).items())), requests)

    with channel_of(server) as channel:
        known = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(channel, Admitted()))
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(known.get_services())
        pool = descriptor_pool.DescriptorPool(known)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        assert service.FindMethodByName("ModelInfer").input_type.fields_by_name["raw_input_contents"].number == 7
        assert pool.FindMessageTypeByName("inference.ModelConfig").fields_by_name["max_batch_size"].number == 4
        with pytest.raises(KeyError):
            known.FindFileContainingSymbol("inference.Nothing")
        described = descriptor_pb2.FileDescriptorProto()
        service.file.CopyToProto(described)
        assert described.package == "inference"


# --- where it listens, and how it ends -------------------------------------------------------------------------------


def test_a_unix_socket_is_private_to_its_user(server: Server) -> None:
    """And has the same token."""
    path = Path(server.grpc[1])
    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o600
    with stub_of(server, at=1) as stub:
        answer = stub.ModelInfer(message(ADD_SUB, pair()), metadata=tuple(bearer(server).items()), timeout=DEADLINE_S)
        assert len(answer.outputs) == 2
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message(ADD_SUB, pair()), timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_unix_socket_alone_needs_no_token_and_is_removed(ledger: Ledger, tmp_path: Path) -> None:
    """As the one of HTTP."""
    http, path = tmp_path / "http", tmp_path / "grpc"
    with Server(ledger, "--uds", http, "--grpc-uds", path, actor=INFERRED, run_dir="unix") as server:
        assert server.grpc == [str(path)]
        with stub_of(server) as stub:
            assert len(stub.ModelInfer(message(ADD_SUB, pair()), timeout=DEADLINE_S).outputs) == 2
    assert not path.exists()


def test_a_port_beside_a_unix_socket_needs_a_token(ledger: Ledger, tmp_path: Path) -> None:
    """Every user of the machine reaches the port."""
    with Server(ledger, "--uds", tmp_path / "http", "--grpc-port", "0", actor=INFERRED, run_dir="mixed") as server:
        assert server.token
        with client_of(server) as client:
            assert refused(client.get_server_metadata)[0] == "UNAUTHENTICATED"
            assert client.get_server_metadata(headers=bearer(server))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--grpc-uds", "{path}", "--workers", "2"), "--grpc-uds is for one front end"),
        (("--grpc-port", "{port}"), "cannot be listened on"),
        (("--grpc-uds", "{uds}"), "another process listens"),
        (("--uds", "{path}", "--grpc-port", "0", "--host", "0.0.0.0"), "needs --tls-cert"),
        (
            ("--allow-client-shm", "--insecure", "--host", "0.0.0.0"),
            "--allow-client-shm is for clients on this machine",
        ),
    ],
    ids=["workers", "port", "uds", "tls", "shared memory"],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    ledger: Ledger, server: Server, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    """A port or a socket of another server's among them."""
    given = {"path": tmp_path / "socket", "port": server.grpc[0].rpartition(":")[2], "uds": server.grpc[1]}
    where = () if "--uds" in options else ("--port", "0")
    pool = ("--run-dir", ledger.run_dir("refused"), "--actor", INFERRED, "--backend", BACKEND, "--gpus", "1")
    told = [each.format(**given) for each in options]
    ran = subprocess.run(
        [*CLI, "serve", *where, *map(str, pool), *told], capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert ran.returncode != 0
    assert why in ran.stderr.decode()
    assert not ledger.run_dir("refused").exists()


def test_front_ends_share_a_port(ledger: Ledger) -> None:
    """Connections are spread over all of them."""
    with Server(ledger, "--workers", "3", "--grpc-port", "0", actor=INFERRED, run_dir="many") as server:
        seen: set[str] = set()

        def ask() -> bool:
            with channel_of(server) as channel, pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                    b"", metadata=tuple(bearer(server).items()), timeout=DEADLINE_S
                )
            if caught.value.code() is grpc.StatusCode.NOT_FOUND:
                seen.add(dict(caught.value.trailing_metadata())["x-request-id"].partition("-")[0])
            return len(seen) == 3

        assert settled(ask)


def test_tls_is_that_of_http(ledger: Ledger, tmp_path: Path) -> None:
    """The certificate's file and key are both protocols'."""
    certificate, key = make_certificate(tmp_path)
    options = ("--tls-cert", certificate, "--tls-key", key, "--grpc-port", "0")
    with Server(ledger, *options, actor=INFERRED, run_dir="tls") as server:
        port = server.grpc[0].rpartition(":")[2]
        with triton.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(certificate)) as client:
            found = client.infer(ADD_SUB, pair(), headers=bearer(server))
            assert found.as_numpy("total").tolist() == [4, 6]
        with channel_of(server) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_stream_ends_with_its_token(ledger: Ledger, tmp_path: Path) -> None:
    """A file of tokens that changes counts for streams that are open."""
    file = tmp_path / "tokens"
    file.write_text("first-token-of-all\n")
    with Server(ledger, "--token-file", file, "--grpc-port", "0", actor=INFERRED, run_dir="tokens") as server:
        headers = {"authorization": "Bearer first-token-of-all"}
        with client_of(server) as client, Stream(client, headers) as stream:
            stream.ask(ADD_SUB, *pair())
            assert stream.next().as_numpy("total").tolist() == [4, 6]
            file.write_text("second-token-of-all\n")
            assert refused(stream.next)[0] == "UNAUTHENTICATED"


def test_the_end_answers_what_runs_and_takes_nothing_more(ledger: Ledger) -> None:
    """Calls and the requests of streams are answered; streams end with a status, and then the server does."""
    options = ("--grpc-port", "0", "--drain-delay", "2")
    with (
        Server(ledger, *options, actor=INFERRED, run_dir="ends") as server,
        ledger.gate("ends") as gate,
        stub_of(server) as stub,
    ):
        metadata = tuple(bearer(server).items())
        found = message("Inferred.wait_at", [tensor("gate", texts(gate.path))])
        running = stub.ModelInfer.future(found, metadata=metadata)
        over = threading.Event()

        def requests() -> Iterator[Any]:
            yield found
            over.wait(2 * DEADLINE_S)

        stream = stub.ModelStreamInfer(requests(), metadata=metadata)
        gate.wait(2)
        server.process.terminate()
        assert settled(lambda: not stub.ServerReady(messages.ServerReadyRequest(), timeout=DEADLINE_S).ready)
        assert stub.ModelInfer(message(ADD_SUB, pair()), metadata=metadata, timeout=DEADLINE_S).outputs

        def is_refused() -> bool:
            try:
                stub.ServerLive(messages.ServerLiveRequest(), timeout=DEADLINE_S)
            except grpc.RpcError as error:
                return bool(error.code() is grpc.StatusCode.UNAVAILABLE)
            return False

        assert settled(is_refused)
        gate.open(2)
        assert len(running.result(timeout=DEADLINE_S).outputs) == 1
        assert len(next(stream).infer_response.outputs) == 1
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        over.set()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(DEADLINE_S) == 0


def test_what_takes_too_long_at_the_end_is_told_that_it_may_have_run(ledger: Ledger) -> None:
    """Its status is INTERNAL, both of a call and of a stream."""
    options = ("--grpc-port", "0", "--drain-timeout", "0.5", "--grpc-uds", ledger.path / "cut.socket")
    with (
        Server(ledger, *options, actor=INFERRED, run_dir="cut") as server,
        ledger.gate("cut") as gate,
        stub_of(server) as stub,
        stub_of(server, at=1) as other,
    ):
        metadata = tuple(bearer(server).items())
        found = message("Inferred.wait_at", [tensor("gate", texts(gate.path))])
        calls = [
            stub.ModelInfer.future(found, metadata=metadata),
            other.ModelStreamInfer(iter([found]), metadata=metadata),
        ]
        gate.wait(2)
        server.process.terminate()
        for call in calls:
            assert call.exception(timeout=DEADLINE_S).code() is grpc.StatusCode.INTERNAL
            assert "the server ends" in call.details()
        gate.open(2)
        assert server.process.wait(DEADLINE_S) == 0


def test_a_watch_of_health_ends_with_the_server(ledger: Ledger) -> None:
    """And says first that it does not serve."""
    with Server(ledger, "--grpc-port", "0", actor=INFERRED, run_dir="watched") as server, channel_of(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(), metadata=tuple(bearer(server).items()))
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        server.process.terminate()
        assert [each.status for each in watching] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert server.process.wait(DEADLINE_S) == 0


def asked_by_hand(path: str, metadata: Mapping[str, str], *requests: bytes) -> bytes:
    """Return what a client of HTTP/2 sends that asks once, and never lets the server send more than 64 KiB.

    Args:
        path: The call's.
        metadata: More headers, of fewer than 127 bytes each.
        requests: The messages; the client ends with the headers if there are none.
    """
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "here", **metadata}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    block = b"".join(b"\x00%c%b%c%b" % (len(name), name, len(value), value) for name, value in pairs)
    frames = [(4, 0, 0, b""), (1, 4 if requests else 5, 1, block)]  # SETTINGS; HEADERS, which end or go on
    if requests:
        frames.append((0, 1, 1, b"".join(b"\x00" + len(each).to_bytes(4, "big") + each for each in requests)))
    sent = [
        len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content
        for kind, flags, stream, content in frames
    ]
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(sent)


def host_and_port(address: str) -> tuple[str, int]:
    """Return an address as sockets have it."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def anonymous_bytes(pid: int) -> int:
    """Return the bytes of memory that a process has of its own, in no file and shared with no other."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_a_client_that_reads_nothing_loses_its_stream(ledger: Ledger) -> None:
    """After `stall_s`; the method's generator is closed."""
    options = ("--grpc-port", "0", "--limit", "stall_s=1", "--access-log")
    with Server(ledger, *options, actor=INFERRED, run_dir="stalls") as server, stub_of(server) as stub:
        asked = iter([message("Inferred.fill", [tensor("nbytes", numbers(10**6))])])
        call = stub.ModelStreamInfer(asked, metadata=tuple(bearer(server).items()))
        assert settled(lambda: "499 client_left" in server.log())
        assert settled(lambda: b"atomr_mp_http_streams 0.0" in server.ask("GET", "/metrics").body)
        call.cancel()


def test_streams_that_are_given_up_leave_no_answer_in_memory(ledger: Ledger) -> None:
    """Neither while their clients stay nor afterwards: gRPC has each answer until its connection ends."""
    nbytes, many, rounds = 8_000_000, 4, 6
    options = ("--grpc-port", "0", "--limit", "stall_s=0.5", "--access-log")
    asked = [message("Inferred.zeros", [tensor("count", numbers(nbytes))]).SerializeToString()] * 4
    with Server(ledger, *options, actor=INFERRED, run_dir="given-up") as server:
        (front_end,) = server.front_ends()
        frames = asked_by_hand("/inference.GRPCInferenceService/ModelStreamInfer", bearer(server), *asked)
        held: list[int] = []
        for turn in range(1, rounds + 1):
            with contextlib.ExitStack() as stack:
                for _ in range(many):
                    client = stack.enter_context(socket.create_connection(host_and_port(server.grpc[0])))
                    client.sendall(frames)
                assert settled(lambda: server.log().count("499 client_left") >= 5 * many * turn)  # noqa: B023 - called at once
            held.append(anonymous_bytes(front_end))
        assert settled(lambda: anonymous_bytes(front_end) <= min(held[:2]) + 2 * nbytes)


def test_answers_that_nobody_reads_wait_where_the_worker_has_put_them(ledger: Ledger) -> None:
    """Over HTTP and gRPC, on any number of connections: what was made in the front end is bounded, and none is lost."""
    nbytes, most, many = 16_000_000, 32_000_000, 4  # much more than the kernel keeps for a connection
    options = ("--grpc-port", "0", "--limit", f"unread_bytes={most}", "--limit", "stall_s=60")
    with contextlib.ExitStack() as stack:
        gate = stack.enter_context(ledger.gate("unread"))
        values = [("count", [1], "INT64", [nbytes]), ("gate", [1], "BYTES", [gate.path])]
        inputs = [dict(zip(("name", "shape", "datatype", "data"), each, strict=True)) for each in values]
        server = stack.enter_context(Server(ledger, *options, actor=INFERRED, run_dir="unread"))
        own = f"Host: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {server.token}\r\n"
        posts = {
            "/call/Inferred.zeros": ({"count": nbytes, "gate": gate.path}, "Accept: application/x-npy\r\n"),
            "/v2/models/Inferred.zeros/infer": ({"inputs": inputs, "parameters": {"binary_data_output": True}}, ""),
        }
        (front_end,) = server.front_ends()
        before = anonymous_bytes(front_end)
        readers = []
        for path, (given, more) in posts.items():
            body = json.dumps(given)
            head = f"POST {path} HTTP/1.1\r\n{own}{more}Content-Type: application/json\r\n"
            for _ in range(many):
                reader = stack.enter_context(server.connect())
                reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                readers.append(reader)
        asked = message("Inferred.zeros", [tensor("count", numbers(nbytes)), tensor("gate", texts(gate.path))])
        service, metadata, request = "/inference.GRPCInferenceService", bearer(server), asked.SerializeToString()
        calls = [asked_by_hand(f"{service}/ModelInfer", metadata, request)] * many
        calls.append(asked_by_hand(f"{service}/ModelStreamInfer", metadata, *[request] * many))
        leavers = [stack.enter_context(socket.create_connection(host_and_port(server.grpc[0]))) for _ in calls]
        for leaver, call in zip(leavers, calls, strict=True):
            leaver.sendall(call)

        in_flight = 4 * many + 2  # with the stream by itself, and the question
        assert settled(lambda: b"atomr_mp_http_in_flight %d.0" % in_flight in server.ask("GET", "/metrics").body)
        gate.open(4 * many)

        def unread() -> int:
            found = re.search(r"(\d+) bytes of answers", server.call("Inferred.zeros", {"count": 1}).body.decode())
            return int(found[1]) if found else 0

        assert settled(lambda: unread() >= 4 * many * nbytes)
        assert anonymous_bytes(front_end) - before < most + 3 * nbytes
        for leaver in leavers:
            leaver.close()
        with ThreadPoolExecutor(len(readers)) as threads:
            answers = list(threads.map(read_all, readers))
        for found in answers:
            assert found.startswith(b"HTTP/1.1 200")
            assert len(found) >= nbytes
        assert settled(lambda: not unread())


def test_a_path_that_is_no_text_costs_nobody_the_server(ledger: Ledger) -> None:
    """GRPC's own loop ends at it; another one takes its place at once, at the same port, and connections end."""
    frames = asked_by_hand("/\xff", {})
    with Server(ledger, "--grpc-port", "0", actor=INFERRED, run_dir="run-path") as server:

        def answers() -> bool:
            with client_of(server, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as found:
                try:
                    return bool(found.is_server_live())
                except InferenceServerException:
                    return False

        for _ in range(2):
            assert settled(answers)
            with socket.create_connection(host_and_port(server.grpc[0]), DEADLINE_S) as connection:
                connection.sendall(frames)
                connection.settimeout(10)  # half of what pings would take to end it
                while connection.recv(65536):
                    pass
        assert settled(answers)
        assert server.log().count("it starts again") == 2
