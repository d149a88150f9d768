"""The protocol's calls over gRPC, and those of gRPC's own services of health and reflection.

Tokens are looked at before a request is read: whoever has none makes the server hold nothing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf import json_format

from atomr_mp.client.reply import set_done
from atomr_mp.serve.oip.config import config_of
from atomr_mp.serve.oip.grpc import requests
from atomr_mp.serve.oip.grpc.call import GrpcCall, metadata_of, uncut
from atomr_mp.serve.oip.grpc.frame import CallFrame, Grounds, left_s
from atomr_mp.serve.oip.grpc.inference_stream import InferenceStream
from atomr_mp.serve.oip.grpc.messages import HealthCheckRequest, HealthCheckResponse, message_class
from atomr_mp.serve.oip.grpc.reflection import Reflection
from atomr_mp.serve.oip.grpc.tables import HEALTH, INFERENCE, OLD_REFLECTION, REFLECTION, ProtoFile
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.not_offered import NOT_OFFERED, problem_of
from atomr_mp.serve.oip.shared_memory.transfers import SharedMemory
from atomr_mp.serve.problems import Problem

HEALTH_EVERY_S: Final = 1.0
"""How often the state of health is looked at that a client watches."""

OPEN_TO_ALL: Final = frozenset({"ServerLive", "ServerReady", "Check"})
"""Calls that need no token, as HTTP's paths of health."""

HEALTHY: Final = frozenset({"", INFERENCE.service_name})
"""The services whose health is known."""

Facts = dict[str, Any]


class GrpcService:
    """Answers calls, as a `grpc.GenericRpcHandler`; for the event loop's thread.

    Args:
        grounds: What it shares with other faces.
    """

    def __init__(self, grounds: Grounds) -> None:
        self._grounds: Final = grounds
        self._inference: Final = grounds.inference
        self._frame: Final = CallFrame(grounds)
        self._handlers: Final[dict[str, Any]] = {}
        told: dict[str, Callable[[Any], Awaitable[Facts]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
        }
        for name, answer in told.items():
            self._tell(INFERENCE, name, answer)
        self._tell(HEALTH, "Check", self._check)
        self._add(INFERENCE, "ModelInfer", grpc.unary_unary_rpc_method_handler, self._infer)
        self._add(INFERENCE, "ModelStreamInfer", grpc.stream_stream_rpc_method_handler, self._stream_infer)
        self._add(HEALTH, "Watch", grpc.unary_stream_rpc_method_handler, self._watch)
        for file in (REFLECTION, OLD_REFLECTION):
            reflect = functools.partial(self._reflect, Reflection(file))
            self._add(file, file.rpcs[0].name, grpc.stream_stream_rpc_method_handler, reflect)
        for name in NOT_OFFERED:
            path = f"/{INFERENCE.service_name}/{name}"
            self._handlers[path] = self._refusing(path, problem_of(name))
        if (shared := grounds.inference.shared_memory) is not None:
            self._share(shared)

    def _share(self, shared: SharedMemory) -> None:
        """Answer the calls of shared memory."""

        async def status(asked: Any) -> Facts:
            return {"regions": {each["name"]: each for each in shared.status(asked.name)}}

        async def register(asked: Any) -> Facts:
            await shared.register(asked.name, asked.key, asked.offset, asked.byte_size)
            return {}

        async def unregister(asked: Any) -> Facts:
            await shared.unregister(asked.name)
            return {}

        async def status_of_gpus(asked: Any) -> Facts:
            return {"regions": {each["name"]: each for each in shared.status_of_gpus(asked.name)}}

        async def unregister_of_gpus(_asked: Any) -> Facts:
            return {}

        for name, answer in {
            "SystemSharedMemoryStatus": status,
            "SystemSharedMemoryRegister": register,
            "SystemSharedMemoryUnregister": unregister,
            "CudaSharedMemoryStatus": status_of_gpus,
            "CudaSharedMemoryUnregister": unregister_of_gpus,
        }.items():
            self._tell(INFERENCE, name, answer)

    def cut(self) -> None:
        """End the calls that run: the server has waited long enough."""
        self._frame.cut()

    def service(self, details: Any) -> Any:
        """Return the handler of a call, before its first request is read; None if there is no such call."""
        path: str = details.method
        found = self._handlers.get(path)
        if found is not None and path.rpartition("/")[2] not in OPEN_TO_ALL:
            try:
                self._frame.token(metadata_of(details.invocation_metadata))
            except Problem as problem:
                return self._refusing(path, problem)
        return found

    def _add(self, file: ProtoFile, name: str, kind: Callable[[Any], Any], answer: Callable[..., Any]) -> None:
        path = f"/{file.service_name}/{name}"
        self._handlers[path] = kind(functools.partial(answer, path))

    def _refusing(self, path: str, problem: Problem) -> Any:
        """Return a handler that refuses a call; as it is one of streams, it reads no request."""

        async def answer(_requests: Any, context: Any) -> None:
            self._frame.refused(path, context, problem)

        return grpc.stream_stream_rpc_method_handler(answer)

    def _tell(self, file: ProtoFile, name: str, answer: Callable[[Any], Awaitable[Facts]]) -> None:
        """Add a call that is answered with a few facts."""
        rpc = next(each for each in file.rpcs if each.name == name)
        request, response = message_class(file, rpc.request), message_class(file, rpc.answer)

        async def tell(served: GrpcCall, data: bytes) -> bytes:
            served.read_bytes = len(data)
            told = await answer(requests.parsed(request, data))
            found: bytes = json_format.ParseDict(told, response()).SerializeToString()
            served.sent_bytes = len(found)
            return found

        async def handle(path: str, data: bytes, context: Any) -> bytes:
            found = b""
            with self._frame.serving(path, context) as served:
                found = await tell(served, data)
            return found  # noqa: RET504 - the frame has made an error the status

        async def handle_anybody(path: str, _requests: Any, context: Any) -> None:
            with self._frame.serving(path, context, needs_token=False) as served:
                await uncut(context.write(await tell(served, await self._read(context) or b"")))

        if name in OPEN_TO_ALL:  # gRPC would wait for the request of any other call as long as its client likes
            self._add(file, name, grpc.stream_stream_rpc_method_handler, handle_anybody)
        else:
            self._add(file, name, grpc.unary_unary_rpc_method_handler, handle)

    # --- inference -------------------------------------------------------------------------------------------------

    async def _infer(self, path: str, data: bytes, context: Any) -> bytes:
        budget, unread, found = self._grounds.budget, self._grounds.unread, b""
        with self._frame.serving(path, context) as served:
            served.read_bytes = len(data)
            self._grounds.check_room()
            budget.hold(len(data))
            try:
                answer = await self._inference.infer(
                    served, requests.decode(data), deadline_s=left_s(context), headers=served.metadata
                )
            finally:
                budget.let_go(len(data))
            nbytes = answer.nbytes
            await unread.take(nbytes)
            context.add_done_callback(lambda _context: unread.give_back(nbytes))  # once its client has read it, or left
            found = requests.encode(answer)
            served.sent_bytes = len(found)
        return found

    async def _stream_infer(self, path: str, _requests: Any, context: Any) -> None:
        with self._frame.serving(path, context) as served:
            await InferenceStream(self._grounds, self._frame, context, served).run()

    # --- what is known ---------------------------------------------------------------------------------------------

    async def _live(self, _asked: Any) -> Facts:
        return {"live": True}

    async def _ready(self, _asked: Any) -> Facts:
        return {"ready": (await self._inference.verdict()).ready}

    async def _model_ready(self, asked: Any) -> Facts:
        requests.check_version(asked.version)
        try:
            verdict = await self._inference.verdict(asked.name, asked.version)
        except Problem:  # there is no such model, which Triton calls not ready
            return {"ready": False}
        return {"ready": bool(asked.name) and verdict.ready}

    async def _metadata(self, _asked: Any) -> Facts:
        return self._inference.metadata()

    async def _model_metadata(self, asked: Any) -> Facts:
        return self._model(asked).metadata()

    async def _config(self, asked: Any) -> Facts:
        return {"config": config_of(self._model(asked))}

    def _model(self, asked: Any) -> Model:
        """Return the model of a request for what is known of it."""
        requests.check_version(asked.version)
        return self._inference.model(asked.name, asked.version)

    async def _statistics(self, asked: Any) -> Facts:
        inference = self._inference
        names = [self._model(asked).name] if asked.name else inference.names()
        return {"model_stats": inference.statistics.told(names)}

    async def _index(self, asked: Any) -> Facts:
        if asked.repository_name:
            raise Problem(501, "not_offered", "there is one repository, which has no name: leave out repository_name")
        return {"models": await self._inference.index(only_ready=asked.ready)}

    # --- health and reflection -------------------------------------------------------------------------------------

    async def _check(self, asked: Any) -> Facts:
        if asked.service not in HEALTHY:
            raise Problem(404, "not_found", f"there is no service {asked.service[:100]!r}")
        return {"status": await self._health(asked.service)}

    async def _health(self, service: str) -> str:
        if service not in HEALTHY:
            return "SERVICE_UNKNOWN"
        return "SERVING" if (await self._inference.verdict()).ready else "NOT_SERVING"

    async def _watch(self, path: str, data: bytes, context: Any) -> None:
        """Tell the state of health, and again whenever it is another."""
        with self._frame.serving(path, context) as served:
            service, streams = requests.parsed(HealthCheckRequest, data).service, self._grounds.streams
            streams.check()
            ending = asyncio.get_running_loop().create_future()
            close = functools.partial(_set_done, ending)
            streams.add(close, served.token)
            told = ""
            try:
                while not ending.done():
                    if (found := await self._health(service)) != told:
                        told = found
                        await uncut(context.write(HealthCheckResponse(status=told).SerializeToString()))
                    await asyncio.wait({ending}, timeout=HEALTH_EVERY_S)
                if told == "SERVING":
                    await uncut(context.write(HealthCheckResponse(status="NOT_SERVING").SerializeToString()))
            finally:
                streams.remove(close)

    async def _reflect(self, reflection: Reflection, path: str, _requests: Any, context: Any) -> None:
        with self._frame.serving(path, context):
            while (data := await self._read(context)) is not None:
                await uncut(context.write(reflection.answer(data)))

    async def _read(self, context: Any) -> bytes | None:
        """Return the next request of a call; None at the end.

        Raises:
            Problem: 408; it does not come.
        """
        limit_s = self._grounds.limits.header_s
        try:
            async with asyncio.timeout(limit_s):
                data = await uncut(context.read())
        except TimeoutError:
            raise Problem(408, "timeout", f"the request has not come within {limit_s:g} s") from None
        return None if data is grpc.aio.EOF else bytes(data)


def _set_done(future: asyncio.Future[None], _why: Problem) -> None:
    set_done(future)
