"""A remote client's session: its connections, and the outcomes of its calls."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.client.lanes.homes import Homes, homes_of
from atomr_mp.client.reply import Reply, ReplyLane
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.messages import devices, remote, session
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.remote import gateway_loss
from atomr_mp.remote.answering import AnswerTaker
from atomr_mp.remote.backlog import RemoteBacklog
from atomr_mp.remote.blobs import EncodedBlob
from atomr_mp.remote.deliveries import Deliveries
from atomr_mp.remote.engine import Engine
from atomr_mp.remote.facts import Facts
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.remote.link_life import RemoteLinkAction, RemoteLinkEvent, RemoteLinkState, step
from atomr_mp.remote.memory import RemoteMemory
from atomr_mp.remote.questions import Questions
from atomr_mp.remote.sending import MESSAGE_CALLS, CallSender
from atomr_mp.remote.streams import RemoteStreamReply, SessionStreams, too_late
from atomr_mp.remote.transfers import Transfers
from atomr_mp.remote.wire import RemoteWire, Sign

BYE_MS: Final = 500
"""How long the message that ends a session may take."""


class Welcomed(NamedTuple):
    """Facts of the first welcome, which do not change."""

    pool: str
    pool_epoch: bytes
    supervisor_pid: int
    operate: bool


class RemoteSession:
    """One session with a gateway, through all its connections. Thread-safe where it says so.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.
        name: The client's name.
        max_replays: How often a call that may have run is sent again without the caller; None for the pool's setting.
        max_waiting: How many calls may wait for room.
    """

    def __init__(
        self, endpoint: str, keys: ClientKeys | None, name: str, max_replays: int | None, max_waiting: int
    ) -> None:
        self.lock = threading.RLock()
        self.changed: threading.Condition = threading.Condition(self.lock)
        """Notified when news of the pool come, or the session ends."""
        self.endpoint: Final = endpoint
        self.transfers: Final = Transfers(endpoint, keys, self, self.lock)
        self.deliveries: Final = Deliveries(self.lock)
        self.questions: Final = Questions(self, lambda: self.changed)
        self._name = name
        self._max_replays = max_replays
        self.backlog: Final = RemoteBacklog(max_waiting)
        self.engine: Final = Engine(RemoteWire(endpoint, keys), self, self.lock)
        self.state = RemoteLinkState.DOWN
        self.refusal: errors.AtomrError | None = None
        """The gateway's last reason not to admit this client."""
        self.lost: errors.PoolLost | None = None
        self.welcomed: Welcomed | None = None
        self.devices: list[devices.DeviceInfo] = []
        self.methods: dict[str, devices.MethodInfo] = {}
        self.homes: Homes = {}
        """The devices of those actors that not all have."""
        self.memory: RemoteMemory | None = None
        """Made by the client once an array passes: it imports NumPy."""
        self.sender: Final = CallSender(self)
        self.answers: Final = AnswerTaker(self)
        self.calls: Final = self.sender.calls
        self.max_replays = 0
        self._session: bytes | None = None
        self._epoch = bytes(16)
        self._same_gateway = True
        self.streams: Final = SessionStreams(self)
        self._watched: set[Reply] = set()
        """Replies with callbacks, and streams of event loops; the session checks their deadlines."""
        self.watching_until_ns: int | None = None
        self._flushing = False
        """Whether streams are flushed at the end of a loop's turn."""

    # --- calls; thread-safe ----------------------------------------------------------------------------------------

    def send_call(self, reply: Reply, facts: Facts, *, wait: bool) -> None:
        """Take a call and give it its id; send it, or let it wait for a connection or for room.

        Args:
            reply: Its reply.
            facts: Its facts.
            wait: Whether it may wait for room in the window.

        Raises:
            Overloaded: The window is full, or too many calls wait for room.
            PoolLost: The session has ended.
        """
        with self.lock:
            if self.lost is not None:
                self.check_lost()
            if facts.blob is not None:
                self.backlog.check_size(facts.nbytes)
                self.transfers.open()
            if self.backlog.lets_in(facts.nbytes):
                self.take_call(reply, facts)
                if self.state is RemoteLinkState.OPEN:
                    self._send_soon(reply)
            else:
                self.backlog.hold(reply, facts, wait=wait)
                reply.state = ReplyState.BACKLOG

    def open_stream(self, stream: RemoteStreamReply, facts: Facts) -> None:
        """Take the request of a stream and give it its id; send it, or let it wait for a connection.

        Raises:
            Overloaded: As many streams are open as may be.
            PoolLost: The session has ended.
        """
        with self.lock:
            self.check_lost()
            self.streams.check_room()
            if facts.blob is not None:
                self.backlog.check_size(facts.nbytes)
                self.transfers.open()
            self.sender.add(stream, facts)
            self.streams.put(stream)
            self._flush_for(stream)

    def grant(self, stream: RemoteStreamReply) -> None:
        """Let a stream go on, since parts were read."""
        with self.lock:
            if not stream.is_over:
                self.streams.grant(stream)
                if stream in self._watched:
                    self.watch(stream)
                self._flush_for(stream)

    def close_stream(self, stream: RemoteStreamReply) -> None:
        """Close a stream, and tell the gateway at once."""
        with self.lock:
            if not stream.is_over:
                self.finish(stream, errors.Cancelled("closed", maybe_executed=bool(stream.sent_ns)))
            stream.arrived.clear()
        self.call_back()

    def close_streams(self, lost: errors.PoolLost) -> None:
        """End all streams: nobody is going to read them."""
        with self.lock:
            for stream in list(self.streams.open.values()):
                self.finish(stream, type(lost)(lost.message, maybe_executed=bool(stream.sent_ns)))
        self.call_back()

    def leave(self, lane: ReplyLane) -> None:
        """End the replies of an event loop that was closed, and tell the gateway."""
        with self.lock:
            for reply in [*self.calls.unanswered.values(), *self.streams.open.values(), *self.backlog]:
                if reply.lane is lane:
                    reply.future = None  # whose callbacks would go to the loop
                    why = f"the event loop that has called {reply.method} has ended, and receives no answers"
                    self.finish(reply, errors.Cancelled(why, maybe_executed=bool(reply.sent_ns)))
        self.call_back()

    def look(self, reply: Reply) -> None:
        """Take in what has arrived; then end a reply that is late, but no stream with a part to be read."""
        with self.lock:
            self.engine.receive()
            has_part = isinstance(reply, RemoteStreamReply) and reply.arrived
            if not (reply.is_over or has_part) and reply.deadline_ns <= time.monotonic_ns():
                self.expired(reply)
        self.call_back()

    def _flush_for(self, stream: RemoteStreamReply) -> None:
        """Send queued messages for a stream: now, or at the end of its loop's turn, with those of others."""
        loop = getattr(stream.lane, "loop", None)
        if loop is None:
            self._flush_turn()
        elif not self._flushing:
            self._flushing = True
            try:
                loop.call_soon_threadsafe(self._flush_turn)
            except RuntimeError:  # the loop is closed
                self._flushing = False

    def wait_for_room(self, reply: Reply) -> None:
        """Block until a call that waits for room has some.

        Raises:
            DeadlineExceeded: Its deadline passed first.
        """
        with self.changed:
            left_s = (reply.deadline_ns - time.monotonic_ns()) / 1e9
            self.changed.wait_for(lambda: reply.is_over or reply.state is not ReplyState.BACKLOG, max(0.0, left_s))
            if reply.state is ReplyState.BACKLOG:
                self.expired(reply)
        if reply.is_over and isinstance(reply.error, errors.DeadlineExceeded):
            raise reply.error

    def take_call(self, reply: Reply, facts: Facts) -> None:
        """Give a call its id; it is sent with others."""
        reply.state = ReplyState.WAITING
        self.sender.add(reply, facts)
        self.backlog.count(facts.nbytes)
        self.sender.outbox.append(reply)

    def _send_soon(self, reply: Reply) -> None:
        """Send a call that was just taken, now or with others."""
        waiting = len(self.sender.outbox)
        if len(self.calls.unanswered) == 1 or waiting >= MESSAGE_CALLS:
            self.flush()
            self.engine.look()
        elif waiting == 1:
            loop = getattr(reply.lane, "loop", None)
            if loop is None:
                self.engine.flush_soon()
            else:  # all calls of this turn of the loop travel together
                loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        with self.lock:
            self._flushing = False
            if self.flush():
                self.engine.look()

    def _admit(self) -> None:
        """Send waiting calls as far as there is room."""
        while (admitted := self.backlog.next()) is not None:
            self.take_call(*admitted)
            self.engine.flush_soon()
            self.changed.notify_all()

    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""
        with self.lock:
            if reply.is_over or reply.state is ReplyState.CANCELLING:
                return
            if not reply.sent_ns:
                self.finish(reply, errors.Cancelled("cancelled before it was sent"))
            else:
                reply.state = ReplyState.CANCELLING
                self._say(remote.RemoteCancel(self._epoch, [reply.id]))
        self.call_back()

    def ask_now(self, question: remote.Question) -> None:
        """Send a question, if there is a connection; with the lock held."""
        self._say(remote.RemoteQuestion(self._epoch, question))
        self.engine.kick()

    def call_back(self) -> None:
        """Run callbacks that are due, without the lock."""
        self.deliveries.call_back()

    def watch(self, reply: Reply) -> None:
        """See that a reply with a callback or a future ends by its deadline; with the lock held."""
        self._watched.add(reply)
        if self.watching_until_ns is None or reply.deadline_ns < self.watching_until_ns:
            self.watching_until_ns = reply.deadline_ns
            self.engine.kick()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition()` holds; return False if it does not in time.

        Raises:
            PoolLost: The session has ended.
        """
        with self.changed:
            self.engine.kick()

            def settled() -> bool:
                return self.lost is not None or condition()

            if not self.changed.wait_for(settled, timeout_s):
                return False
            self.check_lost()
            return True

    def give_back(self) -> None:
        """Send due releases, if there is a connection."""
        with self.lock:
            if self.state is RemoteLinkState.OPEN:
                self.sender.send_releases()
                self.engine.look()

    def check_lost(self) -> None:
        """Raise `PoolLost` if the session has ended."""
        if self.lost is not None:
            raise type(self.lost)(self.lost.message, maybe_executed=False)

    def close(self) -> None:
        """End the session; unanswered calls end with `PoolLost`. May be called twice."""
        with self.lock:
            over = self.state is RemoteLinkState.OVER
            if self.state is RemoteLinkState.OPEN:
                self._say(remote.RemoteBye(self._epoch))
            self.lose(errors.PoolLost("this client was closed"))
        with contextlib.ExitStack() as closing:  # from the last step to the first: whatever fails, the rest is closed
            closing.callback(self.engine.close, 0 if over else BYE_MS)
            closing.callback(self.transfers.close)
            self.call_back()

    def forget_in_child(self, lost: str) -> None:
        """Drop everything, in a forked child: libzmq's threads do not exist there."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.lost, self.state = errors.PoolLost(lost), RemoteLinkState.OVER
        for reply in self.calls.unanswered.values():
            reply.error = errors.PoolLost(lost, maybe_executed=reply.may_have_run or bool(reply.sent_ns))
            reply.is_over = True
        self.deliveries.forget_in_child(self.lock, self.lost)
        self.engine.forget_in_child(self.lock)
        self.transfers.forget_in_child()

    # --- for the engine, with the lock held ------------------------------------------------------------------------

    def signed(self, sign: Sign) -> None:
        """Take in an event of the monitor."""
        match sign:
            case Sign.HANDSHAKE:
                self._feed(RemoteLinkEvent.HANDSHAKE)
            case Sign.CUT:
                self._feed(RemoteLinkEvent.CUT)
            case Sign.REFUSED:
                self.refusal = errors.NotAuthorized(
                    f"the pool at {self.endpoint} does not admit this client's key; `atomr-mp keys admit` there does"
                )
                if self.welcomed is not None:
                    self.lose(errors.SessionLost(self.refusal.message))
                self.changed.notify_all()

    def take(self, message: memoryview) -> None:  # noqa: C901 - one case for each kind
        """Take a message in."""
        try:
            header, frames = unpack(message)
            decoded = remote.TO_REMOTE.decode(header)
        except errors.ProtocolError as error:
            self.lose(errors.PoolLost(f"the gateway at {self.endpoint} sent an invalid message: {error}"))
            return
        if decoded.__class__ is remote.RemoteAnswers:
            self.answers.take(decoded, frames)
            return
        match decoded:
            case remote.RemoteParts():
                if decoded.epoch == self._epoch:
                    self.streams.take(decoded, frames)
            case remote.RemoteWelcome():
                self._welcome(decoded)
            case remote.Resumed():
                if decoded.epoch == self._epoch and self.state is RemoteLinkState.RESUMING:
                    self._feed(RemoteLinkEvent.RESUMED, decoded)
            case remote.HelloWanted():
                self.engine.hear()  # hears first that the connection is new, or two hellos would go out
                self._feed(RemoteLinkEvent.UNKNOWN)
            case remote.RemoteTold(number, answer):
                if self.questions.answered(number, answer):
                    self.changed.notify_all()
            case session.DeviceChanged() | session.IncarnationEnded():
                self._hear(decoded)
            case remote.RemoteGoodbye(why):
                self._say(remote.RemoteBye(self._epoch))
                self._goodbye(why.error())

    @property
    def awaits_answers(self) -> bool:
        """Whether any call is unanswered."""
        return bool(self.calls.unanswered)

    def flush(self) -> bool:
        """Send queued messages; return whether any were sent."""
        if self.state is not RemoteLinkState.OPEN:
            return False
        sent = self.streams.flush()
        return self.sender.flush() or sent

    def expire(self) -> None:
        """End the replies with callbacks whose deadline has passed."""
        if self.watching_until_ns is None:
            return
        now_ns = time.monotonic_ns()
        if self.watching_until_ns > now_ns:
            return
        for reply in list(self._watched):
            if reply.deadline_ns <= now_ns:
                self.expired(reply)
        self.watching_until_ns = min((reply.deadline_ns for reply in self._watched), default=None)

    def expired(self, reply: Reply) -> None:
        """End a reply whose deadline has passed."""
        if isinstance(reply, RemoteStreamReply):
            self.finish(reply, too_late(reply))
            return
        sent = bool(reply.sent_ns)
        why = "it may still be running" if sent else "it was never sent: there is no connection to the gateway"
        self.finish(
            reply,
            errors.DeadlineExceeded(f"no answer to {reply.method} within its deadline; {why}", maybe_executed=sent),
        )

    # --- the link --------------------------------------------------------------------------------------------------

    def _feed(self, event: RemoteLinkEvent, resumed: remote.Resumed | None = None) -> None:
        self.state, action = step(self.state, event)
        match action:
            case RemoteLinkAction.HELLO:
                self._say(remote.RemoteHello(VERSION, self._name, self._session))
            case RemoteLinkAction.RESUME:
                unanswered, next_id = self.sender.unanswered(), self.sender.next_unsent()
                given_up = self.sender.releases.given_up()
                self._say(remote.Resume(self._epoch, unanswered, next_id, self.streams.resume(), given_up))
            case RemoteLinkAction.SORT:
                assert resumed is not None
                self._sort(resumed)
            case None:
                pass
        self.changed.notify_all()

    def _welcome(self, message: remote.RemoteWelcome) -> None:
        if message.version != VERSION:
            self._goodbye(errors.ProtocolError(f"the gateway speaks version {message.version}, this is {VERSION}"))
            return
        if self.welcomed is not None and message.pool_epoch != self.welcomed.pool_epoch:
            self.lose(errors.PoolLost(f"another pool, or a later life of this one, answers at {self.endpoint}"))
            return
        if self.welcomed is None:
            self.welcomed = Welcomed(message.pool, message.pool_epoch, message.supervisor_pid, operate=message.operate)
            self.max_replays = message.max_replays if self._max_replays is None else self._max_replays
        elif message.epoch != self._epoch:
            self.streams.gateway_ended()
            self.sender.releases.gateway_ended()
            if self.memory is not None:
                self.memory.gateway_ended()
        self._same_gateway = message.epoch == self._epoch
        self._session, self._epoch, self.transfers.port = message.session, message.epoch, message.bulk_port
        self.backlog.window, self.streams.most = message.window, message.window.streams
        self.devices = message.devices
        self.learn(message.actors)
        self._feed(RemoteLinkEvent.WELCOMED)

    def _sort(self, resumed: remote.Resumed) -> None:
        """Send again the calls that never arrived, and end the calls lost with an earlier gateway."""
        known, fates = set(resumed.known), {fate.id: fate.maybe_executed for fate in resumed.lost}
        self.sender.outbox.clear()
        self.streams.clear_outbox()
        self.transfers.resume(same_gateway=self._same_gateway)
        self.sender.releases.acknowledge(resumed.released)
        for release in self.sender.releases.unacknowledged():
            self._say(remote.RemoteRelease(self._epoch, *release))
        for number, reply in list(self.calls.unanswered.items()):
            if number in known:
                if reply.state is ReplyState.CANCELLING:
                    self._say(remote.RemoteCancel(self._epoch, [number]))
            elif number in fates or (isinstance(reply, RemoteStreamReply) and reply.credit.received):
                self._lost_with_gateway(reply, maybe_executed=fates.get(number, True))
            elif reply.state is ReplyState.CANCELLING:
                self.finish(reply, errors.Cancelled("cancelled, and it had not reached the pool"))
            elif not gateway_loss.refs_stand(reply):
                self.finish(reply, gateway_loss.stale(reply, maybe_executed=False))
            else:
                self._send_again(reply)
        self.questions.repeat()
        self.flush()

    def _lost_with_gateway(self, reply: Reply, *, maybe_executed: bool) -> None:
        replayed = maybe_executed and gateway_loss.may_replay(reply, self.methods.get(reply.method), self.max_replays)
        if not gateway_loss.refs_stand(reply):
            self.finish(reply, gateway_loss.stale(reply, maybe_executed=maybe_executed))
        elif not maybe_executed or replayed:
            if replayed:
                reply.replays += 1
                reply.may_have_run = True
                self.sender.replayed.add(reply.id)
            self._send_again(reply)
        else:
            self.finish(reply, gateway_loss.lost(reply))

    def _send_again(self, reply: Reply) -> None:
        if isinstance(reply, RemoteStreamReply):
            facts = self.streams.facts_again(reply, self.sender.facts[reply.id])
            self.sender.facts[reply.id] = facts
            if facts.blob is not None:
                self.transfers.open()
            self.streams.put(reply)
        else:
            self.sender.outbox.append(reply)

    def _goodbye(self, error: errors.AtomrError) -> None:
        if self.welcomed is None:
            self.refusal = error
            self._feed(RemoteLinkEvent.ENDED)
        elif isinstance(error, errors.PoolLost):
            self.lose(error)
        else:
            self.lose(errors.SessionLost(f"the gateway has ended this session: {error.message}"))

    def lose(self, lost: errors.PoolLost) -> None:
        """End the session, with the lock held; all calls that were ever sent may have run."""
        if self.lost is None:
            self.lost = lost
            self.deliveries.lose(lost)
            for reply in [*self.calls.unanswered.values(), *self.backlog]:
                self.finish(reply, type(lost)(lost.message, maybe_executed=bool(reply.sent_ns)))
            self.backlog.clear()
            self.sender.outbox.clear()
            self._feed(RemoteLinkEvent.ENDED)

    # --- messages --------------------------------------------------------------------------------------------------

    def _say(self, message: remote.FromRemote) -> None:
        self.sender.send(message, [])

    # --- for streams, with the lock held ---------------------------------------------------------------------------

    @property
    def epoch(self) -> bytes:
        """The gateway's epoch."""
        return self._epoch

    @property
    def is_open(self) -> bool:
        """Whether calls may be sent."""
        return self.state is RemoteLinkState.OPEN

    # --- for transfers, with the lock held -------------------------------------------------------------------------

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""
        return (
            (self._epoch, self._session) if self.state is RemoteLinkState.OPEN and self._session is not None else None
        )

    def upload(self, number: int) -> EncodedBlob | None:
        """Return a call's blob, None if it is not wanted any more."""
        facts = self.sender.facts.get(number)
        return None if facts is None else facts.blob

    def broken(self, error: errors.AtomrError) -> None:
        """End the session: the gateway has sent an invalid message."""
        self.lose(errors.PoolLost(error.message))

    def _hear(self, message: session.DeviceChanged | session.IncarnationEnded) -> None:
        match message:
            case session.DeviceChanged(info, actors):
                if info.index < len(self.devices):
                    self.devices[info.index] = info
                if actors is not None:
                    self.learn(actors)
            case session.IncarnationEnded(device, generation) if self.memory is not None:
                self.memory.incarnation_ended(device, generation)
            case _:
                pass
        self.deliveries.hear(message)
        self.changed.notify_all()

    def learn(self, actors: Sequence[devices.ActorInfo]) -> None:
        """Take in which methods the workers offer, and which devices have them."""
        self.homes = homes_of(actors)
        self.methods = {
            # Calls of several items are for local clients: remote calls travel together anyway.
            f"{actor.name}.{method.name}": msgspec.structs.replace(method, call_items=0)
            for actor in actors
            for method in actor.methods
        }

    def finish(  # noqa: C901 - one condition for each thing that may have to be let go of
        self, reply: Reply, error: errors.AtomrError | None, *, answered: bool = False
    ) -> None:
        """Give a reply its outcome, once.

        Args:
            reply: The reply.
            error: Its error, None if it has a result.
            answered: Whether it is the gateway's answer. Else the gateway frees what comes with an answer, and a
                stream's end is told at once.
        """
        if reply.is_over:
            return
        if reply.state is not ReplyState.BACKLOG:  # a waiting call is not counted here either
            facts = self.sender.settle(reply) if answered else self.sender.give_up(reply)
            if not isinstance(reply, RemoteStreamReply):
                self.backlog.discount(facts.nbytes)
        if self._watched:
            self._watched.discard(reply)
        if self.transfers.answers and self.transfers.drop(reply.id):
            self.sender.tell_settled()
        if isinstance(error, errors.RequestError):
            error.maybe_executed |= reply.may_have_run
        reply.error = error
        reply.payload = reply.kept = ()
        reply.state = ReplyState.OVER
        reply.is_over = True
        if isinstance(reply, RemoteStreamReply):
            self.streams.finished(reply)
            if not answered:
                self.sender.tell_settled()
        self.engine.finished(reply)
        if reply.callbacks or reply.future is not None:
            self.deliveries.hand_out(reply)
        if self.backlog.waiting and self.lost is None:
            self._admit()
