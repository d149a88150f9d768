"""Carries out the actions of a reply's life: outcomes, credit, leases, callbacks."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.services import LazyMemory
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.reply import ArrivedPart, ItemsPart, ItemsReply, Reply, StreamReply, set_done
from atomr_mp.client.reply_life import ReplyAction, ReplyEvent, ReplyState, step
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.protocol.exceptions import describe, traceback_of
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import Resumes

Callback = Callable[[Reply], object]

_LOG: Final = logging.getLogger("atomr_mp.client")


class AnswerFacts(NamedTuple):
    """An answer that has arrived, for the table's actions."""

    message: data.CallReply | data.Part
    frames: Sequence[memoryview]
    releases: Releases
    """The releases of the incarnation that has sent it."""
    failed: dict[int, errors.AtomrError]
    """Errors of items, by place."""


@checks.owned(but={"call_back", "owes_callbacks"})
class Outcomes:
    """A part of a lane. Call it with the lane's lock held, except `call_back`.

    Args:
        sent_room: Keeps parts of streams.
        memory: The client's shared memory.
        acquit: Reports a request that has run alone, if its worker lives.
        links: The lane's links, by device.
        backlog: The lane's calls that wait for room.
        finished: Wakes the threads that wait for a reply.
    """

    def __init__(
        self,
        sent_room: SentRoom,
        memory: LazyMemory,
        acquit: Callable[[Reply], None],
        links: Sequence[DeviceLink],
        backlog: Backlog,
        finished: Callable[[Reply], None],
    ) -> None:
        self._sent_room = sent_room
        self._memory = memory
        self._acquit = acquit
        self._links = links
        self._backlog = backlog
        self._finished = finished
        self._called_back: Final[deque[Reply]] = deque()
        """Finished replies whose callbacks have to run once the lock is free."""
        self.leading: Reply | None = None
        """The reply awaited by the thread that receives for all, while it polls."""
        self.part_ended: Callable[[Reply], bool] = lambda _part: False
        """Called when a part of a world's call has ended; returns whether its callbacks have to run."""

    def feed(
        self, reply: Reply, event: ReplyEvent, error: errors.AtomrError | None = None, answer: AnswerFacts | None = None
    ) -> None:
        """Carry out an event's actions for a reply.

        Args:
            reply: The reply.
            event: What has happened.
            error: The reply's error, if it ends with one; None for the answer's result.
            answer: The answer that has arrived, if any.
        """
        reply.state, actions = step(reply.state, event)
        if answer is not None and reply.copies and reply.state is ReplyState.OVER:
            self.settle_copies(reply, answer.releases, answer.message)
        for action in actions:
            if answer is not None and action in _OF_ANSWERS:
                self._take(reply, action, answer)
            else:
                self._act(reply, action, error)

    def _act(  # noqa: C901 - one line for each action
        self, reply: Reply, action: ReplyAction, error: errors.AtomrError | None
    ) -> None:
        link = self._links[reply.device]
        match action:
            case ReplyAction.UNLIST:
                self._backlog.remove(reply)
                reply.kept = reply.copies = ()
            case ReplyAction.DEQUEUE:
                link.dequeue(reply)
            case ReplyAction.UNPARK:
                link.parked.pop(reply, None)
            case ReplyAction.TELL_WORKER:
                link.tell_cancelled(reply)
            case ReplyAction.FREE:
                link.free(reply)
                reply.kept = reply.copies = ()
            case ReplyAction.CEDE:
                link.free(reply)
            case ReplyAction.REQUEUE:
                reply.generation = 0
                link.held.appendleft(reply)
            case ReplyAction.DOUBT:
                reply.may_have_run = True
            case ReplyAction.END:
                if isinstance(reply, StreamReply):
                    self._sent_room.forget(reply)
                self.end(reply, error)
                self.tell_news(reply)
            case _:  # the others concern answers, and there is none
                pass

    def _take(self, reply: Reply, action: ReplyAction, answer: AnswerFacts) -> None:
        """Carry out the actions that concern an answer's content."""
        message, frames, releases, failed = answer
        if action is ReplyAction.GIVE_BACK:
            releases.give_back(message.leases)
            return
        leases = releases.leases(message.leases) if message.leases else None
        if isinstance(message, data.Part):
            assert isinstance(reply, StreamReply)
            self.take_part(reply, ArrivedPart(message.body, frames, leases, message.nbytes))
            return
        if isinstance(reply, ItemsReply):
            if message.items:
                reply.parts.append(ItemsPart(message.items, message.body, frames, leases, failed))
                if action is ReplyAction.KEEP_PART:
                    self._called_back.append(reply)
            return
        reply.body, reply.frames, reply.leases = message.body, frames, leases

    def take_part(self, stream: StreamReply, part: ArrivedPart) -> None:
        """Keep a part for the stream's readers, and wake them."""
        if stream.state is not ReplyState.STREAMING:  # cancelled: its leases go with it
            return
        self.keep_part(stream, part)
        self.tell_parts(stream)

    def keep_part(self, stream: StreamReply, part: ArrivedPart) -> None:
        """Keep a part for the stream's readers; `tell_parts` comes later."""
        stream.arrived.append(part)
        if stream.resumes is Resumes.SENT:
            self._sent_room.keep(stream, part)

    def tell_parts(self, stream: StreamReply) -> None:
        """Take in that parts of a stream have been kept: wake its readers."""
        stream.expect_next(time.monotonic_ns())
        stream.replays = 0
        if stream.alone is not None:
            self._acquit(stream)  # the stream has made progress, and its worker lives
            stream.alone = None
        self.tell_news(stream)
        if stream.future is not None:
            set_done(stream.future)
        if stream.on_part is not None:
            stream.on_part(stream)

    def forget_parts(self, stream: StreamReply) -> None:
        """Keep no parts of a stream any longer: it will not go on elsewhere."""
        self._sent_room.forget(stream)

    def settle_copies(self, reply: Reply, releases: Releases, message: data.CallReply | data.Part) -> None:
        """Settle an answered call's copies in shared memory."""
        assert isinstance(message, data.CallReply)  # a part is not the answer
        executed = message.error is None or bool(message.error.fields.get("maybe_executed", True))
        copies, reply.copies = reply.copies, ()
        self._memory.get().answered(copies, releases, executed=executed)

    def end(self, reply: Reply, error: errors.AtomrError | None) -> None:
        """Give a reply its outcome; the caller sets its state."""
        if error is not None:
            if isinstance(reply, StreamReply) and reply.gang is None:  # else the whole stream has its parts
                error.parts = reply.credit.received
            if (reply.may_have_run or error.parts) and isinstance(error, errors.RequestError):
                error.maybe_executed = True
            reply.error = error
        if reply.payload:
            reply.payload = ()
        if reply.span is not None:
            reply.span.end(reply.device, reply.generation, error)
        reply.is_over = True
        if reply.waiters or self.leading is reply:
            self._finished(reply)
        if reply.future is not None:
            set_done(reply.future)
        if reply.callbacks is not None and (reply.gang is None or self.part_ended(reply)):
            self._called_back.append(reply)

    def spoil(self, reply: Reply, link: DeviceLink, fault: Exception) -> None:
        """End a reply whose answer our own code has failed to take in; others, and the lane, go on."""
        reference = secrets.token_hex(4)
        _LOG.error("internal error %s with the answer to %s:\n%s", reference, reply.told(), traceback_of(fault))
        if reply.is_over:
            return
        link.free(reply)
        if isinstance(reply, StreamReply):
            link.tell_cancelled(reply)
        reply.kept = reply.copies = ()
        reply.state = ReplyState.OVER
        why = (
            f"the answer of device {link.device} could not be taken in ({describe(fault)}); see {reference} in the log"
        )
        self.end(reply, errors.InternalError(why, maybe_executed=True, reference=reference))
        self.tell_news(reply)

    def tell_news(self, reply: Reply) -> None:
        """Wake the threads that wait for any news of a reply, not only for its end."""
        news, reply.news = reply.news, None
        if news is not None:
            news.state, news.is_over = ReplyState.OVER, True
            if news.waiters or self.leading is news:
                self._finished(news)

    @property
    def owes_callbacks(self) -> bool:
        """Whether `call_back` has something to do."""
        return bool(self._called_back)

    def call_back(self) -> None:
        """Run the callbacks of finished replies. With no lock held: they may call, wait, and close the client."""
        while self._called_back:
            try:
                reply = self._called_back.popleft()
            except IndexError:  # another thread has taken it
                return
            callbacks = reply.callbacks or ()
            if reply.is_over:
                reply.callbacks = None
            for callback in callbacks:
                try:
                    callback(reply)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - the receiving thread is not to blame, nor other callbacks
                    _LOG.error("a callback of %s failed:\n%s", reply.told(), traceback_of(error))


def forget_forked(reply: Reply, lost: str) -> None:
    """End a reply in a forked child, without waking anybody."""
    reply.error = errors.PoolLost(lost, maybe_executed=reply.maybe_executed)
    reply.state, reply.is_over = ReplyState.OVER, True


_OF_ANSWERS: Final = frozenset({ReplyAction.KEEP, ReplyAction.KEEP_PART, ReplyAction.GIVE_BACK})
