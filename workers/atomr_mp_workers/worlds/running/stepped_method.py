"""A world's method with steps: its parts are decoded as they come, and the ring says which streams share a step.

What is wrong with one part must not change a step on one rank only. So a part is decoded before its member notes that
it has come, as those of batches are. A process that cannot take a step as the ring has it has the epoch end. With the
loop's turn.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.world import Outcome
from atomr_mp_workers.live import LiveStream
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.gangs import SharedRuns
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.kinds.stream_life import StreamEvent, StreamState
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.request import Request, Stage
from atomr_mp_workers.requests.streams.steps import PartSink, SteppedMethod, StepsRun
from atomr_mp_workers.worlds.order.shared_steps import SteppedPart
from atomr_mp_workers.worlds.order.steps import PartKey
from atomr_mp_workers.worlds.running.batched_method import is_fit
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.steps_run import GangStepsRun, SteppedStream


class _NextStep(NamedTuple):
    """What the next step does here."""

    ready: dict[PartKey, bool]
    """The streams that take part, in their order, and whether their readers have room."""
    new: dict[PartKey, StreamRequest]
    """Those of them that begin."""
    gone: dict[PartKey, errors.AtomrError]
    """The streams that are gone, with the error of each that has not been answered."""


class GangSteppedMethod(SteppedMethod, SharedRuns):
    """The streams of a world's method with steps. Those of examples run as those of any method.

    Args:
        method: The method.
        max_items: How many streams may be live.
        envelope: The envelope, for the steps before and after a request's own work.
        store: The device's memory.
        queue: The queue of the world's thread.
    """

    def __init__(self, method: Method, max_items: int, envelope: Envelope, store: Store, queue: GangQueue) -> None:
        super().__init__(method, max_items, envelope, store)
        self._queue: Final = queue
        self._members: dict[PartKey, SteppedStream] = {}
        """Streams that have begun, until a later step shows that they have ended on all ranks."""
        self._next: _NextStep | None = None
        self._runs = False
        """Whether a step is under way."""
        queue.stepped[method.name] = self

    # --- for the queue ---------------------------------------------------------------------------------------------

    def __contains__(self, key: object) -> bool:
        return key in self._members

    @property
    def has_streams(self) -> bool:
        """Whether streams have begun whose end the method does not know."""
        return any(each.is_untold for each in self._members.values())

    @property
    def open_streams(self) -> list[StreamRequest]:
        """Streams that have begun and not ended here."""
        return [each.stream for each in self._members.values() if each.stream.state is not StreamState.OVER]

    def why_unfit(self, live: Sequence[PartKey], gone: Sequence[PartKey], new: dict[PartKey, StreamRequest]) -> str:
        """Return why this process cannot take the step that the ring says, "" if it can.

        Args:
            live: The streams that take part.
            gone: Those that are gone.
            new: The parts of the streams that begin.
        """
        if any(key not in new and key not in self._members for key in (*live, *gone)):
            return "has not all streams of a step that was published"
        if any(each.dropped or each.method is not self.method for each in new.values()):
            return "has answered a stream of a step that was published"
        going = {key for key, each in self._members.items() if each.outcome is Outcome.GOES_ON}
        if going - {*gone} != {*live} - {*new}:
            return "has other streams than the step that was published"
        return ""

    def stream_of(self, key: PartKey) -> StreamRequest:
        """Return a stream that has begun."""
        return self._members[key].stream

    def prepare(
        self, ready: dict[PartKey, bool], new: dict[PartKey, StreamRequest], gone: dict[PartKey, errors.AtomrError]
    ) -> StreamRequest:
        """Take in what the next step does, see `_NextStep`; return a stream that stands for it."""
        self._next = _NextStep(ready, new, gone)
        first = next(iter((*ready, *gone)))
        return new[first] if first in new else self._members[first].stream

    def leave(self, error: errors.AtomrError) -> StreamRequest | None:
        """Have all streams end outside of their epoch with this error; return one that stands for that step.

        None if the method has nothing to be told, or a step is under way: then this is called again after that.
        """
        if self._runs:
            return None
        gone = {key: copy.copy(error) for key, each in self._members.items() if each.is_untold}
        if not gone:
            self._members.clear()
            return None
        return self.prepare({}, {}, gone)

    # --- for the dispatcher ----------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Let a stream wait for its first step, unless it is refused."""
        if request.gang is None:
            super().add(request)
            return
        assert isinstance(request, StreamRequest)
        fits = False
        try:
            fits = self._is_read(request) and is_fit(request, self._envelope)
        finally:
            part = SteppedPart(self.method.name, self._max_items, self.method.resumable)
            self._queue.add_to_steps(request, part, fits=fits)

    def together(self, _requests: Sequence[Request]) -> GangStepsRun | None:
        """Begin the step that was prepared; None if a stream that is new was answered instead, so that none may run."""
        step, self._next = self._next, None
        assert step is not None
        now_ns = time.monotonic_ns()
        begun = [stream for stream in step.new.values() if self._envelope.begin(stream, now_ns)]
        if len(begun) < len(step.new):
            self._keep_out(begun)
            return None
        gone, leaving = self._take_gone(step)
        self.streams.begin_steps([self._members[key].stream for key in step.ready if key not in step.new], now_ns)
        members, new = {}, []
        for key, is_ready in step.ready.items():
            if key in step.new:
                self._members[key] = self._begin(step.new[key])
                new.append(self._members[key].live)
            members[key] = self._members[key]
            members[key].live.ready = is_ready
        self._members = members  # what else is there has ended on all ranks
        self._runs = True
        return GangStepsRun(self.method, [*members.values()], new, gone, leaving, self._store.buffers.several)

    def finish(self, run: StepsRun) -> list[StreamRequest]:
        """Take a step back, and send its parts; return the streams that have ended."""
        if not isinstance(run, GangStepsRun):
            return super().finish(run)
        self._runs = False
        now_ns, error = time.monotonic_ns(), run.error
        ended = [*run.leaving]
        for stream in ended:
            stream.error = copy.copy(error) if error is not None and error.ends_worker else stream.closing
        going = []
        for each in run.members:
            stream = each.stream
            stream.hold_fresh()
            if each.outcome is Outcome.GOES_ON and stream.place >= 0:
                self.deliver(stream)
                going.append(stream)
                continue
            if each.outcome is not Outcome.GOES_ON:
                if stream.error is None and error is not None and not each.live.over:
                    stream.error = copy.copy(error)
                each.live.over = stream.draining = True
            has_ended = self.deliver(stream)
            self.streams.end_step(stream, now_ns, goes_on=not has_ended)
            if has_ended:
                ended.append(stream)
        self.streams.end_steps(going, now_ns)
        self._queue.rest_together(self, [each.stream for each in run.members if each.outcome is Outcome.GOES_ON])
        return ended

    def _begin(self, stream: StreamRequest) -> SteppedStream:
        stream.feed(StreamEvent.TURN)
        self.streams.watch(stream)
        sink = PartSink(stream, self._store)
        return SteppedStream(stream, LiveStream(next(self._queue.numbers), stream.arguments[0], sink, stream.sent()))

    def _take_gone(self, step: _NextStep) -> tuple[list[LiveStream[Any, Any]], list[StreamRequest]]:
        """Take out the streams that are gone; return them, and those that get their answers after the step."""
        gone, leaving = [], []
        for key, error in step.gone.items():
            each = self._members.pop(key)
            gone.append(each.live)
            stream = each.stream
            if stream.state is StreamState.OVER:
                continue
            stream.closing = error
            stream.held.clear()
            if stream.draining:  # it has ended here, and not on all ranks
                stream.error = stream.error or error
                self.complete(stream)
            else:
                leaving.append(stream)
        return gone, leaving

    def _keep_out(self, begun: Sequence[StreamRequest]) -> None:
        """Answer streams that have begun, and whose step does not run."""
        for stream in begun:
            if stream.stage == Stage.RUNNING:
                stream.error = errors.CollectiveAborted(
                    f"another stream of the same step of {self.method.name} could not begin on this rank",
                    maybe_executed=False,
                )
                stream.kept_out = True
                self._envelope.complete(stream)
