"""Makes events of viewers from the records of workers, as these come. Pure.

A device has a process row, and in it a thread row for each place where requests run; where several run at a time, one
place has several rows. A client has a process row with its calls, each from its submission to its answer. Arrows lead
from calls to where they run. Times are CLOCK_MONOTONIC in microseconds, so they compare with other tools'.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from atomr_mp.protocol.board import PlaceKind
from atomr_mp.protocol.timeline import Begun, Ended, GpuTime, Record, SpanKind, Spanned
from atomr_mp.protocol.words import rate

CLIENTS: Final = 100_000
"""Added to a session's number, the `pid` of a client's row; that of a device's is its index and 1."""

GPU_ROWS: Final = 1 << 30
CALL_ROWS: Final = 1 << 29
ASIDE_ROW: Final = GPU_ROWS + (1 << 29)
"""Numbers of thread rows from here on are for the GPU's streams, for clients' calls, and for what belongs to no
request. They have 31 bits in viewers."""

MOST_ROWS: Final = 1 << 16
"""Most rows of one place, so that each of them has a number: a client has fewer unanswered calls, even of all devices
together. What would need more is not drawn, and counted."""

MOST_OPEN: Final = 65_536
"""Most requests of one process that run at a time; a worker has fewer."""

LEAST_RATE: Final = 0.001
"""Least rate that is shown, in thousands of millions a second: less is not what a request has mostly done."""

LONGEST_WAIT_NS: Final = 3_600_000_000_000
"""A call that was submitted longer ago than this counts as submitted when it arrived: its client's clock is odd."""

PLACES: Final = {
    PlaceKind.LOOP: "loop",
    PlaceKind.THREAD: "thread",
    PlaceKind.STREAM: "stream",
    PlaceKind.EVENT_LOOP: "event loop",
}

Event = dict[str, Any]


@dataclasses.dataclass
class OpenRequest:
    """A request that has begun."""

    begun: Begun
    row: int = -1
    """Its row, once something of it was drawn there."""


class PlaceRows:
    """The rows of one kind in one place. A row is free once what was on it has ended."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[tuple[int, int]] = []
        """The rows on which nothing is, in the order of when the last thing there has ended."""

    def take(self, started_ns: int) -> int:
        """Return the row that has been free for the shortest time at a time, and take it; -1 if there is none."""
        at = bisect.bisect_right(self._free, (started_ns, MOST_ROWS))
        if at:
            return self._free.pop(at - 1)[1]
        if self._count == MOST_ROWS:
            return -1
        self._count += 1
        return self._count - 1

    def free(self, row: int, end_ns: int) -> None:
        """Give a row back."""
        if row >= 0:
            bisect.insort(self._free, (end_ns, row))


class TraceRows:
    """Makes the events of one trace.

    Args:
        backend: The pool's.
    """

    def __init__(self, backend: str) -> None:
        self.backend: Final = backend
        self._named: set[tuple[int, int]] = set()
        self._rows: dict[tuple[int, int, int], PlaceRows] = {}
        self.clients: Final[dict[int, str]] = {}
        """Names of clients, by session. They are untrusted text."""
        self.sessions: Final[set[int]] = set()
        """Sessions whose rows have no name yet."""
        self.lost = 0
        """Records that cannot be of a worker."""

    def device_names(self, device: int) -> Iterator[Event]:
        """Yield the name of a device's row, once."""
        yield from self._name(device + 1, 0, f"device {device} ({self.backend})", device)

    def client_names(self) -> Iterator[Event]:
        """Yield the names of clients' rows that have none yet, as far as they are known by now."""
        for session in sorted(self.sessions & self.clients.keys()):
            self.sessions.discard(session)
            yield from _process_name(CLIENTS + session, self.clients[session], CLIENTS + session)

    def nameless(self) -> Iterator[Event]:
        """Yield a name for each client whose name is not known."""
        for session in sorted(self.sessions):
            yield from _process_name(CLIENTS + session, f"session {session}", CLIENTS + session)
        self.sessions.clear()

    def instant(self, device: int, at_ns: int, name: str, facts: Event) -> Iterator[Event]:
        """Yield an instant of a device, such as the end of an incarnation."""
        yield from self.device_names(device)
        yield {"ph": "i", "s": "p", "pid": device + 1, "tid": 0, "ts": at_ns / 1000, "name": name, "args": facts}

    def rows(self, pid: int, kind: int, number: int) -> PlaceRows:
        """Return the rows of a place."""
        return self._rows.setdefault((pid, kind, number), PlaceRows())

    def thread_name(self, pid: int, tid: int, name: str) -> Iterator[Event]:
        """Yield the name of a thread's row, once."""
        if (pid, tid) not in self._named:
            self._named.add((pid, tid))
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}

    def session(self, number: int) -> None:
        """Note a session, whose row needs a name."""
        if (CLIENTS + number, 0) not in self._named:
            self._named.add((CLIENTS + number, 0))
            self.sessions.add(number)

    def _name(self, pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
        if (pid, tid) not in self._named:
            self._named.add((pid, tid))
            yield from _process_name(pid, name, order)
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": "life"}}


class DeviceRows:
    """Makes the events of one process of a device.

    Args:
        rows: The rows of the trace.
        device: The device.
    """

    def __init__(self, rows: TraceRows, device: int) -> None:
        self._rows = rows
        self._device = device
        self._pid = device + 1
        self.generation = 0
        self._open: dict[tuple[int, int, int], OpenRequest] = {}
        """By session, id and start: the slices of a call with items have one id."""
        self._latest: dict[tuple[int, int], OpenRequest] = {}
        self._batch = 0
        """The latest batch whose span was made: batches end as a whole."""

    def events(self, record: Record) -> Iterator[Event]:
        """Yield the events of a record."""
        match record:
            case Begun():
                yield from self._begin(record)
            case Ended():
                yield from self._end(record)
            case Spanned():
                yield from self._span(record)

    def unfinished(self, end_ns: int, why: str) -> Iterator[Event]:
        """Yield the events of requests that have begun and not ended.

        Args:
            end_ns: When this process, or the trace, has ended.
            why: What has ended.
        """
        for request in list(self._open.values()):
            yield from self._shown(request, request.begun.started_ns, end_ns, end_ns, {"unfinished": why})
        self._open.clear()
        self._latest.clear()

    def _begin(self, begun: Begun) -> Iterator[Event]:
        yield from self._rows.device_names(self._device)
        key = (begun.session, begun.request, begun.started_ns)
        if len(self._open) >= MOST_OPEN or key in self._open:
            self._rows.lost += 1
            return
        self._open[key] = self._latest[key[:2]] = OpenRequest(begun)
        self._rows.session(begun.session)

    def _end(self, ended: Ended) -> Iterator[Event]:
        request = self._open.pop((ended.session, ended.request, ended.started_ns), None)
        if request is None:
            self._rows.lost += 1  # its begin has found no room
            return
        self._latest.pop((ended.session, ended.request), None)
        took_ns = sum([each.took_ns for each in ended.gpu]) or ended.worked_ns
        facts: Event = {}
        if ended.batch:
            facts["batch"] = ended.batch
        if ended.error:
            facts["error"] = ended.error
        facts |= _rates(ended.flops, ended.nbytes, took_ns)
        if ended.gpu:
            facts["gpu_us"] = sum([each.took_ns for each in ended.gpu]) / 1000
        is_first = not ended.batch or ended.batch != self._batch
        self._batch = ended.batch or self._batch
        items = ended.items, ended.batch_items or ended.items
        yield from self._shown(
            request, ended.began_ns, ended.ended_ns, ended.answered_ns, facts, runs=is_first, items=items
        )
        for work in ended.gpu if is_first else ():
            yield from self._gpu(work, ended)

    def _shown(
        self,
        request: OpenRequest,
        began_ns: int,
        end_ns: int,
        answered_ns: int,
        facts: Event,
        *,
        runs: bool = True,
        items: tuple[int, int] = (1, 1),
    ) -> Iterator[Event]:
        """Yield the spans of a request in its client's row and in its device's, its wait, and the arrow between.

        Args:
            request: The request.
            began_ns: When its own code has begun.
            end_ns: When that has ended.
            answered_ns: When it was answered.
            facts: What is known of it.
            runs: Whether it is drawn on its device: of a batch one request is.
            items: How many items it has, and how many what is drawn there has.
        """
        begun, method, submitted_ns = request.begun, request.begun.method, _submitted(request.begun)
        calls = self._rows.rows(CLIENTS + begun.session, 0, 0)
        client, row = CLIENTS + begun.session, calls.take(submitted_ns)
        answered_ns = max(answered_ns, submitted_ns)
        calls.free(row, answered_ns)
        if runs:
            yield from self._placed(request, began_ns)
        self._rows.rows(self._pid, begun.place, begun.number).free(request.row, max(end_ns, began_ns))
        if row < 0 or (runs and request.row < 0):
            self._rows.lost += 1
            return
        call_tid, tid = CALL_ROWS + row, _tid(begun.place, begun.number, request.row)
        yield from self._rows.thread_name(client, call_tid, "calls")
        facts = {"session": begun.session, "request": begun.request, "generation": self.generation, **facts}
        if begun.session in self._rows.clients:
            facts["client"] = self._rows.clients[begun.session]
        if begun.kernel:
            facts["kernel"] = begun.kernel
        where = {"device": self._device, "wait_us": max(began_ns - submitted_ns, 0) / 1000, **_items(items[0])}
        yield _span(client, call_tid, method, submitted_ns, answered_ns, {**facts, **where})
        arrow = f"{begun.session:x}.{begun.request:x}.{self._device:x}.{self.generation:x}"
        if runs:
            yield _span(self._pid, tid, method, began_ns, end_ns, {**facts, **_items(items[1])})
            flow = {"cat": "call", "name": "call", "id": arrow}
            yield {"ph": "s", "pid": client, "tid": call_tid, "ts": submitted_ns / 1000, **flow}
            yield {"ph": "f", "bp": "e", "pid": self._pid, "tid": tid, "ts": began_ns / 1000, **flow}
        waits = {"cat": "wait", "name": f"{method} waits", "id": arrow, "pid": self._pid, "tid": 0}
        yield {"ph": "b", "ts": submitted_ns / 1000, **waits}
        yield {"ph": "e", "ts": max(began_ns, submitted_ns) / 1000, **waits}

    def _placed(self, request: OpenRequest, from_ns: int) -> Iterator[Event]:
        """Give a request a row from a time on, if it has none; yield the row's name, if it has none."""
        place, number = request.begun.place, request.begun.number
        if request.row < 0:
            request.row = self._rows.rows(self._pid, place, number).take(from_ns)
        if request.row >= 0:
            name = _place_name(place, number) + (f" · {request.row + 1}" if request.row else "")
            yield from self._rows.thread_name(self._pid, _tid(place, number, request.row), name)

    def _gpu(self, work: GpuTime, ended: Ended) -> Iterator[Event]:
        """Yield the span of a request's work on a stream of the GPU."""
        tid = GPU_ROWS + work.stream
        yield from self._rows.thread_name(self._pid, tid, f"GPU, stream {work.stream}")
        facts = {"session": ended.session, "request": ended.request, "generation": self.generation}
        yield _span(self._pid, tid, ended.method, work.started_ns, work.started_ns + work.took_ns, facts)

    def _span(self, part: Spanned) -> Iterator[Event]:
        """Yield the span of a step or a copy, on the row of its request."""
        yield from self._rows.device_names(self._device)
        request = self._latest.get((part.session, part.request))
        facts: Event = {"kind": SpanKind(part.kind).name.lower(), "generation": self.generation}
        if part.kernel:
            facts["kernel"] = part.kernel
        if part.kind == SpanKind.COPY:
            facts["bytes"] = part.nbytes
        if part.kind == SpanKind.COPY or self._rows.backend == "host":  # elsewhere a step is only begun meanwhile
            facts |= _rates(part.flops, part.nbytes, part.ended_ns - part.started_ns)
        if request is None:
            rows = self._rows.rows(self._pid, ASIDE_ROW, 0)
            row = rows.take(part.started_ns)
            rows.free(row, max(part.ended_ns, part.started_ns))
            tid = ASIDE_ROW + row
        else:
            yield from self._placed(request, request.begun.started_ns)
            row = request.row
            tid = _tid(request.begun.place, request.begun.number, row)
        if row < 0:
            self._rows.lost += 1
            return
        if request is None:
            yield from self._rows.thread_name(self._pid, tid, "copies")
        yield _span(self._pid, tid, part.name, part.started_ns, part.ended_ns, facts)


def _span(pid: int, tid: int, name: str, started_ns: int, end_ns: int, facts: Event) -> Event:
    dur = max(end_ns - started_ns, 0) / 1000
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": started_ns / 1000, "dur": dur, "args": facts}


def _rates(flops: int, nbytes: int, took_ns: int) -> Event:
    """Return operations and bytes a second, in thousands of millions, by four digits, as far as they tell something."""
    seconds = max(took_ns, 1) / 1e9
    rates = {"gflops": rate(flops, seconds), "gbytes_per_s": rate(nbytes, seconds)}
    return {name: found for name, found in rates.items() if found >= LEAST_RATE}


def _items(count: int) -> Event:
    """Return how many items something has, if there are several."""
    return {"items": count} if count > 1 else {}


def _process_name(pid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}}


def _tid(place: int, number: int, row: int) -> int:
    """Return the number of a place's row; that of the device's life is 0."""
    return 1 + (place % 4 * 4096 + number % 4096) * MOST_ROWS + row


def _place_name(place: int, number: int) -> str:
    known = PLACES.get(PlaceKind(place % 4), "")
    return known if place % 4 == PlaceKind.LOOP else f"{known} {number}"


def _submitted(begun: Begun) -> int:
    """Return when a call was submitted: when it arrived, if its client has not said it, or what cannot be."""
    is_sound = begun.received_ns - LONGEST_WAIT_NS <= begun.submitted_ns <= begun.received_ns
    return begun.submitted_ns if begun.submitted_ns and is_sound else begun.received_ns
