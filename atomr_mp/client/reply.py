"""The reply that a call returns at once; its answer comes later."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.client.reply_life import AT_WORKER, ReplyState
from atomr_mp.protocol import amounts, values
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.keywords import checked_names, unknown_names
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp.protocol.words import counted

if TYPE_CHECKING:
    import asyncio

    from atomr_mp.client.memory.argument_slabs import Placement
    from atomr_mp.client.memory.leases import Lease
    from atomr_mp.protocol.messages.data import Gang
    from atomr_mp.protocol.messages.devices import MethodInfo
    from atomr_mp.protocol.messages.suspects import RequestKey
    from atomr_mp.tracing.spans import CallSpan

    Waiter = asyncio.Future[None]
else:  # `help` looks up the annotations of fields, and these modules are loaded late or never
    Placement = Lease = Gang = RequestKey = CallSpan = Waiter = Any

Resolve = Callable[[WireRef | ClientArray], object]
"""Returns the object for an array in shared memory."""


class ReplyLane(Protocol):
    """The lane that has sent a request, as its reply uses it."""

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Return when the reply is there, or raise `TimeoutError`."""

    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""

    def add_callback(self, reply: Reply, callback: Callable[[Reply], object]) -> bool:
        """Run `callback` once the reply is there; False if it is there already."""

    def look(self, reply: Reply) -> None:
        """Take in what has arrived, without waiting, and end the reply if its deadline has passed."""

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the lane is driven by this event loop."""

    def watch(self, reply: Reply) -> None:
        """Receive a reply in the background while no caller waits for it."""

    def learn_later(self, reply: Reply, undeclared: Undeclared) -> None:
        """Have a request whose method is not known yet take what it has to know, before it is sent."""

    def decode(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Return the results in an answer that came with leases. Blocks if their memory has to be opened."""

    async def decode_aside(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Do the same in a task; the event loop goes on while memory is opened."""


SEND_RESULT: Final = "its `result()`"
"""What to send instead of a reply."""


class Undeclared(NamedTuple):
    """What a request has to learn of its method, which was not known when it was called, before it is sent."""

    called_ns: int
    """When it was called, CLOCK_MONOTONIC."""
    takes_deadline: bool
    """Whether its deadline is the method's own, since the caller has given none."""


class Reply(msgspec.Struct, eq=False, weakref=True):
    """The answer to one request: a result or an error, once, however often it had to be sent.

    A reply of a call that was made in a running event loop belongs to that loop: `await` it there. Any other may be
    waited for with `result` by any thread, or awaited from any loop.

    Callers use `id`, `method`, `done`, `device`, `generation` and the methods. The other fields belong to its lane.
    `device` and `generation` are as of the last wait or look: ask `done` first.
    """

    # A struct, which is made without running Python. Only calls make them.
    lane: ReplyLane
    id: int
    """Unique in the session."""
    method: str
    """ "Actor.method"."""
    deadline_ns: int
    """CLOCK_MONOTONIC."""
    body: bytes
    """The body of the request; then of the result."""
    is_over: bool = False
    """Whether there is an answer, as far as this process has read. Only `done` looks for what has arrived."""
    state: ReplyState = ReplyState.WAITING
    device: int = -1
    """Index of the device that the request went to, -1 if none."""
    generation: int = 0
    """The incarnation that the request was sent to, 0 while it waits for one."""
    payload: Sequence[values.Buffer] = ()
    """Payload frames of the request, until there is an answer."""
    frames: Sequence[memoryview] = ()
    """Payload frames of the result."""
    kept: Sequence[object] = ()
    """Arguments in shared memory, until the worker has answered or ended, even if no caller waits."""
    copies: Sequence[Placement] = ()
    """Arguments that were copied there, and have to be settled then."""
    refs: int = 0
    """How many refs are among the arguments."""
    priority: int = 0
    leases: dict[int, Lease] | None = None
    """Leases of the refs in the result, by buffer; held from the answer's arrival on, even if it is never decoded."""
    pinned: bool = False
    """Whether the caller named the device, so that the request goes to no other."""
    to_generation: int = 0
    """The only incarnation of its device that it may go to; 0 for any."""
    alone: RequestKey | None = None
    """The request's key, if it has to run alone; else None."""
    replays: int = 0
    """How often it was running when its worker ended."""
    may_have_run: bool = False
    """Whether an attempt may have run that its worker did not answer."""
    poison_error: errors.RequestError | None = None
    """The error of an answer that ends its worker; the outcome comes with that end."""
    error: errors.AtomrError | None = None
    callbacks: list[Callable[[Reply], object]] | None = None
    future: Waiter | None = None
    """The future that a task in the lane's own loop awaits."""
    waiters: tuple[threading.Lock, ...] = ()
    """Released when there is an answer."""
    sent_ns: int = 0
    trace: bytes | None = None
    """The context of its span, sent with it."""
    span: CallSpan | None = None
    """The call's span, if spans are wanted and this one is recorded; ends with the call."""
    items: int = 0
    """How many items the call has, see `ItemsReply`."""
    news: Reply | None = None
    """Reply of threads that wait for more than the answer; done when something has happened."""
    finish: Callable[[Any], Any] | None = None
    """Makes the result from the value that the worker has sent."""
    explain: Callable[[errors.AtomrError], None] | None = None
    """Adds to an error what only the caller knows, each time that somebody asks for it."""
    ran_at: tuple[tuple[int, int], ...] = ()
    """The devices and incarnations that have ended while it ran there."""
    gang: Gang | None = None
    """The call of a world that it is a part of; see `client.worlds`."""
    undeclared: Undeclared | None = None
    """What it has to learn of its method; None if that was known."""
    submitted_ns: int = 0
    """When the caller has called, CLOCK_MONOTONIC, while the pool is traced; else 0."""
    gpu_ns: int = 0
    """How long the device has worked for it, if it was answered while the pool was traced; else 0."""
    batch_rows: int = 0
    """Rows of its batch, if it is the first of them that has a result; else 0."""
    ran_ns: int = 0
    """From its method's call, or its batch's, to its answer in the worker; 0 if none ran."""

    @property
    def gpu_s(self) -> float | None:
        """How long its device has worked for it, in seconds, once it is done; None unless the pool is traced meanwhile.

        On a GPU the time by the GPU's own clock; on the host backend that of its own code, without what it has waited
        for. That of all that shared a batch with it. None for tasks on event loops. See `atomr-mp trace`.
        """
        return self.gpu_ns / 1e9 if self.gpu_ns else None

    def learn(self, info: MethodInfo) -> None:
        """Take in the method's description, which was not known when the request was made. It is not sent yet."""
        undeclared, self.undeclared = self.undeclared, None
        if undeclared is not None and undeclared.takes_deadline and info.deadline_s:
            self.deadline_ns = undeclared.called_ns + int(info.deadline_s * 1e9)

    @property
    def maybe_executed(self) -> bool:
        """Whether any part of the request may have run by now, in any attempt. For who ends it without an answer."""
        return self.may_have_run or self.state in AT_WORKER

    @property
    def done(self) -> bool:
        """Whether there is an answer. Takes in what has arrived, and does not wait, so it may be polled."""
        if not self.is_over:
            self.lane.look(self)
        return self.is_over

    __reduce__ = __copy__ = refusal(f"send its result, or {CONNECT} and call there", SEND_RESULT)

    def __repr__(self) -> str:
        self.done  # noqa: B018 - takes in what has arrived
        return self.told()

    def told(self) -> str:
        """Describe the reply for the log. Unlike `repr`, this may be called while the lock of its lane is held."""
        if not self.is_over:
            state = "pending" if self.device < 0 else f"pending on device {self.device}"
        else:
            state = repr(self.error) if self.error else "done"
        return f"<Reply {self.id} of {self.method}: {state}>"

    def result(self, timeout_s: float | None = None, **unknown: Never) -> Any:
        """Wait for the answer and return the result. Arrays in it are the caller's own.

        Args:
            timeout_s: How long to wait; None until the request's deadline, which always ends it.
            **unknown: None; refused as `WrongArgument`.

        Raises:
            TimeoutError: No answer within `timeout_s`; the request goes on. With 0, what has arrived is taken in first.
            WouldBlock: Called in the event loop to which the reply belongs; await it.
            AtomrError: The request's error.
        """
        if unknown:
            raise unknown_names("Reply.result", unknown, ["timeout_s"])
        if timeout_s is not None:
            timeout_s = amounts.duration("timeout_s", timeout_s, zero=True)
        if not self.is_over:
            self.lane.wait(self, timeout_s)
        if self.error is not None:
            if self.explain is not None:
                self.explain(self.error)
            raise errors.unraised(self.error)
        if self.leases is None:
            found = decode(self.body, self.frames)
        else:
            found = self.lane.decode(self.body, self.frames, self.leases)
        return found if self.finish is None else self.finish(found)

    @checked_names
    def exception(self, timeout_s: float | None = None) -> errors.AtomrError | None:
        """Wait for the answer and return the error, or None if there is a result; see `result`."""
        if timeout_s is not None:
            timeout_s = amounts.duration("timeout_s", timeout_s, zero=True)
        if not self.is_over:
            self.lane.wait(self, timeout_s)
        if self.error is not None and self.explain is not None:
            self.explain(self.error)
        return self.error

    def cancel(self) -> None:
        """Keep the request from starting, and end an asynchronous one, or a program's run amid its branches and loops.

        So ends a run that its method has made on a thread. A started request of another kind goes on.

        The reply then ends with `Cancelled`, or with the request's outcome.
        """
        if not self.is_over:
            self.lane.cancel(self)

    @checked_names
    def add_done_callback(self, callback: Callable[[Reply], object]) -> None:
        """Call `callback(reply)` once there is an answer; at once if there is one.

        Callbacks run on whichever thread receives the answer (in the event loop for its own replies) and must be
        short. With nobody waiting, a background thread receives.

        Raises:
            InvalidRequest: It cannot be called.
        """
        if not callable(callback):
            raise errors.InvalidRequest(f"a callback is called with the reply; got {callback!r:.200}")
        if not self.lane.add_callback(self, callback):
            callback(self)

    def wake(self, future: asyncio.Future[None]) -> None:
        """Complete a future of the running event loop once there is an answer; there is none yet."""
        loop = future.get_loop()
        if self.future is None and self.lane.belongs_to(loop):
            self.future = future
            self.lane.watch(self)
        else:
            self.add_done_callback(lambda _: loop.call_soon_threadsafe(set_done, future))

    def arrival(self) -> Generator[Any, None, None]:
        """Wait in a task until the answer is there; a task that is cancelled meanwhile cancels the request."""
        import asyncio  # the awaiting task has it

        answered = asyncio.get_running_loop().create_future()
        self.wake(answered)
        try:
            yield from answered
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_over:
            yield from self.arrival()
        if self.leases is None or self.error is not None:
            return self.result()
        found = yield from self.lane.decode_aside(self.body, self.frames, self.leases).__await__()
        return found if self.finish is None else self.finish(found)


class ArrivedPart(msgspec.Struct, eq=False, frozen=True):
    """An unread part of a stream."""

    body: bytes
    frames: Sequence[memoryview]
    leases: dict[int, Lease] | None
    nbytes: int
    """Its bytes in the stream's credit."""


class StreamReply(Reply):
    """The answer to a streaming request, as its lane has it; applications have a `ReplyStream` around it."""

    credit: ReaderCredit = msgspec.field(default_factory=lambda: ReaderCredit(1, 1))
    until_ns: int = 0
    """Deadline of the whole stream, CLOCK_MONOTONIC; `deadline_ns` is the deadline of the next part."""
    between_ns: int = 0
    """How long the next part may take, while there is credit."""
    arrived: deque[ArrivedPart] = msgspec.field(default_factory=deque)
    """Parts that have arrived and were not read, in order."""
    resumes: Resumes = Resumes.NEVER
    """How it goes on after its worker's end; it cannot, once more parts have come than are kept for that."""
    sent: list[bytes] = msgspec.field(default_factory=list)
    """The parts that have come, if the method needs them to go on."""
    sent_bytes: int = 0
    on_part: Callable[[StreamReply], object] | None = None
    """Called with the lane's lock held when a part has come; for who passes parts on."""

    def learn(self, info: MethodInfo) -> None:
        """Take in the method's description: also how its stream goes on after its worker's end."""
        super().learn(info)
        self.deadline_ns = min(self.deadline_ns, self.until_ns)
        self.resumes = info.resumes

    @property
    def carrier(self) -> StreamReply:
        """The reply whose worker makes the parts."""
        return self

    def take_part(self, grant: Callable[[StreamReply], object]) -> ArrivedPart | None:
        """Return the next part that has arrived, None if none has.

        Args:
            grant: Lets the worker go on, if enough was read for that.
        """
        try:
            part = self.arrived.popleft()
        except IndexError:
            return None
        if self.credit.read(part.nbytes, is_last=not self.arrived) and not self.is_over:
            grant(self)
        return part

    def expect_next(self, now_ns: int) -> None:
        """Set the deadline of the next part. Without credit only the deadline of the whole stream holds."""
        next_ns = self.until_ns if self.credit.is_used_up else now_ns + self.between_ns
        self.deadline_ns = min(next_ns, self.until_ns)


class ItemsPart(NamedTuple):
    """The outcome of some items of a call."""

    places: Sequence[int]
    """The items' places."""
    body: bytes
    """Their results, in an array."""
    frames: Sequence[memoryview]
    leases: dict[int, Lease] | None
    failed: Mapping[int, errors.AtomrError]
    """Errors of the items without a result, by place."""


class ItemsReply(Reply):
    """The answers to the items of one call; they come in parts. `done` when all are there.

    Its callbacks run for each part. If it has an error, all items that no part has answered ended with it.
    """

    open: set[int] = msgspec.field(default_factory=set)
    """Places of the items without an answer."""
    parts: deque[ItemsPart] = msgspec.field(default_factory=deque)
    """Parts that have come, and were not taken yet."""

    def result(self, timeout_s: float | None = None, **unknown: Never) -> None:
        """Wait until all items are answered; see `Reply.result`. The results are in the parts."""
        error = self.exception(timeout_s, **unknown)
        if error is not None:
            raise errors.unraised(error)

    def results(self, part: ItemsPart) -> list[Any]:
        """Return the results of a part, in its places' order.

        Raises:
            WorkerLost: The results are large, and their worker ended before they were read.
            ProtocolError: Their number differs from that of the places.
        """
        if part.leases is None:
            found = decode(part.body, part.frames)
        else:
            found = self.lane.decode(part.body, part.frames, part.leases)
        if type(found) is not list:
            if not hasattr(found, "ndim") or not found.ndim:
                raise errors.ProtocolError("an answer for items that has not a result for each")
            # Rows of one array: a row must not keep the others, unless a copy would cost more.
            found = [row.copy() if row.nbytes < values.SHARED_BYTES else row for row in found]
        if len(found) != len(part.places):
            raise errors.ProtocolError(f"{counted(len(found), 'result')} for {counted(len(part.places), 'item')}")
        return list(found)


def decode(body: bytes, frames: Sequence[memoryview]) -> Any:
    """Return the result in a reply's body.

    Raises:
        ActorFailed: It cannot be read.
        ResultUnread: This process lacks what it takes now.
    """
    # Only one thread at a time may use a decoder.
    try:
        decoder: values.Decoder[Any] = _local.decoder
    except AttributeError:
        decoder = _local.decoder = values.Decoder()
    try:
        return decoder.decode(body, frames)
    except _UNREAD as error:
        raise unread(error) from error


def decode_leased(body: bytes, frames: Sequence[memoryview], resolver: Callable[[], Resolve]) -> Any:
    """Return the result in the body of a reply that came with leases.

    Args:
        body: The body.
        frames: Its payload frames.
        resolver: Makes what finds the array for a ref; it may import what it needs.

    Raises:
        ActorFailed: It cannot be read.
        ResultUnread: This process lacks what it takes now.
        RequestError: The memory of an array cannot be opened.
    """
    try:  # with a decoder of its own, since other callbacks may run meanwhile
        return values.Decoder[Any]().decode(body, frames, resolver())
    except _UNREAD as error:
        raise unread(error) from error


def unread(error: Exception) -> errors.ActorFailed | errors.ResultUnread:
    """Return the error of a request that ran, and whose result this process cannot read, or cannot read now."""
    if isinstance(error, errors.InvalidRequest):
        return errors.ActorFailed(f"the request ran, and its result cannot be sent: {error}", exception="TypeError")
    return errors.ResultUnread(
        f"the request ran, and its result could not be opened: {error}; ask the same reply again, or the same stream "
        "for its next part",
        reason="os",
    )


_UNREAD: Final = (errors.InvalidRequest, OSError, ImportError)
"""Exceptions that decoding raises: for bytes that are no value; and for modules that come late, such as NumPy, where
the process has no descriptors left."""


def would_block(reply: Reply) -> errors.WouldBlock:
    """Return the error of a wait for a reply in the event loop that would have to receive it."""
    return errors.WouldBlock(
        f"result() of {reply.method} would block the event loop to which this reply belongs: write `await reply`; or "
        "make the call in a thread, as by `asyncio.to_thread`"
    )


def set_done(future: asyncio.Future[None]) -> None:
    """Set a future's result, unless it is done or cancelled."""
    if not future.done():
        future.set_result(None)


_local = threading.local()
