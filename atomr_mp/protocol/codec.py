"""Bytes to messages and back, bounded. Pure.

Every channel has one closed, tagged union of structs; whatever is not a member of it is a `ProtocolError`. Decoding
costs at most a small multiple of the input's size, because nothing is decoded untyped here (bodies of calls stay
bytes until their own decoder takes them, see `values`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.decoders import decoder

VERSION: Final = 2
"""Version of everything in this package. Peers of another version are refused in the hello."""

MAX_MESSAGE_BYTES: Final = 32 * 2**20
"""Largest message over ZeroMQ; both ends enforce it."""

MAX_SESSION_MESSAGE_BYTES: Final = 2**20
"""Largest message on a session or control channel."""

MAX_TEXT_CHARS: Final = 60000
"""Longest text that an error is sent with; `Text` admits a little more."""

U16 = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
U32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
MAX_U64: Final = 2**63 - 1
"""The largest integer that every language's signed 64-bit integer holds."""

U64 = Annotated[int, msgspec.Meta(ge=0, le=MAX_U64)]
"""Counters, ids and nanoseconds: 63 bits, so that every language's signed 64-bit integer holds them."""
Bytes16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=65536)]
MIN_WEIGHT: Final = 0.01
"""Least weight of a session."""
MAX_WEIGHT: Final = 100.0
"""Largest weight of a session that any pool admits."""
MOST_SESSIONS: Final = 65536
"""Most sessions at a time that a remote client may be allowed."""
LEAST_SESSION_BYTES: Final = 2**20
"""The least bytes of arguments and answers that a remote session can do with."""
MAX_DEVICES: Final = 64
"""Most devices of a pool."""
Weight = Annotated[float, msgspec.Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
"""A session's share of a busy device, beside others with work waiting; finite and not 0."""

Fact = str | int | float | bool

TRACEBACKS: Final = frozenset({"traceback_text", "stack"})
"""Facts of errors that show a program's inside: some remote clients and all readers of HTTP go without."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of every struct on a wire: a msgpack array; new fields come last, with a default."""


class ErrorInfo(Message, frozen=True):
    """An error's wire form, see `errors.to_wire`."""

    code: Name
    """See [Errors](protocol.md#errors)."""
    message: Text
    """What happened and what to do, for a person."""
    fields: Annotated[dict[Annotated[str, msgspec.Meta(max_length=64)], Fact], msgspec.Meta(max_length=32)]
    """The facts; any may be missing."""

    @classmethod
    def of(cls, error: errors.AtomrError, limit_chars: int = MAX_TEXT_CHARS) -> ErrorInfo:
        """Return the wire form of an error; texts longer than the limit lose their beginning.

        Raises:
            TypeError: It was made with a fact of a type that does not cross the wire, or its text is none.
        """
        code, message, fields = errors.to_wire(error)
        return cls(
            code, clip(message, limit_chars), {name: _sendable(fact, limit_chars) for name, fact in fields.items()}
        )

    def without_tracebacks(self) -> ErrorInfo:
        """Return it for somebody who is not shown tracebacks."""
        if TRACEBACKS.isdisjoint(self.fields):
            return self
        fields = {name: "" if name in TRACEBACKS else fact for name, fact in self.fields.items()}
        return msgspec.structs.replace(self, fields=fields)

    def error(self) -> errors.AtomrError:
        """Return a new error of the same class and with the same facts."""
        return errors.from_wire(self.code, self.message, self.fields)


T = TypeVar("T")


class Codec(Generic[T]):
    """Encoder and decoder of one union of messages.

    The decoder is made for the first message: a process imports the unions of many channels, and receives on few.
    """

    def __init__(self, union: Any, *, channel: str) -> None:
        self._union: Final = union
        self._decode: Callable[[bytes | memoryview], T] = self._decode_first
        self._channel = channel
        self.encode: Final[Callable[[T], bytes]] = msgspec.msgpack.Encoder().encode
        """Return the bytes of a message."""

    def decode(self, data: bytes | memoryview) -> T:
        """Return the message in `data`.

        Raises:
            ProtocolError: The bytes are no message of this channel.
        """
        try:
            return self._decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise errors.ProtocolError(f"not a message of the {self._channel} channel: {error}") from error

    def get_ready(self) -> None:
        """Make the decoder before the first message."""
        self._decode = decoder(self._union).decode

    def _decode_first(self, data: bytes | memoryview) -> T:
        self.get_ready()
        return self._decode(data)


def _sendable(fact: Fact, limit_chars: int) -> Fact:
    if isinstance(fact, str):
        return clip(fact, limit_chars)
    if isinstance(fact, bool):
        return fact
    if isinstance(fact, int):
        return int(min(max(fact, -(2**63)), 2**63 - 1))
    if isinstance(fact, float):
        return float(fact)
    raise TypeError(f"{fact!r:.100} is not a text, a number or a truth value")


def clip(text: str, limit_chars: int) -> str:
    """Shorten `text`, keeping its end: the end of a traceback is what one needs.

    Lone surrogates, as in the names of files that are not UTF-8, become question marks: an error is always sendable.
    """
    text = text if len(text) <= limit_chars else "[...] " + text[-limit_chars:]
    return text.encode("utf-8", "replace").decode()
