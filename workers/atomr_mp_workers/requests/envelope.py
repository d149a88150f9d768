"""The one way of a request through a worker: check, decode, start, run, end.

An actor's method runs between `begin` and `complete`. Only with the loop's turn.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from atomr_mp import checks, errors
from atomr_mp.protocol import token
from atomr_mp.protocol.board import OFF_BOARD, BoardWriter, Counter, Watched
from atomr_mp.protocol.codec import MAX_TEXT_CHARS
from atomr_mp.protocol.exceptions import forget_frames
from atomr_mp.protocol.flow.flight import MAX_STREAMS
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.words import counted
from atomr_mp_workers import tracing
from atomr_mp_workers.fatal import FatalError, HalfDoneError
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests import contents, operands
from atomr_mp_workers.requests.answers import Answers
from atomr_mp_workers.requests.faults import OwnFaults
from atomr_mp_workers.requests.gangs import GangParts, NoWorlds
from atomr_mp_workers.requests.kinds.items import ItemsRequest, ItemsSlice
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.peers import AdmittedSession, Peer
from atomr_mp_workers.requests.raised import explain
from atomr_mp_workers.requests.request import Request, Run, Stage
from atomr_mp_workers.requests.work_count import WorkCount

SHORTEST_TEXT: Final = 1024
"""Characters that each text of an error keeps at least, however many items of a call have failed."""


class MethodFinder(Protocol):
    """Finds methods of libraries that have not been called yet."""

    def find(self, method: str, /) -> Method | None:
        """Return the method of a name, None if there is none; raise a `RequestError` if it cannot be made."""

    def warm_up(self, method: str, /) -> None:
        """Prepare the library of a method that was found for a first call."""


@checks.owned()
class Envelope:
    """Takes requests in and gives answers out; counts both on the board.

    Args:
        methods: Methods that can be called, by "Actor.method".
        board: The worker's board.
        current: This incarnation's token.
        libraries: Finds the methods of libraries.
        store: The device's memory.
        most_queued: How many requests may wait.
        most_streams: How many streams may be open.
        watched: Returns the board's word for a method's requests.
        faults: Notes our own faults; by default they are counted and logged only.
        gangs: Takes in parts of gang calls; by default none are let in.
    """

    def __init__(
        self,
        methods: dict[str, Method],
        board: BoardWriter,
        current: bytes,
        libraries: MethodFinder,
        store: Store,
        most_queued: int = sys.maxsize,
        most_streams: int = MAX_STREAMS,
        watched: Callable[[Method], int] = lambda _: 0,
        faults: OwnFaults | None = None,
        gangs: GangParts | None = None,
    ) -> None:
        self._most_queued = most_queued
        self._queued = 0
        """Requests that have been received and have not started."""
        self._methods = {name: each for name, each in methods.items() if not each.streams}
        self._streaming = {name: each for name, each in methods.items() if each.streams}
        self._most_streams = most_streams
        self._found: list[str] = []
        self._watched = watched
        for each in methods.values():
            each.watched, each.meaning = watched(each), store.device.explain
        self._board = board
        self._token = current
        self._libraries = libraries
        self._device: Final = store.device
        self._slabs: Final = store.slabs
        self.passing_reads: Final = store.passing_reads
        self.answers: Final = Answers(store)
        self.faults: Final = faults or OwnFaults(board, lambda _reason: None)
        """Notes our own faults."""
        self.gangs: Final = NoWorlds() if gangs is None else gangs
        """Takes in parts of gang calls."""

    def open(  # noqa: C901, PLR0912, PLR0915 - a further call would cost more
        self, peer: Peer, message: data.Calls, frames: list[memoryview], refusal: errors.RequestError | None = None
    ) -> list[Request]:
        """Return the requests in a message; answer those that cannot be run.

        Args:
            peer: The peer that sent it.
            message: The calls.
            frames: Their payload.
            refusal: The error of all calls of this connection, if they are refused.

        Raises:
            ProtocolError: The calls and the payload frames do not add up; nothing was taken.
        """
        calls, at = message.calls, 0
        for call in calls:
            at += call.frames
        if at != len(frames):
            raise errors.ProtocolError(
                f"a message of {counted(len(calls), 'call')} with {counted(len(frames), 'payload frame')}, "
                "too many or few"
            )
        requests: list[Request] = []
        refusal = refusal if message.token == self._token else token.refusal(message.token, self._token)
        methods, queued, at, waiting = self._methods, peer.queued, 0, self._queued
        peer.unanswered += len(calls)
        now_ns = time.monotonic_ns()
        for call in calls:
            request_id, first = call.id, at
            at += call.frames
            if refusal is not None:
                self._reject_call(peer, call, refusal)
                continue
            try:
                method = methods.get(call.method)
                if method is None:
                    if call.gang is not None:
                        self.gangs.gone(call.gang)
                    method = self._find(call.method)
                if call.gang is not None or method.world is not None:
                    self.gangs.check(method, peer.session.number, call.gang)
                if request_id in queued:
                    raise errors.InvalidRequest(f"request id {request_id} is in use already")
                if call.items:
                    self._check_items(method, call, alone=type(message) is data.Alone)
                if self._queued >= self._most_queued or method.queued >= method.most_queued:
                    raise self._overloaded(method)
                kind = ItemsRequest if call.items else Request
                request = queued[request_id] = kind(peer, call, method, now_ns)
            except errors.RequestError as error:
                self._reject_call(peer, call, error)
                continue
            except Exception as fault:  # noqa: BLE001 - ours; it costs this call
                self._reject_call(peer, call, self.faults.note(fault, peer.session.number, call.method))
                continue
            self._queued += request.items
            method.queued += request.items
            if at != first:
                request.frames = frames[first:at]
                request.payload_bytes += sum(map(len, request.frames))
            peer.payload_bytes += request.payload_bytes
            requests.append(request)
            if call.gang is not None:
                request.gang = call.gang
                peer.session.parts += 1
                request.alone = type(message) is data.Alone
                self.gangs.came(request)
        self._board.receive(self._queued - waiting)
        return requests

    def open_streams(
        self, peer: Peer, message: data.Streams, frames: list[memoryview], refusal: errors.RequestError | None = None
    ) -> list[Request]:
        """Return the streams in a message; answer those that cannot be opened. See `open`.

        Raises:
            ProtocolError: The streams and the payload frames do not add up, or have too much credit.
        """
        if sum([call.frames for call in message.calls]) != len(frames):
            raise errors.ProtocolError(f"{counted(len(frames), 'payload frame')} for streams, too many or few")
        refusal = refusal if message.token == self._token else token.refusal(message.token, self._token)
        found: list[Request] = []
        at, now_ns = 0, time.monotonic_ns()
        for call in message.calls:
            first, at = at, at + call.frames
            if refusal is not None:
                peer.unanswered += 1
                self._reject_call(peer, call, refusal)
                continue
            try:
                method = self._checked_stream(peer, call)
                stream = StreamRequest(peer, call, method, now_ns)
            except errors.RequestError as error:
                peer.unanswered += 1  # streams do not count among them, and the answer takes it away
                self._reject_call(peer, call, error)
                continue
            except errors.ProtocolError:
                raise
            except Exception as fault:  # noqa: BLE001 - ours; it costs this stream
                peer.unanswered += 1
                self._reject_call(peer, call, self.faults.note(fault, peer.session.number, call.method))
                continue
            stream.frames = frames[first:at]
            peer.queued[call.id] = peer.streams[call.id] = stream
            self.answers.streams.add(stream)
            self._queued += 1
            method.queued += 1
            found.append(stream)
            if call.gang is not None:
                stream.gang = call.gang
                stream.alone = message.alone
                peer.session.parts += 1
                self.gangs.came(stream)
        self._board.receive(len(found))
        return found

    def _checked_stream(self, peer: Peer, call: data.StreamCall) -> Method:
        """Return the method of a stream.

        Raises:
            RequestError: The stream cannot be opened.
        """
        method = self._streaming.get(call.method) or self._no_stream(call.method)
        if call.gang is not None or method.world is not None:
            self.gangs.check(method, peer.session.number, call.gang)
        if call.id in peer.queued or call.id in peer.streams:
            raise errors.InvalidRequest(f"request id {call.id} is in use already")
        if len(self.answers.streams) >= self._most_streams:
            raise errors.Overloaded(
                f"{counted(len(self.answers.streams), 'stream')} are open in this worker, as many as may (max_streams)"
            )
        if self._queued >= self._most_queued or method.queued >= method.most_queued:
            raise self._overloaded(method)
        return method

    def _no_stream(self, name: str) -> Method:
        """Raise the reason why there is no such stream."""
        self._methods.get(name) or self._find(name)
        raise errors.InvalidRequest(f"{name} does not stream; call it")

    def make_ready(self, name: str) -> None:
        """Make a library's method before it is called, and prepare its library.

        Raises:
            RequestError: There is no such method.
        """
        if name not in self._methods:
            self._find(name)
        self._libraries.warm_up(name)

    def add_method(self, method: Method) -> None:
        """Take calls of one more method."""
        method.watched, method.meaning = self._watched(method), self._device.explain
        self._methods[method.name] = method

    def remove_method(self, method: Method) -> None:
        """Take no more calls of a method that was added."""
        self._methods.pop(method.name, None)

    @property
    def found(self) -> list[str]:
        """Methods of libraries that were called or prepared, in their order."""
        return self._found

    def _check_items(self, method: Method, call: data.Call, *, alone: bool) -> None:
        """Check a call with items.

        Raises:
            InvalidRequest: The call cannot have items.
            Overloaded: There is no room for them.
        """
        if method.items is None:
            raise errors.InvalidRequest(f"{call.method} takes no items; send a call for each")
        if alone or call.refs:
            raise errors.InvalidRequest("a call that runs alone, or has refs, has no items; send a call for each")
        if self._queued + call.items > self._most_queued or method.queued + call.items > method.most_queued:
            raise self._overloaded(method, call.items)

    def open_items(self, many: ItemsRequest) -> list[tuple[Any, ...]]:
        """Return the arguments of each item of a call; empty if some do not fit, so that the call is answered."""
        if many.peer.session.ended and not many.dropped:
            self._discard(many)
        if many.dropped:
            return []
        method = many.method
        assert method.items is not None  # checked on arrival
        try:
            if hooks.hook is not None:
                hooks.hook("decode", method.name)
            rows = method.items(many.body, many.frames)
            if len(rows) != many.items:
                raise errors.InvalidRequest(f"{counted(len(rows), 'item')} in a call of {many.items}")
            if method.takes_refs:
                for row in rows:
                    method.written(row)
        except errors.RequestError as raised:  # perhaps of user code, which may keep it
            error = explain(many, raised)
            error.message = f"{method.name}: {error.message}"
            self.refuse(many, error)
            return []
        many.body, many.frames, many.rows = b"", (), rows
        return rows

    def _reject(self, peer: Peer, request_id: int, error: errors.RequestError) -> None:
        """Answer a call that does not become a request."""
        self._board.count(Counter.REJECTED)
        self.answers.reply(peer, request_id, None, error)

    def _reject_call(self, peer: Peer, call: data.Call | data.StreamCall, error: errors.RequestError) -> None:
        """Answer a call that does not become a request, which may be a part of a gang call."""
        if call.gang is not None:
            self.gangs.refused(peer.session.number, call.gang)
        self._reject(peer, call.id, error)

    def cancel(self, peer: Peer, ids: Iterable[int]) -> None:
        """Answer those of the requests that have not started with `Cancelled`; clients may also cancel late ones.

        Parts of gang calls stay until no member runs them: the others would wait for what is dropped singly. Streams
        among these are ended with those that have begun.
        """
        now_ns = time.monotonic_ns()
        for request_id in ids:
            request = peer.queued.get(request_id)
            if not isinstance(request, Request):
                continue
            if request.gang is not None:
                if not isinstance(request, StreamRequest):
                    self.gangs.unwanted(request)
                continue
            try:
                if now_ns >= request.deadline_ns:
                    self._late(request)
                else:
                    self._board.count(Counter.CANCELLED, request.items)
                    self._drop(request, errors.Cancelled("cancelled before it started"))
            except Exception as fault:  # noqa: BLE001 - ours; it costs this request
                self.undo(request, fault)

    def lose(self, peer: Peer) -> None:
        """Drop the requests of a lost connection that have not started; readers queued behind them must not run.

        Parts of gang calls stay: the loss of a connection ends the epoch.
        """
        error = errors.ConnectionLost("its client's connection ended before it started", maybe_executed=False)
        for request in list(peer.queued.values()):
            if isinstance(request, Request) and request.gang is None:
                self._board.count(Counter.CANCELLED, request.items)
                self._miss(request, error)

    def abort(self, request: Request, error: errors.RequestError) -> None:
        """Answer a part of a gang call that has not begun and will not."""
        try:
            if isinstance(error, errors.DeadlineExceeded):
                self._board.count(Counter.EXPIRED, request.items)
            elif isinstance(error, errors.Cancelled):  # its own client does not want it, so refuses nobody behind it
                self._board.count(Counter.CANCELLED, request.items)
                self._drop(request, error)
                return
            self._miss(request, error)
        except Exception as fault:  # noqa: BLE001 - ours; it costs this request
            self.undo(request, fault)

    def admit(self, request: Request) -> bool:
        """Decode a request that will have to wait for its turn, and take its borrows; False if it is answered."""
        if request.dropped or request.peer.session.ended:
            return not request.dropped
        try:
            self._decode(request)
            operands.lend(request, self._device)
        except errors.RequestError as error:
            if self._attends(request, error):
                return True
            self.refuse(request, error)
            return False
        except Exception as fault:  # noqa: BLE001 - ours; it costs this request
            self.undo(request, fault)
            return False
        return True

    def _attends(self, request: Request, error: errors.RequestError) -> bool:
        """Have a part of a gang call run with its refusal, if its method does so: other members wait for it."""
        refused = request.method.refused
        if request.gang is None or refused is None or error.ends_worker:
            return False
        contents.close_writes(request)
        request.arguments, request.reads, request.writes = (refused(error),), (), ()
        request.decoded = request.kept_out = True
        return True

    def begin(self, request: Request, now_ns: int) -> bool:  # noqa: C901, PLR0911, PLR0912 - a further call would cost more
        """Note the request's start and decode its arguments; False if it must not run (it has been answered).

        On True the caller runs `request.call()` once all of `request.after` have ended, and then `complete`.

        Args:
            request: The request.
            now_ns: CLOCK_MONOTONIC.
        """
        try:
            if request.dropped:
                return False
            peer = request.peer
            session = peer.session
            if session.ended and request.gang is None:
                self._discard(request)
                return False
            request_id, method, deadline_ns, items = request.id, request.method, request.deadline_ns, request.items
            request.started_ns = now_ns
            if now_ns > deadline_ns and request.gang is None:  # else other members would wait for it
                self._late(request)
                return False
            if (request.reads or request.after) and (refusal := self.refusal(request)) is not None:
                contents.note_absent(request, refusal)
                if not self._attends(request, refusal):
                    self._drop(request, refusal)
                    return False
            # First, since decoding may run the actor's code, and the board must show what ends this process then.
            request.slot = self._board.start(session.number, request_id, now_ns, deadline_ns, method.watched, items)
            request.stage = Stage.STARTED
            if not request.decoded:
                try:
                    self._decode(request)
                except errors.RequestError as error:
                    if not self._attends(request, error):
                        self._board.end(request.slot, time.monotonic_ns())
                        request.stage = Stage.ENDED_EARLY
                        self._board.count(Counter.FAILED)
                        self._refuse(request, error)
                        if error.ends_worker:
                            raise FatalError(error, method.name) from error
                        return False
            peer.queued.pop(request_id, None)  # a call with items has begun with its first slice
            self._queued -= items
            method.queued -= items
            if request.frames:
                request.frames = ()
            session.running += 1
            if request.gang is not None:
                session.parts -= 1
            request.stage = Stage.RUNNING
            if tracing.is_on:
                tracing.begin(request)
            return True
        except FatalError:
            raise
        except Exception as fault:  # noqa: BLE001 - ours; it costs this request
            self.undo(request, fault)
            return False

    def refusal(self, request: Request) -> errors.RequestError | None:
        """Return why a request must not run after what it has waited for, None if it may."""
        return contents.undefined(request) or self.passing_reads.refusal(request.after)

    def _late(self, request: Request) -> None:
        """Answer a request that is late."""
        self._board.count(Counter.EXPIRED, request.items)
        self._miss(request, errors.DeadlineExceeded("the deadline passed before the request could start"))

    def _miss(self, request: Request, error: errors.RequestError) -> None:
        """Answer a request that does not start; readers queued behind it must not read what it should write."""
        method, session = request.method, request.peer.session
        if request.refs and not request.decoded and not method.reads and method.admit is None:
            # Shown on the board, like all decoding.
            now_ns = time.monotonic_ns()
            slot = self._board.start(session.number, request.id, now_ns, request.deadline_ns, method.watched, 1)
            with contextlib.suppress(errors.RequestError):
                request.arguments = method.arguments(request.body, request.frames, session.resolve)
                request.writes = [each for each in method.written(request.arguments) if not each.block.foreign]
                request.order = next(contents.orders)
            session.holder.resolved.clear()
            self._board.end(slot, time.monotonic_ns())
        contents.note_absent(request, error)
        self._drop(request, error)

    def discard(self, session: AdmittedSession) -> bool:
        """Drop the requests of an ended session that have not started; return whether there were any.

        They stay in their queues and are passed over there, but take no room or memory that others wait for. Parts of
        gang calls stay until the world says that they begin, or that all members drop them (`discard_part`).
        """
        found = False
        for peer in session.peers:
            queued, peer.queued = peer.queued, {}
            for request in queued.values():
                if isinstance(request, Request) and not request.dropped and request.gang is None:
                    found = True
                    self._discard(request)
        return found

    def discard_part(self, request: Request) -> None:
        """Drop a part of a gang call, since its session has ended, or is about to as other members know already."""
        if not request.dropped:
            self._discard(request)

    def _discard(self, request: Request) -> None:
        """Drop a request whose session has ended."""
        if isinstance(request, StreamRequest):
            self.answers.forget(request)
        self._board.count(Counter.DISCARDED, request.items)
        request.stage = Stage.ENDED_EARLY
        self._take_out(request)
        request.stage = Stage.ANSWERED

    def _take_out(self, request: Request) -> None:
        """Keep a request from starting, and let nothing wait for it."""
        self._queued -= request.items
        request.method.queued -= request.items
        request.dropped = True
        if request.gang is not None:
            request.peer.session.parts -= 1
        request.body, request.frames = b"", ()
        if isinstance(request, ItemsRequest):
            request.rows = []
        if request.decoded:
            _withdraw(request)
        if request.writes:
            contents.close_writes(request)
        operands.let_go(request)

    def show_waiting(self, request: Request, *, waits: bool) -> None:
        """Note on the board whether a request that has begun still waits for others: such a request does not hang."""
        if request.method.watched:
            watched = Watched.unpack(request.method.watched)
            self._board.watch(request.slot, watched._replace(waits=waits).pack())

    def show_interrupted(self, request: Request) -> None:
        """Note on the board that a request on an event loop was asked to end; it hangs if it does not."""
        if request.method.watched:
            watched = Watched.unpack(request.method.watched)._replace(waits=False, from_deadline=False).pack()
            if isinstance(request, StreamRequest) and request.place >= 0:
                self._board.watch_step(request.place, watched)
            else:
                self._board.watch(request.slot, watched)

    def complete(self, request: Request) -> None:
        """Note the request's end and put its answer into the peer's outbox.

        Raises:
            FatalError: The error ends this worker.
        """
        error: errors.AtomrError | None = None
        try:
            if hooks.hook is not None:
                _come_by(request)
            if request.raised is not None:
                request.fail(request.raised)
                request.raised = None
            if request.later is not None and request.error is None:
                request.read_later()
            if (error := request.error) is not None:
                error = request.error = request.method.explained(error)
            if request.writes or request.reads:
                error = request.error = contents.settle(request, error)
                if error is not None:
                    request.encoded = None
            self._finish(request, error)
        except FatalError:
            raise
        except Exception as fault:  # noqa: BLE001 - ours; it costs this request
            self.undo(request, fault)
        if error is not None and error.ends_worker:
            raise FatalError(error, request.method.name)

    def undo(self, request: Request, fault: Exception) -> None:
        """Take a request out whole, wherever our own code has failed, and answer it with `InternalError`.

        What it borrowed is given back, what it should have written is undefined, its entry on the board is closed and
        its client's credit returned.

        Raises:
            Exception: The fault, if it cannot be undone: the worker has to end.
        """
        stage, error = request.stage, self.faults.note(fault, request.peer.session.number, request.method.name)
        if stage == Stage.RUNNING:
            if isinstance(request, StreamRequest) and request.place >= 0:
                raise HalfDoneError from fault
            request.encoded = request.later = request.raised = None
            request.error = error
            if request.writes or request.reads:
                contents.settle(request, error)
            self._finish(request, error)
        elif stage < Stage.RUNNING:
            if stage == Stage.STARTED:
                self._board.end(request.slot, time.monotonic_ns())
                request.stage = Stage.ENDED_EARLY
                self._board.count(Counter.FAILED)
            contents.note_absent(request, error)
            if request.stage == Stage.QUEUED:
                self._drop(request, error)
            else:
                self._refuse(request, error)
        elif stage < Stage.ANSWERED:
            if type(request) is not Request:  # the answer of a stream, or of a part of a call, has more to it
                raise HalfDoneError from fault
            operands.let_go(request)
            request.encoded = None
            error.maybe_executed = stage == Stage.ENDED and not request.kept_out
            self._give(request, error)

    def undo_all(self, run: Run, fault: Exception) -> None:
        """Take all unanswered requests of a run out, see `undo`."""
        for request in run.requests:
            if request.stage < Stage.ANSWERED:
                self.undo(request, fault)

    def explain_items(self, part: ItemsSlice) -> None:
        """Turn errors among a method's results into their items' answers, or one for all if it ends the worker."""
        if part.error is not None:
            return
        for place, error in part.error_by.items():
            if error.ends_worker:
                part.error = error
                return
            if isinstance(error, errors.RequestError):
                error.maybe_executed = True
            limit_chars = max(SHORTEST_TEXT, MAX_TEXT_CHARS // len(part.error_by))
            part.failed[place] = part.peer.session.error_form(error, limit_chars)
        self._board.count(Counter.FAILED, len(part.failed))
        part.error_by = {}

    def isolate(self, request: Request | None) -> None:
        """Show on the board which request runs alone; None if it has ended."""
        session, number = (0, 0) if request is None else (request.peer.session.number, request.id)
        self._board.alone(session, number)

    def fail(self, request: Request, error: errors.RequestError) -> None:
        """Answer a request with an error in any state; the worker is going to end."""
        request.error, request.encoded = error, None
        self._finish(request, error)

    def refuse(self, request: Request, raised: BaseException) -> None:
        """Answer a request that has not started with an exception of user code.

        Raises:
            FatalError: The error ends this worker.
        """
        error = explain(request, raised)
        contents.note_absent(request, error)
        self._drop(request, error)
        if error.ends_worker:
            raise FatalError(error, request.method.name)

    def _finish(self, request: Request, error: errors.AtomrError | None) -> None:
        now_ns, slot = time.monotonic_ns(), request.slot
        peer = request.peer
        if error is not None:
            _withdraw(request)
            if error.ends_worker:  # the request may be the cause, so it stays on the board as one that ran at the end
                slot = OFF_BOARD
            if request.closing is None or not isinstance(error, errors.Cancelled):  # an interruption is no failure
                self._board.count(Counter.FAILED, request.items)
            if isinstance(error, errors.RequestError):
                error.maybe_executed = not request.kept_out
        self._board.end(slot, now_ns, request.received_ns, request.items)
        peer.session.running -= 1
        peer.payload_bytes -= request.payload_bytes
        request.stage = Stage.ENDED
        request.method.took(now_ns - request.started_ns)
        request.ran_ns = now_ns - (request.called_ns or request.started_ns)
        request.arguments = request.reads = request.writes = ()  # the device may use them until it has ended
        if request.event is not None:
            operands.let_go(request)
        gpu_ns = tracing.end(request, error, now_ns) if request.observed else 0
        self._give(request, error)
        if gpu_ns:
            self.answers.tell_time(request, gpu_ns)
        request.encoded = request.error = None
        if error is not None and not error.ends_worker:
            forget_frames(error)

    def _decode(self, request: Request) -> None:  # noqa: C901 - a further call would cost more
        """Decode the arguments and take the borrows.

        Raises:
            RequestError: The request is refused; it has borrowed nothing.
        """
        method, session = request.method, request.peer.session
        resolved = session.holder.resolved
        try:
            if hooks.hook is not None:
                hooks.hook("decode", method.name)
            request.arguments = method.arguments(request.body, request.frames, session.resolve)
            if method.recall is not None:
                first, *others = request.arguments
                request.arguments = (method.recall(first, session.holder), *others)
            if resolved:
                if hooks.hook is not None:
                    hooks.hook("borrow", method.name)
                operands.borrow(request, request.arguments, resolved)
                if method.admit is not None:
                    method.admit(request.arguments[0], session.holder)
                request.arguments = method.converted(request.arguments)
            elif method.takes_refs:
                method.written(request.arguments)
            if method.prepares:
                request.arguments, request.making = method.prepared(request.arguments)
            if method.allocates and self._slabs.quiet and request.making is None:
                request.making = method.room_for(request.arguments, session.holder)
        except errors.RequestError as raised:  # perhaps of user code, which may keep it
            request.borrows = ()
            error = explain(request, raised)
            if not error.ends_worker:
                error.message = f"{method.name}: {error.message}"
            contents.note_absent(request, error)
            raise error from None
        finally:
            if resolved:
                resolved.clear()
        request.decoded = True

    def _drop(self, request: Request, error: errors.AtomrError) -> None:
        self._board.count(Counter.DISCARDED, request.items)
        request.stage = Stage.ENDED_EARLY
        self._refuse(request, error)

    def _refuse(self, request: Request, error: errors.AtomrError) -> None:
        if not request.dropped:
            self._take_out(request)
        peer = request.peer
        peer.queued.pop(request.id, None)
        peer.payload_bytes -= request.payload_bytes
        request.stage = Stage.REFUSED
        request.encoded = None
        self._give(request, error)

    def _give(self, request: Request, error: errors.AtomrError | None) -> None:
        self.answers.give(request, error)
        request.stage = Stage.ANSWERED

    def _overloaded(self, method: Method, items: int = 1) -> errors.Overloaded:
        more = "" if items == 1 else f", and {items} more would be too many"
        if method.queued + items > method.most_queued:
            wait = counted(method.queued, f"request of {method.name} waits", f"requests of {method.name} wait")
            return errors.Overloaded(
                f"{wait} in this worker, as many as may{more}",
                retry_after_s=method.queued_ns / 1e9,
            )
        return errors.Overloaded(
            f"{counted(self._queued, 'request waits', 'requests wait')} in this worker, as many as may "
            f"(max_queue){more}",
            retry_after_s=sum([each.queued_ns for each in self._methods.values()]) / 1e9,
        )

    def _find(self, name: str) -> Method:
        """Return a library's method, and add it to the methods.

        Raises:
            RequestError: There is no such method.
        """
        if name in self._streaming:
            raise errors.InvalidRequest(
                f"{name} streams what it returns: open it with `stream`, of the pool or of its actor's world"
            )
        method = self._libraries.find(name)
        if method is None:
            known = ", ".join(sorted([*self._methods, *self._streaming])) or "none"
            raise errors.InvalidRequest(f"there is no request {name!r}; this pool's requests are: {known}")
        self._methods[name] = method
        self._found.append(name)
        before = self._board.worked
        method.work_count = WorkCount(self._board.work(name), always=method.counts)
        method.number = self._board.worked if self._board.worked > before else 0
        method.watched, method.meaning = self._watched(method), self._device.explain
        return method


def _withdraw(request: Request) -> None:
    """Take back what a request's arrival has noted, since it fails or does not run."""
    if request.method.withdraw is not None and request.arguments:
        request.method.withdraw(request.arguments[0], request.holder)


def _come_by(request: Request) -> None:
    """Pass the fault point before a request's answer; a fault there is the request's."""
    try:
        hooks.point("before_reply", request.method.name)
    except Exception as raised:  # noqa: BLE001 - as in `Run.call`
        request.encoded = request.later = None
        request.fail(raised)
