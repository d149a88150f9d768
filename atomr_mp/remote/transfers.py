"""What of a remote session is too large for its messages: it is pulled and served on the bulk connection."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.messages import remote
from atomr_mp.remote.blobs import EncodedBlob, Frames, opened
from atomr_mp.remote.bulk import BlobKey, BulkChannel
from atomr_mp.remote.keys import ClientKeys


class TransferAnswers(Protocol):
    """Takes what has come by the bulk connection; with the session's lock held."""

    def downloaded(self, answer: remote.RemoteAnswer, body: bytes, frames: Frames) -> None:
        """An answer's blob is there."""

    def unreadable(self, answer: remote.RemoteAnswer, error: errors.AtomrError) -> None:
        """An answer's blob is there, and is none."""

    def part_downloaded(self, number: int, part: int, body: bytes, frames: Frames) -> None:
        """The blob of a stream's part is there."""

    def part_unreadable(self, number: int, part: int, error: errors.AtomrError) -> None:
        """The blob of a stream's part is there, and is none."""


class TransferSession(Protocol):
    """The session, as its transfers see it; to be asked with its lock held."""

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""

    def upload(self, number: int) -> EncodedBlob | None:
        """Return what a call's blob is, None if it is not wanted any more."""

    @property
    def answers(self) -> TransferAnswers:
        """Takes what has come."""

    def broken(self, error: errors.AtomrError) -> None:
        """The gateway has sent what is no message."""


class Transfers:
    """The bulk connection, made when something large has to travel, and the answers that come by it.

    To be used with the session's lock held, but for `close`.

    Args:
        endpoint: The session's, "tcp://HOST:PORT".
        keys: As for the session.
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
        """Where bulk connections go, as the gateway says."""
        self._answers: dict[int, remote.RemoteAnswer] = {}
        """Answers that are being pulled."""

    def open(self) -> BulkChannel:
        """Return the connection, which is made if there is none."""
        if self._channel is None:
            self._channel = BulkChannel(f"{self._host}:{self.port}", self._keys, self, self._lock)
        return self._channel

    def pull(self, answer: remote.RemoteAnswer) -> None:
        """Pull an answer."""
        self._answers[answer.id] = answer
        self.open().pull((answer.id, 0), answer.download)

    def drop(self, number: int) -> remote.RemoteAnswer | None:
        """Pull an answer no more that nobody wants; return it if it was being pulled."""
        dropped = self._answers.pop(number, None)
        if dropped is not None and self._channel is not None:
            self._channel.forget((number, 0))
        return dropped

    def pull_part(self, number: int, part: int, nbytes: int) -> None:
        """Pull a part of a stream."""
        self.open().pull((number, part + 1), nbytes)

    def drop_part(self, number: int, part: int) -> None:
        """Pull a part no more that nobody wants."""
        if self._channel is not None:
            self._channel.forget((number, part + 1))

    def resume(self, *, same_gateway: bool) -> None:
        """Take in that the session is resumed; answers of another gateway are not to be had."""
        if not same_gateway:
            self._answers.clear()
        if self._channel is not None:
            self._channel.resumed(same_gateway=same_gateway)

    def close(self) -> None:
        """Close it. Not with the lock held."""
        if self._channel is not None:
            self._channel.close()

    def forget_in_child(self) -> None:
        """Let go, in a forked child."""
        if self._channel is not None:
            self._channel.forget_in_child()

    # --- for the bulk connection -----------------------------------------------------------------------------------

    @property
    def resumed(self) -> tuple[bytes, bytes] | None:
        """The gateway's epoch and the session's id, None while the session is not resumed."""
        return self._session.resumed

    def upload(self, number: int) -> EncodedBlob | None:
        """Return what a call's blob is, None if it is not wanted any more."""
        return self._session.upload(number)

    def downloaded(self, key: BlobKey, content: memoryview) -> None:
        """Take an answer or a part whose blob is there."""
        number, part = key
        answer = None if part else self._answers.pop(number, None)
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
        """End the session: the gateway has sent what is no message."""
        self._session.broken(error)
