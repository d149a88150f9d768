"""A remote client's session: what is said on its connections, and what becomes of its calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.client.reply import Reply, set_done
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.protocol.codec import VERSION, ErrorInfo
from atomr_mp.protocol.flow.flight import RETRY_AFTER_S
from atomr_mp.protocol.messages import devices, remote, session
from atomr_mp.protocol.refs import WireRef
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import pack, unpack
from atomr_mp.remote.blobs import Encoded, EncodedBlob, opened
from atomr_mp.remote.bulk import BulkChannel
from atomr_mp.remote.engine import Engine
from atomr_mp.remote.keys import ClientKeys
from atomr_mp.remote.link_life import RemoteLinkAction, RemoteLinkEvent, RemoteLinkState, step
from atomr_mp.remote.memory import RemoteMemory
from atomr_mp.remote.resumption import OpenCalls
from atomr_mp.remote.wire import RemoteWire, Sign

if TYPE_CHECKING:
    import asyncio

MESSAGE_CALLS: Final = 32
"""Most calls put into one message; more would make the pool wait for the first."""

MESSAGE_BYTES: Final = remote.MAX_REMOTE_MESSAGE_BYTES - 64 * 1024
"""What calls in one message may take together; the rest is room for their headers."""

MOST_REPLAYS: Final = 2**16 - 1
"""What is said of a call that is not to be sent again."""

TELL_SETTLED: Final = 64
"""So many answers are acknowledged for themselves; fewer travel with the next call."""

BYE_MS: Final = 500
"""How long the end of a session may take to be sent."""


class Facts(NamedTuple):
    """What a call is, beside its reply."""

    refs: list[WireRef]
    nbytes: int
    """Of its body and payload frames."""
    blob: EncodedBlob | None = None
    """They, if the gateway is to pull them."""
    encoded: Encoded | None = None
    """What the blob was made of."""

    @classmethod
    def of(cls, encoded: Encoded, refs: list[WireRef]) -> Facts:
        """Return what a call is that is encoded."""
        if encoded.nbytes <= remote.MAX_CALL_BYTES:
            return cls(refs, encoded.nbytes)
        blob = encoded.blob()
        return cls(refs, blob.nbytes, blob, encoded)


class Welcomed(NamedTuple):
    """What the first welcome has said, which does not change."""

    pool: str
    pool_epoch: bytes
    supervisor_pid: int
    operate: bool


class RemoteSession:
    """One session with a gateway, through all its connections. Thread-safe where it says so.

    Args:
        endpoint: "tcp://HOST:PORT".
        keys: Ours and the server's; None for no encryption, on loopback.
        name: What this client is called.
        max_replays: How often a call is sent again by itself that may have run; None for the pool's setting.
        max_waiting: How many calls may wait for room.
    """

    def __init__(  # noqa: PLR0915 - one line for each thing that it has
        self, endpoint: str, keys: ClientKeys | None, name: str, max_replays: int | None, max_waiting: int
    ) -> None:
        self.lock = threading.RLock()
        self.changed: threading.Condition = threading.Condition(self.lock)
        """Notified when anything is heard of the pool, or the session ends."""
        self.endpoint: Final = endpoint
        self._keys = keys
        self._bulk: BulkChannel | None = None
        """Made when something large has to travel."""
        self._bulk_port = 0
        self._large: dict[int, remote.RemoteAnswer] = {}
        """Answers that are being pulled."""
        self._name = name
        self._max_replays = max_replays
        self._max_waiting = max_waiting
        self._backlog: deque[tuple[Reply, Facts]] = deque()
        """What waits for room in the window, and has no id yet."""
        self._backlog_bytes = 0
        self._lost_listeners: list[Callable[[errors.PoolLost], object]] = []
        self._lost_untold = False
        self.engine: Final = Engine(RemoteWire(endpoint, keys), self, self.lock)
        self.state = RemoteLinkState.DOWN
        self.refusal: errors.AtomrError | None = None
        """Why the gateway does not admit us, as it said last."""
        self.lost: errors.PoolLost | None = None
        self.welcomed: Welcomed | None = None
        self.devices: list[devices.DeviceInfo] = []
        self.methods: dict[str, devices.MethodInfo] = {}
        self.listeners: list[Callable[[session.DeviceChanged | session.IncarnationEnded], object]] = []
        self.memory: RemoteMemory | None = None
        """Made by the client once something has to do with arrays: it takes NumPy."""
        self.calls: OpenCalls[Reply] = OpenCalls()
        self.window_requests, self._window_bytes = 1, 0
        self.max_replays = 0
        self._session: bytes | None = None
        self._epoch = bytes(16)
        self._same_gateway = True
        self._facts: dict[int, Facts] = {}
        self._open_bytes = 0
        self._outbox: deque[Reply] = deque()
        """What waits for others to travel with, or for a connection."""
        self._replayed: set[int] = set()
        """Calls that may have run under an earlier gateway, and are sent again."""
        self._questions: dict[int, tuple[remote.RemoteQuestion, Any]] = {}
        """Questions, with their answers once these are there."""
        self._watched: dict[Reply, int] = {}
        """Deadlines of replies with callbacks."""
        self.watching_until_ns: int | None = None
        self._finished: deque[Reply] = deque()
        """Replies of threads, whose callbacks are to be run once the lock is free."""
        self._events: deque[session.DeviceChanged | session.IncarnationEnded] = deque()
        self._for_loops: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
        """Replies whose futures and callbacks their loop has to see to."""

    # --- calls; thread-safe ----------------------------------------------------------------------------------------

    def send_call(self, reply: Reply, facts: Facts, *, wait: bool) -> None:
        """Take a call and send it, or have it wait for a connection, or for room; gives the reply its id.

        Args:
            reply: Its reply.
            facts: What else it is.
            wait: Whether it may wait for room in the window.

        Raises:
            Overloaded: The window is full, or too many wait for room.
            PoolLost: The session has ended.
        """
        with self.lock:
            self.check_lost()
            nbytes = facts.nbytes
            if facts.blob is not None:
                if nbytes > self._window_bytes:
                    raise errors.InvalidRequest(
                        f"the arguments take {nbytes} bytes, and all calls of this session together may have "
                        f"{self._window_bytes}: send them in parts, or have the key admitted for more (--max-bytes)"
                    )
                self._open_bulk()
            if not self._backlog and self._has_room(nbytes):
                self._take_call(reply, facts)
                if self.state is RemoteLinkState.OPEN:
                    self._send_soon(reply)
                return
            waiting = len(self._backlog)
            if not wait or waiting >= self._max_waiting or self._backlog_bytes + nbytes > self._window_bytes:
                raise errors.Overloaded(
                    f"{len(self.calls.unanswered)} requests of this session are unanswered ({self._open_bytes} bytes), "
                    f"{waiting} wait for room; the window is {self.window_requests} requests and {self._window_bytes} "
                    f"bytes, and {self._max_waiting} may wait (max_waiting)",
                    window=self.window_requests,
                    retry_after_s=RETRY_AFTER_S,
                )
            reply.state = ReplyState.BACKLOG
            self._backlog.append((reply, facts))
            self._backlog_bytes += nbytes

    def wait_for_room(self, reply: Reply) -> None:
        """Block until a call that waits for room has some.

        Raises:
            DeadlineExceeded: There was none until its deadline.
        """
        with self.changed:
            left_s = (reply.deadline_ns - time.monotonic_ns()) / 1e9
            self.changed.wait_for(lambda: reply.done or reply.state is not ReplyState.BACKLOG, max(0.0, left_s))
            if reply.state is ReplyState.BACKLOG:
                self.expired(reply)
        if reply.done and isinstance(reply.error, errors.DeadlineExceeded):
            raise reply.error

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call a listener when the session ends, or at once if it has."""
        with self.lock:
            lost = self.lost
            if lost is None:
                self._lost_listeners.append(listener)
        if lost is not None:
            run_callback(listener, lost)

    def _has_room(self, nbytes: int) -> bool:
        unanswered = len(self.calls.unanswered)
        return unanswered < self.window_requests and (not unanswered or self._open_bytes + nbytes <= self._window_bytes)

    def _take_call(self, reply: Reply, facts: Facts) -> None:
        """Give a call its id; it is sent with others."""
        reply.state = ReplyState.WAITING
        reply.id = self.calls.add(reply)
        self._facts[reply.id] = facts
        self._open_bytes += facts.nbytes
        self._outbox.append(reply)

    def _send_soon(self, reply: Reply) -> None:
        """Send a call that was just taken, now or with others."""
        if len(self.calls.unanswered) == 1 or len(self._outbox) >= MESSAGE_CALLS:
            self.flush()
            self.engine.look()
        elif len(self._outbox) == 1:
            loop = getattr(reply.lane, "loop", None)
            if loop is None:
                self.engine.flush_soon()
            else:  # all that is called in this turn of the loop travels together
                loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        with self.lock:
            if self.flush():
                self.engine.look()

    def _admit(self) -> None:
        """Let in what there is room for."""
        while self._backlog and self._has_room(self._backlog[0][1].nbytes):
            reply, facts = self._backlog.popleft()
            self._backlog_bytes -= facts.nbytes
            if not reply.done:
                self._take_call(reply, facts)
                self.engine.flush_soon()
                self.changed.notify_all()

    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""
        with self.lock:
            if reply.done or reply.state is ReplyState.CANCELLING:
                return
            if not reply.sent_ns:
                self._finish(reply, errors.Cancelled("cancelled before it was sent"))
            else:
                reply.state = ReplyState.CANCELLING
                self._say(remote.RemoteCancel(self._epoch, [reply.id]))
        self.call_back()

    def watch(self, reply: Reply) -> None:
        """See that a reply with a callback or a future ends by its deadline; with the lock held."""
        self._watched[reply] = reply.deadline_ns
        if self.watching_until_ns is None or reply.deadline_ns < self.watching_until_ns:
            self.watching_until_ns = reply.deadline_ns
            self.engine.kick()

    def ask(self, question: remote.Question, timeout_s: float) -> Any:
        """Ask the supervisor something, and return its answer.

        Raises:
            AtomrError: It was refused.
            TimeoutError: No answer came in time.
            PoolLost: The session has ended.
        """
        until = time.monotonic() + timeout_s
        with self.changed:
            self.check_lost()
            if question.id in self._questions:
                raise errors.ProtocolError(f"question {question.id} is being asked")
            self._questions[question.id] = remote.RemoteQuestion(self._epoch, question), None
            try:
                self._say(self._questions[question.id][0])
                self.engine.kick()
                while self._questions[question.id][1] is None:
                    self.check_lost()
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError(f"the supervisor did not answer within {timeout_s:g} s")
                    self.changed.wait(left_s)
                answer = self._questions[question.id][1]
            finally:
                del self._questions[question.id]
        if isinstance(answer, session.Answer) and answer.error is not None:
            raise answer.error.error()
        return answer

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition()` holds; False if it does not in time.

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
                self._send_releases()
                self.engine.look()

    def check_lost(self) -> None:
        """Raise `PoolLost` if the session has ended."""
        if self.lost is not None:
            raise type(self.lost)(self.lost.message, maybe_executed=False)

    def close(self) -> None:
        """End the session; what is unanswered ends with `PoolLost`. May be called twice."""
        with self.lock:
            over = self.state is RemoteLinkState.OVER
            if self.state is RemoteLinkState.OPEN:
                self._say(remote.RemoteBye(self._epoch))
            self.lose(errors.PoolLost("this client was closed"))
        self.call_back()
        if self._bulk is not None:
            self._bulk.close()
        self.engine.close(0 if over else BYE_MS)

    def forget_in_child(self, lost: str) -> None:
        """Let go, in a forked child: libzmq's threads are not there."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.lost, self.state = errors.PoolLost(lost), RemoteLinkState.OVER
        for reply in self.calls.unanswered.values():
            reply.error = errors.PoolLost(lost, maybe_executed=bool(reply.sent_ns))
            reply.done = True
        self.engine.forget_in_child(self.lock)
        if self._bulk is not None:
            self._bulk.forget_in_child()

    # --- for the engine, with the lock held ------------------------------------------------------------------------

    def signed(self, sign: Sign) -> None:
        """Take in what the monitor says."""
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
            self.lose(errors.PoolLost(f"the gateway at {self.endpoint} sent what is no message: {error}"))
            return
        match decoded:
            case remote.RemoteAnswers():
                self._take_answers(decoded, frames)
            case remote.RemoteWelcome():
                self._welcome(decoded)
            case remote.Resumed():
                if decoded.epoch == self._epoch and self.state is RemoteLinkState.RESUMING:
                    self._feed(RemoteLinkEvent.RESUMED, decoded)
            case remote.HelloWanted():
                self.engine.hear()  # that the connection is new, else two hellos would go
                self._feed(RemoteLinkEvent.UNKNOWN)
            case remote.RemoteTold(number, answer):
                if number in self._questions:
                    self._questions[number] = self._questions[number][0], answer
                    self.changed.notify_all()
            case session.DeviceChanged() | session.IncarnationEnded():
                self._hear(decoded)
            case remote.RemoteGoodbye(why):
                self._say(remote.RemoteBye(self._epoch))
                self._goodbye(why.error())
            case remote.RemotePing():
                pass

    @property
    def awaits_answers(self) -> bool:
        """Whether any call is unanswered."""
        return bool(self.calls.unanswered)

    def flush(self) -> bool:
        """Send what waits; return whether anything was sent."""
        sent = False
        while self._outbox and self.state is RemoteLinkState.OPEN:
            self._send_releases()
            together: list[Reply] = []
            nbytes = 0
            while self._outbox and len(together) < MESSAGE_CALLS:
                reply = self._outbox[0]
                if reply.done:  # it has expired, or was cancelled
                    self._outbox.popleft()
                    continue
                facts = self._facts[reply.id]
                nbytes += facts.nbytes if facts.blob is None else 0
                if together and nbytes > MESSAGE_BYTES:
                    break
                together.append(self._outbox.popleft())
            if together and not self._send_calls(together):
                self._outbox.extendleft(reversed(together))
                return sent
            sent = True
        if self.calls.untold >= TELL_SETTLED and self.state is RemoteLinkState.OPEN:
            self._send_calls([])
            sent = True
        return sent

    def expire(self) -> None:
        """End the replies with callbacks whose deadline has passed."""
        if self.watching_until_ns is None:
            return
        now_ns = time.monotonic_ns()
        if self.watching_until_ns > now_ns:
            return
        for reply, deadline_ns in list(self._watched.items()):
            if deadline_ns <= now_ns:
                self.expired(reply)
        self.watching_until_ns = min(self._watched.values(), default=None)

    def expired(self, reply: Reply) -> None:
        """End a reply whose deadline has passed."""
        sent = bool(reply.sent_ns)
        why = "it may be running still" if sent else "it was never sent: there is no connection to the gateway"
        self._finish(
            reply,
            errors.DeadlineExceeded(f"no answer to {reply.method} within its deadline; {why}", maybe_executed=sent),
        )

    def call_back(self) -> None:
        """Run callbacks that are due. Without the lock: they may call, wait, and close the client."""
        if self._lost_untold and self.lost is not None:
            self._lost_untold = False
            for told in self._lost_listeners:
                run_callback(told, self.lost)
        while self._events or self._finished:
            try:
                event = self._events.popleft() if self._events else None
                reply = None if event is not None else self._finished.popleft()
            except IndexError:  # another thread has taken it
                continue
            if event is not None:
                for listener in self.listeners:
                    run_callback(listener, event)
            if reply is not None:
                callbacks, reply.callbacks = reply.callbacks or (), None
                for callback in callbacks:
                    run_callback(callback, reply)

    # --- the link --------------------------------------------------------------------------------------------------

    def _feed(self, event: RemoteLinkEvent, resumed: remote.Resumed | None = None) -> None:
        self.state, action = step(self.state, event)
        match action:
            case RemoteLinkAction.HELLO:
                self._say(remote.RemoteHello(VERSION, self._name, self._session))
            case RemoteLinkAction.RESUME:
                now_ns = time.monotonic_ns()
                unanswered = [
                    remote.Unanswered(number, max(0, now_ns - reply.sent_ns) // 1000)
                    for number in self.calls.resume()
                    if (reply := self.calls.unanswered[number]).sent_ns
                ]
                self._say(remote.Resume(self._epoch, unanswered, self._next_unsent()))
            case RemoteLinkAction.SORT:
                assert resumed is not None
                self._sort(resumed)
            case None:
                pass
        self.changed.notify_all()

    def _next_unsent(self) -> int:
        """Return the first id of a call that was never sent: those below are unanswered or settled."""
        unsent = [number for number, reply in self.calls.unanswered.items() if not reply.sent_ns]
        return min(unsent, default=self.calls.next_id)

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
        elif message.epoch != self._epoch and self.memory is not None:
            self.memory.gateway_ended()
        self._same_gateway = message.epoch == self._epoch
        self._session, self._epoch, self._bulk_port = message.session, message.epoch, message.bulk_port
        self.window_requests, self._window_bytes = message.window.requests, message.window.payload_bytes
        self.devices = message.devices
        self.learn(message.actors)
        self._feed(RemoteLinkEvent.WELCOMED)

    def _sort(self, resumed: remote.Resumed) -> None:  # noqa: C901, PLR0912 - one case for each place that a call can be in
        """Send again what never came, and end what an earlier gateway took along."""
        known, fates = set(resumed.known), {fate.id: fate.maybe_executed for fate in resumed.lost}
        self._outbox.clear()
        if not self._same_gateway:
            self._large.clear()
        if self._bulk is not None:
            self._bulk.resumed(same_gateway=self._same_gateway)
        if self.memory is not None:
            self.memory.released(resumed.released)
            for serial, refs in self.memory.unreleased():
                self._say(remote.RemoteRelease(self._epoch, serial, refs))
        for number, reply in list(self.calls.unanswered.items()):
            if number in known:
                if reply.state is ReplyState.CANCELLING:
                    self._say(remote.RemoteCancel(self._epoch, [number]))
            elif number in fates:
                self._lost_with_gateway(reply, maybe_executed=fates[number])
            elif reply.state is ReplyState.CANCELLING:
                self._finish(reply, errors.Cancelled("cancelled, and it had not reached the pool"))
            elif not self._refs_stand(reply):
                self._finish(reply, self._stale(reply, maybe_executed=False))
            else:
                self._outbox.append(reply)
        for question, answer in self._questions.values():
            if answer is None:
                self._say(remote.RemoteQuestion(self._epoch, question.question))
        self.flush()

    def _lost_with_gateway(self, reply: Reply, *, maybe_executed: bool) -> None:
        info = self.methods.get(reply.method)
        replayed = maybe_executed and info is not None and info.idempotent and reply.replays < self.max_replays
        if not self._refs_stand(reply):
            self._finish(reply, self._stale(reply, maybe_executed=maybe_executed))
        elif not maybe_executed or replayed:
            if replayed:
                reply.replays += 1
                reply.may_have_run = True
                self._replayed.add(reply.id)
            self._outbox.append(reply)
        else:
            self._finish(
                reply,
                errors.GatewayLost(
                    f"the gateway ended while {reply.method} was on its way through it, and it may have run",
                    maybe_executed=True,
                ),
            )

    def _refs_stand(self, reply: Reply) -> bool:
        return not any(getattr(each, "releases", None) and each.releases.over for each in reply.kept)  # type: ignore[attr-defined]

    @staticmethod
    def _stale(reply: Reply, *, maybe_executed: bool) -> errors.GpuRefStale:
        return errors.GpuRefStale(
            f"a ref among the arguments of {reply.method} was held through a gateway that has ended",
            device=reply.device,
            maybe_executed=maybe_executed,
        )

    def _goodbye(self, error: errors.AtomrError) -> None:
        if self.welcomed is None:
            self.refusal = error
            self._feed(RemoteLinkEvent.ENDED)
        elif isinstance(error, errors.PoolLost):
            self.lose(error)
        else:
            self.lose(errors.SessionLost(f"the gateway has ended this session: {error.message}"))

    def lose(self, lost: errors.PoolLost) -> None:
        """End the session, with the lock held; all that was ever sent may have run."""
        if self.lost is None:
            self.lost = lost
            self._lost_untold = True
            for reply in [*self.calls.unanswered.values(), *(each for each, _ in self._backlog)]:
                self._finish(reply, type(lost)(lost.message, maybe_executed=bool(reply.sent_ns)))
            self._backlog.clear()
            self._outbox.clear()
            self._feed(RemoteLinkEvent.ENDED)

    # --- messages --------------------------------------------------------------------------------------------------

    def _say(self, message: remote.FromRemote) -> bool:
        return self.engine.send([remote.FROM_REMOTE.encode(message)])

    def _send_calls(self, replies: list[Reply]) -> bool:
        now_ns = time.monotonic_ns()
        calls: list[remote.RemoteCall] = []
        frames: list[Buffer] = []
        for reply in replies:
            facts = self._facts[reply.id]
            payload, body = (reply.payload, reply.body) if facts.blob is None else ((), b"")
            frames += payload
            calls.append(
                remote.RemoteCall(
                    reply.id,
                    reply.method,
                    max(0, reply.deadline_ns - now_ns) // 1000,
                    len(payload),
                    body,
                    reply.device if reply.pinned else None,
                    reply.priority,
                    facts.refs,
                    reply.id in self._replayed,
                    0 if facts.blob is None else facts.blob.nbytes,
                    min(reply.replays, MOST_REPLAYS),
                )
            )
        settled = self.calls.take_settled(remote.MAX_REMOTE_IDS)
        header = remote.FROM_REMOTE.encode(remote.RemoteCalls(self._epoch, settled, calls))
        if not self.engine.send(pack(header, frames) if frames else [header]):
            return False  # a cut; what is settled is told by the resumption
        for reply in replies:
            reply.state = ReplyState.SENT
            reply.sent_ns = reply.sent_ns or now_ns
        return True

    def _send_releases(self) -> None:
        while self.memory is not None and (release := self.memory.next_release()) is not None:
            self._say(remote.RemoteRelease(self._epoch, *release))

    def _take_answers(self, message: remote.RemoteAnswers, frames: list[memoryview]) -> None:
        current = message.epoch == self._epoch
        if self.memory is not None and current:
            self.memory.released(message.released)
        at = 0
        for answer in message.answers:
            first, at = at, at + answer.frames
            reply = self.calls.unanswered.get(answer.id)
            if reply is None:
                if answer.leases and current and self.memory is not None:
                    self.memory.give_up(answer.leases)
                continue
            reply.device, reply.generation = answer.device, answer.generation
            if answer.download:
                if current:  # else it is asked for anew, or lost, by the resumption
                    self._large[answer.id] = answer
                    self._open_bulk().pull(answer.id, answer.download)
                continue
            if answer.error is not None:
                error = self._error(reply, answer.error)
                if not isinstance(error, errors.ProgramUnseen) or not self._say_whole(reply):
                    self._finish(reply, error)
                continue
            if answer.leases and self.memory is not None:
                reply.leases = self.memory.leases(answer.leases, current=current)
            reply.body, reply.frames = answer.body, frames[first:at]
            self._finish(reply, None)

    def _say_whole(self, reply: Reply) -> bool:
        """Send a call again that names a program which its worker does not know; False if it says the whole."""
        from atomr_mp.client.programs import say_whole

        if not say_whole(reply):
            return False
        if reply.state is ReplyState.CANCELLING:
            self._finish(reply, errors.Cancelled("cancelled before it started"))
            return True
        facts = self._facts.pop(reply.id)
        self._open_bytes -= facts.nbytes
        self.calls.settle(reply.id)
        self._replayed.discard(reply.id)
        encoded = facts.encoded or Encoded(b"", reply.payload, [], [])
        reply.sent_ns = 0
        facts = Facts.of(encoded._replace(body=reply.body), facts.refs)
        if facts.blob is not None:
            self._open_bulk()
        self._take_call(reply, facts)
        return True

    # --- for the bulk connection, with the lock held ---------------------------------------------------------------

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""
        return (
            (self._epoch, self._session) if self.state is RemoteLinkState.OPEN and self._session is not None else None
        )

    def upload(self, number: int) -> EncodedBlob | None:
        """Return what a call's blob is, None if it is not wanted any more."""
        facts = self._facts.get(number)
        return None if facts is None else facts.blob

    def downloaded(self, number: int, content: memoryview) -> None:
        """Take an answer whose blob is there."""
        answer, reply = self._large.pop(number, None), self.calls.unanswered.get(number)
        if answer is None or reply is None:
            return
        try:
            body, frames = opened(content)
        except errors.InvalidRequest as error:
            self._finish(reply, errors.ResultUnread(f"{reply.method} ran: {error.message}", reason=error.code))
            return
        if answer.leases and self.memory is not None:
            reply.leases = self.memory.leases(answer.leases, current=True)
        reply.body, reply.frames = body, frames  # type: ignore[assignment]  # as a decoder takes them
        self._finish(reply, None)
        self._tell_settled()

    def _tell_settled(self) -> None:
        """Say at once that a large answer is not needed any more: the gateway keeps it until then."""
        if self.state is RemoteLinkState.OPEN and self.calls.untold:
            self._send_calls([])
            self.engine.look()

    def broken(self, error: errors.AtomrError) -> None:
        """End the session: the gateway has sent what is no message."""
        self.lose(errors.PoolLost(error.message))

    def _open_bulk(self) -> BulkChannel:
        if self._bulk is None:
            host = self.endpoint.rpartition(":")[0]
            self._bulk = BulkChannel(f"{host}:{self._bulk_port}", self._keys, self, self.lock)
        return self._bulk

    @staticmethod
    def _error(reply: Reply, info: ErrorInfo) -> errors.AtomrError:
        error = info.error()
        if reply.may_have_run and isinstance(error, errors.RequestError):
            error.maybe_executed = True
        return error

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
        self._events.append(message)
        self.changed.notify_all()

    def learn(self, actors: Iterable[devices.ActorInfo]) -> None:
        """Take in what the workers offer."""
        self.methods = {
            # Several items in one call are a local matter: here calls travel together anyway.
            f"{actor.name}.{method.name}": msgspec.structs.replace(method, call_items=0)
            for actor in actors
            for method in actor.methods
        }

    def _finish(self, reply: Reply, error: errors.AtomrError | None) -> None:
        """Give a reply its outcome, once."""
        if reply.done:
            return
        if reply.state is not ReplyState.BACKLOG:  # and nothing of it is counted here
            self.calls.settle(reply.id)
            self._open_bytes -= self._facts.pop(reply.id).nbytes
            self._replayed.discard(reply.id)
        self._watched.pop(reply, None)
        dropped = self._large.pop(reply.id, None)
        if dropped is not None and self._bulk is not None:
            self._bulk.forget(reply.id)
            if dropped.leases and self.memory is not None:
                self.memory.give_up(dropped.leases)
            self._tell_settled()
        reply.error = error
        reply.payload = reply.kept = ()
        reply.state = ReplyState.OVER
        reply.done = True
        self.engine.finished(reply)
        self._hand_out(reply)
        if self._backlog and self.lost is None:
            self._admit()

    def _hand_out(self, reply: Reply) -> None:
        """See to the callbacks of a reply that is there."""
        loop = getattr(reply.lane, "loop", None)
        if loop is not None:
            if reply.future is None and not reply.callbacks:
                return
            waiting = self._for_loops.setdefault(loop, [])
            waiting.append(reply)
            if len(waiting) == 1:
                try:
                    loop.call_soon_threadsafe(self.deliver, loop)
                except RuntimeError:  # it is closed
                    del self._for_loops[loop]
        elif reply.callbacks:
            self._finished.append(reply)

    def deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to the futures and callbacks of a loop's replies, in the loop."""
        with self.lock:
            replies = self._for_loops.pop(loop, [])
        for reply in replies:
            if reply.future is not None:
                set_done(reply.future)
            callbacks, reply.callbacks = reply.callbacks or (), None
            for callback in callbacks:
                run_callback(callback, reply)


def run_callback(callback: Callable[[Any], object], argument: object) -> None:
    """Call back; what a callback raises is logged: whoever receives just now is not to blame."""
    import logging

    try:
        callback(argument)
    except Exception:
        logging.getLogger("atomr_mp.client").exception("a callback of a remote client failed")
