"""The one way of a request through a worker: decode and check, start, run, encode, reply.

What an actor's method does lies between `begin` and `complete`; everything else about a request is here and written
once. Runs on the loop's thread, but for `call`, which an actor's thread may run.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol import data, token, values
from atomr_mp.protocol.board import OFF_BOARD, BoardWriter, Counter
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp_workers.loading import LoadedMethod
from atomr_mp_workers.peers import Peer


class FatalError(Exception):
    """The context is gone: the caller has been answered, and this process must leave.

    Args:
        error: What to tell the supervisor.
    """

    def __init__(self, error: errors.AtomrError) -> None:
        super().__init__(str(error))
        self.error: Final = error


class Request:
    """A call that has been received and not answered."""

    # Most requests never need most of these; what has its default costs nothing to make.
    dropped = False
    """Answered before it started (cancelled); the queue that holds it passes it over."""
    error: errors.AtomrError | None = None
    result: Any = None
    arguments: tuple[Any, ...] = ()
    frames: Sequence[memoryview] = ()
    slot = OFF_BOARD
    started_ns = 0

    def __init__(self, peer: Peer, call: data.Call, method: LoadedMethod) -> None:
        self.peer = peer
        self.id = call.id
        self.method = method
        self.deadline_ns = call.deadline_ns
        self.body = call.body
        self.payload_bytes = len(call.body)
        """What it counts for in its window."""

    def call(self) -> None:
        """Run the method, on the thread it belongs to; never raises."""
        try:
            self.result = self.method.function(*self.arguments)
        except errors.AtomrError as error:
            self.error = error
        except MemoryError as error:
            self.error = errors.OutOfMemory(f"{self.method.name} ran out of host memory: {describe(error)}")
        except BaseException as error:  # noqa: BLE001 - what user code raises is an answer, not the worker's end
            self.error = _failed(f"{self.method.name} raised", error)
        self.arguments = ()


class Envelope:
    """Takes requests in and gives answers out; counts both on the board.

    Args:
        methods: What can be called, by "Actor.method".
        board: The worker's board.
        current: This incarnation's token.
    """

    def __init__(self, methods: Mapping[str, LoadedMethod], board: BoardWriter, current: bytes) -> None:
        self._methods = methods
        self._board = board
        self._token = current

    def open(self, peer: Peer, message: data.Calls, frames: list[memoryview]) -> list[Request]:
        """Return the requests in a message; those that cannot be run are answered.

        Raises:
            ProtocolError: The calls and the payload frames do not add up; nothing was taken.
        """
        calls = message.calls
        if len(frames) != sum([call.frames for call in calls]):
            raise errors.ProtocolError(
                f"a message of {len(calls)} calls with {len(frames)} payload frames, too many or few"
            )
        requests: list[Request] = []
        refusal = None if message.token == self._token else token.refusal(message.token, self._token)
        at = 0
        queued = peer.queued
        peer.unanswered += len(calls)
        for call in calls:
            method = self._methods.get(call.method)
            if refusal is None and method is not None and call.id not in queued:
                request = queued[call.id] = Request(peer, call, method)
                if call.frames:
                    request.frames = frames[at : at + call.frames]
                    request.payload_bytes += sum(map(len, request.frames))
                peer.payload_bytes += request.payload_bytes
                requests.append(request)
            else:
                self._reply(peer, call.id, None, refusal or self._unknown(call))
            at += call.frames
        self._board.count(Counter.RECEIVED, len(requests))
        return requests

    def cancel(self, peer: Peer, ids: list[int]) -> None:
        """Answer those of the requests that have not started with `Cancelled`."""
        for request_id in ids:
            request = peer.queued.get(request_id)
            if request is not None:
                self._drop(request, errors.Cancelled("cancelled before it started"))

    def begin(self, request: Request) -> bool:
        """Note the request's start and decode its arguments; False if it must not run (it has been answered).

        On True the caller runs `request.call()` and then `complete`.
        """
        if request.dropped:
            return False
        peer = request.peer
        session = peer.session
        if session.ended:
            request.dropped = True
            self._board.count(Counter.DISCARDED)
            return False
        now_ns = time.monotonic_ns()
        if now_ns > request.deadline_ns:
            self._drop(request, errors.DeadlineExceeded("the deadline passed before the request could start"))
            return False
        # First: decoding may run code of the actor's, and what ends this process then is to be found on the board.
        request.started_ns = now_ns
        request.slot = self._board.start(session.number, request.id, now_ns, request.deadline_ns)
        try:
            request.arguments = request.method.arguments(request.body, request.frames)
        except errors.InvalidRequest as error:
            error.message = f"{request.method.name}: {error.message}"
            self._board.end(request.slot, time.monotonic_ns())
            self._refuse(request, error)
            return False
        del peer.queued[request.id]
        request.frames = ()
        session.running += 1
        return True

    def complete(self, request: Request) -> None:
        """Note the request's end and put its answer into the peer's outbox.

        Raises:
            FatalError: The error ends this worker.
        """
        now_ns = time.monotonic_ns()
        self._board.end(request.slot, now_ns)
        request.method.took(now_ns - request.started_ns)
        peer = request.peer
        peer.session.running -= 1
        peer.payload_bytes -= request.payload_bytes
        error = request.error
        if isinstance(error, errors.RequestError):
            error.maybe_executed = True
        self._reply(peer, request.id, request.result, error)
        if error is not None and error.ends_worker:
            raise FatalError(error)

    def _drop(self, request: Request, error: errors.RequestError) -> None:
        self._board.count(Counter.DISCARDED)
        self._refuse(request, error)

    def _refuse(self, request: Request, error: errors.RequestError) -> None:
        request.dropped = True
        request.frames = ()
        peer = request.peer
        del peer.queued[request.id]
        peer.payload_bytes -= request.payload_bytes
        self._reply(peer, request.id, None, error)

    def _reply(self, peer: Peer, request_id: int, result: object, error: errors.AtomrError | None) -> None:
        peer.unanswered -= 1
        if peer.session.ended:
            return
        body = b""
        frames: list[values.Buffer] = []
        if error is None:
            try:
                body, frames = values.encode(result)
            except errors.InvalidRequest as refused:
                error = errors.ActorFailed(f"the result cannot be sent: {refused}", exception="TypeError")
            except BaseException as raised:  # noqa: BLE001 - of a result with code of its own, run by the encoder
                error = _failed("encoding the result raised", raised)
        info = None if error is None else _wire_form(error)
        peer.replies.append(data.Reply(request_id, len(frames), body, info))
        peer.reply_bytes += len(body)
        if frames:
            peer.frames += frames

    def _unknown(self, call: data.Call) -> errors.RequestError:
        if call.method in self._methods:
            return errors.InvalidRequest(f"request id {call.id} is in use already")
        known = ", ".join(sorted(self._methods)) or "none"
        return errors.InvalidRequest(f"there is no request {call.method!r}; this pool's requests are: {known}")


def describe(error: BaseException) -> str:
    """Return an exception's class and text; user code may have given it a text that cannot be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - raised by the exception's own __str__
        return type(error).__name__


def _failed(what: str, error: BaseException) -> errors.ActorFailed:
    return errors.ActorFailed(
        f"{what} {describe(error)}",
        exception=f"{type(error).__module__}.{type(error).__qualname__}",
        traceback_text="".join(traceback.format_exception(error)),
    )


def _wire_form(error: errors.AtomrError) -> ErrorInfo:
    try:
        return ErrorInfo.of(error)
    except (TypeError, ValueError, AttributeError) as wrong:  # made by user code, with facts of wrong types
        return ErrorInfo.of(_failed(f"an actor raised a {type(error).__name__} that cannot be sent:", wrong))
