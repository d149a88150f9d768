"""One remote session in the gateway: its local client, its calls, and the leases that it holds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from atomr_mp import checks, errors
from atomr_mp.client.client import Client
from atomr_mp.client.reply import Reply
from atomr_mp.gateway import answers
from atomr_mp.gateway.answers import AnswerQueue, Kept
from atomr_mp.gateway.former import FormerCalls
from atomr_mp.gateway.handover import Inbox, OwnerThread
from atomr_mp.gateway.leases import HeldLeases, LeaseHold, device_of, foreign
from atomr_mp.gateway.streams import PeerStreams, check_ahead
from atomr_mp.gateway.uploads import Request, Uploaded, Uploads, call_of
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import devices, operators, remote, session
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import pack
from atomr_mp.remote.blobs import Encoded, EncodedBlob, encode
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.remote.resumption import CallAction, CallState, CallTable, Tally

if TYPE_CHECKING:
    from atomr_mp.client.memory.argument_slabs import Placement
    from atomr_mp.client.memory.refs import GpuRef

_LOG: Final = logging.getLogger("atomr_mp.gateway")


class PeerHost(Protocol):
    """The gateway, as a session sees it."""

    @property
    def epoch(self) -> bytes:
        """The id of this life of the gateway."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def has_room(self) -> bool:
        """Whether all sessions together keep less than they may."""

    @property
    def tally(self) -> Tally:
        """The count of the bytes that all sessions keep."""

    def send(self, peer: RemotePeer, parts: Sequence[Buffer]) -> None:
        """Send a message, if the session has a connection."""

    def pull(self, peer: RemotePeer) -> None:
        """Ask for chunks of a session's uploads, if it has a bulk connection."""

    def end(self, peer: RemotePeer, error: errors.AtomrError) -> None:
        """End a session."""

    def ask_fates(self, peer: RemotePeer, unanswered: list[int]) -> None:
        """Ask the supervisor which of a former gateway's calls have started."""


@checks.owned(by_maker=True, also={"_on_event"})
class RemotePeer:
    """A remote session. For the event loop's thread.

    Args:
        host: The gateway.
        number: The session's id.
        key: The public key to which it is bound; empty where there is no encryption.
        admitted: The key's rights.
        client: The local session; owned from here on.
        window: How much may be unanswered.
        name: The client's own name.
        former: Whether a gateway that has ended had the session; the fates of its calls are asked for then.
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
        self._owner: Final = OwnerThread("a remote session")
        self.id: Final = number
        self.key: Final = key
        self.admitted: Final = admitted
        self.name: Final = name
        self.window: Final = window
        self._client: Final = client
        self._lane: Final = client.loop_lane(host.loop)
        self.routing_id: bytes | None = None
        """Routing id of its connection; None after a cut."""
        self.greeted = False
        """Whether the connection's hello was answered, so that events may be sent."""
        self.ready = False
        """Whether the connection's resumption is done, so that calls may come and answers may be sent."""
        self.cut_at = time.monotonic()
        """When its connection ended, by the monotonic clock."""
        self.ended = False
        self._calls: CallTable[Kept] = CallTable(window.requests + window.streams, host.tally)
        self._replies: dict[int, Reply] = {}
        """Replies of calls that run."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that wait for others; kept here, since an event loop does not keep its tasks."""
        self.uploads: Final = Uploads(self, client, host.loop, window.payload_bytes)
        self._leases: Final = HeldLeases()
        self.streams: Final = PeerStreams(
            self, client, host.loop, self._leases, window.streams, window.payload_bytes, host.tally
        )
        self._former: Final = FormerCalls(former=former)
        self._outbox: Final = AnswerQueue(self._send_answers)
        self._flushing = False
        client.listeners.append(Inbox(host.loop, self._on_event).put)
        client.read_session()  # no descriptor announces messages that came together with the supervisor's welcome

    # --- for the server ---------------------------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """Bytes that its calls take in this process."""
        return self._calls.kept_bytes + self.streams.kept_bytes

    @property
    def has_room(self) -> bool:
        """Whether the session, and all sessions together, keep less than they may."""
        return self.kept_bytes <= self.window.payload_bytes and self._host.has_room

    def welcome(self, grace_s: float, max_replays: int, bulk_port: int) -> None:
        """Answer a hello."""
        client = self._client
        self.greeted = True
        self._former.welcomed_ns = time.monotonic_ns()
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
        """Why the local session has ended, None if it has not."""
        return self._client.lost

    def status(self) -> operators.RemoteSessionStatus:
        """Return its status."""
        return operators.RemoteSessionStatus(
            self.name,
            self.admitted.name,
            self.routing_id is not None,
            len(self._calls),
            self.kept_bytes,
            len(self._leases),
        )

    def attach(self, routing_id: bytes) -> None:
        """Take a new connection, and ignore the one before."""
        self.routing_id, self.greeted, self.ready = routing_id, False, False
        self._outbox.clear()

    def detach(self) -> None:
        """Take in that the connection has ended. Calls go on meanwhile."""
        if self.routing_id is not None:
            self.routing_id, self.greeted, self.ready = None, False, False
            self.cut_at = time.monotonic()
            self._outbox.clear()
            self._abandon_streams()

    def close(self) -> None:
        """End the local session; its calls that have not started will not start."""
        self._owner.check()
        self.ended = True
        self.routing_id = None
        self._replies.clear()
        self._calls.close()
        self.streams.close()
        self.uploads.clear()
        self._leases.clear()
        self._client.close()

    # --- messages --------------------------------------------------------------------------------------------------

    def resume(self, message: remote.Resume) -> None:
        """Take in the client's unanswered calls, tell what is known of them, and send answers again.

        Raises:
            ProtocolError: The client names ids that it cannot have sent.
        """
        if self._former.unknown:
            self._former.hold(message)
            self._host.ask_fates(self, [each.id for each in message.unanswered])
            return
        self._resume(message)

    def fates_known(self, started: list[int], known_since_ns: int) -> None:
        """Take in which of a former gateway's calls have started."""
        message = self._former.take_resumption()
        if message is None or self.routing_id is None:
            return  # the connection was cut meanwhile; the next one asks again
        self._former.fates_known(message.unanswered, started, known_since_ns)
        self._resume(message)

    def former_quiet(self) -> None:
        """Take in that former gateways' calls have all ended: run the calls that waited for that."""
        for request, frames, deadline_ns in self._former.end():
            call = call_of(request)
            if self.is_wanted(call.id):
                self._start(request, call, frames, deadline_ns, has_room=self.has_room)

    def _resume(self, message: remote.Resume) -> None:
        self._give_up(message.given_up)
        unanswered = [each.id for each in message.unanswered]
        known, settled = self._calls.resume(unanswered, message.next_id)
        for number, action in settled:
            self._settled(number, action)
        lost = self._former.told(unanswered)
        self.ready = True
        self._say(remote.Resumed(self._host.epoch, known, lost, self._leases.serial))
        self.streams.resume(message.streams)
        for number in known:
            self._send_again(number)

    def take(self, message: remote.FromRemote, frames: list[memoryview]) -> None:
        """Take a message that names this epoch.

        Raises:
            ProtocolError: It breaks the rules of the session.
        """
        match message:
            case remote.RemoteCalls():
                self.take_requests(message.settled, message.calls, frames)
            case remote.RemoteStreams():
                self.take_requests(message.settled, message.streams, frames)
            case remote.RemoteCredit():
                self._take_credit(message.grants)
            case remote.RemoteCancel():
                for number in message.ids:
                    reply = self._replies.get(number)
                    if reply is not None:
                        reply.cancel()
            case remote.RemoteRelease():
                self._release(message)
            case _:
                raise errors.ProtocolError(f"{type(message).__name__} in the middle of a session")

    def _take_credit(self, grants: Sequence[remote.RemoteGrant]) -> None:
        for grant in grants:
            if self._calls.state(grant.id) is CallState.UNSEEN:
                raise errors.ProtocolError(f"credit for stream {grant.id}, which was never opened")
            self.streams.grant(grant)

    def take_requests(self, settled: Sequence[int], requests: Sequence[Request], frames: list[memoryview]) -> None:
        """Take calls or streams, and which answers the client has.

        Raises:
            ProtocolError: It breaks the rules of the session.
        """
        self._owner.check()
        if len(requests) > 1:
            self._lane.cork()
        offer = self._calls.offer
        try:
            self._settle(settled)
            now_ns, has_room, at = time.monotonic_ns(), self.has_room, 0
            for request in requests:
                call = request if request.__class__ is remote.RemoteCall else call_of(request)
                first, at = at, at + call.frames
                own = frames[first:at]
                nbytes = len(call.body)
                if call.frames:
                    nbytes += _frames_bytes(call, own)
                action = offer(call.id, max(call.upload, nbytes) if call.upload else nbytes)
                if action is CallAction.RUN:
                    self._run(request, call, own, now_ns + call.left_us * 1000, has_room=has_room)
                elif action is CallAction.SEND:
                    self._send_again(call.id)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        finally:
            if len(requests) > 1:
                self._lane.uncork()
        if at != len(frames):
            raise errors.ProtocolError("a message with payload frames that are no call's")

    def _run(
        self, request: Request, call: remote.RemoteCall, frames: list[memoryview], deadline_ns: int, *, has_room: bool
    ) -> None:
        if isinstance(request, remote.RemoteStream):
            check_ahead(request.parts, request.start)
        if self._former.lost and call.id in self._former.lost:
            if not call.replay:
                error = errors.GatewayLost("this call may have run under an earlier gateway", maybe_executed=True)
                self._answered(call.id, error, None)
                return
            self._former.lost.discard(call.id)
        if call.replay and not self._former.quiet:
            self._former.park(request, frames, deadline_ns)
        else:
            self._start(request, call, frames, deadline_ns, has_room=has_room)

    def _start(
        self, request: Request, call: remote.RemoteCall, frames: list[memoryview], deadline_ns: int, *, has_room: bool
    ) -> None:
        try:
            if not has_room:
                raise errors.Overloaded(
                    "the gateway keeps as many bytes of calls and answers as it may; wait for some results first",
                    window=self.window.requests,
                    retry_after_s=0.05,
                )
            if call.device is not None and call.device >= len(self._client.devices):
                raise errors.InvalidRequest(
                    f"there is no device {call.device}; this pool has {len(self._client.devices)}"
                )
            if request is call and not (call.upload or call.refs):  # as most calls are
                self._submit_call(call, call.body, frames, deadline_ns)
                return
            if call.upload:
                self.uploads.begin(request, deadline_ns)
                return
            arguments = Uploaded.in_message(request, frames)
            kept = [self._leases.hold(ref) for ref in call.refs]
            self._submit(request, arguments, deadline_ns, kept)
        except errors.AtomrError as error:
            self._answered(call.id, error, None)

    def _submit(
        self,
        request: Request,
        arguments: Uploaded,
        deadline_ns: int,
        held: list[LeaseHold],
        keep: Sequence[object] = (),
    ) -> None:
        call = call_of(request)
        kept: list[object] = [*held, *keep]
        others: Sequence[GpuRef] = ()
        if any(device_of(ref) != call.device for ref in call.refs):
            also, others = foreign(self._client.memory, call.refs, held, call.device)
            kept += also
        if isinstance(request, remote.RemoteStream):
            self.streams.open(request, arguments, deadline_ns, kept, others)
            return
        self._submit_call(request, arguments.body, arguments.payload, deadline_ns, kept, arguments.copies, others)

    def _submit_call(
        self,
        call: remote.RemoteCall,
        body: bytes,
        payload: Sequence[Buffer],
        deadline_ns: int,
        kept: Sequence[object] = (),
        copies: Sequence[Placement] = (),
        others: Sequence[GpuRef] = (),
    ) -> None:
        reply = self._lane.submit_encoded(
            call.id,
            call.device,
            call.method,
            body,
            payload,
            deadline_ns,
            priority=call.priority,
            replays=call.replays,
            refs=len(call.refs),
            kept=kept,
            copies=copies,
            callback=self._on_reply,
            foreign=others,
        )
        self._replies[call.id] = reply
        if reply.is_over:
            self._host.loop.call_soon(self._lane.call_back)

    def uploaded(self, request: Request, arguments: Uploaded, deadline_ns: int) -> None:
        """Make a call whose large arguments have come.

        Raises:
            AtomrError: The call cannot be made.
        """
        call = call_of(request)
        if self.is_wanted(call.id):
            self._submit(request, arguments, deadline_ns, [*map(self._leases.hold, call.refs)], arguments.copies)

    def is_wanted(self, number: int) -> bool:
        """Return whether a call has no outcome yet, and its session lives."""
        return not self.ended and self._calls.state(number) is CallState.RUNNING

    def pull(self) -> None:
        """Ask for chunks of uploads, if there is a bulk connection."""
        self._host.pull(self)

    def fail(self, number: int, error: errors.AtomrError) -> None:
        """End a call, unless it has ended."""
        if self.is_wanted(number):
            self._answered(number, error, None)

    def _on_reply(self, reply: Reply) -> None:
        self._owner.check()
        number = reply.id
        if self._replies.pop(number, None) is None or self.ended:
            return
        plain = answers.keep_plain(reply)
        if plain is None:
            self._answer(reply)
        elif self._calls.answer(number, plain, plain.nbytes) is CallAction.KEEP:
            self._queue(plain)

    def stream_ended(self, reply: Reply) -> None:
        """Keep a stream's end; all its parts are kept."""
        if self.is_wanted(reply.id):
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        if reply.error is None and reply.leases and answers.has_values(reply.body, reply.frames):
            self.spawn(reply.id, self._answer_large(reply))
        else:
            self._answered(reply.id, reply.error, reply)

    def spawn(self, number: int, work: Coroutine[object, object, None]) -> None:
        """Run a call's work that waits for others; an error there ends that call and nothing else."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - whoever reads the log has to know, and the caller must not wait
                _LOG.exception("a call of remote client %s", self.name)
                why = f"the gateway failed: {type(error).__name__}"
                self.fail(number, errors.Unrecoverable(why, maybe_executed=True))

        task = self._host.loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_large(self, reply: Reply) -> None:
        """Make a blob of a result in shared memory. Runs in a thread, since it asks the supervisor for the memory."""
        error: errors.AtomrError | None = None
        encoded: Encoded | None = None
        leases = reply.leases or {}
        try:
            value = await asyncio.to_thread(self._lane.decode, reply.body, reply.frames, leases)
            encoded = await asyncio.to_thread(encode, value, copied=False)
            keep = [lease for buffer, lease in leases.items() if buffer in answers.buffers(encoded)]
            reply.leases = {lease.buffer: lease for lease in keep}
        except errors.AtomrError as failed:
            error = failed
        if not self.ended:
            self._answered(reply.id, error, reply, encoded)

    def _answered(
        self, number: int, error: errors.AtomrError | None, reply: Reply | None, encoded: Encoded | None = None
    ) -> None:
        told = None if error is None else answers.told_error(error, operate=self.admitted.operate)
        kept = answers.keep(number, told, reply, encoded, self.streams.made(number))
        if self._keep(number, kept) and reply is not None:
            self._leases.take(reply.leases or {})

    def _keep(self, number: int, kept: Kept) -> bool:
        """Keep an answer, and send it; return False if nobody wants it, so that its leases end with the reply."""
        self._owner.check()
        if self._calls.answer(number, kept, kept.nbytes) is not CallAction.KEEP:
            return False
        if not self.streams.end_kept(number):
            self._queue(kept)
        return True

    def blob(self, number: int, part: int) -> EncodedBlob | None:
        """Return the blob of a call's answer or of a stream's part, None if there is none any more.

        Args:
            number: The call's id.
            part: One more than the part's number, 0 for the answer.
        """
        if part:
            return self.streams.blob(number, part - 1)
        kept = self._calls.kept(number)
        return None if kept is None else kept.blob

    def _settle(self, numbers: Sequence[int]) -> None:
        """Take in which answers the client has.

        Raises:
            ValueError: It leaves too many gaps among its ids.
        """
        calls_only = not (self._former.lost or self.uploads.open or self.streams.any)
        settle = self._calls.settle
        for number in numbers:
            action = settle(number)
            if not (calls_only and action is CallAction.DROP):  # as with most
                self._settled(number, action)

    def _settled(self, number: int, action: CallAction | None) -> None:
        if self._former.lost:
            self._former.lost.discard(number)
        if self.uploads.open:
            self.uploads.forget(number)
        if self.streams.any:
            self.streams.settled(number)
        if action is CallAction.ABANDON:
            reply = self._replies.get(number)
            if reply is not None:
                reply.cancel()

    def _send_again(self, number: int) -> None:
        if not self.streams.has(number):  # otherwise it is sent behind the stream's parts
            self.send_answer(number)

    def send_answer(self, number: int) -> None:
        """Send a kept answer, if there is one."""
        kept = self._calls.kept(number)
        if kept is not None:
            self._queue(kept)

    def send_parts(self, parts: list[remote.RemotePart], frames: list[Buffer]) -> None:
        """Send parts of streams; that may find that the connection has ended."""
        header = remote.TO_REMOTE.encode(remote.RemoteParts(self._host.epoch, parts))
        self._host.send(self, pack(header, frames) if frames else [header])

    def _release(self, message: remote.RemoteRelease) -> None:
        if not self._leases.is_next(message.serial):
            return
        self._give_back((each.token, buffer) for each in message.refs for buffer in each.buffers)
        if message.given_up:
            self._give_up(message.given_up)
            self._send_answers([], [])  # it acknowledges the message: answers may not come for long

    def _give_up(self, given_up: Sequence[remote.GivenUp]) -> None:
        """Settle requests whose client has not taken their answers, or all parts; give back the leases of those."""
        untaken: list[remote.RefLeased] = []
        try:
            for each in given_up:
                untaken += self._untaken(each)
                self._settled(each.id, self._calls.settle(each.id))
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        self._give_back((each.token, each.buffer) for each in untaken)

    def _untaken(self, given_up: remote.GivenUp) -> list[remote.RefLeased]:
        """Return the leases that are counted for the client, and which it does not know of."""
        untaken = self.streams.untaken(given_up.id, given_up.parts)
        kept = self._calls.kept(given_up.id)
        return untaken if kept is None else [*untaken, *kept.answer.leases]

    def _give_back(self, leased: Iterable[tuple[bytes, int]]) -> None:
        for releases in self._leases.give_back(leased):
            self._client.give_back(releases, freed=True)

    # --- to the client ---------------------------------------------------------------------------------------------

    def _queue(self, kept: Kept) -> None:
        """Send an answer, with others of this turn of the loop."""
        if self.ready:
            self._outbox.waiting.append(kept)
            if not self._replies:  # there is nothing for it to travel with
                self._flush()
            elif not self._flushing:
                self._flushing = True
                self._host.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._outbox.flush()

    def _send_answers(self, together: list[remote.RemoteAnswer], frames: list[Buffer]) -> None:
        header = remote.TO_REMOTE.encode(remote.RemoteAnswers(self._host.epoch, together, self._leases.serial))
        self._host.send(self, pack(header, frames) if frames else [header])

    def _say(self, message: remote.ToRemote) -> None:
        self._host.send(self, [remote.TO_REMOTE.encode(message)])

    def _on_event(self, event: session.DeviceChanged | session.IncarnationEnded) -> None:
        """Tell the client of a lifecycle event; the dead incarnation's leases are gone."""
        if self.ended:
            return
        if isinstance(event, session.IncarnationEnded):
            self._leases.incarnation_ended(event.device, event.generation)
            event = msgspec.structs.replace(event, started=[], running=[], suspects=[], known_since_ns=0)
        else:
            event = session.DeviceChanged(told(event.device), event.actors)
            if event.device.state is DeviceState.STOPPING:
                self._host.loop.call_soon(self._abandon_streams)
        if self.greeted:
            self._say(event)

    def _abandon_streams(self) -> None:
        """End the streams of a client that is away while the pool stops: the leaving worker would wait for them."""
        stops = any(device.state is DeviceState.STOPPING for device in self._client.devices)
        if stops and self.routing_id is None and not self.ended:
            self._lane.close_streams(errors.PoolLost("the pool stops, and this client was away"))


def _frames_bytes(call: remote.RemoteCall, frames: Sequence[memoryview]) -> int:
    """Return the size of a call's payload frames.

    Raises:
        ProtocolError: Its message has fewer.
    """
    if len(frames) != call.frames:
        raise errors.ProtocolError("a call with payload frames that its message does not have")
    return sum(map(len, frames))


def told(info: devices.DeviceInfo) -> devices.DeviceInfo:
    """Return a device's description for a remote client: no endpoint to connect to, and no clock's time."""
    return msgspec.structs.replace(info, endpoint="", standby=None, retry_at=0.0)
