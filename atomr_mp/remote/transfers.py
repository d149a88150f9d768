"""Moves calls and answers too large for a message: pulls and serves them on the bulk connection."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.messages import remote
from atomr_mp.remote.blobs import EncodedBlob, Frames, opened
from atomr_mp.remote.bulk import BlobKey, BulkChannel
from atomr_mp.remote.keys import ClientKeys


class TransferAnswers(Protocol):
    """Takes blobs that have come by the bulk connection. Hold the session's lock."""

    def downloaded(self, answer: remote.RemoteAnswer, body: bytes, frames: Frames) -> None:
        """Take in an answer's blob."""

    def unreadable(self, answer: remote.RemoteAnswer, error: errors.AtomrError) -> None:
        """Take in that an answer's blob is invalid."""

    def part_downloaded(self, number: int, part: int, body: bytes, frames: Frames) -> None:
        """Take in the blob of a stream's part."""

    def part_unreadable(self, number: int, part: int, error: errors.AtomrError) -> None:
        """Take in that the blob of a stream's part is invalid."""


class TransferSession(Protocol):
    """The session, as its transfers see it. Hold its lock."""

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""

    def upload(self, number: int) -> EncodedBlob | None:
        """Return a call's blob, None if it is not wanted any more."""

    @property
    def answers(self) -> TransferAnswers:
        """The taker of answers."""

    def broken(self, error: errors.AtomrError) -> None:
        """Take in that the gateway has sent an invalid message."""


class Transfers:
    """The bulk connection, made when something large has to travel, and the answers that come by it.

    Hold the session's lock, except for `close`.

    Args:
        endpoint: The session's, "tcp://HOST:PORT".
        keys: The session's keys.
        session: The session.
        lock: The session's.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None, session: TransferSession, lock: threading.RLock) -> None:
        self._host: Final = endpoint.rpartition(":")[0]
        self._keys = keys
        self._session = session
        self._lock = lock
        self._channel: BulkChannel | None = None
        self.port = 0
        """The port of bulk connections; the gateway tells it."""
        self.answers: Final[dict[int, remote.RemoteAnswer]] = {}
        """Answers that are being pulled."""

    def open(self) -> BulkChannel:
        """Return the connection; make it if there is none."""
        if self._channel is None:
            self._channel = BulkChannel(f"{self._host}:{self.port}", self._keys, self, self._lock)
        return self._channel

    def pull(self, answer: remote.RemoteAnswer) -> None:
        """Pull an answer."""
        self.answers[answer.id] = answer
        self.open().pull((answer.id, 0), answer.download)

    def drop(self, number: int) -> bool:
        """Stop pulling an answer that nobody wants; return whether it was being pulled."""
        if not self.answers or self.answers.pop(number, None) is None:
            return False
        if self._channel is not None:
            self._channel.forget((number, 0))
        return True

    def pull_part(self, number: int, part: int, nbytes: int) -> None:
        """Pull a part of a stream."""
        self.open().pull((number, part + 1), nbytes)

    def drop_part(self, number: int, part: int) -> None:
        """Stop pulling a part that nobody wants."""
        if self._channel is not None:
            self._channel.forget((number, part + 1))

    def resume(self, *, same_gateway: bool) -> None:
        """Take in that the session is resumed; another gateway does not have the earlier answers."""
        if not same_gateway:
            self.answers.clear()
        if self._channel is not None:
            self._channel.resumed(same_gateway=same_gateway)

    def close(self) -> None:
        """Close the connection. Do not hold the session's lock."""
        if self._channel is not None:
            self._channel.close()

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child."""
        if self._channel is not None:
            self._channel.forget_in_child()

    # --- for the bulk connection -----------------------------------------------------------------------------------

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""
        return self._session.resumed

    def upload(self, number: int) -> EncodedBlob | None:
        """Return a call's blob, None if it is not wanted any more."""
        return self._session.upload(number)

    def downloaded(self, key: BlobKey, content: memoryview) -> None:
        """Take an answer or a part whose blob has come."""
        number, part = key
        answer = None if part else self.answers.pop(number, None)
        if answer is None and not part:
            return
        try:
            body, frames = opened(content)
        except errors.InvalidRequest as error:
            if answer is None:
                self._session.answers.part_unreadable(number, part - 1, error)
            else:
                self._session.answers.unreadable(answer, error)
            return
        if answer is None:
            self._session.answers.part_downloaded(number, part - 1, body, frames)
        else:
            self._session.answers.downloaded(answer, body, frames)

    def broken(self, error: errors.AtomrError) -> None:
        """End the session: the gateway has sent an invalid message."""
        self._session.broken(error)
