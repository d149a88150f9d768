"""Sends the requests of `tests/cases/triton_grpc_answers.json` to a server, and returns what it answers."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf import json_format
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2 as messages

CASES_DIR: Final = Path(__file__).parent / "cases"

MODELS: Final = CASES_DIR / "like_triton.toml"
"""Describes the models that Triton had, for ours."""

GRPC_CASES: Final[list[dict[str, Any]]] = json.loads((CASES_DIR / "triton_grpc_answers.json").read_text())
"""The requests over gRPC, as JSON of their messages, and what Triton answered."""

TIMEOUT_S: Final = 30.0
"""Most seconds of a call that has no deadline of its own."""

COMPRESSIONS: Final = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}


class Outcome(NamedTuple):
    """The end of a call."""

    code: str
    message: str
    answers: list[Any]
    """JSON of its messages, or their bytes in base64 where no class is known."""

    @classmethod
    def recorded(cls, case: dict[str, Any]) -> Outcome:
        """Return what Triton answered."""
        answers = [case["answer"]] if "answer" in case else case.get("answers", [])
        return cls(case["code"], case.get("message", ""), answers)


def ask(channel: grpc.Channel, case: dict[str, Any], metadata: Sequence[tuple[str, str]] = ()) -> Outcome:
    """Send a case's requests, and return what came of them.

    Args:
        channel: The connection.
        case: The case.
        metadata: Metadata beside the case's own, such as a token.
    """
    path: str = case["call"]
    kinds = (channel.unary_stream, channel.stream_stream)
    is_stream = "requests" in case or path.endswith("Info")
    call = kinds[is_stream](path, request_serializer=None, response_deserializer=None)
    running = call(
        iter(_requests(case)) if is_stream else _requests(case)[0],
        timeout=case.get("deadline_s", TIMEOUT_S),
        metadata=[*map(tuple, case.get("metadata", ())), *metadata],
        compression=COMPRESSIONS.get(case.get("compression", "")),
    )
    timer = threading.Timer(case.get("cancel_after_s", TIMEOUT_S), running.cancel)
    timer.start()
    answers: list[Any] = []
    try:
        with contextlib.suppress(grpc.RpcError):  # `running` has it
            answers.extend(_told(path, data) for data in running)
    finally:
        timer.cancel()
        timer.join()
    code = running.code().name
    if code != "OK" and not is_stream:
        answers.clear()  # gRPC for asyncio sends an empty one in front of an error, which no client of such calls sees
    return Outcome(code, running.details() or "", answers)


def _requests(case: dict[str, Any]) -> list[bytes]:
    """Return the messages of a case's requests."""
    if "request_bytes" in case:
        return [base64.b64decode(case["request_bytes"])]
    kind = _class(case["call"], "Request")
    return [
        json_format.ParseDict(each, kind()).SerializeToString() for each in case.get("requests", [case.get("request")])
    ]


def _told(path: str, data: bytes) -> Any:
    kind = _class(path, "Response")
    if kind is None:
        return base64.b64encode(data).decode()
    return json_format.MessageToDict(kind.FromString(data), preserving_proto_field_name=True)


def _class(path: str, what: str) -> Any:
    """Return the class of a call's requests or answers; None if it is not known."""
    service, name = path.split("/")[1:]
    if service == "grpc.health.v1.Health":
        return getattr(health_pb2, f"HealthCheck{what}")
    if name == "ModelStreamInfer" and what == "Request":
        name = "ModelInfer"
    return getattr(messages, f"{name}{what}", None)
