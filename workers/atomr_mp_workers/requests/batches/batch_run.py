"""Requests of batched methods, from their arrival until they run as one. Only with the loop's turn, except `call`."""

from __future__ import annotations

import functools
import time
from collections.abc import Hashable, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.board import BoardWriter
from atomr_mp.protocol.exceptions import describe, is_a
from atomr_mp.protocol.words import counted
from atomr_mp_workers import own_process
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests import operands
from atomr_mp_workers.requests.batches import rows
from atomr_mp_workers.requests.batches.former import BatchFormer, BatchLimits
from atomr_mp_workers.requests.batches.keys import sound
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.kinds.items import ItemsRequest, ItemsSlice, results_of
from atomr_mp_workers.requests.method import Method, RowsOf
from atomr_mp_workers.requests.peers import WEIGHT
from atomr_mp_workers.requests.raised import explain
from atomr_mp_workers.requests.request import Request, Run, passes
from atomr_mp_workers.timeline import SharedRun

MOST_AHEAD: Final = 2
"""Most batches of one method that a stream or a thread has at a time, the second only if it is full: so the next batch
is ready when one ends, and requests that arrive meanwhile still share a batch. Several threads share one next batch."""


class BatchRun(Run):
    """Requests of one method that run together; threads and streams run a batch like a request.

    Args:
        requests: Requests that have begun.
        store: The device's memory.
    """

    def __init__(self, requests: Sequence[Request], store: Store) -> None:
        self.method = requests[0].method
        self._requests = requests
        self._store = store
        self._items = sum([request.items for request in requests])
        self.arguments = self._lists()
        if requests[0].recorded is not None:
            self.record()
        holders = {request.holder for request in requests}
        self._holder = holders.pop() if len(holders) == 1 else store.buffers.several

    def _lists(self) -> tuple[Any, ...]:
        """Return a list for each parameter."""
        items: list[tuple[Any, ...]] = []
        for request in self._requests:
            if isinstance(request, ItemsSlice):
                items += request.rows
            else:
                items.append(request.arguments)
        return tuple(map(list, zip(*items, strict=True)))

    def record(self) -> None:
        """Have the requests tell of one run in the pool's trace."""
        first = self._requests[0]
        self.times = first.times
        batch = self.recorded = SharedRun(self.times, self._items, first.recorded.began_ns if first.recorded else 0)
        for request in self._requests:
            if request.recorded is not None:
                request.recorded.batch = batch

    @property
    def requests(self) -> Sequence[Request]:
        """The requests."""
        return self._requests

    @property
    def holder(self) -> Holder:
        """The holder of their session, or of several sessions."""
        return self._holder

    @property
    def after(self) -> list[Event]:
        """Events of earlier uses of the requests' memory, which have to end first."""
        return [event for request in self._requests for event in request.after if not event.done]

    @property
    def reads(self) -> Sequence[DeviceArray]:  # type: ignore[override]
        """Arrays that the requests read and that may turn out to be undefined."""
        return [array for request in self._requests for array in request.reads]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the requests use."""
        return sum([block.nbytes for request in self._requests for block, _ in request.borrows])

    def take(self, result: Any) -> None:
        """Give each request its result."""
        results = results_of(result)
        if results is None or len(results) != self._items:
            got = f"a {type(result).__name__}" if results is None else f"{counted(len(results), 'result')}"
            raise errors.ActorFailed(
                f"{self.method.name} was given {counted(self._items, 'item')} and returned {got}; "
                "a batched method returns a list with a result for each item, or an array with a row for each",
                exception="TypeError",
            )
        at = 0
        for request in self._requests:
            if isinstance(request, ItemsSlice):
                request.take_all(results[at : at + request.items], functools.partial(self._moved, request))
            else:
                self._give(request, results[at])
            at += request.items

    def _moved(self, request: Request, result: Any) -> Any:
        """Return a result whose memory is held by the session of its request."""
        return (
            self._store.buffers.moved(request.holder, result) if self._holder is self._store.buffers.several else result
        )

    def _give(self, request: Request, result: Any) -> None:
        if is_a(result, BaseException):
            request.fail(result)
        else:
            self._give_value(request, result)

    def _give_value(self, request: Request, value: Any) -> None:
        try:
            request.take(self._moved(request, value))
        except BaseException as raised:  # noqa: BLE001 - a result may have code of its own, or there is no room
            request.fail(raised)


class RowsRun(BatchRun):
    """Requests of one method whose rows are one call of it."""

    _counts: Sequence[int] = ()
    """How many rows each request has."""

    def _lists(self) -> tuple[Any, ...]:
        return ()  # `call` joins the rows, off the loop

    def call(self) -> None:
        """Join the rows and run the method, on the thread it belongs to; never raises."""
        rows_of, given = self.method.rows_of, [request.arguments for request in self._requests]
        assert rows_of is not None  # only such methods have this kind of run
        try:
            self._counts = [rows_of(arguments)[0] for arguments in given]  # a suspect has not been asked before
            self.arguments = rows.joined(given)
        except BaseException as raised:  # noqa: BLE001 - a suspect has no rows, or there is no room to join them
            self.fail(raised)
            return
        super().call()

    def take(self, result: Any) -> None:
        """Give each request its rows of the result."""
        count = sum(self._counts)
        try:
            parts = rows.split(result, self._counts)
        except rows.OtherRowsError as error:
            raise errors.ActorFailed(
                f"{self.method.name} was given {counted(count, 'row')} and returned {error}; with Batch(rows=True) a "
                "method returns an array or a list with a row for each, or a dict or a tuple of these",
                exception="TypeError",
            ) from None
        for request, part in zip(self._requests, parts, strict=True):
            self._give_value(request, part)
        first = next((request for request in self._requests if request.error is None), None)
        if first is not None:
            first.batch_rows = count


class BatchedMethod:
    """The waiting requests and the running batches of a batched method.

    Args:
        method: The method.
        number: Its number among batched methods, on the board.
        envelope: The envelope, for the steps before and after a request's own work.
        store: The device's memory.
        board: The board, for figures.
    """

    def __init__(self, method: Method, number: int, envelope: Envelope, store: Store, board: BoardWriter) -> None:
        options = method.batch
        assert options is not None
        self.method: Final = method
        self.running = 0
        """Batches on its stream."""
        self._number = number
        self._envelope = envelope
        self._store = store
        self._board = board
        self.limits: Final = BatchLimits(options.max_items, options.max_bytes, int(options.max_wait_s * 1e9))
        self._kind: Final = BatchRun if method.rows_of is None else RowsRun
        split = _split if method.rows_of is None else None
        self._forming: BatchFormer[Request] = BatchFormer(self.limits, _is_over, self._is_ready, WEIGHT, split, passes)

    def __len__(self) -> int:
        return len(self._forming)

    def add(self, request: Request) -> None:
        """Let a request wait, unless it is refused."""
        if isinstance(request, ItemsRequest):
            self._add_items(request)
            return
        if self.method.rows_of is not None:
            self._add_rows(request, self.method.rows_of)
            return
        # Decoded now only for a key or a size: most are decoded when they are on the board.
        if (request.refs or self.method.key is not None) and not self._envelope.admit(request):
            return
        fits, group = self._group_of(request)
        if fits:
            self._wait(request, group, request.payload_bytes, request.items)

    def _add_rows(self, request: Request, rows_of: RowsOf) -> None:
        """Let a request wait that brings rows, unless it is refused."""
        if not self._envelope.admit(request):
            return
        try:
            if request.borrows:
                raise errors.InvalidRequest(
                    f"{self.method.name} joins the rows of arrays, and takes no refs: read them before"
                )
            count, shapes = rows_of(request.arguments) if request.decoded else (1, None)  # its session has ended
        except errors.RequestError as error:
            self._envelope.refuse(request, error)
            return
        fits, group = self._group_of(request)
        if fits:
            self._wait(request, (shapes, group), request.payload_bytes, count)

    def _group_of(self, request: Request) -> tuple[bool, Hashable]:
        """Return the key of a request, which was decoded for that; or False, if it was answered instead."""
        key, group = self.method.key, None
        if key is not None and not request.dropped:
            try:
                group = sound(key(*request.arguments))
                own_process.check()
            except BaseException as error:  # noqa: BLE001 - user code's; its request fails, and no other
                own_process.check()
                self._envelope.refuse(request, error)
                return False, None
        return True, group

    def _add_items(self, many: ItemsRequest) -> None:
        """Let the items of a call wait, those of each key as one slice."""
        rows, key = self._envelope.open_items(many), self.method.key
        if not rows:
            return
        try:
            groups: dict[Hashable, list[int]] = {}
            for place, row in enumerate(rows):
                groups.setdefault(None if key is None else sound(key(*row)), []).append(place)
            own_process.check()
        except BaseException as raised:  # noqa: BLE001 - user code's, for one of them
            own_process.check()
            error = explain(many, raised)
            if not error.ends_worker:  # its client then sends the items one by one
                why = f"the key of one of the items raised {describe(raised)}"
                error = errors.InvalidRequest(f"{self.method.name}: {why}")
            self._envelope.refuse(many, error)
            return
        for group, places in groups.items():
            self._wait(ItemsSlice(many, places), group, 0, len(places))

    def _wait(self, request: Request, key: Hashable, nbytes: int, items: int) -> None:
        self._forming.add(
            request,
            key=key,
            owner=request.peer.session,
            priority=request.priority,
            nbytes=nbytes,
            items=items,
            now_ns=time.monotonic_ns(),
        )

    def next(self, *, full: bool) -> tuple[list[Request], BatchRun | None]:
        """Return the requests whose turn it is, and their run; nothing if there is no batch, or no full one."""
        batch = self._forming.take(time.monotonic_ns(), full=full)
        now_ns = time.monotonic_ns()  # the current time, since late items do not count in the batch and must not begin
        begun = [waiting for waiting in batch if self._envelope.begin(waiting.item, now_ns)]
        if begun:
            waits = [now_ns - waiting.since_ns for waiting in begun]
            counts = [waiting.items for waiting in begun]
            self._board.batch(self._number, waits, counts)
        requests = [waiting.item for waiting in begun]
        return [waiting.item for waiting in batch], self._run_of(requests) if requests else None

    def _run_of(self, requests: list[Request]) -> BatchRun | None:
        try:
            return self._kind(requests, self._store)
        except Exception as fault:  # noqa: BLE001 - ours; it costs these requests
            for request in requests:
                self._envelope.undo(request, fault)
            return None

    def single(self, request: Request) -> BatchRun:
        """Return the run of a request that has begun by itself."""
        waited_ns = time.monotonic_ns() - request.received_ns
        self._board.batch(self._number, (waited_ns,), (1,))
        return self._kind([request], self._store)

    def due_ns(self, *, full: bool = False) -> int | None:
        """Return when there may be a batch, or a full one, if nothing else happens; None if it takes another event."""
        return self._forming.due_ns(time.monotonic_ns(), full=full) if self._forming else None

    def waits_for_memory(self) -> bool:
        """Return whether the next request of an owner waits for memory in use."""
        return self._forming.is_held_up()

    def hurry(self) -> None:
        """Let no request wait for others from now on."""
        self._forming.hurry()

    def is_due(self) -> bool:
        """Whether there may be a batch now."""
        due_ns = self.due_ns()
        return due_ns is not None and due_ns <= time.monotonic_ns()

    def _is_ready(self, request: Request) -> bool:
        stream = self.method.stream
        if stream is not None:
            return not request.after or stream.takes(request.after)
        return operands.is_free(request)


def _split(request: Request, items: int) -> tuple[Request, Request]:
    assert isinstance(request, ItemsSlice)  # no other request counts for several
    return request.split(items)


def _is_over(request: Request) -> bool:
    return request.dropped or request.peer.session.ended or time.monotonic_ns() > request.deadline_ns
