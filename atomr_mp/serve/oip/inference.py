"""Inferences as calls of the pool, for every form of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.health import HealthVerdict, PoolHealth
from atomr_mp.serve.http.events import OpenHttpStreams
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.oip.classification import classes_of
from atomr_mp.serve.oip.fitting import ONE
from atomr_mp.serve.oip.models import UNFIT, VERSION, Model, ModelTable
from atomr_mp.serve.oip.not_offered import SHARED_MEMORY_OFF
from atomr_mp.serve.oip.requests import EMPTY_FINAL, AskedOutput, InferAnswer, InferRequest
from atomr_mp.serve.oip.sequences.asked import PARAMETERS, asked_of, controls_of
from atomr_mp.serve.oip.sequences.life import SequenceOutcome
from atomr_mp.serve.oip.sequences.turns import SequenceTurn, SequenceTurns, told
from atomr_mp.serve.oip.shared_memory.transfers import SharedMemory
from atomr_mp.serve.oip.statistics import ModelStatistics, Phases
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.pool_calls import PoolCalls
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.served_request import ServedRequest
from atomr_mp.serve.served_stream import AHEAD, AHEAD_BYTES, ServedStream
from atomr_mp.serve.source import PoolSource
from atomr_mp.serve.target import CallTarget
from atomr_mp.version import __version__

SERVER: Final = "atomr-mp"

EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
)

TOP_PRIORITY: Final = 7
LEAST_PRIORITY: Final = -8

LEAST_S: Final = 0.001
"""What is left of a deadline at least, once a request is called."""

RESERVED: Final = frozenset({"priority", "timeout", "binary_data_output", EMPTY_FINAL})
"""Parameters of the protocol itself."""


R = TypeVar("R", bound=ServedRequest)
S = TypeVar("S", bound=ServedStream)


class CallOptions(NamedTuple):
    """How a call is made for an inference."""

    deadline_s: float | None
    """The earlier of the request's `timeout` and the client's deadline; None for none."""
    priority: int


class Inference:
    """Makes calls of the pool for inferences.

    Args:
        source: The source of the pool.
        calls: Makes calls.
        health: Knows which devices answer.
        table: Finds models.
        statistics: Counts inferences.
        turns: Lets requests of sequences run one by one.
        streams: The front end's open streams.
        counters: The front end's counters.
        most_deadline_s: The longest deadline that a request may ask for; a later one is this.
        shared_memory: Clients' regions; None if they may have none.
    """

    def __init__(
        self,
        source: PoolSource,
        calls: PoolCalls,
        health: PoolHealth,
        table: ModelTable,
        statistics: ModelStatistics,
        turns: SequenceTurns,
        streams: OpenHttpStreams,
        counters: Counters,
        most_deadline_s: float,
        shared_memory: SharedMemory | None = None,
    ) -> None:
        self._source: Final = source
        self._calls: Final = calls
        self._health: Final = health
        self._table: Final = table
        self.statistics: Final = statistics
        self._turns: Final = turns
        self._streams: Final = streams
        self._counters: Final = counters
        self._most_deadline_s: Final = most_deadline_s
        self.shared_memory: Final = shared_memory

    def names(self) -> list[str]:
        """Return the names of all models."""
        return self._table.names(self._source.pool.methods_by_name)

    def model(self, name: str, version: str) -> Model:
        """Return a model.

        Raises:
            Problem: 404; there is no such model or version. See `ModelTable.find` for models that are described.
            PoolUnreachable: The pool starts, and the model is not known yet.
        """
        pool = self._source.pool
        try:
            return self._table.find(name, version, pool.methods_by_name)
        except Problem:
            if pool.is_starting(self._table.method_of(name)):
                raise errors.PoolUnreachable(f"no device that has the model {name[:100]} has been ready yet") from None
            raise

    def metadata(self) -> dict[str, Any]:
        """Return the server's metadata, as the protocol has it."""
        more = [] if self.shared_memory is None else ["system_shared_memory"]
        return {"name": SERVER, "version": __version__, "extensions": [*EXTENSIONS, *more]}

    async def verdict(self, name: str = "", version: str = "") -> HealthVerdict:
        """Return whether a model answers, or any of them.

        Raises:
            Problem: 404; there is no such model or version.
        """
        try:
            return await self._health.verdict(self.model(name, version).method if name else "")
        except Problem as problem:
            if problem.code not in UNFIT:
                raise
            return HealthVerdict(ready=False, reason=problem.message, code=problem.code)

    async def index(self, *, only_ready: bool) -> list[dict[str, str]]:
        """Return the models with their states, as the protocol's extension of repositories has them.

        Args:
            only_ready: Whether to list ready models alone.
        """
        found: list[dict[str, str]] = []
        for name in self.names():
            verdict = await self.verdict(name)
            if verdict.ready:
                found.append({"name": name, "version": VERSION, "state": "READY"})
            elif not only_ready:
                why = {"state": "UNAVAILABLE", "reason": verdict.reason}
                found.append({"name": name, "version": VERSION, **why})
        return found

    def options(self, model: Model, request: InferRequest, deadline_s: float | None) -> CallOptions:
        """Return how the call for a request is made.

        Args:
            model: The model.
            request: The request.
            deadline_s: The client's own deadline in seconds; None for none.

        Raises:
            InvalidRequest: Its timeout or its priority is none.
        """
        timeout_us = _whole(request, "timeout")
        asked = (deadline_s, timeout_us / 1e6 if timeout_us else None, model.setting.deadline_s)
        deadlines = [each for each in asked if each is not None]
        earliest = min([*deadlines, self._most_deadline_s]) if deadlines else None
        level = model.setting.level_of(_whole(request, "priority"))
        return CallOptions(earliest, max(TOP_PRIORITY + 1 - level, LEAST_PRIORITY) if level else 0)

    def arguments(self, model: Model, request: InferRequest, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of a method for a request.

        Args:
            model: The model.
            request: The request.
            headers: The client's headers, by names in small letters.

        Raises:
            InvalidRequest: The request does not fit the model.
        """
        for output in request.outputs:
            if model.outputs is not None and output.name not in model.outputs:
                raise _no_output(model, output.name, model.outputs)
        found = model.arguments(request.inputs)
        setting = model.setting
        if setting.id_to:
            found[setting.id_to] = request.id
        if setting.parameters_to:
            reserved = RESERVED | PARAMETERS if setting.has_sequences else RESERVED
            own = {name: value for name, value in request.parameters.items() if name not in reserved}
            found[setting.parameters_to] = own
        if setting.headers_to:
            found[setting.headers_to] = {name: headers[name] for name in setting.headers if name in headers}
        return found

    async def infer(
        self,
        served: ServedRequest,
        request: InferRequest,
        *,
        deadline_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> InferAnswer:
        """Make a call for a request, and return its outcome.

        Args:
            served: The client's request.
            request: What it asks for.
            deadline_s: The client's own deadline in seconds; None for none.
            headers: The client's headers, by names in small letters.

        Raises:
            Problem: 404, there is no such model; 501, it answers in parts.
            AtomrError: The request does not fit, or the call has ended with this error.
            ClientLeft: The client has left.
        """
        model = self.model(request.model, request.version)
        served.called = model.method
        if model.info.streams:
            raise Problem(
                501,
                "streams",
                f"the model {model.name} answers in parts; ask by gRPC's ModelStreamInfer, or by generate_stream",
            )
        options = self.options(model, request, deadline_s)
        if model.setting.has_sequences:
            return await self._in_sequence(served, model, request, options, headers or {})
        async with self.filled(request) as whole:
            arguments = self.arguments(model, whole, headers or {})
            with self.counted(model, served):
                plan = self._calls.plan(self._source.pool, model.method)
                called_ns = time.monotonic_ns()
                reply = self._calls.call(
                    served, plan, (), arguments, deadline_s=options.deadline_s, priority=options.priority
                )
                del arguments  # they may be large, and the call long
                return await self._answered(served, model, whole, reply, called_ns)

    @contextlib.asynccontextmanager
    async def filled(self, request: InferRequest) -> AsyncIterator[InferRequest]:
        """Return a request with what lies in shared memory, see `SharedMemory.filled`; until the block ends.

        Raises:
            InvalidRequest: Shared memory is off.
        """
        if not request.uses_regions:
            yield request
            return
        if self.shared_memory is None:
            raise errors.InvalidRequest(SHARED_MEMORY_OFF)
        async with self.shared_memory.filled(request, self._source.pool) as whole:
            yield whole

    @contextlib.contextmanager
    def counted(self, model: Model, served: ServedRequest) -> Iterator[None]:
        """Count an error as a failed inference, though its call may not have left: the request was good."""
        try:
            yield
        except BaseException:
            self.statistics.failed(model.name, time.monotonic_ns() - served.begun_ns)
            raise

    async def _answered(
        self,
        served: ServedRequest,
        model: Model,
        request: InferRequest,
        reply: Reply,
        called_ns: int,
        turn: SequenceTurn | None = None,
    ) -> InferAnswer:
        result = await self._calls.outcome(served, reply)
        if turn is not None:
            turn.outcome = SequenceOutcome.ANSWERED
        came_ns = time.monotonic_ns()
        answer = await made(model, request, result)
        if self.shared_memory is not None:
            answer = await self.shared_memory.written(request, answer)
        ran_ns = min(reply.ran_ns, came_ns - called_ns)
        waited_ns, made_ns = came_ns - called_ns - ran_ns, time.monotonic_ns() - came_ns
        phases = Phases(called_ns - served.begun_ns, waited_ns, ran_ns, made_ns)
        rows = _rows(model, request)
        executed = reply.batch_rows if model.info.batches_rows else rows
        self.statistics.answered(model.name, rows, phases, executed)
        return answer

    async def _in_sequence(
        self,
        served: ServedRequest,
        model: Model,
        request: InferRequest,
        options: CallOptions,
        headers: Mapping[str, str],
    ) -> InferAnswer:
        """Make a call in the turn of its sequence, where that has its state.

        Inputs in shared memory are read in the turn, as large ones take longer than those of a later request.
        """
        arguments = {} if request.shared else self.arguments(model, request, headers)
        asked = asked_of(model, request)
        waits_ns, limit_s = time.monotonic_ns(), options.deadline_s
        with self.counted(model, served):
            async with self._turns.turn(served, model, asked, limit_s) as turn:
                try:
                    async with self.filled(request) as whole:
                        if request.shared:
                            arguments = self.arguments(model, whole, headers)
                        arguments |= controls_of(model, asked)
                        waited_s = (time.monotonic_ns() - waits_ns) / 1e9
                        turn.reply = await self._calls.call_once(
                            served,
                            turn.pool,
                            model.method,
                            arguments,
                            deadline_s=None if limit_s is None else max(limit_s - waited_s, LEAST_S),
                            priority=options.priority,
                            at=turn.at,
                        )
                        del arguments
                        return await self._answered(served, model, whole, turn.reply, waits_ns, turn)
                except errors.AtomrError as error:
                    turn.failed(error)
                    raise told(error, turn.outcome, model.name, asked) from None

    def open(
        self,
        served: R,
        model: Model,
        request: InferRequest,
        make: Callable[[R, ReplyStream, OpenHttpStreams, PoolHealth, Counters], S],
        *,
        deadline_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> S:
        """Open a stream for a request to a model that answers in parts; `answer_of` makes an answer of each.

        Args:
            served: The client's request.
            model: The model; its method streams.
            request: What it asks for.
            make: `ServedStream`, or the class of it that the client's protocol has.
            deadline_s: The client's own deadline in seconds; None for none.
            headers: The client's headers, by names in small letters.

        Raises:
            Problem: 429 or 503; no further stream is opened.
            AtomrError: The request does not fit, or the pool does not open it.
        """
        served.called = model.method
        options = self.options(model, request, deadline_s)
        arguments = self.arguments(model, request, headers or {})
        with self.counted(model, served):
            self._streams.check()
            stream = CallTarget(self._source.pool, model.method).stream(
                (),
                arguments,
                deadline_s=options.deadline_s,
                priority=options.priority,
                ahead=AHEAD,
                ahead_bytes=AHEAD_BYTES,
            )
        served.sent = True
        return make(served, stream, self._streams, self._health, self._counters)


async def made(model: Model, request: InferRequest, result: object) -> InferAnswer:
    """Return the answer for a result, see `answer_of`; on a thread where classes are asked for, which takes long."""
    if any(each.classes for each in request.outputs):
        return await asyncio.to_thread(answer_of, model, request, result)
    return answer_of(model, request, result)


def answer_of(model: Model, request: InferRequest, result: object) -> InferAnswer:
    """Return the answer for a result, with the outputs that were asked for.

    Raises:
        Unsupported: The result has a value that is no tensor.
        InvalidRequest: It lacks an output that was asked for, or has no classes.
    """
    found = model.tensors_of(result)
    if not request.outputs:
        return InferAnswer(model.name, VERSION, request.id, {}, list(found.values()))
    asked = {each.name: each for each in request.outputs}
    for name in asked:
        if name not in found:
            raise _no_output(model, name, found, ran=True)
    outputs = [_shown(model, asked[name], tensor) for name, tensor in found.items() if name in asked]
    return InferAnswer(model.name, VERSION, request.id, {}, outputs)


def _shown(model: Model, asked: AskedOutput, tensor: NamedTensor) -> NamedTensor:
    if not asked.classes:
        return tensor
    setting = model.setting.outputs.get(asked.name)
    labels = () if setting is None else setting.labels
    return classes_of(tensor, asked.classes, labels, has_rows=model.setting.max_batch_size > 0)


def _rows(model: Model, request: InferRequest) -> int:
    """Return how many rows a request has; 1 if they are not counted."""
    if model.setting.max_batch_size:
        return request.inputs[0].shape[0] if request.inputs else 1
    if not model.info.batches_rows:
        return 1
    several = [each.shape for each in request.inputs if model.inputs[each.name].form not in ONE]
    return next((shape[0] for shape in several if shape), 1)


def _no_output(model: Model, name: str, known: Iterable[str], *, ran: bool = False) -> errors.InvalidRequest:
    known = list(known)
    hint = did_you_mean(name[:100], known)
    why = f"the model {model.name} has no output {name[:100]!r}{hint}; it has: {', '.join(known)}"
    return errors.InvalidRequest(why, maybe_executed=ran)


def _whole(request: InferRequest, name: str) -> int:
    """Return a parameter that is a whole number, 0 if it is missing.

    Raises:
        InvalidRequest: It is something else.
    """
    found = request.parameters.get(name, 0)
    if type(found) is not int or found < 0:
        raise errors.InvalidRequest(f"the parameter {name} is a whole number from 0, not {repr(found)[:60]}")
    return found
