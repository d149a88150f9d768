"""The records of this process in the trace of its pool, while there is one: `recorder`; see `protocol.timeline`.

Unlike the spans of `tracing`, these need no package, are of all requests, and go to whoever traces the pool. A fault
here ends the recording, and harms no request.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.board import PlaceKind, Watched
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.timeline import RING_BYTES, Begun, Ended, GpuTime, RecordWriter, SpanKind, Spanned

_LOG: Final = logging.getLogger("atomr_mp.worker")

recorder: TimelineRecorder | None = None
"""Makes the records; None while the pool is not traced."""


class WorkTimes(Protocol):
    """The times of one run's work on the device."""

    def begin(self, stream: Any, /) -> None:
        """Take the time at which the run's work on a stream begins."""

    def end(self, stream: Any, /) -> None:
        """Take the time at which the work that is on the stream by now ends."""

    def measured(self) -> list[GpuTime]:
        """Return the times of the work, all of which has ended; none after a fault of the device."""


class RecordableRequest(Protocol):
    """A request that has begun."""

    id: int
    received_ns: int
    submitted_ns: int
    started_ns: int
    items: int
    arguments: tuple[Any, ...]
    recorded: Any
    times: WorkTimes | None

    @property
    def has_stepped(self) -> bool:
        """Whether it is a stream that has taken a step."""

    @property
    def method(self) -> Any:
        """Its method: a `requests.method.Method`."""

    @property
    def peer(self) -> Any:
        """Who has sent it."""


class RunClock(Protocol):
    """Records when a run's own code runs. Used by the thread that runs it."""

    def begin(self) -> None:
        """Record that the code begins, or goes on."""

    def end(self) -> None:
        """Record that it has ended, or rests."""


class CodeTime:
    """When the own code of a run has begun and ended, CLOCK_MONOTONIC in nanoseconds, and how long it has run.

    Args:
        begun_ns: When it has begun, if it runs already; 0 otherwise.
    """

    def __init__(self, begun_ns: int = 0) -> None:
        self.began_ns = self._since_ns = begun_ns
        self.ended_ns = self.worked_ns = 0
        self.is_known = False
        """Whether its begin is the code's own, and not when it was taken up."""

    def begin(self) -> None:
        """Record that the code begins, or goes on."""
        self._since_ns = time.monotonic_ns()
        if not self.is_known:
            self.began_ns, self.is_known = self._since_ns, True

    def end(self) -> None:
        """Record that it has ended, or rests."""
        self.ended_ns = time.monotonic_ns()
        self.worked_ns += self.ended_ns - self._since_ns
        self.is_known = True

    def close(self, now_ns: int) -> None:
        """Complete the times: code that is taken away while it runs ends now, and what never ran takes no time."""
        self.began_ns = self.began_ns or now_ns
        if not self.ended_ns:
            self.ended_ns, self.worked_ns = now_ns, now_ns - self.began_ns


class SharedRun(CodeTime):
    """What the requests of a batch have in common.

    Args:
        times: The times of the batch on the device.
        items: How many items it has.
        begun_ns: As of `CodeTime`.
    """

    def __init__(self, times: WorkTimes | None, items: int, begun_ns: int = 0) -> None:
        super().__init__(begun_ns)
        self.number: Final = next(_batches)
        self.times: Final = times
        self.items: Final = items
        self.gpu: list[GpuTime] | None = None
        """The times, once the first request of the batch has asked for them."""


class RecordedRequest(CodeTime):
    """What is kept of a request from its begin to its end."""

    def __init__(self, record: Begun, flops: int, nbytes: int, begun_ns: int) -> None:
        super().__init__(begun_ns)
        self.place, self.number, self.started_ns = record.place, record.number, record.started_ns
        self._is_whole: Final = not begun_ns
        self.flops, self.nbytes = flops, nbytes
        self.batch: SharedRun | None = None

    @property
    def declared(self) -> tuple[int, int]:
        """What it and its steps declare; nothing if a part of it was over before its time was taken."""
        return (self.flops, self.nbytes) if self._is_whole else (0, 0)

    def add(self, flops: int, nbytes: int) -> None:
        """Add what a step of it declares. The thread that runs it."""
        self.flops, self.nbytes = min(self.flops + flops, MAX_U64), min(self.nbytes + nbytes, MAX_U64)


class StepClock:
    """The clock of a step that several streams take together.

    Args:
        streams: The streams.
    """

    def __init__(self, streams: Sequence[RecordableRequest]) -> None:
        self._streams: Final = streams

    def begin(self) -> None:
        """Record that the step begins."""
        for stream in self._streams:
            if stream.recorded is not None:
                stream.recorded.begin()

    def end(self) -> None:
        """Record that it has ended."""
        for stream in self._streams:
            if stream.recorded is not None:
                stream.recorded.end()


class TimelineRecorder:
    """Writes records into the ring of this process.

    Args:
        ring: The ring.
        make_times: Makes what measures a run's work on the device; None on a device that works as it is called.
    """

    def __init__(self, ring: RecordWriter, make_times: Callable[[], WorkTimes] | None) -> None:
        self._ring: Final = ring
        self.make_times: Final = make_times
        self._lock: Final = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}
        self._closed = False

    def begin(self, request: RecordableRequest, begun_ns: int = 0) -> None:
        """Record that a request begins.

        Args:
            request: The request.
            begun_ns: When it has begun, if it runs already.
        """
        try:
            method, session = request.method, request.peer.session.number
            place, number = self._places.get(method.watched) or self._place(method.watched)
            record = Begun(
                max(0, session),
                request.id,
                method.name[:200],
                place,
                number,
                request.submitted_ns,
                request.received_ns,
                request.started_ns,
                method.kernel(request.arguments)[:200] if request.arguments else "",
            )
            with self._lock:
                self._ring.write(record)
            flops, nbytes = method.work(request.arguments) if request.arguments else (0, 0)
            kept = RecordedRequest(record, flops, nbytes, begun_ns)
            kept.is_known = request.has_stepped
            request.recorded = kept
            if self.make_times is not None:
                request.times = self.make_times()
        except Exception:  # noqa: BLE001 - it costs the trace, and no request
            self._give_up()

    def end(
        self, request: RecordableRequest, kept: RecordedRequest, error: errors.AtomrError | None, now_ns: int
    ) -> int:
        """Record that a request has ended; return how long the device has worked for it, in nanoseconds.

        Args:
            request: The request.
            kept: What `begin` has kept of it.
            error: What it has ended with.
            now_ns: CLOCK_MONOTONIC.
        """
        try:
            batch, gpu = kept.batch, _NO_TIMES
            own = kept if batch is None else batch
            own.close(now_ns)
            ended_ns, took_ns = own.ended_ns, own.worked_ns
            if self.make_times is not None:
                gpu = _measured(request, batch)
                took_ns = sum([each.took_ns for each in gpu])
                ended_ns = max([ended_ns, *(min(each.started_ns + each.took_ns, now_ns) for each in gpu)])
                if took_ns and error is None and request.method.work_count is not None:
                    request.method.work_count.add(took_ns, *kept.declared)
            elif kept.place == PlaceKind.EVENT_LOOP:  # it has awaited others meanwhile
                took_ns = 0
            session = request.peer.session.number
            record = Ended(
                max(0, session),
                request.id,
                request.method.name[:200],
                kept.place,
                kept.number,
                kept.started_ns,
                own.began_ns,
                ended_ns,
                own.worked_ns,
                now_ns,
                request.items,
                0 if batch is None else batch.number,
                0 if batch is None else batch.items,
                "" if error is None else str(error.code)[:200],
                kept.flops,
                kept.nbytes,
                gpu,
            )
            with self._lock:
                self._ring.write(record)
        except Exception:  # noqa: BLE001 - as above
            self._give_up()
            return 0
        return took_ns

    def span(
        self,
        kind: SpanKind,
        name: str,
        started_ns: int,
        nbytes: int,
        request: Any,
        flops: int = 0,
        kernel: str = "",
    ) -> None:
        """Record a part of a request that ends now. Any thread.

        Args:
            kind: What it is.
            name: Its name.
            started_ns: CLOCK_MONOTONIC.
            nbytes: The bytes that it is about.
            request: The request; None for none, or several.
            flops: The arithmetic operations of a step.
            kernel: The kernel that a step launches.
        """
        try:
            place, number, session, id_ = PlaceKind.LOOP.value, 0, 0, 0
            if request is not None:
                place, number = self._place(request.method.watched)
                session, id_ = max(request.peer.session.number, 0), request.id
            now_ns = time.monotonic_ns()
            record = Spanned(
                kind, name[:200], session, id_, place, number, started_ns, now_ns, flops, nbytes, kernel[:200]
            )
            with self._lock:
                if not self._closed:  # a step may end behind the trace
                    self._ring.write(record)
        except Exception:  # noqa: BLE001 - as above
            self._give_up()

    def close(self) -> None:
        """Write no more, and let the ring go."""
        with self._lock:
            self._closed = True
            self._ring.release()

    def _place(self, watched: int) -> tuple[int, int]:
        """Return the kind and the number of a place, which a word of the board has."""
        kind, number = Watched.unpack(watched).place
        found = self._places[watched] = kind.value, number
        return found

    def _give_up(self) -> None:
        """Record nothing more, after a fault of ours."""
        global recorder  # noqa: PLW0603 - one place to look at for every request
        if recorder is self:
            recorder = None
            _LOG.exception("this process is no longer recorded in the trace of the pool")


def start(descriptor: int, generation: int, make_times: Callable[[], WorkTimes] | None) -> None:
    """Record from now on; with the loop's turn.

    Args:
        descriptor: The ring; closed here.
        generation: This incarnation.
        make_times: See `TimelineRecorder`.

    Raises:
        OSError: The ring cannot be mapped.
    """
    global recorder  # noqa: PLW0603 - as above
    stop()
    try:
        # With its pages, as they would be given one by one in the middle of requests.
        memory = memoryview(mmap.mmap(descriptor, RING_BYTES, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
    finally:
        os.close(descriptor)
    recorder = TimelineRecorder(RecordWriter(memory, generation, os.getpid()), make_times)


def stop() -> None:
    """Record nothing more; with the loop's turn."""
    global recorder
    ended, recorder = recorder, None
    if ended is not None:
        ended.close()


def copy(device: Any, source: Any, target: Any, way: str, request: Callable[[], Any] = lambda: None) -> None:
    """Have a device copy an array, and record that if the pool is traced.

    Args:
        device: The device.
        source: The array that is copied.
        target: The array that is written.
        way: Where from and where to.
        request: Returns the request that the calling thread works for.
    """
    recording = recorder
    if recording is None:
        device.copy(source, target)
        return
    began_ns = time.monotonic_ns()
    device.copy(source, target)
    recording.span(SpanKind.COPY, way, began_ns, int(target.nbytes), request())


def _measured(request: RecordableRequest, batch: SharedRun | None) -> list[GpuTime]:
    if batch is None:
        return [] if request.times is None else request.times.measured()
    if batch.gpu is None:
        batch.gpu = [] if batch.times is None else batch.times.measured()
    return batch.gpu


_NO_TIMES: Final[list[GpuTime]] = []
_batches: Final = itertools.count(1)
