"""ZMTP, by which ZeroMQ's sockets talk, with a login by PLAIN: what a DEALER says, and what a ROUTER. Pure.

By ZeroMQ's RFCs 23 (ZMTP 3.0), 24 (PLAIN) and 37 (ZMTP 3.1). A greeting says 3.0, which every library speaks; of 3.1,
PING is answered, also from libraries that send it whatever a greeting says, and other commands are passed over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES
from atomr_mp.protocol.values import INLINE_BYTES, Buffer

MAX_COMMAND_BYTES: Final = 4096
"""Largest frame that is no message: more is never needed, and anybody may send it."""


MAX_CONTEXT_BYTES: Final = 16
"""Most bytes of a PING's context, by RFC 37."""


def frame(message: bytes) -> bytes:
    """Return a message of one frame as it travels."""
    return frame_head(len(message)) + message


def frame_of(parts: Sequence[Buffer]) -> bytes:
    """Return a message of one frame, which is given in parts, as it travels; they are copied."""
    return b"".join((frame_head(sum(map(len, parts))), *parts))


def frame_head(nbytes: int) -> bytes:
    """Return the frame head of a message of so many bytes."""
    return _HEADS[nbytes] if nbytes < len(_HEADS) else bytes((_LONG,)) + nbytes.to_bytes(8, "big")


class ZmtpStream(ABC):
    """The incoming side of a connection, from its first byte on.

    Args:
        opening: The first bytes to send.
    """

    def __init__(self, opening: bytes) -> None:
        self.opening: Final = opening
        """To be sent first."""
        self.ready = False
        """Logged in: messages may be sent."""
        self.messages: deque[memoryview] = deque()
        """Received messages, each in memory of its own."""
        self.room: memoryview | None = None
        """Where the rest of a message belongs whose beginning has come; then `filled` takes it, not `feed`."""
        self._greeted = False
        self._rest = b""
        """The beginning of the greeting, or of a frame, that says nothing yet."""
        self._whole: bytearray | None = None
        """The message that `room` is a part of."""
        self._flags = 0
        """Flags of its frame."""

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes in; return the bytes to answer.

        Raises:
            ProtocolError: They are not ZMTP, or not what this end may be told; the stream cannot be read on.
        """
        if self._rest:
            chunk, self._rest = self._rest + chunk, b""
        at, end = 0, len(chunk)
        answers: list[bytes] = []
        if not self._greeted:
            if end < _GREETING_BYTES:
                self._rest = chunk
                return b""
            _check_greeting(chunk)
            self._greeted = True
            at = _GREETING_BYTES
        while end - at >= _SHORT_HEAD:
            flags, size, start = chunk[at], chunk[at + 1], at + _SHORT_HEAD
            if flags & _LONG:
                start = at + _LONG_HEAD
                if start > end:
                    break
                size = int.from_bytes(chunk[at + 1 : start], "big")
            self._check_frame(flags, size)
            at = start + size
            if at > end:
                self._begin(flags, size, chunk[start:])
                return b"".join(answers)
            # A large one may have arrays in it, which are their receiver's to write to.
            body = bytearray(memoryview(chunk)[start:at]) if size > INLINE_BYTES else chunk[start:at]
            if answer := self._take(flags, body):
                answers.append(answer)
        self._rest = chunk[at:]
        return b"".join(answers)

    def filled(self, count: int) -> bytes:
        """Take the bytes at the beginning of `room`; return the bytes to answer, see `feed`."""
        assert self.room is not None
        self.room = self.room[count:]
        if self.room:
            return b""
        whole, self._whole, self.room = self._whole, None, None
        assert whole is not None
        return self._take(self._flags, whole)

    def _begin(self, flags: int, size: int, begun: bytes) -> None:
        whole = self._whole = bytearray(size)
        whole[: len(begun)] = begun
        self.room = memoryview(whole)[len(begun) :]
        self._flags = flags

    def _take(self, flags: int, body: bytes | bytearray) -> bytes:
        if flags & _COMMAND:
            return _answer(bytes(body)) if self.ready else self._log_in(bytes(body))
        self.messages.append(memoryview(body))
        return b""

    @abstractmethod
    def _log_in(self, command: bytes) -> bytes:
        """Go on with the login after a step of the other end; return the bytes to answer."""

    def _check_frame(self, flags: int, size: int) -> None:
        if flags & ~(_LONG | _COMMAND):
            raise errors.ProtocolError(f"a frame with flags {flags:#x}; messages have one frame here")
        most = MAX_COMMAND_BYTES if flags & _COMMAND else MAX_MESSAGE_BYTES
        if size > most:
            raise errors.ProtocolError(f"a frame of {size} bytes; the limit is {most}")
        if not self.ready and not flags & _COMMAND:
            raise errors.ProtocolError("a message before the login")


class Dealer(ZmtpStream):
    """The end that logs in.

    Args:
        identity: The routing id that the ROUTER is to know this peer by, up to 255 bytes.
        username: For PLAIN, up to 255 bytes.
        password: For PLAIN, up to 255 bytes.
    """

    def __init__(self, identity: bytes, username: bytes, password: bytes) -> None:
        super().__init__(_greeting(as_server=False) + _command(b"HELLO", _short(username) + _short(password)))
        self._initiate: Final = _command(
            b"INITIATE", _property(b"Socket-Type", b"DEALER") + _property(b"Identity", identity)
        )
        self._welcomed = False

    def _log_in(self, command: bytes) -> bytes:
        name, content = _take_short(command)
        if name == b"WELCOME" and not self._welcomed:
            self._welcomed = True
            return self._initiate
        if name == b"READY" and self._welcomed:
            self.ready = True
            return b""
        if name == b"ERROR":
            raise errors.ProtocolError(f"the login was refused: {content[1:]!r}")
        raise errors.ProtocolError(f"a command out of turn: {name!r}")


class Router(ZmtpStream):
    """The end that is logged in to.

    Args:
        admits: Whether a username and a password are right.
        takes: Whether who has logged in by this username may have this routing id.
    """

    def __init__(self, admits: Callable[[bytes, bytes], bool], takes: Callable[[bytes, bytes], bool]) -> None:
        super().__init__(_greeting(as_server=True))
        self.identity = b""
        """The peer's routing id, once it is `ready`."""
        self.refused = False
        """The login has failed; the bytes to answer say why."""
        self._admits = admits
        self._takes = takes
        self._username: bytes | None = None

    def _log_in(self, command: bytes) -> bytes:
        name, content = _take_short(command)
        if self.refused:
            return b""
        if name == b"HELLO" and self._username is None:
            username, content = _take_short(content)
            password, content = _take_short(content)
            if content:
                raise errors.ProtocolError("more than a username and a password")
            if not self._admits(username, password):
                return self._refuse()
            self._username = username
            return _command(b"WELCOME", b"")
        if name == b"INITIATE" and self._username is not None:
            identity = _properties(content).get(b"identity", b"")
            if not self._takes(self._username, identity):
                return self._refuse()
            self.identity, self.ready = identity, True
            return _command(b"READY", _property(b"Socket-Type", b"ROUTER"))
        raise errors.ProtocolError(f"a command out of turn: {name!r}")

    def _refuse(self) -> bytes:
        self.refused = True
        return _command(b"ERROR", _short(b"400"))


_TTL_BYTES: Final = 2
"""How long the sender of a PING waits. It ends the connection by itself; this end learns of a peer's end otherwise."""

_MAJOR: Final = 3
_MECHANISM: Final = b"PLAIN".ljust(20, b"\0")
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_GREETING_BYTES: Final = 64

_LONG: Final = 2
"""The frame's size has 8 bytes, not one."""
_COMMAND: Final = 4
_SHORT_HEAD: Final = 2
_LONG_HEAD: Final = 9
_HEADS: Final = tuple(bytes((0, nbytes)) for nbytes in range(256))


def _greeting(*, as_server: bool) -> bytes:
    return _SIGNATURE + bytes((_MAJOR, 0)) + _MECHANISM + bytes((as_server,)) + bytes(31)


def _check_greeting(greeting: bytes) -> None:
    signed = greeting[0] == _SIGNATURE[0] and greeting[9] == _SIGNATURE[9]
    if not signed or greeting[10] < _MAJOR:
        raise errors.ProtocolError(f"a greeting that is not ZMTP 3's: {greeting[:12]!r}")
    if greeting[12:32] != _MECHANISM:
        raise errors.ProtocolError(f"a mechanism that is not PLAIN: {greeting[12:32]!r}")


def _command(name: bytes, content: bytes) -> bytes:
    body = _short(name) + content
    return bytes((_COMMAND, len(body))) + body


def _answer(command: bytes) -> bytes:
    """Return the answer to a command after the login: a PING with a PONG of the same context.

    Raises:
        ProtocolError: The PING is none that RFC 37 has.
    """
    name, content = _take_short(command)
    if name != b"PING":
        return b""
    context = content[_TTL_BYTES:]
    if len(content) < _TTL_BYTES or len(context) > MAX_CONTEXT_BYTES:
        raise errors.ProtocolError(f"a PING with {len(content)} bytes; it has a TTL of 2 and a context of at most 16")
    return _command(b"PONG", context)


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _property(name: bytes, value: bytes) -> bytes:
    return _short(name) + len(value).to_bytes(4, "big") + value


def _take_short(content: bytes) -> tuple[bytes, bytes]:
    """Return a text that its length precedes in one byte, and what follows."""
    end = 1 + content[0] if content else 1
    if end > len(content):
        raise errors.ProtocolError("a command that ends too early")
    return content[1:end], content[end:]


def _properties(content: bytes) -> dict[bytes, bytes]:
    """Return metadata; the names, which know no case, in small letters."""
    found = {}
    while content:
        name, content = _take_short(content)
        end = 4 + int.from_bytes(content[:4], "big")
        if end > len(content):
            raise errors.ProtocolError("a property that ends too early")
        found[name.lower()], content = content[4:end], content[end:]
    return found
