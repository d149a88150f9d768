"""Receives workers' answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, cast

from atomr_mp import checks, errors
from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.outcomes import AnswerFacts, Outcomes
from atomr_mp.client.lanes.services import LazyMemory
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.reply import ArrivedPart, ItemsReply, Reply, StreamReply
from atomr_mp.client.reply_life import ReplyEvent, ReplyState
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.wire.ends import ClientEnd

_LOG: Final = logging.getLogger("atomr_mp.client")


@checks.owned()
class Receiver:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        memory: The client's shared memory.
        outcomes: Ends replies.
        on_fatal: Called when a link's incarnation has answered that it ends.
        disconnected: Called when a connection has ended and everything sent on it was received, or cannot be read.
        admitted: Called when the worker may just have admitted a connection.
        backlog: Calls that wait for room.
        room: Called when there may be room.
        settle: Sends requests that were put back into queues.
    """

    def __init__(
        self,
        memory: LazyMemory,
        outcomes: Outcomes,
        on_fatal: Callable[[DeviceLink], None],
        disconnected: Callable[[DeviceLink, ClientEnd], None],
        admitted: Callable[[DeviceLink, ClientEnd], None],
        backlog: Backlog,
        room: Callable[[], None],
        settle: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._outcomes = outcomes
        self._end = outcomes.end
        self._on_fatal = on_fatal
        self._disconnected = disconnected
        self._admitted = admitted
        self._backlog = backlog
        self._room = room
        self._settle = settle
        self._goes_again = False
        """Whether a request was put back because its worker asked for it again."""

    def receive(self, link: DeviceLink, until: Reply | None = None, *, former: bool = False) -> None:  # noqa: C901, PLR0912, PLR0915 - a further call would cost more
        """Receive what has arrived on a link; stop early once the reply `until` is there, or nothing more can come.

        Args:
            link: The link.
            until: The awaited reply.
            former: Receive from the former incarnation alone, until nothing is left.
        """
        connection, releases, number = link.connection, link.releases, link.number
        if link.former is not None:
            if former:
                connection, _, releases, number = link.former
            else:
                self.receive(link, former=True)
        if connection is None:
            return
        take, in_flight = link.flight.take, link.flight.requests
        sent, over, end = ReplyState.SENT, ReplyState.OVER, self._end
        while until is None or not until.is_over:
            message = connection.receive()
            if message is None:
                if connection.ended:
                    self._disconnected(link, connection)
                elif not link.sending and connection.ready:
                    self._admitted(link, connection)
                break
            try:
                header, frames = unpack(message)
                decoded = _decode_replies(header)
            except errors.ProtocolError:  # the worker's fault; the thread that receives just now must not get the error
                _LOG.exception("device %d sent a message that cannot be read", link.device)
                if former or not link.sending:
                    continue  # the end of this incarnation will tell of its requests
                # Nobody knows whose answers were in it, so all requests on this connection are lost with it.
                self._disconnected(link, connection)
                break
            if decoded.__class__ is not _REPLIES:
                self._take_parts(link, releases, number, decoded, frames, former=former)
                continue
            if decoded.returned:
                self._memory.get().returned(decoded.returned)
            releases.unheard = 0
            releases.read[number] = decoded.number
            if decoded.released > releases.acknowledged:  # noqa: PLR1730 - a call would cost more
                releases.acknowledged = decoded.released
            at = 0
            for answer in decoded.replies:
                first, at = at, at + answer.frames
                entry = in_flight.get(answer.id)
                if entry is None:
                    releases.give_back(answer.leases)
                    continue
                reply = entry[0]
                try:
                    if reply.state is not sent or answer.error is not None or reply.items or answer.items:
                        if not self._say_whole(reply, answer):
                            self._take(link, releases, reply, answer, frames[first:at], former=former)
                        continue
                    # The table's step (SENT, ANSWER) is written out, since each call takes this way.
                    take(answer.id)
                    if reply.copies:
                        self._outcomes.settle_copies(reply, releases, answer)
                    if reply.kept:
                        reply.kept = ()
                    if answer.leases:
                        reply.leases = releases.leases(answer.leases)
                    reply.body, reply.ran_ns = answer.body, answer.ran_ns
                    if answer.gpu_ns:
                        reply.gpu_ns = answer.gpu_ns
                    if answer.batch_rows:
                        reply.batch_rows = answer.batch_rows
                    if at != first:
                        reply.frames = frames[first:at]
                    reply.state = over
                    end(reply, None)
                except Exception as fault:  # noqa: BLE001 - ours; it costs this reply, not the lane
                    self._outcomes.spoil(reply, link, fault)
            if not in_flight and not former:
                break  # an attempt to receive that fails costs as much as a message
        if not former:
            link.unread = link.connection is connection and connection.has_message
        if self._goes_again:  # by the former incarnation's word, too: it may be the last one that comes
            self._goes_again = False
            self._settle()
        elif self._backlog.count and not former:
            self._room()

    def _take_parts(
        self,
        link: DeviceLink,
        releases: Releases,
        number: int,
        message: data.Parts,
        frames: list[memoryview],
        *,
        former: bool,
    ) -> None:
        """Receive parts of streams."""
        releases.unheard = 0
        releases.read[number] = message.number
        generation = _generation_of(link, former=former)
        at = 0
        stream: Reply | None = None
        told: StreamReply | None = None
        """The stream whose parts were kept last; its readers are still to be woken."""
        for part in message.parts:
            first, at = at, at + part.frames
            if stream is None or stream.id != part.id:
                if told is not None:
                    self._outcomes.tell_parts(told)
                    told = None
                stream = link.flight.find(part.id)
            if not isinstance(stream, StreamReply) or stream.generation != generation:  # the stream went on elsewhere
                releases.give_back(part.leases)
                continue
            if stream.state is not ReplyState.STREAMING:
                self._outcomes.feed(stream, ReplyEvent.PART, None, AnswerFacts(part, frames[first:at], releases, {}))
                continue
            try:
                stream.credit.receive(part.number, part.nbytes)
            except errors.ProtocolError as broken:
                _LOG.error("device %d breaks the rules of a stream: %s", link.device, broken)
                releases.give_back(part.leases)
                if told is not None:
                    self._outcomes.tell_parts(told)
                self._outcomes.feed(stream, ReplyEvent.EXPIRE, broken)
                stream = told = None
                continue
            # The table's row for a part of a stream, written out: looking it up took a fifth of a part's time.
            try:
                leases = releases.leases(part.leases) if part.leases else None
                its_frames = frames[first:at] if at != first else ()
                self._outcomes.keep_part(stream, ArrivedPart(part.body, its_frames, leases, part.nbytes))
            except Exception as fault:  # noqa: BLE001 - ours; it costs this stream
                self._outcomes.spoil(stream, link, fault)
                stream = told = None
                continue
            told = stream
        if told is not None:
            self._outcomes.tell_parts(told)

    def _take(
        self,
        link: DeviceLink,
        releases: Releases,
        reply: Reply,
        message: data.CallReply,
        frames: list[memoryview],
        *,
        former: bool,
    ) -> None:
        """Receive any answer but the plain result of an awaited call."""
        if isinstance(reply, StreamReply) and reply.generation != _generation_of(link, former=former):
            releases.give_back(message.leases)  # the stream has gone on elsewhere
            return
        reply.gpu_ns, reply.batch_rows, reply.ran_ns = message.gpu_ns, message.batch_rows, message.ran_ns
        error = None if message.error is None else message.error.error()
        failed: dict[int, errors.AtomrError] = {}
        if message.items:
            if not _answers(reply, message):
                _LOG.error("device %d answered items that it was not asked for", link.device)
                releases.give_back(message.leases)
                return
            failed = {place: info.error() for place, info in (message.failed or {}).items()}
        elif reply.items and error is None:
            error = errors.ProtocolError(f"device {link.device} answered a call without its items")
        if isinstance(error, errors.ContextPoisoned):
            event = ReplyEvent.POISON
            if reply.poison_error is None:
                reply.poison_error = error
        else:
            event = ReplyEvent.ANSWER
        if message.items and isinstance(reply, ItemsReply) and event is ReplyEvent.ANSWER:
            if message.error is not None:  # the error is of these items only
                failed, error = {place: message.error.error() for place in message.items}, None
            reply.open.difference_update(message.items)
            event = ReplyEvent.PART if reply.open else ReplyEvent.ANSWER
        for each in (*failed.values(), error):
            self._on_error(link, releases, each, former=former)
        self._outcomes.feed(reply, event, error or reply.poison_error, AnswerFacts(message, frames, releases, failed))

    def _say_whole(self, reply: Reply, message: data.CallReply) -> bool:
        """Send a request again, with all of its program, if its worker does not know that; else return False."""
        if message.error is None or message.error.code != errors.ProgramUnseen.code or reply.state not in _AT_WORKER:
            return False
        from atomr_mp.client.programs import say_whole

        if not say_whole(reply):
            return False
        self._memory.get().sent_again(reply.copies)
        self._outcomes.feed(reply, ReplyEvent.LEFT, errors.Cancelled("cancelled before it started"))
        self._goes_again = True
        return True

    def _on_error(self, link: DeviceLink, releases: Releases, error: errors.AtomrError | None, *, former: bool) -> None:
        """React to an error that affects other requests of its incarnation."""
        if error is not None and error.ends_worker and not former:
            self._on_fatal(link)  # the supervisor will report it too, but later
        elif isinstance(error, errors.OutOfMemory):
            self._memory.out_of_memory(releases)


def _generation_of(link: DeviceLink, *, former: bool) -> int:
    """Return the incarnation that the received answers come from."""
    return link.former.generation if former and link.former is not None else link.generation


def _answers(reply: Reply, message: data.CallReply) -> bool:
    """Return whether an answer names open items of a call only, and none twice."""
    places = message.items or []
    items = set(places)
    sound = len(items) == len(places) and items.issuperset(message.failed or {})
    return sound and isinstance(reply, ItemsReply) and reply.open.issuperset(items)


_AT_WORKER: Final = frozenset({ReplyState.SENT, ReplyState.CANCELLING})

_decode_replies: Final = cast("Callable[[memoryview], Any]", data.FROM_WORKER.decode)
_REPLIES: Final = data.Replies
