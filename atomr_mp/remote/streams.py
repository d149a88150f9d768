"""A remote client's streams: their parts as they come, in order, each once, whatever connections are cut."""

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
"""What streams in one message may take together; the rest is room for their headers."""


class ComingPart(msgspec.Struct, eq=False):
    """A part that cannot be delivered yet: it is pulled, or behind one that is."""

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
    """Of the request, in case that it is opened again."""
    coming: deque[ComingPart] = msgspec.field(default_factory=deque)
    """Behind what has arrived, in order."""
    end: tuple[remote.RemoteAnswer, list[memoryview]] | None = None
    """Its end, while parts before it are coming."""
    acknowledged: int = 0
    """How many parts the gateway was told to have come."""
    unacknowledged_bytes: int = 0


class StreamSender(Protocol):
    """What sends a session's messages."""

    @property
    def facts(self) -> Mapping[int, Facts]:
        """What else each request is, by id."""

    def send(self, message: remote.FromRemote, frames: list[Buffer]) -> bool:
        """Send a message; False if there is no connection."""

    def take_settled(self) -> list[int]:
        """Return which answers have come since that was said last."""

    def call_of(self, reply: Reply, now_ns: int) -> remote.RemoteCall:
        """Return a request's fields, as they travel."""


class StreamAnswers(Protocol):
    """What takes the ends of streams."""

    def answered(self, stream: RemoteStreamReply, answer: remote.RemoteAnswer, frames: list[memoryview]) -> None:
        """Take the end of a stream; all parts are there."""


class StreamSession(Protocol):
    """The session, as its streams see it; with its lock held."""

    @property
    def epoch(self) -> bytes:
        """The gateway's."""

    @property
    def memory(self) -> RemoteMemory | None:
        """What refs share, if there is any."""

    @property
    def sender(self) -> StreamSender:
        """Sends."""

    @property
    def transfers(self) -> Transfers:
        """What comes by the bulk connection."""

    @property
    def deliveries(self) -> Deliveries:
        """Sees to futures."""

    @property
    def engine(self) -> Engine:
        """Wakes threads."""

    @property
    def answers(self) -> StreamAnswers:
        """Takes ends of streams."""

    def finish(self, reply: Reply, error: errors.AtomrError | None) -> None:
        """End a stream, and have the gateway end it."""


class SessionStreams:
    """A session's streams. To be used with its lock held.

    Args:
        session: The session.
    """

    def __init__(self, session: StreamSession) -> None:
        self._session = session
        self.most = 0
        """How many may be open, as the gateway says."""
        self.open: Final[dict[int, RemoteStreamReply]] = {}
        """By id."""
        self._outbox: Final[deque[RemoteStreamReply]] = deque()
        """What waits to be sent."""
        self._due: Final[dict[int, RemoteStreamReply]] = {}
        """Streams whose credit is to be told."""
        self._unacknowledged_parts = 0
        self._unacknowledged_bytes = 0
        self.sent_room: Final = SentRoom()

    # --- opening, and what is said ---------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Refuse one more than may be open.

        Raises:
            Overloaded: As many are.
        """
        if len(self.open) >= self.most:
            raise errors.Overloaded(
                f"{len(self.open)} streams of this session are open, as many as may (max_streams)",
                window=self.most,
                retry_after_s=RETRY_AFTER_S,
            )

    def put(self, stream: RemoteStreamReply) -> None:
        """Have a stream sent, for the first time or again; it has its id."""
        stream.state = ReplyState.WAITING
        self.open[stream.id] = stream
        self._outbox.append(stream)

    def flush(self) -> bool:
        """Send what waits, if there is a connection; return whether anything was sent."""
        sent = False
        while self._outbox:
            together: list[RemoteStreamReply] = []
            nbytes = 0
            while self._outbox:
                stream = self._outbox[0]
                if not stream.done:
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
        """Have `flush` say that a stream may go on."""
        if stream.state is ReplyState.STREAMING:
            stream.expect_next(time.monotonic_ns())
            self._due[stream.id] = stream

    def resume(self) -> list[remote.RemoteGrant]:
        """Return how far each stream has come that was sent, for a new connection."""
        self._due.clear()
        return [self._grant_of(stream) for stream in self.open.values() if stream.sent_ns]

    def gateway_ended(self) -> None:
        """Take in that the gateway has ended: what was on its way from it does not come."""
        for stream in self.open.values():
            self._drop_coming(stream, give_up=False)

    def clear_outbox(self) -> None:
        """Forget the queue: a resumption fills it again."""
        self._outbox.clear()

    def facts_again(self, stream: RemoteStreamReply, facts: Facts) -> Facts:
        """Return what a stream's request is that goes on behind the parts that have come."""
        assert stream.arguments is not None
        if stream.resumes is not Resumes.SENT or not stream.credit.received:
            return facts
        frames = [*stream.arguments.frames, msgspec.msgpack.encode(stream.sent)]
        return Facts.of_stream(stream.arguments._replace(frames=frames), facts.refs)

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
                    self._session.sender.call_of(stream, now_ns),
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
            return False  # a cut; what is settled is told by the resumption
        for stream in streams:
            stream.state = ReplyState.STREAMING
            stream.sent_ns = stream.sent_ns or now_ns
        return True

    def _tell(self) -> bool:
        """Tell the gateway how far streams may go, and how far they have come."""
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

    # --- what comes ------------------------------------------------------------------------------------------------

    def take(self, message: remote.RemoteParts, frames: list[memoryview]) -> None:
        """Take parts in."""
        at = 0
        memory = self._session.memory
        for part in message.parts:
            first, at = at, at + part.frames
            stream = self.open.get(part.id)
            if stream is None:  # nobody wants it
                if part.leases and memory is not None:
                    memory.give_up(part.leases)
                continue
            expected = stream.credit.received + len(stream.coming)
            if part.number < expected:  # it was repeated after a cut
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
        """Let go of a stream that has its outcome."""
        self.open.pop(stream.id, None)
        self._due.pop(stream.id, None)
        self._count(stream.acknowledged - stream.credit.received, -stream.unacknowledged_bytes)
        stream.acknowledged, stream.unacknowledged_bytes = stream.credit.received, 0
        self._drop_coming(stream, give_up=True)
        self.sent_room.forget(stream)
        if stream.error is not None:
            stream.error.parts = stream.credit.received
        self.tell_news(stream)

    def tell_news(self, stream: StreamReply) -> None:
        """Wake the threads that wait for a stream's next part."""
        news, stream.news = stream.news, None
        if news is not None:
            news.done = True
            self._session.engine.finished(news)

    def _deliver(self, stream: RemoteStreamReply) -> None:
        """Give the reader the parts that are whole, up to the first that is not."""
        memory = self._session.memory
        delivered = False
        while stream.coming and stream.coming[0].arrived is not None:
            coming = stream.coming.popleft()
            part = coming.arrived
            assert part is not None
            if coming.leases and memory is not None:
                part = part._replace(leases=memory.leases(coming.leases, current=True))
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

    def _drop_coming(self, stream: RemoteStreamReply, *, give_up: bool) -> None:
        memory = self._session.memory if give_up else None
        for coming in stream.coming:
            if coming.arrived is None:
                self._session.transfers.drop_part(stream.id, coming.number)
            if coming.leases and memory is not None:
                memory.give_up(coming.leases)
        stream.coming.clear()
        stream.end = None


def too_late(stream: StreamReply) -> errors.DeadlineExceeded:
    """Return the error of a stream whose deadline has passed."""
    received = stream.credit.received
    if not received and stream.deadline_ns < stream.until_ns:
        sent = bool(stream.sent_ns)
        why = "it may be running still" if sent else "it was never sent: there is no connection to the gateway"
        return errors.DeadlineExceeded(
            f"no part of {stream.method} within its deadline (first_s); {why}", maybe_executed=sent
        )
    late = stream.deadline_ns >= stream.until_ns
    why = "by its deadline (deadline_s)" if late else f"for {stream.between_ns / 1e9:g} s (between_s)"
    what = "the end of the stream" if late else f"part {received} of the stream"
    return errors.DeadlineExceeded(f"{what} of {stream.method} has not come {why}", maybe_executed=bool(stream.sent_ns))
