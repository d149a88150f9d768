"""A client's side of ZMTP 3.0, by which ZeroMQ's sockets talk: a DEALER that logs in by PLAIN. Pure: bytes in and out.

By ZeroMQ's RFCs 23 (ZMTP) and 24 (PLAIN). The other end is a ROUTER of libzmq. It answers the greeting at once, the
login when its process gets to that.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES


def frame(message: bytes) -> bytes:
    """Return a message of one frame as it travels."""
    return frame_head(len(message)) + message


def frame_head(nbytes: int) -> bytes:
    """Return what travels before a message of so many bytes."""
    return _HEADS[nbytes] if nbytes < len(_HEADS) else bytes((_LONG,)) + nbytes.to_bytes(8, "big")


class Stream:
    """What comes in on a connection, from its first byte on.

    Args:
        identity: The routing id that the ROUTER is to know this peer by, up to 255 bytes.
        username: For PLAIN, up to 255 bytes.
        password: Likewise.
    """

    def __init__(self, identity: bytes, username: bytes, password: bytes) -> None:
        self.opening: Final = _GREETING + _command(b"HELLO", _short(username) + _short(password))
        """To be sent first."""
        self.ready = False
        """Logged in: messages may be sent."""
        self.messages: deque[memoryview] = deque()
        """Those that have come, each in memory of its own."""
        self.room: memoryview | None = None
        """Where the rest of a message belongs whose beginning has come; then `filled` takes it, not `feed`."""
        self._initiate: Final = _command(
            b"INITIATE", _property(b"Socket-Type", b"DEALER") + _property(b"Identity", identity)
        )
        self._greeted = self._welcomed = False
        self._rest = b""
        """The beginning of the greeting, or of a frame, that says nothing yet."""
        self._whole: bytearray | None = None
        """The message that `room` is a part of."""
        self._flags = 0
        """Of its frame."""

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes in; return what is to be sent for them.

        Raises:
            ProtocolError: They are not ZMTP, or not what a worker says; the stream cannot be read on.
        """
        if self._rest:
            chunk, self._rest = self._rest + chunk, b""
        at, end, answer = 0, len(chunk), b""
        if not self._greeted:
            if end < len(_GREETING):
                self._rest = chunk
                return b""
            _check_greeting(chunk)
            self._greeted = True
            at = len(_GREETING)
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
                return answer
            answer += self._take(flags, chunk[start:at])
        self._rest = chunk[at:]
        return answer

    def filled(self, count: int) -> bytes:
        """Take what has been written at the beginning of `room`; return what is to be sent for it, see `feed`."""
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
            return b"" if self.ready else self._log_in(bytes(body))
        self.messages.append(memoryview(body))
        return b""

    def _log_in(self, command: bytes) -> bytes:
        """Go on with the login, of which the other end has done a step."""
        size = command[0] if command else 0
        name, content = command[1 : 1 + size], command[1 + size :]
        if name == b"WELCOME" and not self._welcomed:
            self._welcomed = True
            return self._initiate
        if name == b"READY" and self._welcomed:
            self.ready = True
            return b""
        if name == b"ERROR":
            raise errors.ProtocolError(f"the login was refused: {content[1:]!r}")
        raise errors.ProtocolError(f"a command out of turn: {name!r}")

    def _check_frame(self, flags: int, size: int) -> None:
        if flags & ~(_LONG | _COMMAND):
            raise errors.ProtocolError(f"a frame with flags {flags:#x}; messages have one frame here")
        if size > MAX_MESSAGE_BYTES:
            raise errors.ProtocolError(f"a frame of {size} bytes; the limit is {MAX_MESSAGE_BYTES}")
        if not self.ready and not flags & _COMMAND:
            raise errors.ProtocolError("a message before the login")


_MAJOR: Final = 3
_MECHANISM: Final = b"PLAIN".ljust(20, b"\0")
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + bytes((_MAJOR, 0)) + _MECHANISM + bytes(32)

_LONG: Final = 2
"""The frame's size has 8 bytes, not one."""
_COMMAND: Final = 4
_SHORT_HEAD: Final = 2
_LONG_HEAD: Final = 9
_HEADS: Final = tuple(bytes((0, nbytes)) for nbytes in range(256))


def _check_greeting(greeting: bytes) -> None:
    signed = greeting[0] == _GREETING[0] and greeting[9] == _GREETING[9]
    if not signed or greeting[10] < _MAJOR:
        raise errors.ProtocolError(f"a greeting that is not ZMTP 3's: {greeting[:12]!r}")
    if greeting[12:32] != _MECHANISM:
        raise errors.ProtocolError(f"a mechanism that is not PLAIN: {greeting[12:32]!r}")


def _command(name: bytes, content: bytes) -> bytes:
    body = _short(name) + content
    return bytes((_COMMAND, len(body))) + body


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _property(name: bytes, value: bytes) -> bytes:
    return _short(name) + len(value).to_bytes(4, "big") + value
