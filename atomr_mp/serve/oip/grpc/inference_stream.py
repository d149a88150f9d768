"""ModelStreamInfer: many requests on one stream, answered as the answers come, in one part or in many."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from atomr_mp import errors
from atomr_mp.client.reply import set_done
from atomr_mp.serve.oip.grpc import requests
from atomr_mp.serve.oip.grpc.call import GrpcCall, details_of, status_of, uncut
from atomr_mp.serve.oip.grpc.frame import LEFT, CallFrame, Grounds, internal, left_s
from atomr_mp.serve.oip.inference import answer_of
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.requests import EMPTY_FINAL, InferAnswer, InferRequest
from atomr_mp.serve.oip.statistics import Phases
from atomr_mp.serve.problems import ClientLeft, Problem, retry_after
from atomr_mp.serve.served_stream import ServedStream

MOST_AT_ONCE: Final = 64
"""Most requests of one stream that are answered at a time; further ones are read when one of these is over."""

NO_TIME_S: Final = 0.05
"""A call that meets its deadline with less than this left of the stream's met the stream's, which ends the stream."""

ENDS_BY_ERROR: Final = "triton_grpc_error"
"""The metadata with which a client asks that the first error of a call ends the stream, as its status."""

NONE: Final = InferRequest("", "", "", {}, (), ())
"""Stands for a request that could not be read."""


class InferenceStream:
    """One stream of a client. The stream tells the error of a request that fails, and goes on.

    Args:
        grounds: What the front end's faces share.
        frame: Counts requests.
        context: The call's.
        served: The call.
    """

    def __init__(self, grounds: Grounds, frame: CallFrame, context: Any, served: GrpcCall) -> None:
        self._grounds: Final = grounds
        self._inference: Final = grounds.inference
        self._frame: Final = frame
        self._context: Final = context
        self._served: Final = served
        self._room: Final = asyncio.Semaphore(MOST_AT_ONCE)
        self._unsent_bytes = 0
        """Bytes of answers that wait until they are sent."""
        self._has_begun = False
        """Whether an answer was sent, or was to be."""
        self._turn: Final = asyncio.Lock()
        """Held while an answer is sent: gRPC sends one at a time."""
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._ends_by_error: Final = served.metadata.get(ENDS_BY_ERROR) == "true"
        self._why: Problem | errors.AtomrError | None = None
        """Why it ends before its client has ended it."""
        loop = asyncio.get_running_loop()
        self._ending: Final[asyncio.Future[None]] = loop.create_future()
        """Done once no further request is read."""
        self._cut: Final[asyncio.Future[None]] = loop.create_future()
        """Done once the stream does not wait for requests that run."""

    async def run(self) -> None:
        """Answer requests until the client sends no more, and all are answered.

        Raises:
            Problem: 429 or 503, no further stream is opened; else why this one ends before.
            AtomrError: A call has ended with this error, and the client has asked that it ends the stream.
            ClientLeft: The client has left.
        """
        streams = self._grounds.streams
        streams.check()
        streams.add(self._close, self._served.token)
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({reading, self._ending}, return_when=asyncio.FIRST_COMPLETED)
            is_read = reading.done()
            if is_read:
                reading.result()
            reading.cancel()
            while self._tasks and not self._cut.done():
                await asyncio.wait({*self._tasks, self._cut}, return_when=asyncio.FIRST_COMPLETED)
            if self._why is not None and (self._cut.done() or not is_read):
                raise errors.unraised(self._why)
        finally:
            streams.remove(self._close)
            for task in (reading, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    def _close(self, why: Problem) -> None:
        """End it: with the answers to what runs where the server ends, without them else."""
        if self._why is not None:
            return
        if why.status == 500:
            self._why = Problem(
                503, why.code, "the server ends, and reads no further request", headers=(retry_after(0),)
            )
            set_done(self._ending)
        else:
            self._end(why)

    def _end(self, why: Problem | errors.AtomrError) -> None:
        """End it with an error, without the answers to what runs."""
        self._why = self._why or why
        set_done(self._cut)
        set_done(self._ending)

    async def _read(self) -> None:
        while True:
            await self._room.acquire()
            data = await uncut(self._context.read())
            if data is grpc.aio.EOF:
                return
            task = asyncio.get_running_loop().create_task(self._serve(data))
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _serve(self, data: bytes) -> None:
        """Answer a request, with its error if it fails."""
        served = GrpcCall(self._served.path, self._served.metadata)
        served.token = self._served.token
        request = NONE
        with contextlib.suppress(ClientLeft), self._frame.counting(served):
            served.read_bytes = len(data)
            try:
                self._check_room()
                self._grounds.budget.hold(len(data))
                try:
                    message = requests.message_of(data)
                    request = requests.head_of(message)
                    request = requests.request_of(message)
                    del message  # its tensors may be large, and the call long
                    await self._answer(served, request)
                finally:
                    self._grounds.budget.let_go(len(data))
            except (Problem, errors.AtomrError) as error:
                await self._fail(served, request, error)
            except ClientLeft:
                raise
            except Exception as error:  # noqa: BLE001 - the top of a request: it is answered, and the server goes on
                await self._fail(served, request, internal(error, served))

    def _check_room(self) -> None:
        """Refuse a request while its client, or all clients, leave too much unread.

        Raises:
            Problem: 429.
        """
        unsent, most = self._unsent_bytes, self._grounds.limits.unread_connection_bytes
        if unsent > most:
            told = f"{unsent} bytes of answers wait on this stream, more than {most}; read them, then ask again"
            raise Problem(429, "overloaded", told, headers=(retry_after(0),))
        self._grounds.check_room()

    async def _answer(self, served: GrpcCall, request: InferRequest) -> None:
        inference = self._inference
        model = inference.model(request.model, request.version)
        if model.info.streams:
            await self._answer_in_parts(served, model, request)
            if request.parameters.get(EMPTY_FINAL):
                await self._send_end(served, requests.encode_end(model.name, request.id))
            return
        answer = await inference.infer(served, request, deadline_s=left_s(self._context), headers=served.metadata)
        await self._send(served, answer, is_final=True)

    async def _answer_in_parts(self, served: GrpcCall, model: Model, request: InferRequest) -> None:
        if any(each.extent is not None for each in request.outputs):
            why = f"the model {model.name} answers in parts, and each would be written over the one before it"
            raise errors.InvalidRequest(f"{why}: ask for its outputs without shared memory")
        async with self._inference.filled(request) as whole:
            await self._answer_filled(served, model, whole)

    async def _answer_filled(self, served: GrpcCall, model: Model, request: InferRequest) -> None:
        statistics, opened_ns = self._inference.statistics, time.monotonic_ns()
        stream = self._inference.open(
            served,
            model,
            request,
            ServedStream,
            deadline_s=left_s(self._context),
            headers=served.metadata,
        )
        with self._inference.counted(model, served):
            async with stream:
                while (found := await stream.next()) is not None:
                    answer = answer_of(model, request, found[0])
                    await self._send(served, answer, is_final=False)
        took_ns = time.monotonic_ns() - opened_ns
        statistics.answered(model.name, 1, Phases(opened_ns - served.begun_ns, 0, took_ns, 0), 1)

    async def _fail(self, served: GrpcCall, request: InferRequest, error: errors.AtomrError | Problem) -> None:
        served.failed(error)
        served.status = status_of(error, sent=served.sent)
        if self._ends_by_error and served.sent:
            self._end(error)
            return
        left = self._context.time_remaining()
        if isinstance(error, errors.DeadlineExceeded) and left is not None and left < NO_TIME_S:
            await asyncio.sleep(max(left, 0.0))  # so that other calls have all of the time
            self._end(Problem(504, error.code, str(error), maybe_executed=True))
            return
        await self._send_end(served, requests.encode_end(request.model, request.id, details_of(error, served.parts)))

    async def _send(self, served: GrpcCall, answer: InferAnswer, *, is_final: bool) -> None:
        """Send an answer once it is its turn, and the client has read enough.

        Until then its arrays lie where the worker has put them: answers that wait have no copies in this process.

        Raises:
            ClientLeft: The client has left.
            Problem: The client has read nothing for too long.
        """
        nbytes, unread, is_queued = answer.nbytes, self._grounds.unread, True
        self._unsent_bytes += nbytes
        unread.queued_bytes += nbytes
        try:
            async with self._turn:
                unread.queued_bytes -= nbytes
                is_queued = False
                await unread.take(nbytes)
                await self._write(served, lambda: requests.encode_part(answer, is_final=is_final), nbytes)
        finally:
            self._unsent_bytes -= nbytes
            if is_queued:
                unread.queued_bytes -= nbytes

    async def _send_end(self, served: GrpcCall, message: bytes) -> None:
        """Send an answer without outputs; see `_send`."""
        async with self._turn:
            await self._write(served, lambda: message, 0)

    async def _write(self, served: GrpcCall, make: Callable[[], bytes], nbytes: int) -> None:
        """Send a message, whose room is given back once gRPC has sent it, or its client is gone."""
        unread = self._grounds.unread
        try:
            if not self._has_begun:
                self._has_begun = True
                # By itself: gRPC would send them again with the status, where the first message was not sent.
                await uncut(self._context.send_initial_metadata(()))
            if self._cut.done():
                raise ClientLeft
            message = make()
            operation = asyncio.ensure_future(self._context.write(message))
        except BaseException:
            unread.give_back(nbytes)
            raise
        operation.add_done_callback(lambda _done: unread.give_back(nbytes))
        try:
            async with asyncio.timeout(self._grounds.limits.stall_s):
                await uncut(operation)
        except grpc.aio.BaseError as error:
            raise ClientLeft from error
        except TimeoutError:
            why = f"nothing of the answers was read for {self._grounds.limits.stall_s:g} s"
            self._close(Problem(LEFT, "client_left", why))
            raise ClientLeft from None
        served.sent_bytes += len(message)
