"""A unit of execution: one request, or one batch of a method's requests."""

from __future__ import annotations

import contextvars
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.board import OFF_BOARD
from atomr_mp.protocol.messages import data
from atomr_mp_workers import tracing
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.peers import Peer


@dataclass(frozen=True)
class Later:
    """A result that is there only when the device has done the work, where that is not when the method returns."""

    read: Callable[[], Any]
    """Returns it, or raises what the caller is to get; called on the loop's thread, once, after the work has ended."""


@dataclass(frozen=True)
class Next:
    """More work, where what the device has done so far decides what it is: a size, or whether there is a result."""

    enqueue: Callable[[], Any]
    """Reads what was decided and puts the work on the stream, once the work before it has ended. Returns what a method
    may return, another `Next` too."""
    after: Event | None = None
    """What has to end first besides: work of the request that is done elsewhere."""


@dataclass(frozen=True)
class Elsewhere:
    """Work that waits for the device by itself: where a stream defers its work, it is done on a thread of its own."""

    work: Callable[[], Any]
    """Does it, on the current stream, once what the request has put on its own stream has ended."""
    then: Callable[[Any], Any]
    """Takes what that has returned, on the loop, and returns what a method may return."""


class Returns(Protocol):
    """Where runs come back that the loop does not run."""

    def add(self, request: Run, /) -> None:
        """Take in a run that has ended. Any thread."""


class Run(ABC):
    """A unit of execution: one request, or one batch."""

    # Most requests never need most of these; what has its default costs nothing to make.
    method: Method
    error: errors.AtomrError | None = None
    arguments: tuple[Any, ...] = ()
    raised: BaseException | None = None
    """What the method has raised, if that is no error of ours."""
    event: Event | None = None
    """Its own end, if others may have to wait for it."""
    completions: Returns | None = None
    """Where it comes back if it is not run by the loop."""
    reads: Sequence[DeviceArray] = ()
    """What it reads, if that may turn out to be undefined."""
    number = 0
    """Its place among those that run elsewhere."""
    next: Next | None = None
    """What it does when the work it has put on its stream has ended."""
    span: Any = None
    """Of `tracing`, if it is wanted; of a request."""

    @property
    @abstractmethod
    def requests(self) -> Sequence[Request]:
        """The requests that it answers."""

    @property
    def goes_on(self) -> bool:
        """Whether it puts more on its stream when the work there has ended."""
        return self.next is not None and self.raised is None

    @property
    @abstractmethod
    def holder(self) -> Holder:
        """Who holds what it makes."""

    @abstractmethod
    def take(self, result: Any) -> None:
        """Take what the method has returned."""

    def call(self) -> None:
        """Run the method, or what comes next of it, on the thread it belongs to; never raises."""
        _current.run = self
        entered = tracing.tracer.enter(self.span) if self.span is not None and tracing.tracer is not None else None
        method = self.method
        try:
            if hooks.hook is not None:
                hooks.hook("enqueue", method.name)
            if self.next is None:
                self.take(method.function(*self.arguments))
            else:
                following, self.next = self.next, None
                self.take(following.enqueue())
        except errors.AtomrError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 - what user code raises is an answer, not the worker's end
            self.raised = error
        _current.run = None
        if entered is not None and tracing.tracer is not None:
            tracing.tracer.leave(entered)

    def finished(self) -> None:
        """Say, from the thread that has run it, that it has ended, or what it has put on its stream so far."""
        if self.event is not None and self.next is None:
            self.event.end()
        assert self.completions is not None
        self.completions.add(self)


class Request(Run):
    """A call that has been received and not answered."""

    dropped = False
    """Answered before it started (cancelled); the queue that holds it passes it over."""
    frames: Sequence[memoryview] = ()
    slot = OFF_BOARD
    started_ns = 0
    encoded: values.Encoded | None = None
    """The result, ready to be sent."""
    later: Later | None = None
    """What reads the result once the device has done the work."""
    decoded = False
    borrows: Sequence[tuple[Block, bool]] = ()
    """The memory that it uses, and whether it writes it."""
    after: Sequence[Event] = ()
    """What uses that memory and has to end first."""
    writes: Sequence[DeviceArray] = ()
    order = 0
    """Its place in the order of borrows, if it writes, or reads what may turn out to be undefined."""
    missed: Sequence[Block] = ()
    """What it should have written, as it did not start; its answer waits for those that may be queued behind it."""
    kept_out = False
    """It has begun, and its method was not run."""
    making: Event | None = None
    """The end of the making of its plan, if that is elsewhere."""
    items = 1
    """How many it is in one, see `many`."""
    closing: errors.AtomrError | None = None
    """What it is to end with although it has begun: a stream at its next step, what is asynchronous where it awaits."""

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
        self.payload_bytes = len(body)
        """What it counts for in its window."""

    @property
    def requests(self) -> Sequence[Request]:
        """Itself."""
        return (self,)

    @property
    def holder(self) -> Holder:
        """Its session's."""
        return self.peer.session.holder

    def read_later(self) -> None:
        """Take the result that is there now that the device has done the work; never raises."""
        later, self.later = self.later, None
        assert later is not None
        try:
            self.take(later.read())
        except errors.AtomrError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 - as in `call`
            self.raised = error

    def take(self, result: Any) -> None:
        """Encode the result; or keep it, if it is there later."""
        if result is None:
            self.encoded = _NOTHING
            return
        if type(result) is Later:
            self.later = result
            return
        if type(result) is Next:
            stream = self.method.stream
            if stream is None or not stream.defers:
                self.take(result.enqueue())
            else:
                self.next = result
            return
        try:
            self.encoded = encode(result, self.peer)
        except errors.InvalidRequest as refused:
            self.error = unsendable(refused)


def encode(result: Any, peer: Peer) -> values.Encoded:
    """Return the wire form of the content of one answer.

    Raises:
        InvalidRequest: It cannot be; the message says why.
    """
    encoded = values.encode(result, peer.session.place)
    if len(encoded[2]) > data.MAX_RELEASED:  # the whole message would be dropped by its receiver
        raise errors.InvalidRequest(f"{len(encoded[2])} refs in one answer; the limit is {data.MAX_RELEASED}")
    return encoded


def unsendable(refused: errors.InvalidRequest) -> errors.ActorFailed:
    """Return what a request ends with whose result cannot be sent."""
    return errors.ActorFailed(f"the result cannot be sent: {refused}", exception="TypeError")


def current_holder() -> Holder | None:
    """Return who holds what is made in what this thread runs, None if it runs nothing."""
    run = _current_run()
    return None if run is None else run.holder


def current_request() -> Request | None:
    """Return the request whose method this thread runs just now; None also if it runs several together."""
    run = _current_run()
    return run if isinstance(run, Request) else None


def _current_run() -> Run | None:
    run: Run | None = getattr(_current, "run", None)
    if run is not None:
        return run
    cell = in_task.get()
    return None if cell is None else cell.run


class TaskCell:
    """The request of a task on an actor's event loop, for what runs in that task and in those that it has started.

    Emptied when the request has ended.
    """

    __slots__ = ("run",)

    def __init__(self, run: Run) -> None:
        self.run: Run | None = run


in_task: Final[contextvars.ContextVar[TaskCell | None]] = contextvars.ContextVar("in_task", default=None)

_current = threading.local()

_NOTHING: Final = values.encode(None)
"""What most methods that are called for their effect return."""
