"""Takes in the gateway's answers to a remote client's calls, and the ends of its streams."""

from __future__ import annotations

from typing import Protocol

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.protocol.messages import remote
from atomr_mp.remote.backlog import RemoteBacklog
from atomr_mp.remote.blobs import Encoded, Frames
from atomr_mp.remote.facts import Facts
from atomr_mp.remote.memory import RemoteMemory
from atomr_mp.remote.sending import CallSender
from atomr_mp.remote.streams import RemoteStreamReply, SessionStreams
from atomr_mp.remote.transfers import Transfers


class AnsweredSession(Protocol):
    """The session, as its answers see it."""

    @property
    def epoch(self) -> bytes:
        """The gateway's epoch."""

    @property
    def memory(self) -> RemoteMemory | None:
        """The memory that refs share, None if no array has passed."""

    @property
    def backlog(self) -> RemoteBacklog:
        """The window."""

    @property
    def sender(self) -> CallSender:
        """The unanswered calls, and their sender."""

    @property
    def streams(self) -> SessionStreams:
        """The streams."""

    @property
    def transfers(self) -> Transfers:
        """The transfers by the bulk connection."""

    def take_call(self, reply: Reply, facts: Facts) -> None:
        """Give a call its id; it is sent with others."""

    def finish(self, reply: Reply, error: errors.AtomrError | None, *, answered: bool = False) -> None:
        """Give a reply its outcome, once."""


class AnswerTaker:
    """Takes answers in. Hold the session's lock.

    Args:
        session: The session.
    """

    def __init__(self, session: AnsweredSession) -> None:
        self._session = session

    def take(self, message: remote.RemoteAnswers, frames: list[memoryview]) -> None:
        """Take answers in."""
        session = self._session
        current = message.epoch == session.epoch
        if current:
            session.sender.releases.acknowledge(message.released)
        unanswered, finish = session.sender.calls.unanswered, session.finish
        at = 0
        for answer in message.answers:
            first, at = at, at + answer.frames
            reply = unanswered.get(answer.id)
            if reply.__class__ is not Reply or answer.error is not None or answer.leases or answer.download:
                self._take_answer(reply, answer, frames[first:at], current=current)
                continue
            # Most answers are small results of calls, so these steps are written out here.
            assert reply is not None
            reply.device, reply.generation, reply.body = answer.device, answer.generation, answer.body
            if at != first:
                reply.frames = frames[first:at]
            finish(reply, None, answered=True)

    def _take_answer(
        self, reply: Reply | None, answer: remote.RemoteAnswer, frames: list[memoryview], *, current: bool
    ) -> None:
        if reply is None:
            return  # it was given up, and the gateway has been told or will be
        if isinstance(reply, RemoteStreamReply):
            if current:  # else parts may be missing, which the resumption finds out
                self._session.streams.ended(reply, answer, frames)
        elif answer.download:
            reply.device, reply.generation = answer.device, answer.generation
            if current:  # else the resumption asks for it again, or it is lost
                self._session.transfers.pull(answer)
        elif answer.error is not None:
            reply.device, reply.generation = answer.device, answer.generation
            error = answer.error.error()
            if not isinstance(error, errors.ProgramUnseen) or not self._say_whole(reply):
                self._session.finish(reply, error, answered=True)
        else:
            reply.device, reply.generation = answer.device, answer.generation
            self._take_result(reply, answer, frames, current=current)

    def _take_result(
        self, reply: Reply, answer: remote.RemoteAnswer, frames: list[memoryview], *, current: bool
    ) -> None:
        if answer.leases and self._session.memory is not None:
            reply.leases = self._session.memory.leases(answer.leases, current=current)
        reply.body, reply.frames = answer.body, frames
        self._session.finish(reply, None, answered=True)

    def answered(self, stream: RemoteStreamReply, answer: remote.RemoteAnswer, frames: list[memoryview]) -> None:
        """Take the end of a stream whose parts have all come."""
        if answer.download:
            self._session.transfers.pull(answer)
        elif answer.error is not None:
            self._session.finish(stream, answer.error.error(), answered=True)
        else:
            self._take_result(stream, answer, frames, current=True)

    def part_downloaded(self, number: int, part: int, body: bytes, frames: Frames) -> None:
        """Take a part whose blob has come."""
        self._session.streams.downloaded(number, part, body, frames)

    def part_unreadable(self, number: int, part: int, error: errors.AtomrError) -> None:
        """End a stream if the blob of one of its parts is invalid."""
        stream = self._session.streams.open.get(number)
        if stream is not None:
            unread = f"part {part} of {stream.method}: {error.message}"
            self._session.finish(stream, errors.ResultUnread(unread, reason=error.code))

    def downloaded(self, answer: remote.RemoteAnswer, body: bytes, frames: Frames) -> None:
        """Take an answer whose blob has come."""
        reply = self._session.sender.calls.unanswered.get(answer.id)
        if reply is None:
            return
        if answer.leases and self._session.memory is not None:
            reply.leases = self._session.memory.leases(answer.leases, current=True)
        reply.body, reply.frames = body, frames  # type: ignore[assignment]  # as a decoder takes them
        self._session.finish(reply, None, answered=True)
        self._session.sender.tell_settled()

    def unreadable(self, answer: remote.RemoteAnswer, error: errors.AtomrError) -> None:
        """End a call if its answer's blob is invalid."""
        reply = self._session.sender.calls.unanswered.get(answer.id)
        if reply is not None:
            self._session.finish(reply, errors.ResultUnread(f"{reply.method} ran: {error.message}", reason=error.code))

    def _say_whole(self, reply: Reply) -> bool:
        """Send a call again with its whole program if its worker lacks the program; False if it was sent whole."""
        from atomr_mp.client.programs import say_whole

        if not say_whole(reply):
            return False
        if reply.state is ReplyState.CANCELLING:
            self._session.finish(reply, errors.Cancelled("cancelled before it started"))
            return True
        facts = self._session.sender.settle(reply)
        self._session.backlog.discount(facts.nbytes)
        encoded = facts.encoded or Encoded(b"", reply.payload, [], [])
        encoded.body = reply.body
        reply.sent_ns = 0
        facts = Facts.of(encoded, facts.refs)
        if facts.blob is not None:
            self._session.transfers.open()
        self._session.take_call(reply, facts)
        return True
