"""A remote session's streams in the gateway: parts pass through it, and are kept until the client has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from atomr_mp import checks, errors
from atomr_mp.client.lanes.event_loop import EventLoopLane
from atomr_mp.client.memory.leases import Lease
from atomr_mp.client.reply import ArrivedPart, Reply, StreamReply
from atomr_mp.gateway import answers, leases
from atomr_mp.gateway.handover import OwnerThread
from atomr_mp.gateway.uploads import Uploaded
from atomr_mp.protocol.flow.limits import MAX_AHEAD
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.blobs import Encoded, EncodedBlob, encode
from atomr_mp.remote.kept_parts import KeptParts
from atomr_mp.remote.resumption import Tally

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.memory.refs import GpuRef

LEAST_BYTES: Final = 2 * remote.ACKNOWLEDGE_BYTES
"""Bytes that every stream may have in the gateway: more than a client leaves unacknowledged, or both ends would
wait."""

SHARES: Final = 16
"""The room left to a session's streams is divided into this many shares; each stream may have one."""

MOST_FLYING: Final = 8192
"""Most parts of a session that were sent and are not acknowledged; libzmq keeps at most twice as many messages."""

MESSAGE_PARTS: Final = 256
"""Most parts in one message."""

PART_BYTES: Final = 128
"""Bytes of a part beside its content."""

NO_LEASES: Final[dict[int, Lease]] = {}


class SentPart(NamedTuple):
    """A part, until the client has it."""

    fields: remote.RemotePart
    frames: Sequence[Buffer]
    blob: EncodedBlob | None
    """The blob that the client pulls, if the part is large."""
    leases: dict[int, Lease]
    """Leases that come with the part."""
    keep: object
    """The owner of the blob's memory."""
    message_bytes: int
    """Bytes of the part in a message."""


class PeerStream:
    """One stream.

    Args:
        reply: The local reply, which receives the parts.
        request: The client's request.
    """

    def __init__(self, reply: StreamReply, request: remote.RemoteStream) -> None:
        self.reply: Final = reply
        self.parts: Final[KeptParts[SentPart]] = KeptParts(request.start, request.start_bytes)
        self.granted, self.granted_bytes = request.parts, request.nbytes
        """The client's credit."""
        self.leased = request.start
        """Number of the part up to which the client counts the leases."""
        self.promised = 0
        """Bytes of further parts that were granted in advance and that the client has not acknowledged."""
        self.converting = False
        """Whether a part in shared memory is being read; later parts wait behind it."""
        self.ended = False
        """Whether its end has come, behind all parts."""
        self.end_kept = False
        """Whether its end is kept, to be sent behind the parts."""
        self.end_due = False
        """Whether its end has to be sent on this connection."""


class StreamHost(Protocol):
    """The session, as its streams see it."""

    @property
    def ready(self) -> bool:
        """Whether parts may be sent."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that the session takes in this process."""

    @property
    def has_room(self) -> bool:
        """Whether the session, and all sessions together, keep less than they may."""

    def is_wanted(self, number: int) -> bool:
        """Return whether a request has no outcome yet."""

    def spawn(self, number: int, work: Coroutine[object, object, None]) -> None:
        """Run a call's work that waits for others."""

    def fail(self, number: int, error: errors.AtomrError) -> None:
        """End a call."""

    def stream_ended(self, reply: Reply) -> None:
        """Keep a stream's end; all its parts are kept."""

    def send_answer(self, number: int) -> None:
        """Send a stream's end; all its parts were sent."""

    def send_parts(self, parts: list[remote.RemotePart], frames: list[Buffer]) -> None:
        """Send parts; that may find that the connection has ended."""


@checks.owned(by_maker=True)
class PeerStreams:
    """A session's streams.

    Args:
        host: The session.
        client: Its local client.
        loop: The event loop.
        held: The session's leases.
        most: How many streams may be open.
        most_bytes: Bytes that all streams may take in this process, beside one part of each.
        tally: Counts the bytes of all sessions.
    """

    def __init__(
        self,
        host: StreamHost,
        client: Client,
        loop: asyncio.AbstractEventLoop,
        held: leases.HeldLeases,
        most: int,
        most_bytes: int,
        tally: Tally,
    ) -> None:
        self._host = host
        self._owner: Final = OwnerThread("a remote session's streams")
        self._client = client
        self._lane: EventLoopLane = client.loop_lane(loop)
        self._loop = loop
        self._held = held
        self._most = most
        self._most_bytes = most_bytes
        self._tally = tally
        self._open: Final[dict[int, PeerStream]] = {}
        """Streams that run, and those whose parts or end the client may lack."""
        self._early: Final[dict[int, remote.RemoteGrant]] = {}
        """Credit of streams that are not open yet."""
        self._dirty: Final[dict[int, PeerStream]] = {}
        """Streams with parts or an end to send."""
        self._flushing = False
        self._flying = 0
        self._promised = 0
        """Bytes that all streams may bring and the client has not acknowledged."""
        self.kept_bytes = 0
        """Bytes of kept parts."""

    # --- for the session ----------------------------------------------------------------------------------------------

    def open(
        self,
        request: remote.RemoteStream,
        arguments: Uploaded,
        deadline_ns: int,
        kept: Sequence[object],
        foreign: Sequence[GpuRef] = (),
    ) -> None:
        """Open a stream in the pool. `foreign` are the refs of other devices among its arguments.

        Raises:
            AtomrError: It cannot be opened; the stream ends with it.
        """
        call = request.call
        running = sum(not stream.reply.is_over for stream in self._open.values())
        if running >= self._most:
            raise errors.Overloaded(
                f"{running} streams of this session are open, as many as may (max_streams)",
                window=self._most,
                retry_after_s=0.05,
            )
        info = self._client.methods.get(call.method)
        resumes = Resumes.NEVER if info is None else info.resumes
        if request.start and resumes is Resumes.NEVER:
            raise errors.InvalidRequest(f"{call.method} is not resumable: it cannot go on at part {request.start}")
        if request.start and resumes is Resumes.SENT and len(arguments.sent) != request.start:
            raise errors.InvalidRequest(f"{request.start} parts were sent, and {len(arguments.sent)} are given")
        now_ns = time.monotonic_ns()
        reply = StreamReply(self._lane, call.id, call.method, deadline_ns, arguments.body, priority=call.priority)
        reply.payload, reply.copies, reply.refs = arguments.payload, arguments.copies, len(call.refs)
        reply.kept, reply.replays = kept, call.replays
        reply.until_ns, reply.between_ns = now_ns + request.until_us * 1000, request.between_us * 1000
        reply.on_part, reply.callbacks = self._part_came, [self._reply_ended]
        if resumes is Resumes.SENT and request.start:
            nbytes = sum(map(len, arguments.sent))
            if not self._client.sent_room.take(nbytes):
                raise errors.Overloaded("the gateway keeps as many parts of resumable streams as it may")
            reply.sent, reply.sent_bytes = arguments.sent, nbytes
        reply.resumes = resumes
        stream = PeerStream(reply, request)
        early = self._early.pop(call.id, None)
        if early is not None:
            stream.granted = max(request.parts, min(early.parts, request.start + MAX_AHEAD))
            stream.granted_bytes = max(request.nbytes, early.nbytes)
        self._open[call.id] = stream
        reply.credit = ReaderCredit.passed(stream.granted, self._bytes_for(stream), request.start, request.start_bytes)
        try:
            self._lane.submit_stream_encoded(reply, call.device, foreign)
        except errors.AtomrError:
            del self._open[call.id]
            self._client.sent_room.forget(reply)
            raise
        self._promise(stream)
        if reply.is_over:
            self._loop.call_soon(self._lane.call_back)

    def grant(self, grant: remote.RemoteGrant) -> None:
        """Let a stream go on, and forget the parts that the client has.

        Raises:
            ProtocolError: The credit is too large, or it acknowledges parts that were never sent.
        """
        stream = self._open.get(grant.id)
        if stream is None:
            if self._host.is_wanted(grant.id):  # it waits for its arguments, or for calls of an earlier gateway
                self._early[grant.id] = grant
            return
        try:
            self._acknowledge(stream, grant.received, resumed=False)
        except ValueError as error:
            raise errors.ProtocolError(str(error)) from error
        self._extend(stream, grant)
        if self._dirty:
            self._flush_soon()

    def resume(self, grants: Sequence[remote.RemoteGrant]) -> None:
        """Send again the parts that the client does not have, on a new connection.

        Raises:
            ProtocolError: The client cannot have so many parts, or so few, or it does not mention a stream.
        """
        told = {grant.id: grant for grant in grants}
        for number, grant in told.items():
            if number not in self._open:
                self.grant(grant)
        self._flying = 0
        for number, stream in self._open.items():
            if number not in told:
                raise errors.ProtocolError(f"a resumption that says nothing of stream {number}")
            try:
                self._acknowledge(stream, told[number].received, resumed=True)
            except ValueError as error:
                raise errors.ProtocolError(str(error)) from error
            stream.end_due = stream.end_kept
            self._dirty[number] = stream
        for number, stream in self._open.items():
            self._extend(stream, told[number])
        self._flush_soon()

    @property
    def any(self) -> bool:
        """Whether there is any stream, or credit for one."""
        return bool(self._open or self._early)

    def settled(self, number: int) -> None:
        """Drop a stream, and end it if it runs."""
        self._early.pop(number, None)
        stream = self._open.pop(number, None)
        if stream is None:
            return
        self._dirty.pop(number, None)
        self._flying -= stream.parts.sent - stream.parts.acknowledged
        self._count(-stream.parts.nbytes)
        self._promised -= stream.promised
        if not stream.reply.is_over:
            self._lane.close_stream(stream.reply)
        if self._dirty:  # others may be sent in its place
            self._flush_soon()

    def untaken(self, number: int, taken: int) -> list[remote.RefLeased]:
        """Return the leases of the parts that were sent and which the client has not taken.

        Args:
            number: The stream's id.
            taken: How many parts the client has taken.
        """
        stream = self._open.get(number)
        if stream is None:
            return []
        lost = range(max(taken, stream.parts.acknowledged), stream.leased)
        return [leased for at in lost if (part := stream.parts.find(at)) is not None for leased in part.fields.leases]

    def blob(self, number: int, part: int) -> EncodedBlob | None:
        """Return the blob of a part for the client to pull, None if the client has it."""
        stream = self._open.get(number)
        found = None if stream is None else stream.parts.find(part)
        return None if found is None else found.blob

    def made(self, number: int) -> int:
        """Return how many parts a stream has had, 0 if there is no such stream."""
        stream = self._open.get(number)
        return 0 if stream is None else stream.parts.made

    def has(self, number: int) -> bool:
        """Return whether there is such a stream."""
        return number in self._open

    def end_kept(self, number: int) -> bool:
        """Take in that an answer is kept; return True if it is a stream's end, which is sent behind the parts."""
        stream = self._open.get(number)
        if stream is None:
            return False
        stream.ended = stream.end_kept = stream.end_due = True
        if not stream.reply.is_over:  # the answer is this gateway's own error
            self._lane.close_stream(stream.reply)
        self._dirty[number] = stream
        self._flush_soon()
        return True

    def close(self) -> None:
        """Drop all streams; the local client ends."""
        self._count(-self.kept_bytes)
        for stream in self._open.values():
            stream.reply.on_part = None
        self._open.clear()
        self._early.clear()
        self._dirty.clear()

    # --- credit ----------------------------------------------------------------------------------------------------

    def _extend(self, stream: PeerStream, grant: remote.RemoteGrant) -> None:
        """Pass the client's credit on, as far as there is room.

        Raises:
            ProtocolError: The credit is more than may be granted at a time.
        """
        credit = stream.reply.credit
        check_ahead(grant.parts, credit.received)
        stream.granted = max(stream.granted, grant.parts)
        stream.granted_bytes = max(stream.granted_bytes, grant.nbytes)
        nbytes = self._bytes_for(stream)
        if (
            stream.granted > credit.parts
            or nbytes - credit.nbytes >= LEAST_BYTES // 2
            or (nbytes > credit.nbytes and credit.received_bytes >= credit.nbytes)
        ):
            self._lane.grant(stream.reply, stream.granted, nbytes)
        self._promise(stream)

    def _bytes_for(self, stream: PeerStream) -> int:
        """Return the bytes of parts after which a stream waits: its share of the bytes that the session may keep."""
        share = LEAST_BYTES
        if self._host.has_room:
            left = self._most_bytes - (self._promised - stream.promised)
            share = max(share, left // SHARES)
        return min(stream.granted_bytes, stream.parts.acknowledged_bytes + share)

    def _promise(self, stream: PeerStream) -> None:
        """Count again how much a stream may still bring."""
        promised = max(0, stream.reply.credit.nbytes - stream.parts.acknowledged_bytes)
        self._promised += promised - stream.promised
        stream.promised = promised

    def _acknowledge(self, stream: PeerStream, received: int, *, resumed: bool) -> None:
        parts = stream.parts
        flying = parts.sent - parts.acknowledged
        freed = parts.resume(received) if resumed else parts.acknowledge(received)
        if not resumed:
            self._flying += parts.sent - parts.acknowledged - flying
        self._count(-freed)

    def _count(self, nbytes: int) -> None:
        self.kept_bytes += nbytes
        self._tally.nbytes += nbytes

    # --- parts -----------------------------------------------------------------------------------------------------

    def _part_came(self, reply: StreamReply) -> None:
        """Queue a part that has come; with the lane's lock held."""
        self._owner.check()
        stream = self._open.get(reply.id)
        if stream is not None:
            self._dirty[reply.id] = stream
            self._flush_soon()

    def _reply_ended(self, reply: Reply) -> None:
        self._owner.check()
        stream = self._open.get(reply.id)
        if stream is not None and stream.reply is reply:
            self._dirty[reply.id] = stream
            self._flush_soon()

    def _collect(self, number: int, stream: PeerStream) -> None:
        """Keep the parts that have come, and the end behind them."""
        reply = stream.reply
        while reply.arrived and not (stream.converting or stream.ended):
            part = reply.arrived.popleft()
            if not part.leases and self._keep_plain(number, stream, part):
                continue
            if part.leases and answers.has_values(part.body, part.frames):
                stream.converting = True
                self._host.spawn(number, self._convert(number, stream, part))
            else:
                self._keep(number, stream, part, Encoded(part.body, part.frames, [], []), part.leases or {})
        if reply.is_over and not (stream.ended or reply.arrived or stream.converting):
            stream.ended = True
            self._host.stream_ended(reply)

    async def _convert(self, number: int, stream: PeerStream, part: ArrivedPart) -> None:
        """Read a part in shared memory. Runs in a thread, since it asks the supervisor for the memory."""
        held = part.leases or {}
        try:
            value = await asyncio.to_thread(self._lane.decode, part.body, part.frames, held)
            encoded = await asyncio.to_thread(encode, value, copied=False)
        except errors.AtomrError as error:
            self._host.fail(number, error)
            return
        if self._open.get(number) is not stream or stream.ended:
            return
        buffers = answers.buffers(encoded)
        self._keep(number, stream, part, encoded, {lease.buffer: lease for at, lease in held.items() if at in buffers})
        stream.converting = False
        self._part_came(stream.reply)

    def _keep_plain(self, number: int, stream: PeerStream, part: ArrivedPart) -> bool:
        """Keep a part that travels in a message and has no refs, as most do; return False for any other."""
        body, frames = part.body, part.frames
        nbytes = len(body)
        if frames:
            nbytes += sum(map(len, frames))
        if nbytes > remote.MAX_CALL_BYTES:
            return False
        parts, reply = stream.parts, stream.reply
        fields = remote.RemotePart(
            number, parts.made, len(frames), body, part.nbytes, [], reply.device, reply.generation
        )
        nbytes += PART_BYTES
        parts.add(SentPart(fields, frames, None, NO_LEASES, None, nbytes), nbytes, part.nbytes)
        self._count(nbytes)
        return True

    def _keep(
        self, number: int, stream: PeerStream, part: ArrivedPart, encoded: Encoded, held: dict[int, Lease]
    ) -> None:
        body, frames, blob = answers.in_message(encoded)
        leased = leases.told(held)
        fields = remote.RemotePart(
            number,
            stream.parts.made,
            len(frames),
            body,
            part.nbytes,
            leased,
            stream.reply.device,
            stream.reply.generation,
            0 if blob is None else blob.nbytes,
        )
        nbytes = PART_BYTES + encoded.nbytes + 64 * len(leased)
        in_message = nbytes if blob is None else PART_BYTES + 64 * len(leased)
        stream.parts.add(SentPart(fields, frames, blob, held, encoded, in_message), nbytes, part.nbytes)
        self._count(nbytes)

    # --- to the client ---------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the parts of this turn of the loop, of all streams together, and ends behind their parts."""
        self._flushing = False
        for number, stream in list(self._dirty.items()):
            self._collect(number, stream)
        while self._host.ready and self._flying < MOST_FLYING:
            together = self._take_unsent()
            if not together:
                break
            self._host.send_parts(
                [part.fields for part in together], [frame for part in together for frame in part.frames]
            )
        if not self._host.ready:  # the resumption begins with all kept parts
            self._dirty.clear()
            return
        for number, stream in list(self._dirty.items()):
            if stream.parts.unsent() is not None:
                continue
            del self._dirty[number]
            if stream.end_due:
                stream.end_due = False
                self._host.send_answer(number)

    def _take_unsent(self) -> list[SentPart]:
        """Take the parts for one message."""
        together: list[SentPart] = []
        nbytes = 0
        for stream in self._dirty.values():
            parts = stream.parts
            while (part := parts.unsent()) is not None:
                nbytes += part.message_bytes
                if together and (nbytes > answers.ANSWERS_BYTES or len(together) == MESSAGE_PARTS):
                    return together
                together.append(part)
                if parts.sent >= stream.leased:
                    stream.leased = parts.sent + 1
                    if part.leases:
                        self._held.take(part.leases)
                parts.sent += 1
                self._flying += 1
        return together


def check_ahead(parts: int, received: int) -> None:
    """Refuse credit for more parts than a stream may be ahead, which would end the local session.

    Raises:
        ProtocolError: The credit is larger.
    """
    if parts > received + MAX_AHEAD:
        raise errors.ProtocolError(f"credit for {parts - received} parts of a stream; the limit is {MAX_AHEAD}")
