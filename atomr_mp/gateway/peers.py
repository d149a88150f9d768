"""One remote session in the gateway: its local client, its calls, and the leases that it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.client.client import Client
from atomr_mp.client.memory.leases import Lease
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.codec import VERSION, ErrorInfo
from atomr_mp.protocol.flight import Window
from atomr_mp.protocol.messages import devices, operators, remote, session
from atomr_mp.protocol.refs import WireRef
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import pack
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.remote.resumption import CallAction, CallTable

ANSWERS_BYTES: Final = remote.MAX_REMOTE_MESSAGE_BYTES - 64 * 1024
"""What answers in one message may take together; the rest is room for their headers."""

MESSAGE_ANSWERS: Final = 64


class Kept(NamedTuple):
    """An answer, until the client has it."""

    answer: remote.RemoteAnswer
    frames: Sequence[Buffer]
    nbytes: int


class PeerHost(Protocol):
    """The gateway, as a session sees it."""

    @property
    def epoch(self) -> bytes:
        """This life of the gateway."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def has_room(self) -> bool:
        """Whether all sessions together keep less than they may."""

    def send(self, peer: RemotePeer, parts: Sequence[Buffer]) -> None:
        """Send a message, if the session has a connection."""

    def end(self, peer: RemotePeer, error: errors.AtomrError) -> None:
        """End a session."""

    def ask_fates(self, peer: RemotePeer, unanswered: list[int]) -> None:
        """Ask the supervisor what has started of a former gateway's calls."""


class HeldRefs:
    """A buffer's leases that a remote session holds."""

    __slots__ = ("count", "leases")

    def __init__(self) -> None:
        self.count = 0
        """How many the client counts."""
        self.leases: list[Lease] = []


class RemotePeer:
    """A remote session. For the event loop's thread.

    Args:
        host: The gateway.
        number: The session's id.
        key: The public key to which it is bound; empty where there is no encryption.
        admitted: What that may do.
        client: The local session; owned from here on.
        window: How much may be unanswered.
        name: What the client calls itself.
        former: A gateway that has ended has had the session: what it took along is asked for.
    """

    def __init__(
        self,
        host: PeerHost,
        number: bytes,
        key: str | None,
        admitted: AdmittedKey,
        client: Client,
        window: Window,
        name: str,
        *,
        former: bool = False,
    ) -> None:
        self._host = host
        self.id: Final = number
        self.key: Final = key
        self.admitted: Final = admitted
        self.name: Final = name
        self.window: Final = window
        self._client: Final = client
        self._lane: Final = client.loop_lane(host.loop)
        self.routing_id: bytes | None = None
        """Of its connection; None after a cut."""
        self.greeted = False
        """The connection's hello was answered: events go."""
        self.ready = False
        """The connection's resumption is done: calls may come, and answers go."""
        self.cut_at = time.monotonic()
        """Since when it has no connection."""
        self.ended = False
        self._calls: CallTable[Kept] = CallTable(window.requests)
        self._replies: dict[int, Reply] = {}
        """Of calls that run."""
        self._leases: dict[tuple[bytes, int], HeldRefs] = {}
        self._released = 0
        self._former = former
        """What the former gateway took along is not known yet."""
        self._welcomed_ns = 0
        """When the connection was welcomed, CLOCK_MONOTONIC: the client said its calls' ages later."""
        self._resuming: remote.Resume | None = None
        """What waits for that."""
        self._lost: set[int] = set()
        """Calls that may have started under a former gateway, until the client has settled or replayed them."""
        self._quiet = not former
        """Nothing of former gateways runs any more."""
        self._parked: list[tuple[remote.RemoteCall, list[memoryview], int]] = []
        """Calls that may run under a former gateway, until that is so; with their deadlines."""
        self._outbox: list[Kept] = []
        self._flushing = False
        client.listeners.append(self._on_event)
        client.read_session()  # what came together with the supervisor's welcome is told by no descriptor any more

    # --- what the server asks --------------------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """What its calls take in this process."""
        return self._calls.kept_bytes

    def welcome(self, grace_s: float, max_replays: int) -> None:
        """Answer a hello."""
        client = self._client
        self.greeted = True
        self._welcomed_ns = time.monotonic_ns()
        welcome = remote.RemoteWelcome(
            version=VERSION,
            epoch=self._host.epoch,
            session=self.id,
            pool=client.pool,
            pool_epoch=client.epoch,
            supervisor_pid=client.supervisor_pid,
            window=self.window,
            grace_s=grace_s,
            operate=self.admitted.operate,
            devices=[told(device) for device in client.devices],
            actors=client.actors,
            max_replays=max_replays,
        )
        self._say(welcome)

    @property
    def lost(self) -> errors.PoolLost | None:
        """Why the local session has ended, if it has."""
        return self._client.lost

    def status(self) -> operators.RemoteSessionStatus:
        """Return how it is."""
        refs = sum(held.count for held in self._leases.values())
        return operators.RemoteSessionStatus(
            self.name, self.admitted.name, self.routing_id is not None, len(self._calls), self.kept_bytes, refs
        )

    def attach(self, routing_id: bytes) -> None:
        """Take a new connection; the one before, if any, is not listened to any more."""
        self.routing_id, self.greeted, self.ready = routing_id, False, False
        self._outbox.clear()

    def detach(self) -> None:
        """Take in that the connection has ended. Calls go on meanwhile."""
        if self.routing_id is not None:
            self.routing_id, self.greeted, self.ready = None, False, False
            self.cut_at = time.monotonic()
            self._outbox.clear()

    def close(self) -> None:
        """End the local session: what has not started does not start."""
        self.ended = True
        self.routing_id = None
        self._replies.clear()
        self._leases.clear()
        self._client.close()

    # --- messages --------------------------------------------------------------------------------------------------

    def resume(self, message: remote.Resume) -> None:
        """Take in what is unanswered, say what is known of it, and send answers again.

        Raises:
            ProtocolError: The client names ids that it cannot have sent.
        """
        if self._former:
            self._resuming = message
            self._host.ask_fates(self, [each.id for each in message.unanswered])
            return
        self._resume(message)

    def fates_known(self, started: list[int], known_since_ns: int) -> None:
        """Take in what has started of the calls that a former gateway took along."""
        message, self._resuming = self._resuming, None
        if message is None or self.routing_id is None:
            return  # the connection was cut meanwhile; the next one asks again
        self._former = False
        have_started = set(started)
        self._lost = {
            each.id
            for each in message.unanswered
            # The client's clock says only how long ago it was, so this is not later than the call was sent.
            if each.id in have_started or self._welcomed_ns - each.age_us * 1000 <= known_since_ns
        }
        self._resume(message)

    def former_quiet(self) -> None:
        """Take in that nothing of former gateways runs any more: what waited for that is run."""
        self._quiet = True
        parked, self._parked = self._parked, []
        for call, frames, deadline_ns in parked:
            self._start(call, frames, deadline_ns)

    def _resume(self, message: remote.Resume) -> None:
        unanswered = [each.id for each in message.unanswered]
        known, settled = self._calls.resume(unanswered, message.next_id)
        for number, step in settled:
            self._settled(number, step.action)
        self._lost.intersection_update(unanswered)
        lost = [remote.Fate(number, maybe_executed=True) for number in sorted(self._lost)]
        self.ready = True
        self._say(remote.Resumed(self._host.epoch, known, lost, self._released))
        for number in known:
            self._send_again(number)

    def take(self, message: remote.FromRemote, frames: list[memoryview]) -> None:
        """Take a message that names this epoch.

        Raises:
            ProtocolError: It breaks the rules of the session.
        """
        match message:
            case remote.RemoteCalls():
                self._take_calls(message, frames)
            case remote.RemoteCancel():
                for number in message.ids:
                    reply = self._replies.get(number)
                    if reply is not None:
                        reply.cancel()
            case remote.RemoteRelease():
                self._release(message)
            case _:
                raise errors.ProtocolError(f"{type(message).__name__} in the midst of a session")

    def _take_calls(self, message: remote.RemoteCalls, frames: list[memoryview]) -> None:
        try:
            for number in message.settled:
                self._settled(number, self._calls.settle(number).action)
            at = 0
            for call in message.calls:
                first, at = at, at + call.frames
                own = frames[first:at]
                if len(own) != call.frames:
                    raise errors.ProtocolError("a call with payload frames that its message does not have")
                step = self._calls.offer(call.id, len(call.body) + sum(map(len, own)))
                if step.action is CallAction.RUN:
                    self._run(call, own)
                elif step.action is CallAction.SEND:
                    self._send_again(call.id)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        if at != len(frames):
            raise errors.ProtocolError("a message with payload frames that are no call's")

    def _run(self, call: remote.RemoteCall, frames: list[memoryview]) -> None:
        deadline_ns = time.monotonic_ns() + call.left_us * 1000
        if call.id in self._lost:
            if not call.replay:
                error = errors.GatewayLost("this call may have run under an earlier gateway", maybe_executed=True)
                self._answered(call.id, error, None)
                return
            self._lost.discard(call.id)
        if call.replay and not self._quiet:
            self._parked.append((call, frames, deadline_ns))
        else:
            self._start(call, frames, deadline_ns)

    def _start(self, call: remote.RemoteCall, frames: list[memoryview], deadline_ns: int) -> None:
        try:
            if self.kept_bytes > self.window.payload_bytes or not self._host.has_room:
                raise errors.Overloaded(
                    "the gateway keeps as many bytes of calls and answers as it may; wait for some results first",
                    window=self.window.requests,
                    retry_after_s=0.05,
                )
            if call.device is not None and call.device >= len(self._client.devices):
                raise errors.InvalidRequest(
                    f"there is no device {call.device}; this pool has {len(self._client.devices)}"
                )
            kept = [self._hold(ref) for ref in call.refs]
            if any(_device(ref) != call.device for ref in call.refs):
                self._host.loop.create_task(self._lend_and_submit(call, frames, deadline_ns, kept))
                return
            self._submit(call, frames, deadline_ns, kept)
        except errors.AtomrError as error:
            self._answered(call.id, error, None)

    def _submit(
        self, call: remote.RemoteCall, frames: Sequence[memoryview], deadline_ns: int, kept: Sequence[object]
    ) -> None:
        reply = self._lane.submit_encoded(
            call.id,
            call.device,
            call.method,
            call.body,
            frames,
            deadline_ns,
            priority=call.priority,
            refs=len(call.refs),
            kept=kept,
        )
        self._replies[call.id] = reply
        reply.add_done_callback(self._on_reply)

    async def _lend_and_submit(
        self, call: remote.RemoteCall, frames: Sequence[memoryview], deadline_ns: int, kept: Sequence[object]
    ) -> None:
        """Have the call's device reach refs of others, in a thread: that waits for their workers."""
        from atomr_mp.client.memory.refs import GpuRef

        try:
            memory = self._client.memory
            refs = []
            for wire, hold in zip(call.refs, kept, strict=True):
                assert isinstance(hold, _HoldOf)
                refs.append(GpuRef(memory, hold.lease, wire.slab, wire.layout))
            keep, *_ = await asyncio.to_thread(memory.attach, refs, call.device)
            if not self.ended:
                self._submit(call, frames, deadline_ns, [*kept, *keep])
        except errors.AtomrError as error:
            if not self.ended:
                self._answered(call.id, error, None)

    def _hold(self, ref: WireRef) -> object:
        held = self._leases.get((ref.token, ref.buffer))
        if held is None or not held.leases:
            raise errors.GpuRefReleased(
                f"this session has no lease of buffer {ref.buffer:#x}: it was freed, or is another client's",
                device=_device(ref),
            )
        lease = held.leases[0]
        return _HoldOf(lease, lease.hold)

    def _on_reply(self, reply: Reply) -> None:
        if self._replies.pop(reply.id, None) is not None and not self.ended:
            self._answered(reply.id, reply.error, reply)

    def _answered(self, number: int, error: errors.AtomrError | None, reply: Reply | None) -> None:
        leased: list[remote.RefLeased] = []
        body: bytes = b""
        frames: Sequence[Buffer] = ()
        if error is None and reply is not None:
            body, frames = reply.body, reply.frames
            if len(body) + sum(map(len, frames)) > remote.MAX_CALL_BYTES:
                error = errors.ResultUnread(
                    f"the result of {reply.method} takes {len(body) + sum(map(len, frames))} bytes; by tcp:// it may "
                    f"take {remote.MAX_CALL_BYTES}",
                    reason=errors.Unsupported.code,
                )
                body, frames = b"", ()
            else:
                for buffer, lease in (reply.leases or {}).items():
                    count = 1 if lease.hold is None else lease.hold.count
                    leased += [remote.RefLeased(lease.releases.token, buffer)] * count
        answer = remote.RemoteAnswer(
            number,
            len(frames),
            body,
            None if error is None else self._told_error(error),
            leased,
            -1 if reply is None else reply.device,
            0 if reply is None else reply.generation,
        )
        kept = Kept(answer, frames, len(body) + sum(map(len, frames)) + 64 * len(leased))
        if self._calls.answer(number, kept, kept.nbytes).action is not CallAction.KEEP:
            return  # nobody wants it; its leases end with the reply
        if reply is not None:
            for buffer, lease in (reply.leases or {}).items():
                held = self._leases.setdefault((lease.releases.token, buffer), HeldRefs())
                held.count += 1 if lease.hold is None else lease.hold.count
                held.leases.append(lease)
        self._queue(kept)

    def _told_error(self, error: errors.AtomrError) -> ErrorInfo:
        """Return what the client is told of an error; tracebacks are for those who operate."""
        info = ErrorInfo.of(error, 16384)
        if not self.admitted.operate:
            fields = {name: "" if name in _PRIVATE else fact for name, fact in info.fields.items()}
            info = msgspec.structs.replace(info, fields=fields)
        return info

    def _settled(self, number: int, action: CallAction | None) -> None:
        self._lost.discard(number)
        if action is CallAction.ABANDON:
            reply = self._replies.get(number)
            if reply is not None:
                reply.cancel()

    def _send_again(self, number: int) -> None:
        kept = self._calls.kept(number)
        if kept is not None:
            self._queue(kept)

    def _release(self, message: remote.RemoteRelease) -> None:
        if message.serial <= self._released:
            return
        if message.serial != self._released + 1:
            raise errors.ProtocolError(f"release {message.serial} after {self._released}")
        self._released = message.serial
        freed = {}
        for each in message.refs:
            for buffer in each.buffers:
                held = self._leases.get((each.token, buffer))
                if held is None:
                    continue
                held.count -= 1
                if held.count <= 0:
                    releases = held.leases[0].releases
                    freed[releases.token] = releases
                    del self._leases[each.token, buffer]
        for releases in freed.values():
            self._client.give_back(releases, freed=True)

    # --- to the client ---------------------------------------------------------------------------------------------

    def _queue(self, kept: Kept) -> None:
        """Send an answer, with others of this turn of the loop."""
        if self.ready:
            self._outbox.append(kept)
            if not self._flushing:
                self._flushing = True
                self._host.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._outbox and self.ready:
            together: list[Kept] = []
            nbytes = 0
            for kept in self._outbox[:MESSAGE_ANSWERS]:
                nbytes += kept.nbytes
                if together and nbytes > ANSWERS_BYTES:
                    break
                together.append(kept)
            del self._outbox[: len(together)]
            frames = [frame for kept in together for frame in kept.frames]
            header = remote.TO_REMOTE.encode(
                remote.RemoteAnswers(self._host.epoch, [kept.answer for kept in together], self._released)
            )
            self._host.send(self, pack(header, frames) if frames else [header])

    def _say(self, message: remote.ToRemote) -> None:
        self._host.send(self, [remote.TO_REMOTE.encode(message)])

    def _on_event(self, event: session.DeviceChanged | session.IncarnationEnded) -> None:
        """Tell the client of a lifecycle event; the dead incarnation's leases are gone."""
        if isinstance(event, session.IncarnationEnded):
            of = [key for key in self._leases if _place(key[0]) == (event.device, event.generation)]
            for key in of:
                del self._leases[key]
            event = msgspec.structs.replace(event, started=[], running=[], suspects=[], known_since_ns=0)
        else:
            event = session.DeviceChanged(told(event.device), event.actors)
        if self.greeted:
            self._say(event)


class _HoldOf(NamedTuple):
    """Keeps a lease for a call."""

    lease: Lease
    hold: object


def told(info: devices.DeviceInfo) -> devices.DeviceInfo:
    """Return what a remote client is told of a device: nothing that it could connect to, and no clock's time."""
    return msgspec.structs.replace(info, endpoint="", standby=None, retry_at=0.0)


def _place(token: bytes) -> tuple[int, int]:
    from atomr_mp.protocol.token import unpack

    _, device, generation = unpack(token)
    return device, generation


def _device(ref: WireRef) -> int:
    return _place(ref.token)[0]


_PRIVATE: Final = frozenset({"traceback_text", "stack"})
"""Facts of errors that show the server's inside."""
