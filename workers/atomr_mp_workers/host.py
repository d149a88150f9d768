"""The actor host: one device's process and its one loop.

The loop's thread owns the data socket, the actors and (on a GPU) the context. Each turn does what the supervisor
says before anything a client says, then takes finished work back, then new calls, then runs what is queued.
"""

from __future__ import annotations

import gc
import logging
import select
import time
import traceback
from collections import deque
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol import control, data, token
from atomr_mp.protocol.board import BoardWriter, Counter
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp_workers.actor import Context
from atomr_mp_workers.control import ControlChannel
from atomr_mp_workers.data_socket import DataSocket, PeerNotReadingError
from atomr_mp_workers.envelope import Envelope, FatalError, Request
from atomr_mp_workers.loading import LoadedActor, load
from atomr_mp_workers.peers import Peer, Peers, Session
from atomr_mp_workers.threads import ActorThread, Completions

TURN_MESSAGES: Final = 32
"""Messages read in one turn, before the supervisor is listened to again."""

TURN_NS: Final = 500_000
"""How long a turn runs queued requests before it looks at its channels again."""

STRAGGLERS_NS: Final = 100_000_000
"""How long a worker that is to leave looks for calls that were on their way when the clients were told to hold them."""

QUICK_NS: Final = 50_000
"""Requests that take no longer are answered together with those that follow in the same turn."""

FLUSH_REPLIES: Final = 64
FLUSH_BYTES: Final = 2**20
"""At this size an outbox is sent without waiting for the turn's end."""


class Host:
    """A device's process.

    Args:
        start: What this process is to be.
        channel: The control channel.
        board: The board, mapped.
    """

    def __init__(self, start: control.Start, channel: ControlChannel, board: BoardWriter) -> None:
        self._start = start
        self._channel = channel
        self._board = board
        self._peers = Peers(start.window)
        self._ending: list[Session] = []
        """Sessions that have ended, with requests that still run."""
        self._outbox: dict[Peer, None] = {}
        """Peers with replies to send, in order."""
        self._queue: deque[Request] = deque()
        self._threads: dict[str, ActorThread] = {}
        self._completions = Completions()
        self._sent = False
        """Something was sent since the data socket was last found empty, so its descriptor cannot be relied on."""
        self._drained_ns = 0
        """When a worker that is told to finish may leave, if it has nothing to do then; 0 if it is not told."""
        self._actors: list[LoadedActor] = []
        self._log = logging.getLogger("atomr_mp.worker")

    def run(self) -> None:
        """Set up the actors, then serve until drained.

        Raises:
            FatalError: Set-up failed or the context is poisoned; the supervisor has been told.
            SupervisorGoneError: Nobody is left to work for.
        """
        try:
            self._setup()
            self._serve()
        except FatalError as fatal:
            # The caller first: once the supervisor knows, it ends this process.
            self._flush()
            self._channel.send(control.Fault(ErrorInfo.of(fatal.error)))
            raise

    def _setup(self) -> None:
        start = self._start
        self._token = token.pack(start.epoch, start.device, start.generation)
        context = Context(
            start.pool, start.device, start.name, start.backend, start.generation, logging.getLogger("actor")
        )
        methods = {}
        for spec in start.actors:
            try:
                actor = load(spec)
            except errors.ActorLoadFailed as error:
                raise FatalError(error) from error
            self._setup_actor(actor, context)
            self._actors.append(actor)
            methods.update({method.name: method for method in actor.methods})
            if any(method.options.thread for method in actor.methods):
                thread = ActorThread(actor.name, self._completions)
                self._threads.update({method.name: thread for method in actor.methods if method.options.thread})
        self._envelope = Envelope(methods, self._board, self._token)
        self._data = DataSocket(start.endpoint, start.window, self._peers.secret)

    def _setup_actor(self, actor: LoadedActor, context: Context) -> None:
        try:
            actor.instance.setup(context)
        except errors.AtomrError as error:
            raise FatalError(error) from error
        except BaseException as error:  # whatever user code raises is why this device does not start
            self._log.exception("setup of %s failed", actor.name)
            raise FatalError(
                errors.SetupFailed(
                    f"setup of {actor.name} raised {type(error).__name__}: {error}",
                    traceback_text=traceback.format_exc(),
                )
            ) from error

    # --- the loop --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        control_channel, completions = self._channel.fileno(), self._completions.descriptor
        calls, handshakes = self._data.descriptors()
        poll = select.epoll()
        for descriptor in (control_channel, completions, calls, handshakes):
            poll.register(descriptor, select.EPOLLIN)
        # Everything made so far lives as long as the process; a full collection need not look at it again.
        gc.collect()
        gc.freeze()
        self._channel.send(control.Ready([actor.info for actor in self._actors]))
        idle = True
        while (patience_s := self._patience_s(idle=idle)) is not None:
            ready = {descriptor for descriptor, _ in poll.poll(patience_s)}
            if control_channel in ready:
                self._obey()
            if handshakes in ready:
                self._board.count(Counter.REFUSED, self._data.shake_hands())
            if completions in ready:
                self._take_back()
            more = self._read()
            self._work()
            self._flush()
            idle = not more and not self._queue and not self._sent
        self._leave()

    def _obey(self) -> None:
        """Do what the supervisor says."""
        while (order := self._channel.receive_waiting()) is not None:
            match order:
                case control.SessionOpened(number, session, secret):
                    self._peers.admit(number, session, secret)
                    self._channel.send(control.SessionAdmitted(number))
                case control.SessionEnded(number):
                    self._end_session(number)
                case control.Drain():
                    self._drained_ns = time.monotonic_ns() + STRAGGLERS_NS
                case _:
                    self._log.error("out of turn: %r", order)

    def _end_session(self, number: int) -> None:
        session = self._peers.end(number)
        if session is None or session.running:
            if session is not None:
                self._ending.append(session)
            return
        self._channel.send(control.SessionClosed(number))

    def _take_back(self) -> None:
        """Complete what actors' threads have finished, and give them their next."""
        for request in self._completions.take():
            thread = self._threads[request.method.name]
            thread.running = None
            self._outbox[request.peer] = None
            self._envelope.complete(request)
            self._feed(thread)
        for session in [session for session in self._ending if not session.running]:
            self._ending.remove(session)
            self._channel.send(control.SessionClosed(session.number))

    def _read(self) -> bool:
        """Take new messages in; return whether there may be more.

        The first message of an idle loop is run and answered before the next is looked for: that is the latency of a
        single call. Later ones are read together, and so answered together.
        """
        for count in range(TURN_MESSAGES):
            self._sent = False
            message = self._data.receive()
            if message is None:
                return False
            self._open(*message)
            if count == 0 and len(self._queue) == 1:
                late = self._work()
                self._flush()
                if late:  # the supervisor may have ended a session meanwhile, whose calls come next
                    return True
        return True

    def _open(self, routing_id: bytes, header: bytes, frames: list[memoryview]) -> None:
        peer = self._peers.find(routing_id)
        if peer is None:
            self._board.count(Counter.REFUSED)
            return
        self._outbox[peer] = None
        try:
            message = data.FROM_CLIENT.decode(header)
            if isinstance(message, data.Cancel):
                self._envelope.cancel(peer, message.ids)
                return
            requests = self._envelope.open(peer, message, frames)
        except errors.ProtocolError as error:
            self._violated(peer, str(error))
            return
        if len(peer.replies) >= FLUSH_REPLIES:  # a message may hold more refused calls than fit with others
            self._flush()
        if self._peers.exceeds_window(peer):
            self._violated(peer, "it sent more than its window of unanswered requests")
        for request in requests:
            if request.method.options.thread:
                thread = self._threads[request.method.name]
                thread.waiting.append(request)
                self._feed(thread)
            else:
                self._queue.append(request)

    def _work(self) -> bool:
        """Run what is queued for the loop, for a bounded time; return whether that time is over."""
        queue, envelope = self._queue, self._envelope
        until_ns = time.monotonic_ns() + TURN_NS
        while queue:
            request = queue.popleft()
            if request.method.typical_ns > QUICK_NS:
                self._flush()  # nobody's answer waits for, or is lost with, what may take long
            peer = request.peer
            self._outbox[peer] = None
            if envelope.begin(request):
                request.call()
                envelope.complete(request)
            if len(peer.replies) >= FLUSH_REPLIES or peer.reply_bytes > FLUSH_BYTES:
                self._flush()
            if time.monotonic_ns() >= until_ns:
                return True
        return False

    def _feed(self, thread: ActorThread) -> None:
        """Start the next request that waits for an actor's thread, if the thread is idle."""
        while thread.running is None and thread.waiting:
            request = thread.waiting.popleft()
            if self._envelope.begin(request):
                thread.run(request)
            self._outbox[request.peer] = None

    def _flush(self) -> None:
        """Send all answers that wait, those of one peer together."""
        while self._outbox:
            peer, _ = self._outbox.popitem()
            replies, frames = peer.replies, peer.frames
            if not replies or peer.session.ended:
                continue
            peer.replies, peer.frames, peer.reply_bytes = [], [], 0
            self._sent = True
            try:
                self._data.send(peer.routing_id, data.FROM_WORKER.encode(data.Replies(self._token, replies)), frames)
            except PeerNotReadingError:
                self._violated(peer, "it does not read its answers")

    def _violated(self, peer: Peer, reason: str) -> None:
        self._board.count(Counter.REFUSED)
        session = peer.session
        if not session.ended:
            self._channel.send(control.SessionViolated(session.number, reason[:2000]))
            self._end_session(session.number)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _patience_s(self, *, idle: bool) -> float | None:
        """Return how long to wait for something to happen; None when this worker is drained."""
        if not idle:
            return 0
        if not self._drained_ns or any(thread.running or thread.waiting for thread in self._threads.values()):
            return -1
        left_ns = self._drained_ns - time.monotonic_ns()
        return left_ns / 1e9 if left_ns > 0 else None

    def _leave(self) -> None:
        self._data.close(flush=True)
        for actor in reversed(self._actors):
            try:
                actor.instance.teardown()
            except Exception:  # noqa: BLE001 - what user code raises must not keep the others from their teardown
                self._log.exception("teardown of %s failed", actor.name)
