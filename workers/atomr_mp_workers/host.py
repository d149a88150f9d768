"""The actor host: one device's process and its one loop.

The loop's thread owns the data socket, the actors and (on a GPU) the context. Each turn obeys the supervisor before it
serves clients, then takes finished work back, then new calls, then runs queued requests. While the loop sleeps, an
actor's thread that has finished work, or a world's that was rung, takes a turn in its place: see `Completions.turn`.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from atomr_mp import checks, errors
from atomr_mp.protocol import token
from atomr_mp.protocol.board import BoardWriter, Counter, Gauge
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.exceptions import traceback_of
from atomr_mp.protocol.flow import limits
from atomr_mp.protocol.messages import control, data
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.wire.ends import PeerNotReadingError, WorkerEnd
from atomr_mp_workers import own_process, tracing
from atomr_mp_workers.building import WorkerParts, build
from atomr_mp_workers.examples import ExampleCalls
from atomr_mp_workers.fatal import FatalError
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.loading import Loader
from atomr_mp_workers.memory.foreign_slabs import NO_DESCRIPTOR, ForeignSlabs
from atomr_mp_workers.memory.predecessor import Predecessor
from atomr_mp_workers.requests.batches.former import NEVER_NS
from atomr_mp_workers.requests.dispatch import FLUSH_BYTES, FLUSH_REPLIES, Dispatcher
from atomr_mp_workers.requests.peers import AdmittedSession, Carried, Peer
from atomr_mp_workers.requests.raised import wire_form
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.requests.streams.open_streams import NEVER_NS as NEVER_STALLS_NS
from atomr_mp_workers.wire.control import ControlChannel, SupervisorGoneError
from atomr_mp_workers.wire.data_socket import DataSocket
from atomr_mp_workers.worlds.hosted import world_codes
from atomr_mp_workers.worlds.made_places import MadePlace
from atomr_mp_workers.worlds.offers import WorldOffers

TURN_MESSAGES: Final = 32
"""Messages read in one turn, before the supervisor's messages are looked at again."""

_decode: Final = data.FROM_CLIENT.decode
_encode: Final = data.FROM_WORKER.encode

MESSAGE_BYTES: Final = FLUSH_BYTES + limits.MAX_BODY_BYTES
"""Answers larger than this are sent singly; their peer takes no message larger than `codec.MAX_MESSAGE_BYTES`."""

LONGEST_SLEEP_S: Final = 3600.0
"""Longest sleep of the loop; polling takes no more than some weeks."""

QUIET_S: Final = 1.0
"""How long after a promotion the loop makes no call of the driver, which the predecessor's end may keep busy."""

LONGEST_IMPORTS_S: Final = 10.0
"""How long a process that calls wait for imports ahead of them; a standby takes as long as it needs."""

STRAGGLERS_NS: Final = 100_000_000
"""How long a worker that leaves looks for calls that were in flight when clients began to hold theirs."""


class Host:
    """A device's process.

    Args:
        start: The order that starts this process.
        channel: The control channel.
        board: The board, mapped.
        parts: The parts of the process.
    """

    def __init__(self, start: control.Start, channel: ControlChannel, board: BoardWriter, parts: WorkerParts) -> None:
        self._start = start
        self._channel = channel
        self._board = board
        self._index: Final = start.device
        self._token: Final = token.pack(start.epoch, start.device, start.generation)
        self._device = parts.device
        self._completions = parts.completions
        self._store = parts.store
        self._store.refs.listen = self._obey
        self._store.refs.ask_again = lambda number: channel.send(control.MemoryWanted(number))
        self._peers = parts.peers
        self._actors = parts.actors
        self._event_loops = parts.event_loops
        self._envelope = parts.envelope
        self._answers = parts.envelope.answers
        self._faults = parts.envelope.faults
        self._faults.expel = self._expel
        self._ending: list[AdmittedSession] = []
        """Sessions that have ended, with requests that still run."""
        self._outbox = self._answers.outbox
        self._dispatcher = Dispatcher(
            parts.envelope,
            parts.completions,
            parts.device,
            parts.runners,
            parts.batched,
            self._flush,
            board,
            int(start.execution.stall_s * 1e9) or NEVER_STALLS_NS,
        )
        self._poll = select.epoll()
        self._data: WorkerEnd = DataSocket(
            start.endpoint, start.window, self._peers.secret, self._poll, self._peers.former_secret
        )
        self._deliver: Callable[[bytes, bytes, list[Buffer], int], bool] = self._data.send
        """Sends a message."""
        self._serves = not start.standby
        """Whether calls are read: this process is not a standby, or no longer one."""
        self._wakes_ns = 0
        """When the sleeping loop looks again without being woken."""
        self._failed: BaseException | None = None
        """The error of a turn on a thread; the loop raises it."""
        self._drained_ns = 0
        """When a draining worker may leave if it is idle then; 0 if it is not draining."""
        self._usage = parts.usage
        self._readiness = parts.readiness
        self._imports = parts.imports
        self._imports_ahead = parts.imports_ahead
        self._phase = parts.phase
        self._worlds = parts.worlds
        self._worlds.blocked.before = self._dispatcher.parts_before
        self._worlds.take_places(self._open_place, self._close_place)
        for offered in parts.offered:
            self._worlds.add(offered)
        self._is_ready = False
        """Whether the supervisor knows that this process could take calls."""
        self._foreign: Final = ForeignSlabs(parts.store, parts.completions.wake)
        self._read_due_ns = 0
        """When the time of the client's read was over for which the last turn waited in vain."""
        self._shown = (0, 0, 0)
        """Memory figures that the board shows."""
        self._log = logging.getLogger("atomr_mp.worker")

    def run(self) -> None:
        """Serve until drained.

        Raises:
            FatalError: The context is poisoned; the supervisor has been told.
            SupervisorGoneError: The supervisor has ended.
        """
        try:
            self._serve()
        except FatalError as fatal:
            settled = not self._completions.in_progress.on_threads
            if isinstance(fatal.error, errors.ContextPoisoned):
                fatal.error.device, fatal.error.generation = self._index, token.unpack(self._token)[2]
                self._name_suspects(fatal)
                self._log.critical("%s; the stacks of all threads follow", fatal.error)
                faulthandler.dump_traceback(own_process.STDERR)  # nothing is written once the supervisor knows
            self._answer_all(fatal.error)  # first, since the supervisor ends this process once it knows
            report(self._channel, fatal.error, settled=settled)
            if isinstance(fatal.error, errors.ContextPoisoned):
                self._freeze()
            raise

    # --- the loop --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:  # noqa: C901, PLR0915 - a turn of the loop is to be seen as a whole
        control_channel, completions = self._channel.fileno(), self._completions.descriptor
        poll, received = self._poll, self._data.received
        self._warm_up()
        self._import_ahead()
        # All objects made so far live as long as the process; a full collection need not look at them again.
        gc.collect()
        gc.freeze()
        hooks.point("ready")
        self._obey()  # first, since clients may call as soon as this process is ready
        self._imports.begin()
        self._tidy()  # shows the memory that setup took, since an idle worker has no other turn
        self._is_ready = True
        codes = world_codes((actor.name, actor.methods[0].world, actor.code.digest) for actor in self._actors)
        self._channel.send(control.Ready([actor.info for actor in self._actors], codes))
        reads = False
        poll.register(control_channel, select.EPOLLIN)
        for descriptor in (completions, *self._worlds.bells):  # each write signals, and none of them is read
            poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self._completions.turn.acquire()
        tables = self._data, self._peers, self._envelope, self._answers, self._store
        checks.entrust(self._completions.turn, *tables)
        self._completions.take_turn = self._take_turn
        plain, levels = self._dispatcher.queue.plain, self._dispatcher.queue.levels
        batches, streams, worlds = self._dispatcher.turns, self._dispatcher.streams.open, self._worlds
        idle = True
        while (patience_s := self._patience_s(idle=idle)) is not None:
            if self._serves and not reads:
                reads = True
                self._data.read()
            ready = self._sleep(patience_s)
            if control_channel in ready:
                self._obey()
            if self._imports_ahead:
                self._imports_ahead.import_next()
            if refused := self._data.look(ready):
                self._board.count(Counter.REFUSED, refused)
            if self._look() or completions in ready:
                self._take_in()
            if received and self._serves:
                self._read()
            if worlds and worlds.is_inside:
                worlds.look(time.monotonic_ns(), away=self._dispatcher.is_away)
                self._dispatcher.advance()
            late = (plain or levels) and self._dispatcher.work()
            if batches and self._dispatcher.batching:
                self._dispatcher.start_batches()
            if streams:
                self._dispatcher.end_late_streams()
            self._answer_peers()
            if self._ending:
                self._close_ended()
            self._tidy()
            owes = self._outbox or self._answers.withheld or (worlds and worlds.has_free_part)
            waits = (received and self._serves) or (late and (plain or levels)) or self._imports_ahead
            idle = not (waits or owes)
        self._leave()

    def _warm_up(self) -> None:
        """Call the methods that have an example, each once; then have memory ready, as the first client finds it.

        Raises:
            FatalError: A call has failed.
        """
        methods = [method for actor in self._actors for method in actor.methods if method.example is not None]
        if methods:
            calls = ExampleCalls(self._token, self._peers, self._store, self._envelope, self._dispatcher)
            self._deliver, self._phase.warming = calls.deliver, True
            with select.epoll() as poll:
                poll.register(self._completions.descriptor, select.EPOLLIN | select.EPOLLET)
                for method in methods:
                    self._call_example(calls, method, poll)
            self._channel.send(control.WarmingUp(""))
            self._deliver, self._phase.warming = self._data.send, False
            calls.close()
        if self._start.standby:
            # The driver made the first call wait, and later ones need not.
            self._store.slabs.keep_spares({self._device: 1})
        self._worlds.serve()

    def _call_example(self, calls: ExampleCalls, method: LoadedMethod, poll: select.epoll) -> None:
        """Call a method with its example, and run what that needs until it is answered."""
        limit_s = method.hang_timeout_s or 0.0
        limit_s = limit_s if limit_s <= control.MAX_LIMIT_S else 0.0
        self._channel.send(control.WarmingUp(method.name, limit_s))
        if limit_s:
            faulthandler.dump_traceback_later(limit_s, file=own_process.STDERR)
        try:
            calls.call(method)
            while not calls.answered():
                if self._look() or self._completions.waiting:
                    self._dispatcher.take_back()
                while self._dispatcher.work():
                    pass
                if self._dispatcher.batching:
                    self._dispatcher.start_batches()
                calls.read_on()
                self._answer_peers()
                if not (calls.answered() or self._completions.waiting):
                    poll.poll(self._patience_s(idle=True))
            calls.check(method)
        except errors.AtomrError as error:
            raise FatalError(error) from error
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _import_ahead(self) -> None:
        """Import what has to be there before this process is ready.

        A standby has time, and for any other process calls wait.
        """
        self._obey()
        began_s = time.monotonic()
        ahead, poll = self._imports_ahead, select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while (ahead or not ahead.is_whole) and not self._drained_ns:
            if self._serves and time.monotonic() >= began_s + LONGEST_IMPORTS_S:
                ahead.stop()
            elif ahead:
                ahead.import_next()
            else:
                poll.poll()  # the rest of the list is on its way
            self._obey()

    def _take_in(self) -> None:
        """Take in work that was done elsewhere than on the loop."""
        self._dispatcher.take_back()
        if not self._serves:  # else a call would have to wait for work that may never be needed
            self._readiness.go_on()
        for number in self._foreign.take():
            session = self._peers.of(number)
            if session is not None:
                session.opening -= 1
                self._let_in(session)

    def _look_at_passing_reads(self) -> None:
        """Start, or refuse, requests that have waited for a client's read."""
        reads = self._store.passing_reads
        due_ns = reads.due_ns
        if due_ns is not None and (now_ns := time.monotonic_ns()) >= due_ns:
            if due_ns == self._read_due_ns and not self._data.received:
                reads.expire(now_ns)
            else:  # a message with its end may have come while the loop was busy, so look for messages first
                self._read_due_ns = due_ns
        if reads.has_ended:
            reads.has_ended = False
            self._dispatcher.advance()

    def _answer_peers(self) -> None:
        """Send the answers of this turn."""
        if self._store.passing_reads.waited or self._store.passing_reads.has_ended:
            self._look_at_passing_reads()
        if self._answers.withheld and not self._data.received:
            self._answers.end_turn()
        if self._outbox:
            self._flush()

    def _sleep(self, patience_s: float) -> dict[int, int]:
        """Wait until something happens, and return the ready descriptors. Threads may take turns meanwhile."""
        self._wakes_ns = time.monotonic_ns() + int(patience_s * 1e9) if patience_s >= 0 else NEVER_NS
        self._completions.turn.release()
        try:
            ready = dict(self._poll.poll(0 if self._completions.waiting else patience_s))
        finally:
            self._completions.turn.acquire()
        own_process.check()  # a finaliser may have forked anywhere
        if self._failed is not None:
            raise self._failed
        return ready

    def _take_turn(self) -> bool:
        """Take a turn on an actor's thread that has ended work; return whether the loop may sleep on.

        It runs no request: the next request on the loop or on a stream is left to the loop.
        """
        if self._failed is not None or not self._dispatcher.only_threads:
            return False
        try:
            self._dispatcher.take_back()
            if self._dispatcher.batching:
                self._dispatcher.start_batches(on_threads=True)
            if self._dispatcher.has_begun_step:  # this thread's own step; an earlier step's parts are left to the loop
                self._completions.wake_later()  # else the step would wait until the loop has sent them
                return True
            self._flush()
            self._tidy()
            patience_s = self._patience_s(idle=True)
        except BaseException as error:  # noqa: BLE001 - it ends the worker, which is not for the actor's thread to do
            self._failed = error
            return False
        if self._ending or patience_s is None or self._answers.withheld or self._store.passing_reads.has_ended:
            return False
        if self._worlds.owes or self._worlds.has_free_part:
            return False
        return patience_s < 0 or time.monotonic_ns() + int(patience_s * 1e9) >= self._wakes_ns

    def _tidy(self) -> None:
        """Free unreferenced memory, and show the figures on the board."""
        self._store.tidy()
        figures = self._store.figures
        if figures is not self._shown:
            self._shown = figures
            self._board.show(Gauge.SLAB_BYTES, figures[0])
            self._board.show(Gauge.LEASES, figures[1])
            self._board.show(Gauge.SESSIONS, figures[2])
            if self._serves:
                self._usage.notice()
        if self._usage.due_ns is not None:
            self._usage.look(self._peers.sessions, self._envelope.found)
        if (len(sys.modules) != self._imports.count or self._imports.due_ns is not None) and self._serves:
            self._imports.look()

    def _look(self) -> bool:
        try:
            return self._completions.look()
        except errors.ContextPoisoned as error:
            raise FatalError(error) from error

    def _obey(self) -> None:  # noqa: C901, PLR0912 - one case for each kind
        """Carry out the supervisor's orders."""
        while (order := self._channel.receive_waiting()) is not None:
            match order:
                case control.SessionOpened():
                    self._admit(order)
                case control.SessionEnded(number):
                    self._end_session(number)
                case control.SessionUnmapped(number):
                    self._store.slabs.close_opened(number)
                case control.SessionAway(number, away):
                    self._set_away(number, away=away)
                case control.Trace(on):
                    self._trace(self._channel.take_descriptor(), on=on)
                case control.CloseEpoch(world, epoch):
                    self._dispatcher.streams.end_unread(world, epoch)
                    self._worlds.obey(order, self._channel.take_descriptor)
                case control.Reclaim(number):
                    self._store.reclaim(number)
                case control.ExportSlab():
                    self._export(order)
                case control.ResultSlabOpened(number, slab):
                    self._store.opened(number, slab)
                case control.ClientSlab() | control.ForeignSlab():
                    self._map(order, self._channel.take_descriptor())
                case control.ClientSlabForgotten(number, slab):
                    self._store.forget_client_slab(number, slab)
                case control.IncarnationOver(device, generation):
                    self._store.incarnation_over(device, generation)
                    self._worlds.incarnation_over(device, generation)
                case _:
                    self._begin_or_finish(order)

    def _admit(self, order: control.SessionOpened) -> None:
        """Admit a session."""
        self._peers.admit(order)
        self._channel.send(control.SessionAdmitted(order.number))
        if not self._serves:
            self._readiness.prepare_results()

    def _set_away(self, number: int, *, away: bool) -> None:
        """Take in whether the client of a session can be reached."""
        session = self._peers.of(number)
        if session is not None:
            session.is_away = away
            self._dispatcher.streams.readers_changed()

    def _trace(self, ring: int | None, *, on: bool) -> None:
        """Begin to record what this process does, or end that."""
        if not on:
            tracing.record_no_more()
        elif ring is not None:
            try:
                make_times = self._device.start_timing()
                tracing.record(ring, self._start.generation, make_times, self._dispatcher.begun)
            except Exception as error:  # noqa: BLE001 - of the device, or the system; it costs the trace alone
                self._log.warning("this process is not in the trace of the pool: %s", error)

    def _begin_or_finish(self, order: control.FromSupervisor) -> None:
        """Begin to take calls, or to leave."""
        match order:
            case control.Promote():
                pidfd = self._channel.take_descriptor()
                self._store.slabs.predecessor = None if pidfd is None else Predecessor(pidfd)
                hooks.point("promotion")
                self._store.slabs.leave_driver_alone(QUIET_S, self._completions.wake)
                self._serves = True
                if self._is_ready:
                    self._imports_ahead.stop()
            case control.Rebind():
                self._data.rebind()
            case control.MakeReady():
                self._readiness.make_ready(order, at_once=not self._is_ready)
            case control.ImportAhead(modules):
                if not (self._serves and self._is_ready):
                    self._imports.are_known(modules)
                    self._imports_ahead.add(order)
            case control.Drain():
                # If it was told before, it is told that it is waited for now.
                self._drained_ns = self._drained_ns or time.monotonic_ns() + (STRAGGLERS_NS if self._serves else 1)
                self._imports_ahead.stop()
                self._dispatcher.hurry()
                if order.waited_for:
                    self._dispatcher.streams.end_unread()
                self._worlds.drain()
            case _ if not self._worlds.obey(order, self._channel.take_descriptor):
                self._log.error("out of turn: %r", order)

    def _open_place(self, place: MadePlace) -> None:
        """Take calls of a world that a session has made."""
        for method in place.methods:
            self._envelope.add_method(method)
            self._dispatcher.add_runner(method.name, place.thread)
        self._poll.register(place.bell, select.EPOLLIN | select.EPOLLET)

    def _close_place(self, place: MadePlace) -> None:
        """Take no more calls of a world, which is over."""
        self._poll.unregister(place.bell)
        for method in place.methods:
            self._dispatcher.remove_runner(method.name)
            self._envelope.remove_method(method)

    def _export(self, order: control.ExportSlab) -> None:
        """Export a slab."""
        hooks.point("export")
        try:
            export = self._store.export(order.number, order.slab, order.to_device)
        except errors.AtomrError as error:
            self._channel.send(control.SlabExported(order.id, 0, b"", ErrorInfo.of(error)))
        else:
            self._channel.send(control.SlabExported(order.id, export.nbytes, export.handle), export.descriptor)

    def _map(self, order: control.ClientSlab | control.ForeignSlab, descriptor: int | None) -> None:
        """Map memory of a client or of another device."""
        if self._store.has_mapped(order):  # it was introduced once more, for the sake of other memory
            if descriptor is not None:
                os.close(descriptor)
        elif isinstance(order, control.ForeignSlab):
            session = self._peers.of(order.number)
            if not self._foreign.open(order, descriptor) and session is not None:
                session.opening += 1
        else:
            try:
                if descriptor is None:
                    raise errors.Overloaded(NO_DESCRIPTOR)
                memory = self._store.device.open_client_slab(order.nbytes, descriptor)
            except errors.AtomrError as error:
                self._store.not_mapped(order.number, order.slab, str(error))
            else:
                self._store.add_client_slab(order.number, order.slab, memory)

    def _end_session(self, number: int, *, expelled: bool = False) -> None:
        session = self._peers.end(number, expelled=expelled)
        self._worlds.session_ended(number)
        if session is None and any(each.number == number for each in self._ending):
            return  # it was expelled, and requests of it run
        if session is None:
            self._channel.send(control.SessionClosed(number))
        else:
            self._ending.append(session)
            self._data.forget(session.session)

    def _close_ended(self) -> None:
        """Drop the waiting requests of ended sessions; report sessions without running requests as over.

        Do it in a turn of its own, since the end may be heard of in the middle of a request.
        """
        for session in self._ending:
            self._dispatcher.leave(session.peers)
            self._dispatcher.give_up(session.peers)
            if self._envelope.discard(session):
                self._completions.wake()  # other requests may have waited for its memory
            elif any(peer.streams for peer in session.peers):
                self._dispatcher.advance()
        for session in [session for session in self._ending if not (session.running or session.parts)]:
            self._ending.remove(session)
            self._store.close_mappings(session.number)
            self._channel.send(control.SessionClosed(session.number))

    def _read(self) -> None:
        """Take in messages that have come.

        An idle loop runs and answers the first message before it looks at the next, for the latency of a single call.
        Later messages are read together, and so answered together.
        """
        received, plain = self._data.received, self._dispatcher.queue.plain
        for count in range(TURN_MESSAGES):
            if not received:
                return
            self._open(*received.popleft())
            if count == 0 and len(plain) == 1:
                late = self._dispatcher.work()
                self._flush()
                if late:  # the supervisor may have ended a session meanwhile whose calls come next
                    return

    def _open(self, routing_id: bytes, packed: memoryview | tuple[int, ...]) -> None:  # noqa: C901 - a way out for each fault
        if isinstance(packed, tuple):
            self._left(routing_id, packed)
            return
        peer = self._peers.find(routing_id)
        if peer is None:
            if self._peers.former_secret(data.session_of(routing_id)) is None:  # else the client closed after this
                self._board.count(Counter.REFUSED)
            return
        try:
            header, frames = unpack(packed)
            message = _decode(header)
            if not isinstance(message, data.Calls):
                self._hear(peer, message, frames, packed)
                return
            session = peer.session
            early = message.after > session.releases.upto or session.opening
            if early and self._comes_early(peer, message, frames, packed):
                return
            requests = self._envelope.open(peer, message, frames, self._peers.refusal(peer))
        except errors.ProtocolError as error:
            self._violated(peer, str(error))
            return
        except (FatalError, SupervisorGoneError):
            raise
        except Exception as fault:  # noqa: BLE001 - ours; what the message asked for is not known to be done, or whole
            noted = self._faults.note(fault, peer.session.number, "a message")
            self._violated(peer, noted.message)
            return
        if len(peer.replies) >= FLUSH_REPLIES:  # a message may hold more refused calls than fit with others
            self._flush()
        if self._peers.exceeds_window(peer):
            self._violated(peer, "it sent more than its window of unanswered requests")
        if type(message) is data.Alone:
            self._dispatcher.take_alone(requests)
        else:
            self._dispatcher.take(requests)

    def _hear(
        self,
        peer: Peer,
        message: data.NoCalls,
        frames: list[memoryview],
        packed: memoryview,
    ) -> None:
        """Take in a message without calls.

        Raises:
            ProtocolError: It breaks the rules.
        """
        match message:
            case data.Cancel(_, ids):
                self._dispatcher.cancel(peer, ids)
                self._dispatcher.give_up([peer], ids)
            case data.Streams():
                self._open_streams(peer, message, frames, packed)
            case data.Credit(token_, grants):
                if token_ == self._token:
                    self._dispatcher.streams.grant(peer, grants)
                    self._dispatcher.advance()
            case data.Release():
                self._release(peer, message)
            case data.Unread():
                self._unread(peer, message)

    def _open_streams(self, peer: Peer, message: data.Streams, frames: list[memoryview], packed: memoryview) -> None:
        if message.after > peer.session.releases.upto and self._comes_early(peer, message, frames, packed):
            return
        streams = self._envelope.open_streams(peer, message, frames, self._peers.refusal(peer))
        if message.alone:
            self._dispatcher.take_alone(streams)
        else:
            self._dispatcher.take(streams)

    def _release(self, peer: Peer, message: data.Release) -> None:
        """Take back leases that a client releases, and let in the calls that have waited for that."""
        if message.token != self._token:
            return
        session = peer.session
        if not session.releases.add(message.serial):  # a repetition, after its connection was lost
            return
        if message.slabs:
            self._obey()  # the supervisor announced these sessions before, maybe just now
        self._store.release(session.holder, message.leases, message.borrows, message.slabs)
        self._let_in(session)

    def _let_in(self, session: AdmittedSession) -> None:
        """Admit the calls that came before their releases."""
        early, session.waiting_for_release = session.waiting_for_release, []
        for sender, _, _, packed in early:
            self._open(sender.routing_id, packed)

    def _left(self, routing_id: bytes, unsent: Collection[int]) -> None:
        """Take back the answers that were not sent on an ended connection, and end its streams; its calls go on.

        The client has read the others, or names them in an `Unread`.
        """
        if unsent:
            self._take_back_lost(routing_id, lambda number: number in unsent)
        peer = self._peers.known(routing_id)
        for request in [] if peer is None else list(peer.queued.values()):
            if isinstance(request, Request) and request.gang is not None:
                self._envelope.gangs.left(request)
        if peer is not None and peer.streams:
            self._dispatcher.streams.leave([peer])
            self._dispatcher.advance()

    def _unread(self, peer: Peer, message: data.Unread) -> None:
        """Take back answers that never arrived on a lost connection, and drop its requests that have not started."""
        session = peer.session
        routing_id = data.routing_id(session.session, message.lane)
        if message.token != self._token or routing_id == peer.routing_id:
            return
        self._take_back_lost(routing_id, lambda number: number > message.after)
        if self._worlds.cut_off(session.number, message.parts, time.monotonic_ns()):
            self._violated(peer, "its connections were lost too often amid calls of worlds, whose epochs end by that")
            return
        lost = self._peers.known(routing_id)
        if lost is None:
            return
        session.waiting_for_release = [call for call in session.waiting_for_release if call[0] is not lost]
        self._envelope.lose(lost)
        self._dispatcher.leave([lost])
        self._dispatcher.give_up([lost])
        self._dispatcher.advance()

    def _comes_early(
        self, peer: Peer, message: data.Calls | data.Streams, frames: list[memoryview], packed: memoryview
    ) -> bool:
        """Keep calls that must wait for a release on another connection; return False if they need not wait."""
        if message.token != self._token:
            return False  # which is what they will be told
        early = peer.session.waiting_for_release
        nbytes = sum([len(call.body) for call in message.calls]) + sum(map(len, frames))
        early.append((peer, len(message.calls), nbytes, packed))
        window = self._start.window
        count = sum(calls for _, calls, _, _ in early)
        nbytes = sum(nbytes for _, _, nbytes, _ in early)
        # One request of each connection may be larger than its window, see `Peers.exceeds_window`.
        too_large = nbytes > window.payload_bytes * data.MAX_LANES and count > data.MAX_LANES
        if too_large or count > window.requests * data.MAX_LANES:
            self._violated(peer, "its calls wait for releases that do not come")
        return True

    def _flush(self) -> None:
        """Send all queued answers, if the context that computed them is well.

        Raises:
            FatalError: The context is lost.
        """
        if self._outbox:
            try:
                self._device.check()
            except errors.ContextPoisoned as error:
                raise FatalError(error) from error
            self._send()

    def _send(self) -> None:
        """Send all queued answers, the answers of one peer together."""
        while self._outbox:
            peer, _ = self._outbox.popitem()
            replies, frames, session, nbytes = peer.replies, peer.frames, peer.session, peer.reply_bytes
            if peer.parts:
                self._send_parts(peer)
            if not replies or session.ended:
                continue
            peer.replies, peer.reply_bytes = [], 0
            if frames:
                peer.frames = []
            try:
                if nbytes > MESSAGE_BYTES or len(replies) > data.MAX_CALLS:
                    self._send_singly(peer, replies, frames)
                    continue
                returned = session.holder.take_returned() if session.holder.returned else []
                self._send_message(peer, replies, returned, frames)
            except PeerNotReadingError:
                self._violated(peer, "it does not read its answers")

    def _send_parts(self, peer: Peer) -> None:
        """Send the queued parts of streams; end the streams of a connection whose reader is gone."""
        parts, peer.parts = peer.parts, []
        frames, peer.part_frames = peer.part_frames, []
        session, at = peer.session, 0
        while parts and not session.ended:
            count = nbytes = 0
            for part in parts[: data.MAX_CALLS]:
                if count and nbytes + part.nbytes > MESSAGE_BYTES:
                    break
                count += 1
                nbytes += part.nbytes
            some, parts = parts[:count], parts[count:]
            first, at = at, at + sum([part.frames for part in some])
            session.sent += 1
            leases = [lease for part in some for lease in part.leases]
            try:
                message = data.Parts(self._token, some, session.sent)
                delivered = self._deliver(peer.routing_id, _encode(message), frames[first:at], session.sent)
            except PeerNotReadingError:
                self._violated(peer, "it does not read the parts of its streams")
                return
            if not delivered:
                self._take_back(session, [lease for part in (*some, *parts) for lease in part.leases], [])
                self._dispatcher.leave([peer])
                self._completions.wake()  # their ends have to be taken
                return
            if leases:
                peer.carried.append(Carried(session.sent, leases, []))

    def _send_singly(self, peer: Peer, replies: list[data.CallReply], frames: list[Buffer]) -> None:
        """Send answers singly that are too large or too many to be sent together, such as a call of several items."""
        at = 0
        for reply in replies:
            first, at = at, at + reply.frames
            self._send_message(peer, [reply], [], frames[first:at])

    def _send_message(
        self, peer: Peer, replies: list[data.CallReply], returned: list[int], frames: list[Buffer]
    ) -> None:
        """Send answers in one message; take back their leases if the connection is closed."""
        session = peer.session
        session.sent += 1
        message = data.Replies(self._token, replies, returned, session.releases.upto, session.sent)
        delivered = self._deliver(peer.routing_id, _encode(message), frames, session.sent)
        leases = [lease for reply in replies for lease in reply.leases]
        if not delivered:  # an event loop may close its connection: the session goes on
            self._take_back(session, leases, returned)
        elif leases or returned:
            peer.carried.append(Carried(session.sent, leases, returned))

    def _take_back_lost(self, routing_id: bytes, is_lost: Callable[[int], bool]) -> None:
        """Take back the contents of a connection's lost messages, by their numbers."""
        session = self._peers.session_of(routing_id)
        for carried in self._peers.take_carried(routing_id, is_lost):
            assert session is not None
            self._take_back(session, carried.leases, carried.returned)

    def _take_back(self, session: AdmittedSession, leases: list[int], returned: list[int]) -> None:
        """Take back the leases of an undelivered message, since its session will never give them back."""
        self._store.release(session.holder, leases, (), ())
        session.holder.returned.extendleft(reversed(returned))  # kept for the next answer

    def _violated(self, peer: Peer, reason: str) -> None:
        self._board.count(Counter.REFUSED)
        if not peer.session.ended:
            self._expel(peer.session.number, reason)

    def _expel(self, number: int, reason: str) -> None:
        """End a session, and tell the supervisor why."""
        if self._peers.of(number) is not None:
            self._channel.send(control.SessionViolated(number, reason[:2000]))
            self._end_session(number, expelled=True)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _patience_s(self, *, idle: bool) -> float | None:
        """Return how long to wait for an event; None when this worker is drained."""
        if not idle:
            return 0
        if not self._drained_ns or self._dispatcher.busy or self._worlds.is_inside:
            patience_s = self._completions.patience_s()
            for due_ns in (
                self._store.shares.next_expiry_ns,
                self._store.passing_reads.due_ns,
                self._usage.due_ns,
                self._imports.due_ns,
                self._dispatcher.due_ns if self._dispatcher.turns else None,
                self._dispatcher.streams.due_ns,
                self._worlds.due_ns,
            ):
                if due_ns is not None:
                    left_s = min(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), LONGEST_SLEEP_S)
                    patience_s = left_s if patience_s is None else min(left_s, patience_s)
            return -1 if patience_s is None else patience_s
        left_ns = self._drained_ns - time.monotonic_ns()
        return left_ns / 1e9 if left_ns > 0 else None

    def _name_suspects(self, fatal: FatalError) -> None:
        """Say of a lost context where that was noticed, and what ran then: any of it may be the cause."""
        running = self._dispatcher.running
        if fatal.noticed and fatal.noticed not in running:
            running.insert(0, fatal.noticed)
        noticed = f"; noticed in {fatal.noticed}" if fatal.noticed else ""
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        named = ", ".join(running[:MOST_NAMED]) or "nothing any more"
        where = f"; the stacks of its threads are in its log (atomr-mp logs {self._index})"
        fatal.error.message += f"{noticed}; running: {named}{more}{where}"

    def _answer_all(self, error: errors.AtomrError) -> None:
        """Answer all requests with the error that ends this worker."""
        if isinstance(error, errors.ContextPoisoned):
            self._dispatcher.fail_all(error)
            self._answers.distrust(error)
        while self._answers.withheld:
            self._answers.end_turn()
        self._send()

    def _freeze(self) -> None:
        """Send the last answers, stop all threads, and wait to be ended when that disturbs no client."""
        self._data.close(flush=True)  # clients need them once they hear of the end
        os.kill(os.getpid(), signal.SIGSTOP)
        self._channel.await_end()

    def _leave(self) -> None:
        self._data.close(flush=True)
        for actor in reversed(self._actors):
            loop = self._event_loops.get(actor.name)
            try:
                ending: Any = actor.instance.teardown()
                if loop is not None and actor.is_async("teardown"):
                    loop.complete(ending)
                own_process.check()
            except BaseException as error:  # noqa: BLE001 - it must not keep the others from their teardown
                own_process.check()
                self._log.error("teardown of %s failed:\n%s", actor.name, traceback_of(error))
            if loop is not None:
                loop.close()


def work(
    start: control.Start, channel: ControlChannel, board: BoardWriter, loader: Loader, offers: WorldOffers
) -> None:
    """Build a device's process, then have it serve until it is drained.

    Args:
        start: The order that starts this process.
        channel: The control channel.
        board: The board, mapped.
        loader: Loads the actors.
        offers: The worlds that this process has a place in.

    Raises:
        FatalError: Set-up failed or the context is poisoned; the supervisor has been told.
        SupervisorGoneError: The supervisor has ended.
    """
    try:
        parts = build(start, channel, board, loader, offers)
    except FatalError as fatal:
        report(channel, fatal.error)
        raise
    Host(start, channel, board, parts).run()


def report(channel: ControlChannel, error: errors.AtomrError, *, settled: bool = False) -> None:
    """Tell the supervisor why this worker ends, and whether only its loop still runs."""
    channel.send(control.Fault(wire_form(error, FAULT_CHARS), settled))


MOST_NAMED: Final = 16
"""Most methods that the error of a lost context names."""

FAULT_CHARS: Final = 40_000
"""Most characters of each text in a worker's last message. Two such texts of four-byte characters fit into a packet
where the kernel's limit has its default of 416 KiB; a larger packet would not be sent at all."""
