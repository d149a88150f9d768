"""Continuous batching: streams of one method that run together, step by step. With the loop's turn, except `call`."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.crossing import SCALARS
from atomr_mp.protocol.values import encode_scalar
from atomr_mp_workers import own_process, timeline
from atomr_mp_workers.live import Live, LiveStream
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests import operands
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.fair_queue import FairQueue
from atomr_mp_workers.requests.kinds.stream import StreamRequest, size_of
from atomr_mp_workers.requests.kinds.stream_life import StreamEvent
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.peers import WEIGHT
from atomr_mp_workers.requests.raised import as_raised, unsendable
from atomr_mp_workers.requests.request import Request, Run, encode, passes
from atomr_mp_workers.requests.streams.open_streams import OpenStreams

HELD_PARTS: Final = 1024
"""Most parts of a stream that are held because its reader has no room."""

HELD_BYTES: Final = 16 * 2**20
"""Most bytes of a stream's parts that are held."""

_ids: Final = itertools.count(1)
"""Numbers of streams, of all methods."""


class StepsRun(Run):
    """One step of a method over all live streams.

    Args:
        method: The method.
        live: The live streams, as the method sees them.
        streams: Live streams by id.
        leaving: Streams reported to it as gone, to be answered after the step.
        holder: The holder of the memory that it makes.
    """

    def __init__(
        self,
        method: Method,
        live: Live[Any, Any],
        streams: Sequence[StreamRequest],
        leaving: Sequence[StreamRequest],
        holder: Holder,
    ) -> None:
        self.method = method
        self.arguments = (live,)
        self.leaving: Final = leaving
        self._streams = streams
        self._holder = holder
        if timeline.recorder is not None:
            self.record()

    def record(self) -> None:
        """Have the streams note when the step runs."""
        self.recorded = timeline.StepClock(self._streams)

    @property
    def requests(self) -> Sequence[Request]:
        """The live streams: all of them are suspects if the step ends the worker."""
        return self._streams

    @property
    def holder(self) -> Holder:
        """The holder of several sessions' memory."""
        return self._holder

    def take(self, result: Any) -> None:
        """Take the method's return value, which must be None."""
        if result is not None:
            raise TypeError(f"{self.method.name} is a step over live streams, and returns None; it sends by live[id]")


class PartSink:
    """Takes the parts and the end of one stream; on the actor's thread. What it cannot take fails that stream alone.

    Args:
        stream: The stream. Of a stream of a world only rank 0 keeps parts and the result.
        store: The device's memory.
    """

    def __init__(self, stream: StreamRequest, store: Store) -> None:
        self._stream = stream
        self._store = store

    def keep(self, part: Any) -> None:
        """Hold a part until the step has ended; never raises."""
        own_process.check()
        stream = self._stream
        if stream.error is not None or stream.closing is not None or not stream.sends:
            return
        try:
            if type(part) in SCALARS:
                encoded = encode_scalar(part, stream.peer.session.place)
            else:
                encoded = encode(self._store.buffers.moved(stream.holder, part), stream.peer)
            nbytes = size_of(encoded)
        except errors.InvalidRequest as refused:
            stream.error = unsendable(stream, part, refused)
            return
        except BaseException as raised:  # noqa: BLE001 - a part may have code of its own, or there is no room
            own_process.check()
            stream.fail(raised)
            return
        stream.fresh.append((encoded, nbytes))
        stream.fresh_bytes += nbytes
        held, held_bytes = len(stream.held) + len(stream.fresh), stream.held_bytes + stream.fresh_bytes
        if held > HELD_PARTS or held_bytes > HELD_BYTES:
            stream.error = errors.Overloaded(
                f"{held} parts ({held_bytes} bytes) of a stream of {stream.method.name} were sent "
                f"that its reader has no room for; the limit is {HELD_PARTS} parts and {HELD_BYTES} bytes",
                maybe_executed=True,
            )

    def end(self, result: Any) -> None:
        """Take the result; never raises, so that a stream that is over has a result or an error."""
        own_process.check()
        stream = self._stream
        try:
            moved = self._store.buffers.moved(stream.holder, result) if stream.sends else None
        except BaseException as raised:  # noqa: BLE001 - as in `keep`
            own_process.check()
            stream.fail(raised)
        else:
            stream.conclude(moved)

    def fail(self, error: object) -> None:
        """Take the error, as `raise` takes it: a class is called, and what is no exception fails; never raises."""
        own_process.check()
        self._stream.fail(as_raised(error))


class SteppedMethod:
    """The streams of a method with steps; the counterpart of `BatchedMethod`.

    Args:
        method: The method.
        max_items: How many streams may be live.
        envelope: The envelope, for the steps before and after a request's own work.
        store: The device's memory.
    """

    streams: OpenStreams
    """Set by the dispatcher."""
    complete: Callable[[StreamRequest], None]
    """Answers a stream; set by the dispatcher."""

    def __init__(self, method: Method, max_items: int, envelope: Envelope, store: Store) -> None:
        self.method: Final = method
        self.running = 0
        self._max_items = max_items
        self._envelope = envelope
        self._store = store
        self._waiting: FairQueue[StreamRequest] = FairQueue(WEIGHT, passes)
        self._live: dict[int, LiveStream[Any, Any]] = {}
        self._streams: dict[int, StreamRequest] = {}
        """Live streams by the method's ids."""
        self._gone: list[LiveStream[Any, Any]] = []
        """Streams that a step has failed; the next step gets them."""
        self._stepping = False

    def __len__(self) -> int:
        """Return whether a step has something to do: 0 if not, or if one is under way."""
        if self._stepping:
            return 0
        if (
            self._waiting
            and len(self._live) < self._max_items
            and any(map(operands.is_free, self._waiting.candidates()))
        ):
            return 1
        if self.streams.is_paused:
            return 0
        streams = self._streams.values()
        return int(bool(self._gone) or any(each.closing is not None or bool(each.credit) for each in streams))

    def add(self, request: Request) -> None:
        """Let a stream wait for its first step, unless it is refused."""
        assert isinstance(request, StreamRequest)
        if self._is_read(request) and (not request.refs or self._envelope.admit(request)):
            self._waiting.add(request, request.peer.session, request.priority)

    def next(self, *, full: bool) -> tuple[list[Request], StepsRun | None]:
        """Return the streams that begin or were dropped, and the next step; None if there is no work for a step."""
        del full
        if not len(self):
            return [], None
        now_ns = time.monotonic_ns()
        leaving = [(number, stream) for number, stream in self._streams.items() if stream.closing is not None]
        gone = [*self._gone, *(self._live[number] for number, _ in leaving)]
        self._gone = []
        for number, _ in leaving:
            del self._live[number], self._streams[number]
        self.streams.begin_steps(self._streams.values(), now_ns)
        taken: list[Request] = []
        new: list[LiveStream[Any, Any]] = []
        while self._waiting and len(self._live) < self._max_items:
            request = self._waiting.take(operands.is_free)
            if request is None:
                break
            taken.append(request)
            self._waiting.charge(request.peer.session, 1)
            if self._envelope.begin(request, now_ns):
                new.append(self._join(request))
        if not (new or gone or self._streams):
            return taken, None
        return taken, self._step(new, gone, [stream for _, stream in leaving])

    def single(self, request: Request) -> StepsRun:
        """Return the first step of a suspect stream; the live streams share it."""
        assert isinstance(request, StreamRequest)
        now_ns = time.monotonic_ns()
        self.streams.begin_steps(self._streams.values(), now_ns)
        gone, self._gone = self._gone, []
        return self._step([self._join(request)], gone, [])

    def finish(self, run: StepsRun) -> list[StreamRequest]:
        """Take a step back, and send its parts; return the streams that have ended."""
        self._stepping = False
        now_ns = time.monotonic_ns()
        error = run.error
        ended: list[StreamRequest] = []
        going: list[StreamRequest] = []
        for stream in run.leaving:
            if stream.error is None:
                stream.error = stream.closing
            ended.append(stream)  # those without a running step
        for number, stream in list(self._streams.items()):
            live = self._live[number]
            stream.hold_fresh()
            if error is None and not live.over and stream.error is None and stream.place >= 0:
                self.deliver(stream)
                going.append(stream)
                continue
            if error is not None and not live.over:
                stream.error = copy.copy(error)
                self._gone.append(live)
            over = live.over or stream.error is not None
            if over and not live.over and error is None:  # by parts that it has sent
                live.over = True
                self._gone.append(live)
            if over:
                del self._live[number], self._streams[number]
                stream.draining = True
            has_ended = self.deliver(stream)
            self.streams.end_step(stream, now_ns, goes_on=not has_ended)
            if has_ended:
                ended.append(stream)
        self.streams.end_steps(going, now_ns)
        return ended

    def deliver(self, stream: StreamRequest) -> bool:
        """Send held parts of a stream, as far as its reader has room; return whether that has ended the stream."""
        if stream.closing is not None:
            stream.held.clear()
        elif stream.held:
            self.streams.give_held(stream)
        return stream.draining and not stream.held

    def due_ns(self, *, full: bool = False) -> int | None:
        """Return when there may be a step; None if another event has to come first."""
        del full
        return time.monotonic_ns() if len(self) else None

    def waits_for_memory(self) -> bool:
        """Return whether the next stream of a session waits for memory in use."""
        return not all(map(operands.is_free, self._waiting.heads()))

    def hurry(self) -> None:
        """Do nothing: no stream waits for others."""

    def is_due(self) -> bool:
        """Whether there may be a step now."""
        return bool(len(self))

    def _is_read(self, stream: StreamRequest) -> bool:
        """Decode what another incarnation has sent of a stream; return False if it was refused for that."""
        try:
            if not stream.dropped:
                stream.read_sent()
        except errors.InvalidRequest as error:
            self._envelope.refuse(stream, error)
            return False
        return True

    def _join(self, stream: StreamRequest) -> LiveStream[Any, Any]:
        stream.feed(StreamEvent.TURN)
        self.streams.watch(stream)
        number = next(_ids)
        sent = stream.sent()
        live = self._live[number] = LiveStream(number, stream.arguments[0], PartSink(stream, self._store), sent)
        self._streams[number] = stream
        return live

    def _step(
        self, new: list[LiveStream[Any, Any]], gone: list[LiveStream[Any, Any]], leaving: list[StreamRequest]
    ) -> StepsRun:
        self._stepping = True
        for number, live in self._live.items():
            live.ready = bool(self._streams[number].credit)
        seen: Live[Any, Any] = Live(self._live, new, gone)
        streams = list(self._streams.values())
        return StepsRun(self.method, seen, streams, leaving, self._store.buffers.several)
