"""Shared by tests of the Open Inference Protocol over gRPC: clients, as users have them, and down to the messages."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as stubs

from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S

INFERRED: Final = f"{ACTORS}/oip.py:Inferred"
ECHOING: Final = f"{ACTORS}/oip.py:Echoing"
ADD_SUB: Final = "Inferred.add_sub"
COUNT: Final = "Inferred.count"


def bearer(server: Server) -> dict[str, str]:
    """Return the metadata that has a server's token."""
    return {"authorization": f"Bearer {server.token}"} if server.token else {}


@contextlib.contextmanager
def client_of(server: Server, at: int = 0, **options: Any) -> Iterator[triton.InferenceServerClient]:
    """Return Triton's client."""
    with triton.InferenceServerClient(_address(server, at), **options) as client:
        yield client


@contextlib.contextmanager
def stub_of(server: Server, at: int = 0, **options: Any) -> Iterator[stubs.GRPCInferenceServiceStub]:
    """Return the calls of the service, with messages of one's own, on a connection of its own."""
    with channel_of(server, at, **options) as channel:
        yield stubs.GRPCInferenceServiceStub(channel)


def channel_of(server: Server, at: int = 0, **options: Any) -> grpc.Channel:
    """Return a connection of its own."""
    shown = {"grpc.use_local_subchannel_pool": 1, "grpc.max_receive_message_length": -1, **options}
    return grpc.insecure_channel(_address(server, at), options=list(shown.items()))


def _address(server: Server, at: int) -> str:
    found = server.grpc[at]
    return f"unix:{found}" if found.startswith("/") else found


def tensor(name: str, array: np.ndarray[Any, Any], datatype: str = "") -> triton.InferInput:
    """Return an input of an array."""
    found = triton.InferInput(name, list(array.shape), datatype or triton.np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array)
    return found


def numbers(*values: int) -> np.ndarray[Any, Any]:
    """Return an array of INT64."""
    return np.array(values, np.int64)


def texts(*values: str | bytes) -> np.ndarray[Any, Any]:
    """Return an array of BYTES."""
    return np.array([each.encode() if isinstance(each, str) else each for each in values], object)


def pair(first: Sequence[int] = (1, 2), second: Sequence[int] = (3, 4)) -> list[triton.InferInput]:
    """Return the inputs of `add_sub`."""
    return [tensor("a", np.array(first, np.int32)), tensor("b", np.array(second, np.int32))]


def message(model: str, inputs: Sequence[triton.InferInput] = (), **more: Any) -> messages.ModelInferRequest:
    """Return a request as a message."""
    found = messages.ModelInferRequest(model_name=model, **more)
    for each in inputs:
        found.inputs.append(each._get_tensor())
        found.raw_input_contents.append(each._get_content())
    return found


class Stream:
    """A stream of Triton's client; ended with the `with` block.

    Args:
        client: The client.
        headers: Its metadata.
    """

    def __init__(self, client: triton.InferenceServerClient, headers: Mapping[str, str]) -> None:
        self._client: Final = client
        self._headers: Final = dict(headers)
        self._found: Final[queue.Queue[tuple[Any, Any]]] = queue.Queue()

    def __enter__(self) -> Self:
        self._client.start_stream(lambda result, error: self._found.put((result, error)), headers=self._headers)
        return self

    def __exit__(self, failed: object, *_exc: object) -> None:
        self._client.stop_stream(cancel_requests=failed is not None)

    def ask(self, model: str, *inputs: triton.InferInput, **more: Any) -> None:
        """Send a request."""
        self._client.async_stream_infer(model, list(inputs), **more)

    def next(self) -> Any:
        """Return the next answer.

        Raises:
            InferenceServerException: It is an error.
        """
        result, error = self._found.get(timeout=DEADLINE_S)
        if error is not None:
            raise error
        return result


def is_final(answer: Any) -> bool:
    """Return whether an answer is the last one of its request."""
    found: bool = answer.get_response().parameters["triton_final_response"].bool_param
    return found
