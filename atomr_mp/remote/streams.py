"""A remote client's streams: parts in order, each once, through any cut of a connection."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.client.reply import ArrivedPart, Reply, StreamReply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.protocol.flow.flight import MAX_STREAMS, RETRY_AFTER_S
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.blobs import Encoded, Frames
from atomr_mp.remote.deliveries import Deliveries
from atomr_mp.remote.engine import Engine
from atomr_mp.remote.facts import Facts
from atomr_mp.remote.memory import RemoteMemory
from atomr_mp.remote.transfers import Transfers

MESSAGE_BYTES: Final = remote.MAX_REMOTE_MESSAGE_BYTES - 64 * 1024
"""Most bytes of the streams in one message; the rest is room for their headers."""


class ComingPart(msgspec.Struct, eq=False):
    """A part that cannot be delivered yet: it is being pulled, or behind such a part."""

    number: int
    nbytes: int
    leases: list[remote.RefLeased]
    place: tuple[int, int]
    """The device and the generation that it comes from."""
    arrived: ArrivedPart | None = None
    """The part, once it is whole."""


class RemoteStreamReply(StreamReply):
    """The answer to a remote request that streams."""

    arguments: Encoded | None = None
    """The request's arguments, in case the stream is opened again."""
    coming: deque[ComingPart] = msgspec.field(default_factory=deque)
    """Parts behind those that have arrived, in order."""
    end: tuple[remote.RemoteAnswer, list[memoryview]] | None = None
    """The stream's end, while earlier parts are coming."""
    acknowledged: int = 0
    """How many parts the gateway was told have come."""
    unacknowledged_bytes: int = 0


class StreamSender(Protocol):
    """Sends a session's messages."""

    @property
    def facts(self) -> Mapping[int, Facts]:
        """Facts of each request, by id."""

    def send(self, message: remote.FromRemote, frames: list[Buffer]) -> bool:
        """Send a message; False if there is no connection."""

    def take_settled(self) -> list[int]:
        """Return the calls settled since the gateway was last told."""

    def call_of(self, reply: Reply, facts: Facts, now_ns: int) -> remote.RemoteCall:
        """Return a request's fields, as they travel."""


class StreamAnswers(Protocol):
    """Takes the ends of streams."""

    def answered(self, stream: RemoteStreamReply, answer: remote.RemoteAnswer, frames: list[memoryview]) -> None:
        """Take the end of a stream whose parts have all come."""


class StreamSession(Protocol):
    """The session, as its streams see it. Hold its lock."""

    @property
    def epoch(self) -> bytes:
        """The gateway's epoch."""

    @property
    def memory(self) -> RemoteMemory | None:
        """The memory that refs share, None if no array has passed."""

    @property
    def sender(self) -> StreamSender:
        """The sender of calls."""

    @property
    def transfers(self) -> Transfers:
        """The transfers by the bulk connection."""

    @property
    def deliveries(self) -> Deliveries:
        """The deliveries, which resolve futures."""

    @property
    def engine(self) -> Engine:
        """The engine, which wakes threads."""

    @property
    def answers(self) -> StreamAnswers:
        """The taker of answers, for ends of streams."""

    def finish(self, reply: Reply, error: errors.AtomrError | None) -> None:
        """End a stream, and have the gateway end it."""


class SessionStreams:
    """A session's streams. Hold its lock.

    Args:
        session: The session.
    """

    def __init__(self, session: StreamSession) -> None:
        self._session = session
        self.most = 0
        """How many streams may be open; the gateway sets it."""
        self.open: Final[dict[int, RemoteStreamReply]] = {}
        """Open streams by id."""
        self._outbox: Final[deque[RemoteStreamReply]] = deque()
        """Streams that wait to be sent."""
        self._due: Final[dict[int, RemoteStreamReply]] = {}
        """Streams whose credit has to be told."""
        self._unacknowledged_parts = 0
        self._unacknowledged_bytes = 0
        self.sent_room: Final = SentRoom()

    # --- opening, and what is said ---------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Refuse a stream if as many are open as may be.

        Raises:
            Overloaded: As many are open.
        """
        if len(self.open) >= self.most:
            raise errors.Overloaded(
                f"{len(self.open)} streams of this session are open, as many as may (max_streams)",
                window=self.most,
                retry_after_s=RETRY_AFTER_S,
            )

    def put(self, stream: RemoteStreamReply) -> None:
        """Queue a stream, which has its id, for the first time or again."""
        stream.state = ReplyState.WAITING
        self.open[stream.id] = stream
        self._outbox.append(stream)

    def flush(self) -> bool:
        """Send queued streams and credit if there is a connection; return whether any were sent."""
        sent = False
        if not (self._outbox or self.open):
            return sent
        while self._outbox:
            together: list[RemoteStreamReply] = []
            nbytes = 0
            while self._outbox:
                stream = self._outbox[0]
                if not stream.is_over:
                    nbytes += self._session.sender.facts[stream.id].message_bytes
                    if together and nbytes > MESSAGE_BYTES:
                        break
                    together.append(stream)
                self._outbox.popleft()
            if together and not self._send(together):
                self._outbox.extendleft(reversed(together))
                return sent
            sent = True
        if self._unacknowledged_parts >= remote.ACKNOWLEDGE_PARTS or (
            self._unacknowledged_bytes >= remote.ACKNOWLEDGE_BYTES
        ):
            for stream in self.open.values():
                if stream.credit.received > stream.acknowledged:
                    self._due[stream.id] = stream
        return self._tell() or sent

    def grant(self, stream: RemoteStreamReply) -> None:
        """Have `flush` tell that a stream may go on."""
        if stream.state is ReplyState.STREAMING:
            stream.expect_next(time.monotonic_ns())
            self._due[stream.id] = stream

    def resume(self) -> list[remote.RemoteGrant]:
        """Return the progress of each stream that was sent, for a new connection."""
        self._due.clear()
        return [self._grant_of(stream) for stream in self.open.values() if stream.sent_ns]

    def gateway_ended(self) -> None:
        """Take in that the gateway has ended: parts on their way from it will not come."""
        for stream in self.open.values():
            self._drop_coming(stream)

    def clear_outbox(self) -> None:
        """Forget the queue: a resumption fills it again."""
        self._outbox.clear()

    def facts_again(self, stream: RemoteStreamReply, facts: Facts) -> Facts:
        """Return the facts of a stream's request that goes on after the parts that have come."""
        assert stream.arguments is not None
        if stream.resumes is not Resumes.SENT or not stream.credit.received:
            return facts
        frames = [*stream.arguments.frames, msgspec.msgpack.encode(stream.sent)]
        return Facts.of_stream(msgspec.structs.replace(stream.arguments, frames=frames), facts.refs)

    def _send(self, streams: list[RemoteStreamReply]) -> bool:
        now_ns = time.monotonic_ns()
        opened: list[remote.RemoteStream] = []
        frames: list[Buffer] = []
        for stream in streams:
            facts = self._session.sender.facts[stream.id]
            if facts.blob is None and facts.encoded is not None:
                frames += facts.encoded.frames
            opened.append(
                remote.RemoteStream(
                    self._session.sender.call_of(stream, facts, now_ns),
                    stream.credit.parts,
                    stream.credit.nbytes,
                    stream.between_ns // 1000,
                    max(0, stream.until_ns - now_ns) // 1000,
                    stream.credit.received,
                    stream.credit.received_bytes,
                    stream.resumes is Resumes.SENT and bool(stream.credit.received),
                )
            )
        message = remote.RemoteStreams(self._session.epoch, self._session.sender.take_settled(), opened)
        if not self._session.sender.send(message, frames):
            return False  # after a cut, the resumption tells of the settled calls
        for stream in streams:
            stream.state = ReplyState.STREAMING
            stream.sent_ns = stream.sent_ns or now_ns
        return True

    def _tell(self) -> bool:
        """Tell the gateway how far streams may go, and which parts have come."""
        told = False
        while self._due:
            streams = [self._due.pop(number) for number in list(self._due)[:MAX_STREAMS]]
            told |= self._session.sender.send(
                remote.RemoteCredit(self._session.epoch, [self._grant_of(stream) for stream in streams]), []
            )
        return told

    def _grant_of(self, stream: RemoteStreamReply) -> remote.RemoteGrant:
        credit = stream.credit
        self._count(stream.acknowledged - credit.received, -stream.unacknowledged_bytes)
        stream.acknowledged, stream.unacknowledged_bytes = credit.received, 0
        return remote.RemoteGrant(stream.id, credit.parts, credit.nbytes, credit.received)

    def _count(self, parts: int, nbytes: int) -> None:
        self._unacknowledged_parts += parts
        self._unacknowledged_bytes += nbytes

    # --- parts and ends --------------------------------------------------------------------------------------------

    def take(self, message: remote.RemoteParts, frames: list[memoryview]) -> None:
        """Take parts in."""
        at = 0
        for part in message.parts:
            first, at = at, at + part.frames
            stream = self.open.get(part.id)
            if stream is None:  # it was given up, and the gateway has been told or will be
                continue
            expected = stream.credit.received + len(stream.coming)
            if part.number < expected:  # the part was repeated after a cut
                continue
            if part.number > expected or part.number >= stream.credit.parts:
                wrong = f"part {part.number} of a stream, where part {expected} of {stream.credit.parts} would come"
                self._session.finish(stream, errors.ProtocolError(wrong))
                continue
            coming = ComingPart(part.number, part.nbytes, part.leases, (part.device, part.generation))
            if part.download:
                self._session.transfers.pull_part(part.id, part.number, part.download)
            else:
                coming.arrived = ArrivedPart(part.body, frames[first:at], None, part.nbytes)
            stream.coming.append(coming)
            self._deliver(stream)

    def downloaded(self, number: int, part: int, body: bytes, frames: Frames) -> None:
        """Take a part that was pulled."""
        stream = self.open.get(number)
        for coming in stream.coming if stream is not None else ():
            if coming.number == part:
                coming.arrived = ArrivedPart(body, frames, None, coming.nbytes)  # type: ignore[arg-type]  # as a decoder takes them
        if stream is not None:
            self._deliver(stream)

    def ended(self, stream: RemoteStreamReply, answer: remote.RemoteAnswer, frames: list[memoryview]) -> None:
        """Take a stream's end in, once all parts before it are there."""
        if stream.coming:
            stream.end = answer, frames
            return
        if answer.parts > stream.credit.received:
            wrong = f"the end of a stream of {answer.parts} parts, and {stream.credit.received} have come"
            self._session.finish(stream, errors.ProtocolError(wrong))
        else:
            self._session.answers.answered(stream, answer, frames)

    def finished(self, stream: RemoteStreamReply) -> None:
        """Drop a stream that has its outcome."""
        self.open.pop(stream.id, None)
        self._due.pop(stream.id, None)
        self._count(stream.acknowledged - stream.credit.received, -stream.unacknowledged_bytes)
        stream.acknowledged, stream.unacknowledged_bytes = stream.credit.received, 0
        self._drop_coming(stream)
        self.sent_room.forget(stream)
        if stream.error is not None:
            stream.error.parts = stream.credit.received
        self.tell_news(stream)

    def tell_news(self, stream: StreamReply) -> None:
        """Wake the threads that wait for a stream's next part."""
        news, stream.news = stream.news, None
        if news is not None:
            news.is_over = True
            self._session.engine.finished(news)

    def _deliver(self, stream: RemoteStreamReply) -> None:
        """Give the reader the whole parts, up to the first one that is not whole."""
        memory = self._session.memory
        delivered = False
        while stream.coming and stream.coming[0].arrived is not None:
            coming = stream.coming.popleft()
            part = coming.arrived
            assert part is not None
            if coming.leases and memory is not None:
                leases = memory.leases(coming.leases, current=True)
                part = ArrivedPart(part.body, part.frames, leases, part.nbytes)
            stream.device, stream.generation = coming.place
            stream.credit.receive(coming.number, part.nbytes)
            stream.unacknowledged_bytes += part.nbytes
            self._count(1, part.nbytes)
            stream.arrived.append(part)
            self.sent_room.keep(stream, part)
            delivered = True
        if delivered:
            stream.replays = 0
            stream.expect_next(time.monotonic_ns())
            self.tell_news(stream)
            self._session.deliveries.hand_out(stream)
        if stream.end is not None and not stream.coming:
            (answer, frames), stream.end = stream.end, None
            self.ended(stream, answer, frames)

    def _drop_coming(self, stream: RemoteStreamReply) -> None:
        for coming in stream.coming:
            if coming.arrived is None:
                self._session.transfers.drop_part(stream.id, coming.number)
        stream.coming.clear()
        stream.end = None


def too_late(stream: StreamReply) -> errors.DeadlineExceeded:
    """Return the error of a stream whose deadline has passed."""
    received = stream.credit.received
    if not received and stream.deadline_ns < stream.until_ns:
        sent = bool(stream.sent_ns)
        why = "it may still be running" if sent else "it was never sent: there is no connection to the gateway"
        return errors.DeadlineExceeded(
            f"no part of {stream.method} within its deadline (first_s); {why}", maybe_executed=sent
        )
    late = stream.deadline_ns >= stream.until_ns
    why = "by its deadline (deadline_s)" if late else f"for {stream.between_ns / 1e9:g} s (between_s)"
    what = "the end of the stream" if late else f"part {received} of the stream"
    return errors.DeadlineExceeded(f"{what} of {stream.method} has not come {why}", maybe_executed=bool(stream.sent_ns))
