"""Makes events of viewers from the records of workers, as these come. Pure.

A device has a process row, and in it a thread row for each place where requests run; where several run at a time, one
place has several rows. A client has a process row with its calls, each from its submission to its answer. Arrows lead
from calls to where they run. Times are CLOCK_MONOTONIC in microseconds, so they compare with other tools'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from atomr_mp.protocol.board import PlaceKind
from atomr_mp.protocol.timeline import Begun, Ended, GpuTime, Record, SpanKind, Spanned
from atomr_mp.protocol.words import rate

CLIENTS: Final = 100_000
"""Added to a session's number, the `pid` of a client's row; that of a device's is its index and 1."""

GPU_ROWS: Final = 1 << 21
CALL_ROWS: Final = 1 << 22
ASIDE_ROW: Final = 1 << 23
"""Numbers of thread rows from here on are for the GPU's streams, for clients' calls, and for what belongs to no
request."""

MOST_ROWS: Final = 64
"""Most rows of one place; what would need more shares the last."""

MOST_OPEN: Final = 65_536
"""Most requests of one process that run at a time; a worker has fewer."""

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
    row: int
    call_row: int
    """The row of its call among those of its client."""


class PlaceRows:
    """The rows of one kind in one place. A row is free once what was on it has ended."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        """When each row is free; `NEVER` while something is on it."""

    def take(self, started_ns: int) -> int:
        """Return the first row that is free from a time on, and take it."""
        for row, end_ns in enumerate(self._ends):
            if end_ns <= started_ns:
                self._ends[row] = _NEVER
                return row
        if len(self._ends) < MOST_ROWS:
            self._ends.append(_NEVER)
        return len(self._ends) - 1

    def free(self, row: int, end_ns: int) -> None:
        """Give a row back."""
        self._ends[row] = end_ns


class TraceRows:
    """Makes the events of one trace.

    Args:
        backend: The pool's.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
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
        yield from self._name(device + 1, 0, f"device {device} ({self._backend})", device)

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
            facts = {"unfinished": why}
            yield from self._shown(request, request.begun.started_ns, end_ns, facts)
        self._open.clear()
        self._latest.clear()

    def _begin(self, begun: Begun) -> Iterator[Event]:
        yield from self._rows.device_names(self._device)
        key = (begun.session, begun.request, begun.started_ns)
        if len(self._open) >= MOST_OPEN or key in self._open:
            self._rows.lost += 1
            return
        row = self._rows.rows(self._pid, begun.place, begun.number).take(begun.started_ns)
        calls = self._rows.rows(CLIENTS + begun.session, 0, 0)
        request = OpenRequest(begun, row, calls.take(_submitted(begun)))
        self._open[key] = self._latest[key[:2]] = request
        self._rows.session(begun.session)

    def _end(self, ended: Ended) -> Iterator[Event]:
        request = self._open.pop((ended.session, ended.request, ended.started_ns), None)
        if request is None:
            self._rows.lost += 1  # its begin has found no room
            return
        self._latest.pop((ended.session, ended.request), None)
        seconds = max(sum([each.took_ns for each in ended.gpu]) or ended.ended_ns - ended.started_ns, 1) / 1e9
        facts: Event = {}
        if ended.items > 1:
            facts["items"] = ended.items
        if ended.batch:
            facts["batch"] = ended.batch
        if ended.error:
            facts["error"] = ended.error
        if ended.flops:
            facts["gflops"] = rate(ended.flops, seconds)
        if ended.nbytes:
            facts["gbytes_per_s"] = rate(ended.nbytes, seconds)
        if ended.gpu:
            facts["gpu_us"] = sum([each.took_ns for each in ended.gpu]) / 1000
        is_first = not ended.batch or ended.batch != self._batch
        self._batch = ended.batch or self._batch
        yield from self._shown(request, ended.started_ns, ended.ended_ns, facts, runs=is_first)
        for work in ended.gpu if is_first else ():
            yield from self._gpu(work, ended)

    def _shown(
        self, request: OpenRequest, started_ns: int, end_ns: int, facts: Event, *, runs: bool = True
    ) -> Iterator[Event]:
        """Yield the spans of a request in its client's row and in its device's, its wait, and the arrow between."""
        begun, method, submitted_ns = request.begun, request.begun.method, _submitted(request.begun)
        tid = _tid(begun.place, begun.number, request.row)
        self._rows.rows(self._pid, begun.place, begun.number).free(request.row, end_ns)
        self._rows.rows(CLIENTS + begun.session, 0, 0).free(request.call_row, end_ns)
        client, call_tid = CLIENTS + begun.session, CALL_ROWS + request.call_row
        yield from self._rows.thread_name(client, call_tid, "calls")
        name = _place_name(begun.place, begun.number)
        yield from self._rows.thread_name(self._pid, tid, name if not request.row else f"{name} · {request.row + 1}")
        facts = {"session": begun.session, "request": begun.request, "generation": self.generation, **facts}
        if begun.session in self._rows.clients:
            facts["client"] = self._rows.clients[begun.session]
        where = {"device": self._device, "wait_us": max(started_ns - submitted_ns, 0) / 1000}
        yield _span(client, call_tid, method, submitted_ns, end_ns, {**facts, **where})
        arrow = f"{begun.session:x}.{begun.request:x}.{self._device:x}.{self.generation:x}"
        if runs:
            yield _span(self._pid, tid, method, started_ns, end_ns, facts)
            flow = {"cat": "call", "name": "call", "id": arrow}
            yield {"ph": "s", "pid": client, "tid": call_tid, "ts": submitted_ns / 1000, **flow}
            yield {"ph": "f", "bp": "e", "pid": self._pid, "tid": tid, "ts": started_ns / 1000, **flow}
        waits = {"cat": "wait", "name": f"{method} waits", "id": arrow, "pid": self._pid, "tid": 0}
        yield {"ph": "b", "ts": submitted_ns / 1000, **waits}
        yield {"ph": "e", "ts": max(started_ns, submitted_ns) / 1000, **waits}

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
        if part.nbytes:
            seconds = max(part.ended_ns - part.started_ns, 1) / 1e9
            facts |= {"bytes": part.nbytes, "gbytes_per_s": rate(part.nbytes, seconds)}
        if request is None:
            rows = self._rows.rows(self._pid, ASIDE_ROW, 0)
            row = rows.take(part.started_ns)
            rows.free(row, part.ended_ns)
            tid = ASIDE_ROW + row
            yield from self._rows.thread_name(self._pid, tid, "copies")
        else:
            tid = _tid(request.begun.place, request.begun.number, request.row)
        yield _span(self._pid, tid, part.name, part.started_ns, part.ended_ns, facts)


def _span(pid: int, tid: int, name: str, started_ns: int, end_ns: int, facts: Event) -> Event:
    dur = max(end_ns - started_ns, 0) / 1000
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": started_ns / 1000, "dur": dur, "args": facts}


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


_NEVER: Final = 2**63
