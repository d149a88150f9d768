"""One gRPC call while it is answered, and the form that its errors have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

import grpc

from atomr_mp import errors
from atomr_mp.serve.oip import refusals
from atomr_mp.serve.oip.requests import given_headers
from atomr_mp.serve.problems import RETRY_AFTER, Problem, headers_of
from atomr_mp.serve.served_request import ServedRequest

T = TypeVar("T")

CODES: Final[dict[int, grpc.StatusCode]] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ALREADY_EXISTS,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC's code by the status that HTTP has; INTERNAL for any other. UNAVAILABLE is for what certainly did not run."""

STREAMS: Final = "streams"
"""Code of the problem of a call without a stream to a model that answers by streams alone."""

EXCEEDED: Final = "Deadline Exceeded: "
"""Begins the text for a deadline, which clients know by gRPC's own words where the server is the first to notice."""

MOST_DETAIL_BYTES: Final = 2000
"""Most bytes of what a status tells: it travels in a header, which clients bound."""


class GrpcCall(ServedRequest):
    """One call, or one request of a call that has many.

    Where a client leaves, gRPC cancels the task that answers it; so nothing watches the client here.

    Args:
        path: The call, "/package.Service/Name".
        metadata: The client's, by names in small letters.
    """

    __slots__ = ("metadata",)

    def __init__(self, path: str, metadata: Mapping[str, str]) -> None:
        super().__init__("gRPC", path, metadata.get("x-request-id", "").encode() or None)
        self.metadata: Final = metadata

    def watcher(self, left: asyncio.Future[None]) -> GrpcCall:  # noqa: ARG002 - the form of all requests
        """Return this call, which watches nothing."""
        return self

    def start(self, after_s: float = 0.0) -> None:
        """Begin to watch nothing."""

    def stop(self) -> None:
        """End that."""

    async def left(self) -> None:
        """Wait until the task is cancelled."""
        await asyncio.get_running_loop().create_future()


async def uncut(operation: Awaitable[T]) -> T:
    """Return the outcome of one of gRPC's operations, which goes on if the calling task is cancelled.

    gRPC frees the memory of an operation behind its own `await`: a message whose `write` is cancelled stays for good.
    """
    whole = asyncio.ensure_future(operation)
    whole.add_done_callback(_look_at)
    return await asyncio.shield(whole)


def _look_at(whole: asyncio.Future[Any]) -> None:
    """Retrieve an error, so that the event loop does not log it."""
    if not whole.cancelled():
        whole.exception()


def metadata_of(given: Any) -> dict[str, str]:
    """Return a client's metadata by name, without values that are no texts."""
    return given_headers((name, value) for name, value in given or () if isinstance(value, str))


def status_of(error: errors.AtomrError | Problem, *, sent: bool) -> int:
    """Return the status that HTTP would have, see `refusals.status_of`, with one more for what is not offered."""
    return 501 if error.code == STREAMS else refusals.status_of(error, sent=sent)


def refuse(context: Any, error: errors.AtomrError | Problem, served: ServedRequest) -> None:
    """Make an error the status of a call.

    Args:
        context: The call's.
        error: The error.
        served: The call; it gets the status that HTTP would have.
    """
    served.failed(error)
    served.status = status_of(error, sent=served.sent)
    code = CODES.get(served.status, grpc.StatusCode.INTERNAL)
    context.set_code(code)
    begin = EXCEEDED if code is grpc.StatusCode.DEADLINE_EXCEEDED else ""
    context.set_details(begin + details_of(error))
    headers = headers_of(error, served.status, sent=served.sent)
    retry = [(name.decode(), value.decode()) for name, value in headers if name == RETRY_AFTER]
    context.set_trailing_metadata((*retry, ("x-request-id", served.id)))


def details_of(error: errors.AtomrError | Problem, parts: int = 0) -> str:
    """Return the text of a status for an error; see `refusals.text_of`."""
    return refusals.text_of(error, parts).encode("utf-8", "replace")[:MOST_DETAIL_BYTES].decode("utf-8", "ignore")
