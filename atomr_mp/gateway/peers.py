"""One remote session in the gateway: its local client, its calls, and the leases that it holds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.client.client import Client
from atomr_mp.client.memory.leases import Lease
from atomr_mp.client.reply import Reply
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import VERSION, ErrorInfo
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import devices, operators, remote, session
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import pack
from atomr_mp.remote.blobs import Encoded, EncodedBlob, PassedRef, Pull, encode, opened
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.remote.resumption import CallAction, CallState, CallTable, Tally

if TYPE_CHECKING:
    from atomr_mp.client.memory.argument_slabs import Placement

_LOG: Final = logging.getLogger("atomr_mp.gateway")

ANSWERS_BYTES: Final = remote.MAX_REMOTE_MESSAGE_BYTES - 64 * 1024
"""What answers in one message may take together; the rest is room for their headers."""

MESSAGE_ANSWERS: Final = 64


class Kept(NamedTuple):
    """An answer, until the client has it."""

    answer: remote.RemoteAnswer
    frames: Sequence[Buffer]
    nbytes: int
    blob: EncodedBlob | None = None
    """What the client pulls, if it is large."""
    keep: object = None
    """What the blob lies in."""

    @property
    def message_bytes(self) -> int:
        """What it takes in a message."""
        return 256 if self.blob is not None else self.nbytes


class Upload(NamedTuple):
    """A large call of which the gateway pulls the arguments."""

    call: remote.RemoteCall
    pull: Pull
    deadline_ns: int


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

    @property
    def tally(self) -> Tally:
        """Counts what they keep."""

    def send(self, peer: RemotePeer, parts: Sequence[Buffer]) -> None:
        """Send a message, if the session has a connection."""

    def pull(self, peer: RemotePeer) -> None:
        """Ask for chunks of a session's uploads, if it has a bulk connection."""

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
        self._calls: CallTable[Kept] = CallTable(window.requests, host.tally)
        self._replies: dict[int, Reply] = {}
        """Of calls that run."""
        self._tasks: set[asyncio.Task[None]] = set()
        """What waits for others; kept here, for a loop does not keep it."""
        self.uploads: dict[int, Upload] = {}
        """Large calls whose arguments are on their way."""
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

    def welcome(self, grace_s: float, max_replays: int, bulk_port: int) -> None:
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
            bulk_port=bulk_port,
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
        self._calls.close()
        self.uploads.clear()
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
        if len(message.calls) > 1:
            self._lane.cork()
        try:
            for number in message.settled:
                self._settled(number, self._calls.settle(number).action)
            at = 0
            for call in message.calls:
                first, at = at, at + call.frames
                own = frames[first:at]
                if len(own) != call.frames:
                    raise errors.ProtocolError("a call with payload frames that its message does not have")
                step = self._calls.offer(call.id, max(call.upload, len(call.body) + sum(map(len, own))))
                if step.action is CallAction.RUN:
                    self._run(call, own)
                elif step.action is CallAction.SEND:
                    self._send_again(call.id)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        finally:
            if len(message.calls) > 1:
                self._lane.uncork()
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
            if call.upload:
                self._begin_upload(call, deadline_ns)
                return
            kept = [self._hold(ref) for ref in call.refs]
            if any(_device(ref) != call.device for ref in call.refs):
                self._spawn(call.id, self._lend_and_submit(call, frames, deadline_ns, kept))
                return
            self._submit(call, call.body, frames, deadline_ns, kept)
        except errors.AtomrError as error:
            self._answered(call.id, error, None)

    def _submit(
        self,
        call: remote.RemoteCall,
        body: bytes,
        frames: Sequence[Buffer],
        deadline_ns: int,
        kept: Sequence[object],
        copies: Sequence[Placement] = (),
    ) -> None:
        reply = self._lane.submit_encoded(
            call.id,
            call.device,
            call.method,
            body,
            frames,
            deadline_ns,
            priority=call.priority,
            replays=call.replays,
            refs=len(call.refs),
            kept=kept,
            copies=copies,
            callback=self._on_reply,
        )
        self._replies[call.id] = reply
        if reply.done:
            self._host.loop.call_soon(self._lane.call_back)

    def _begin_upload(self, call: remote.RemoteCall, deadline_ns: int) -> None:
        """Make room for a large call, and pull it.

        Raises:
            InvalidRequest: It is larger than all that the session may have.
        """
        if call.upload > self.window.payload_bytes:
            raise errors.InvalidRequest(
                f"arguments of {call.upload} bytes; this session may have {self.window.payload_bytes} in the gateway"
            )
        self._spawn(call.id, self._upload(call, deadline_ns))
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        self._host.loop.call_later(left_s, self._upload_late, call.id)

    async def _upload(self, call: remote.RemoteCall, deadline_ns: int) -> None:
        """Pull a call's arguments into memory that the workers can map."""
        try:
            room = await asyncio.to_thread(self._client.memory.host_array, (call.upload,), "uint8")
        except errors.AtomrError as error:
            if not self.ended:
                self._answered(call.id, error, None)
            return
        if not self.ended and self._calls.state(call.id) is CallState.RUNNING:
            self.uploads[call.id] = Upload(call, Pull(room.data), deadline_ns)
            self._host.pull(self)

    def _upload_late(self, number: int) -> None:
        if self.uploads.pop(number, None) is not None:
            self._answered(
                number, errors.DeadlineExceeded("the arguments had not arrived by the deadline; nothing ran"), None
            )

    def take_chunk(self, number: int, offset: int, data: memoryview) -> None:
        """Take a chunk of an upload.

        Raises:
            ProtocolError: It was not asked for.
        """
        upload = self.uploads.get(number)
        if upload is None:  # its call was settled, or is late
            return
        try:
            upload.pull.take(offset, data)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        if upload.pull.whole:
            del self.uploads[number]
            self._spawn(number, self._submit_upload(upload))

    async def _submit_upload(self, upload: Upload) -> None:
        """Make the call, once its arguments are there."""
        call = upload.call
        try:
            kept = [self._hold(ref) for ref in call.refs]
            body, payload, copies = await asyncio.to_thread(self._encode_upload, upload.pull.buffer)
            if any(_device(ref) != call.device for ref in call.refs):
                kept += await self._lend(call, kept)
            if not self.ended and self._calls.state(call.id) is CallState.RUNNING:
                self._submit(call, body, payload, upload.deadline_ns, [*kept, *copies], copies)
        except errors.AtomrError as error:
            if not self.ended:
                self._answered(call.id, error, None)

    def _encode_upload(self, buffer: memoryview) -> tuple[bytes, Sequence[Buffer], list[Placement]]:
        """Return a large call's arguments as the workers take them; arrays stay where they are. In a thread."""
        from atomr_mp.client.memory.argument_slabs import Placement

        body, frames = opened(buffer)
        value = values.Decoder[object]().decode(body, frames, _pass)
        body, payload, placed = values.encode(value, self._client.place)
        return body, payload, [each for each in placed if isinstance(each, Placement)]

    async def _lend(self, call: remote.RemoteCall, kept: Sequence[object]) -> list[object]:
        """Have the call's device reach refs of others, in a thread: that waits for their workers."""
        from atomr_mp.client.memory.refs import GpuRef

        memory = self._client.memory
        refs = []
        for wire, hold in zip(call.refs, kept, strict=True):
            assert isinstance(hold, _HoldOf)
            refs.append(GpuRef(memory, hold.lease, wire.slab, wire.layout))
        keep, *_ = await asyncio.to_thread(memory.attach, refs, call.device)
        return keep

    async def _lend_and_submit(
        self, call: remote.RemoteCall, frames: Sequence[memoryview], deadline_ns: int, kept: Sequence[object]
    ) -> None:
        try:
            keep = await self._lend(call, kept)
            if not self.ended:
                self._submit(call, call.body, frames, deadline_ns, [*kept, *keep])
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
        if self._replies.pop(reply.id, None) is None or self.ended:
            return
        if reply.error is None and reply.leases is None and not reply.frames:
            body = reply.body
            if len(body) <= remote.MAX_CALL_BYTES:  # as most are
                answer = remote.RemoteAnswer(reply.id, 0, body, None, [], reply.device, reply.generation)
                self._keep(reply.id, Kept(answer, (), len(body)))
                return
        if _has_values(reply):
            self._spawn(reply.id, self._answer_large(reply))
        else:
            self._answered(reply.id, reply.error, reply)

    def _spawn(self, number: int, work: Coroutine[object, object, None]) -> None:
        """Do what waits for others, for a call; whatever goes wrong there ends that call, and nothing else."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - whoever reads the log has to know, and the caller must not wait
                _LOG.exception("a call of remote client %s", self.name)
                if not self.ended and self._calls.state(number) is CallState.RUNNING:
                    why = f"the gateway failed: {type(error).__name__}"
                    self._answered(number, errors.Unrecoverable(why, maybe_executed=True), None)

        task = self._host.loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_large(self, reply: Reply) -> None:
        """Make a blob of a result that lies in shared memory. In a thread: the supervisor is asked for the memory."""
        error: errors.AtomrError | None = None
        encoded: Encoded | None = None
        leases = reply.leases or {}
        try:
            value = await asyncio.to_thread(self._lane.decode, reply.body, reply.frames, leases)
            encoded = await asyncio.to_thread(encode, value)
            keep = [lease for buffer, lease in leases.items() if buffer in _buffers(encoded)]
            reply.leases = {lease.buffer: lease for lease in keep}
        except errors.AtomrError as failed:
            error = failed
        if not self.ended:
            self._answered(reply.id, error, reply, encoded)

    def _answered(
        self,
        number: int,
        error: errors.AtomrError | None,
        reply: Reply | None,
        encoded: Encoded | None = None,
    ) -> None:
        leased: list[remote.RefLeased] = []
        body: bytes = b""
        frames: Sequence[Buffer] = ()
        blob: EncodedBlob | None = None
        if error is None and reply is not None:
            if encoded is None:
                encoded = Encoded(reply.body, reply.frames, [], [])
            if encoded.nbytes > remote.MAX_CALL_BYTES:
                blob = encoded.blob()
            else:
                body, frames = encoded.body, [*encoded.frames, *(each.frame for each in encoded.large)]
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
            0 if blob is None else blob.nbytes,
        )
        nbytes = len(body) + sum(map(len, frames)) + 64 * len(leased) + (0 if blob is None else blob.nbytes)
        if self._keep(number, Kept(answer, frames, nbytes, blob, encoded)) and reply is not None:
            for buffer, lease in (reply.leases or {}).items():
                held = self._leases.setdefault((lease.releases.token, buffer), HeldRefs())
                held.count += 1 if lease.hold is None else lease.hold.count
                held.leases.append(lease)

    def _keep(self, number: int, kept: Kept) -> bool:
        """Keep an answer, and send it; False if nobody wants it: its leases end with the reply then."""
        if self._calls.answer(number, kept, kept.nbytes).action is not CallAction.KEEP:
            return False
        self._queue(kept)
        return True

    def _told_error(self, error: errors.AtomrError) -> ErrorInfo:
        """Return what the client is told of an error; tracebacks are for those who operate."""
        info = ErrorInfo.of(error, 16384)
        if not self.admitted.operate:
            fields = {name: "" if name in _PRIVATE else fact for name, fact in info.fields.items()}
            info = msgspec.structs.replace(info, fields=fields)
        return info

    def blob(self, number: int) -> EncodedBlob | None:
        """Return what the client may pull of a call's answer, None if there is nothing any more."""
        kept = self._calls.kept(number)
        return None if kept is None else kept.blob

    def _settled(self, number: int, action: CallAction | None) -> None:
        self._lost.discard(number)
        self.uploads.pop(number, None)
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
            if not self._replies:  # there is nothing for it to travel with
                self._flush()
            elif not self._flushing:
                self._flushing = True
                self._host.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._outbox and self.ready:
            together: list[Kept] = []
            nbytes = 0
            for kept in self._outbox[:MESSAGE_ANSWERS]:
                nbytes += kept.message_bytes
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


def _pass(wire: WireRef | ClientArray) -> PassedRef:
    if not isinstance(wire, WireRef):
        raise errors.InvalidRequest("an array in memory that this client does not have")
    return PassedRef(wire)


def _has_values(reply: Reply) -> bool:
    """Whether a result has arrays that lie in shared memory, and not only refs."""
    if reply.error is not None or not reply.leases:
        return False
    found: list[WireRef | ClientArray] = []
    values.Decoder[object]().decode(reply.body, reply.frames, found.append)
    return any(isinstance(each, WireRef) and each.value for each in found)


def _buffers(encoded: Encoded) -> set[int]:
    """Return the buffers of the refs in a value."""
    return {each.to_wire().buffer for each in encoded.refs}


_PRIVATE: Final = frozenset({"traceback_text", "stack"})
"""Facts of errors that show the server's inside."""
