"""Answers to a remote session's calls: made of replies, kept until the client has them, sent with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from atomr_mp import checks, errors
from atomr_mp.client.reply import Reply
from atomr_mp.gateway import leases
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp.protocol.values import Buffer
from atomr_mp.remote.blobs import Encoded, EncodedBlob

ANSWERS_BYTES: Final = remote.MAX_REMOTE_MESSAGE_BYTES - 64 * 1024
"""Most bytes of the answers in one message; the rest is room for their headers."""

MESSAGE_ANSWERS: Final = 64

BLOB_BYTES: Final = 256
"""Bytes counted in a message for an answer that is pulled."""


class Kept(msgspec.Struct, eq=False):
    """An answer, until the client has it."""

    answer: remote.RemoteAnswer
    frames: Sequence[Buffer]
    nbytes: int
    blob: EncodedBlob | None = None
    """The blob that the client pulls, if the answer is large."""
    keep: object = None
    """The owner of the blob's memory."""

    @property
    def message_bytes(self) -> int:
        """Bytes of the answer in a message."""
        return BLOB_BYTES if self.blob is not None else self.nbytes


def keep_plain(reply: Reply) -> Kept | None:
    """Return the answer of a reply with a small result, the usual case; None for any other."""
    if reply.error is not None or reply.leases is not None or reply.frames or len(reply.body) > remote.MAX_CALL_BYTES:
        return None
    answer = remote.RemoteAnswer(reply.id, 0, reply.body, None, [], reply.device, reply.generation)
    return Kept(answer, (), len(reply.body))


def keep(number: int, error: ErrorInfo | None, reply: Reply | None, encoded: Encoded | None, parts: int = 0) -> Kept:
    """Return a call's answer.

    Args:
        number: The call's id.
        error: The error that it ends with, if any.
        reply: The pool's reply, if the call was made.
        encoded: The result, if it differs from the reply's.
        parts: How many parts a stream has had.
    """
    leased: list[remote.RefLeased] = []
    body: bytes = b""
    frames: Sequence[Buffer] = ()
    blob: EncodedBlob | None = None
    if error is None and reply is not None:
        if encoded is None:
            encoded = Encoded(reply.body, reply.frames, [], [])
        body, frames, blob = in_message(encoded)
        leased = leases.told(reply.leases or {})
    answer = remote.RemoteAnswer(
        number,
        len(frames),
        body,
        error,
        leased,
        -1 if reply is None else reply.device,
        0 if reply is None else reply.generation,
        0 if blob is None else blob.nbytes,
        parts,
    )
    nbytes = len(body) + sum(map(len, frames)) + 64 * len(leased) + (0 if blob is None else blob.nbytes)
    return Kept(answer, frames, nbytes, blob, encoded)


def in_message(encoded: Encoded) -> tuple[bytes, Sequence[Buffer], EncodedBlob | None]:
    """Return a value's body and frames if it travels in a message, or its blob."""
    if encoded.nbytes > remote.MAX_CALL_BYTES:
        return b"", (), encoded.blob()
    return encoded.body, [*encoded.frames, *(each.frame for each in encoded.large)], None


def has_values(body: bytes, frames: Sequence[memoryview]) -> bool:
    """Return whether a result that came with leases has arrays in shared memory, and not only refs."""
    found: list[WireRef | ClientArray] = []
    values.Decoder[object](writable=False).decode(body, frames, found.append)
    return any(isinstance(each, WireRef) and each.value for each in found)


def buffers(encoded: Encoded) -> set[int]:
    """Return the buffers of the refs in a value."""
    return {each.to_wire().buffer for each in encoded.refs}


def told_error(error: errors.AtomrError, *, operate: bool) -> ErrorInfo:
    """Return an error as a client is told of it: tracebacks are for keys that may operate."""
    info = ErrorInfo.of(error, 16384)
    if not operate:
        fields = {name: "" if name in _PRIVATE else fact for name, fact in info.fields.items()}
        info = msgspec.structs.replace(info, fields=fields)
    return info


@checks.owned(by_maker=True)
class AnswerQueue:
    """Answers that wait to be sent together.

    Args:
        send: Sends a message's answers and their frames.
    """

    def __init__(self, send: Callable[[list[remote.RemoteAnswer], list[Buffer]], object]) -> None:
        self._send = send
        self.waiting: list[Kept] = []
        """In the order in which they came; whoever appends one calls `flush` soon."""

    def clear(self) -> None:
        """Drop all answers: the connection has ended."""
        self.waiting.clear()

    def flush(self) -> None:
        """Send all answers; that may find that the connection has ended."""
        while self.waiting:
            if len(self.waiting) == 1:
                (kept,) = self.waiting
                self.waiting.clear()
                self._send([kept.answer], list(kept.frames))
                return
            together: list[Kept] = []
            nbytes = 0
            for kept in self.waiting[:MESSAGE_ANSWERS]:
                nbytes += kept.message_bytes
                if together and nbytes > ANSWERS_BYTES:
                    break
                together.append(kept)
            del self.waiting[: len(together)]
            self._send([kept.answer for kept in together], [frame for kept in together for frame in kept.frames])


_PRIVATE: Final = frozenset({"traceback_text", "stack"})
"""Facts of errors that show the server's internals."""
