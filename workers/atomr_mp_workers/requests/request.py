"""A unit of execution: one request, or one batch of a method's requests."""

from __future__ import annotations

import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.board import OFF_BOARD
from atomr_mp.protocol.messages import data
from atomr_mp_workers import own_process, tracing
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.raised import explain, unsendable
from atomr_mp_workers.timeline import RecordedRequest, RunClock, WorkTimes


@dataclass(frozen=True)
class Later:
    """A result that exists only once the device has done the work, after the method has returned."""

    read: Callable[[], Any]
    """Returns the result, or raises the caller's error; called on the loop's thread, once, after the work has ended."""


@dataclass(frozen=True)
class Next:
    """Further work that depends on earlier work of the device: on a size, or on whether there is a result."""

    enqueue: Callable[[], Any]
    """Reads the earlier result and puts the work on the stream, once the work before it has ended. Returns any result
    of a method, even another `Next`."""
    after: Event | None = None
    """An event that has to come first besides: work of the request that is done elsewhere."""
    gives_way: bool = False
    """Whether others on its stream have their turn first, even if that does not defer its work; see
    `Method.in_parts`."""


@dataclass(frozen=True)
class Elsewhere:
    """Work that waits for the device itself. If a stream defers its work, it runs on a thread of its own."""

    work: Callable[[], Any]
    """Does the work, on the current stream, once the request's own work on its stream has ended."""
    then: Callable[[Any], Any]
    """Takes the result of the work, on the loop, and returns what a method may return."""


class Returns(Protocol):
    """Takes back runs that ran elsewhere than on the loop."""

    def add(self, request: Run, /) -> None:
        """Take in a run that has ended. Any thread."""


class Run(ABC):
    """A unit of execution: one request, or one batch."""

    # Most requests never need most of these; a default costs nothing to make.
    method: Method
    error: errors.AtomrError | None = None
    arguments: tuple[Any, ...] = ()
    raised: BaseException | None = None
    """The exception with which the device has refused its work; one of its method is an `error` at once."""
    event: Event | None = None
    """The event of its own end, if others may have to wait for it."""
    completions: Returns | None = None
    """The queue by which it comes back, unless the loop runs it."""
    reads: Sequence[DeviceArray] = ()
    """Arrays that it reads and that may turn out to be undefined."""
    number = 0
    """Its number among the runs elsewhere."""
    called_ns = 0
    """When its code was called, CLOCK_MONOTONIC; 0 for a task."""
    next: Next | None = None
    """Its next work, once the work on its stream has ended."""
    span: Any = None
    """Its span, for a request that is traced."""
    times: WorkTimes | None = None
    """The times of its work on the device, while the pool is traced."""
    recorded: RunClock | None = None
    """Notes when its code runs, while the pool is traced."""

    @property
    @abstractmethod
    def requests(self) -> Sequence[Request]:
        """The requests that it answers."""

    @property
    def goes_on(self) -> bool:
        """Whether it puts more work on its stream when the work there has ended."""
        return self.next is not None and self.error is None and self.raised is None

    @property
    @abstractmethod
    def holder(self) -> Holder:
        """The holder of the memory that it makes."""

    @abstractmethod
    def take(self, result: Any) -> None:
        """Take the method's return value."""

    def record(self) -> None:  # noqa: B027 - by default a run is one request
        """Have its requests share a clock for the pool's trace. With the loop's turn."""

    def call(self) -> None:
        """Run the method, or its next work, on the thread it belongs to; never raises."""
        _current.run = self
        entered = tracing.tracer.enter(self.span) if self.span is not None and tracing.tracer is not None else None
        method = self.method
        self.called_ns = time.monotonic_ns()
        if self.recorded is not None:
            self.recorded.begin()
        try:
            if hooks.hook is not None:
                hooks.hook("enqueue", method.name)
            if self.next is None:
                result = method.function(*self.arguments)
                own_process.check()  # first of all: a forked child must not write into shared memory
                self.take(result)
                del result
            else:
                following, self.next = self.next, None
                self.take(following.enqueue())
        except BaseException as raised:  # noqa: BLE001 - what user code raises is an answer, not the worker's end
            self.fail(raised)
        own_process.check()
        if self.recorded is not None:  # perhaps only since it has begun
            self.recorded.end()
        _current.run = None
        if entered is not None and tracing.tracer is not None:
            tracing.tracer.leave(entered)

    def fail(self, raised: BaseException) -> None:
        """Take an exception before the code that has raised it goes on; only one that ends the worker replaces another.

        Any thread.
        """
        error = explain(self, raised)
        if self.error is None or error.ends_worker:
            self.error = error

    def finished(self) -> None:
        """Report, from the thread that has run it, that it has ended, or that its work on the stream has."""
        if self.event is not None and self.next is None:
            self.event.end()
        assert self.completions is not None
        self.completions.add(self)


class Stage:
    """How far a request has come: what has to be undone if our own code fails. Integers, for their cost."""

    QUEUED: Final = 0
    STARTED: Final = 1
    """It is on the board, and has neither left its queue nor been refused."""
    ENDED_EARLY: Final = 2
    """It is off the board again, or discarded, and has not left its queue."""
    RUNNING: Final = 3
    REFUSED: Final = 4
    """All is undone of it; only its answer is missing."""
    ENDED: Final = 5
    """As `REFUSED`, after its method was run."""
    ANSWERED: Final = 6


class Request(Run):
    """A call that has been received and not answered."""

    stage: int = Stage.QUEUED
    dropped = False
    """Whether it was answered before it started (cancelled); its queue passes it over."""
    frames: Sequence[memoryview] = ()
    slot = OFF_BOARD
    started_ns = 0
    encoded: values.Encoded | None = None
    """The result, ready to be sent."""
    later: Later | None = None
    """Reads the result once the device has done the work."""
    decoded = False
    borrows: Sequence[tuple[Block, bool]] = ()
    """The memory that it uses, and whether it writes it."""
    after: Sequence[Event] = ()
    """Events of earlier uses of that memory, which have to end first."""
    is_lent = False
    """Whether it uses memory of other devices, so that writers there wait for it."""
    writes: Sequence[DeviceArray] = ()
    order = 0
    """Its place in the order of borrows, if it writes, or reads memory that may turn out to be undefined."""
    missed: Sequence[Block] = ()
    """Blocks that it should have written, but did not start; its answer waits for requests that may be queued behind
    it."""
    kept_out = False
    """Whether it has begun, and its method was not run."""
    making: Event | None = None
    """The end of its library's import, or of its plan's making, if either goes on elsewhere."""
    items = 1
    """How many items it stands for, see `items`."""
    gang: data.Gang | None = None
    """The call of a world that it is a part of."""
    observed = False
    """Whether it has begun while requests were observed, see `tracing`."""
    recorded: RecordedRequest | None = None
    """What the pool's trace keeps of it."""
    batch_rows = 0
    """Rows of its batch, if its answer tells them, see `CallReply.batch_rows`."""
    ran_ns = 0
    """From the call of its code to its end."""
    step_flops = 0
    """Operations that the steps of its program have declared so far."""
    step_bytes = 0
    """The same of bytes."""
    alone = False
    """Whether it is a part that has to run while nothing else runs on any member."""
    closing: errors.AtomrError | None = None
    """The error to end with after it has begun: for a stream at its next step, for a task at its `await`, and for all
    before the next condition of a program that they run."""

    def __init__(self, peer: Peer, call: data.Call | data.StreamCall, method: Method, received_ns: int = 0) -> None:
        self.peer = peer
        self.id = call.id
        self.method = method
        self.received_ns = received_ns
        self.deadline_ns = call.deadline_ns
        self.body = body = call.body
        self.refs = call.refs
        self.priority = call.priority
        self.trace = call.trace
        self.submitted_ns = call.submitted_ns
        self.payload_bytes = len(body)
        """Bytes that it counts for in its window."""

    @property
    def is_running(self) -> bool:
        """Whether it has begun and was not answered."""
        return self.stage == Stage.RUNNING

    @property
    def has_stepped(self) -> bool:
        """Whether it is a stream that has taken a step."""
        return False

    def count_step(self, flops: int, nbytes: int) -> None:
        """Count what a step of its program declares. The thread that runs it."""
        self.step_flops += flops
        self.step_bytes += nbytes
        if self.recorded is not None:
            self.recorded.add(flops, nbytes)

    def turn_deadline_ns(self, _begun_ns: int) -> int:
        """Return the time by which it has to end; a stream has a time for each of its turns."""
        return self.deadline_ns

    @property
    def requests(self) -> Sequence[Request]:
        """Itself."""
        return (self,)

    @property
    def holder(self) -> Holder:
        """Its session's holder."""
        return self.peer.session.holder

    def read_later(self) -> None:
        """Take the result, now that the device has done the work; never raises."""
        later, self.later = self.later, None
        assert later is not None
        try:
            self.take(later.read())
        except BaseException as raised:  # noqa: BLE001 - as in `call`
            self.fail(raised)

    def take(self, result: Any) -> None:
        """Encode the result, or keep it if it exists only later."""
        if type(result) is Next:
            stream = self.method.stream
            while type(result) is Next:
                if stream is not None and (stream.defers or result.gives_way):
                    self.next = result
                    return
                result = result.enqueue()
        if result is None:
            self.encoded = _NOTHING
            return
        if type(result) is Later:
            self.later = result
            return
        try:
            self.encoded = encode(result, self.peer)
        except errors.InvalidRequest as refused:
            self.error = unsendable(self, result, refused)


def encode(result: Any, peer: Peer, around: int = 0) -> values.Encoded:
    """Return the wire form of the content of one answer.

    Args:
        result: The content.
        peer: Its receiver.
        around: 1 if it is a list of results.

    Raises:
        InvalidRequest: It cannot be encoded; the message says why.
    """
    encoded = values.encode(result, peer.session.place, around=around)
    if len(encoded[2]) > data.MAX_RELEASED:  # its receiver would drop the whole message
        raise errors.InvalidRequest(f"{len(encoded[2])} refs in one answer; the limit is {data.MAX_RELEASED}")
    return encoded


def current_holder() -> Holder | None:
    """Return the holder of memory made by the code that this thread runs, None if it runs nothing."""
    run = current_run()
    return None if run is None else run.holder


def current_request() -> Request | None:
    """Return the request whose method this thread runs; None if it runs none, or several together."""
    run = current_run()
    return run if isinstance(run, Request) else None


def current_run() -> Run | None:
    """Return the request or batch whose method this thread or task runs; None if it runs none."""
    run: Run | None = getattr(_current, "run", None)
    if run is not None:
        return run
    cell = in_task.get()
    return None if cell is None else cell.run


class TaskCell:
    """The request of a task on an actor's event loop, for code in that task and in tasks that it has started.

    Emptied when the request has ended.
    """

    __slots__ = ("closing", "run")

    def __init__(self, run: Run) -> None:
        self.run: Run | None = run
        self.closing: errors.AtomrError | None = None
        """The error with which the request was ended early, once it has ended."""


def passes(request: Request) -> bool:
    """Return whether a request does not wait behind those of its session that wait for memory in use.

    Writers on other devices wait for one that uses memory there, and what it would wait for may wait for them.
    """
    return request.is_lent


in_task: Final[contextvars.ContextVar[TaskCell | None]] = contextvars.ContextVar("in_task", default=None)

_current = threading.local()

_NOTHING: Final = values.encode(None)
"""The encoded result of most methods that are called for their effect."""
