"""File descriptors beside bytes on unix sockets (SCM_RIGHTS): received, kept for their message, shared, sent.

A message carries at most one. What comes beyond that is closed by the kernel or here, at once.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, Self, TypeVar

from atomr_mp.protocol.messages import session

_LOG: Final = logging.getLogger("atomr_mp.transport")

READ_BYTES: Final = 65536

T = TypeVar("T")


class Descriptor:
    """One of the owners of a file descriptor, which is closed when the last of them is.

    Args:
        number: The descriptor; owned from here on.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._owners = [1]
        """Shared by all owners: how many there are."""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor, valid until `close`."""
        assert not self._closed
        return self._number

    def share(self) -> Descriptor:
        """Return a further owner, to be closed by whoever gets it."""
        assert not self._closed
        other = Descriptor(self._number)
        other._owners = self._owners
        self._owners[0] += 1
        return other

    def detach(self) -> int:
        """Return the descriptor, which is the caller's to close from then on. For a sole owner."""
        assert not self._closed
        assert self._owners == [1]
        self._closed = True
        return self._number

    def close(self) -> None:
        """Close them; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._owners[0] -= 1
        if not self._owners[0]:
            os.close(self._number)


def receive(receiving: socket.socket, limit_bytes: int, flags: int = 0) -> tuple[bytes, Descriptor | None]:
    """Return bytes and the descriptor beside them.

    Raises:
        OSError: As `socket.recv` does.
    """
    # Into this much room the kernel puts one descriptor and closes the others (MSG_CTRUNC), so no peer can fill our
    # table. The same flag without any descriptor says that the table is full.
    data, ancillary, _, _ = receiving.recvmsg(limit_bytes, _ROOM_FOR_ONE, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(content) >= _NUMBER.size:
            return data, Descriptor(*_NUMBER.unpack_from(content))
    return data, None


def send(sending: socket.socket, data: bytes | memoryview, descriptor: int | None) -> int:
    """Send bytes and a descriptor beside them, which stays the caller's; return how many were sent.

    If any were, the descriptor was, unless the kernel has too many of this user's under way: then the bytes go
    without, and whoever gets them refuses the one message. Waiting could last for ever, for the receivers may be
    anybody's.

    Raises:
        OSError: As `socket.send` does.
    """
    if descriptor is not None:
        try:
            return socket.send_fds(sending, [data], [descriptor])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            _LOG.warning("a message goes without its file descriptor: %s", error.strerror)
    return sending.send(data)


class Incoming(Generic[T]):
    """Cuts what arrives on a stream socket into messages, and finds each its descriptor.

    A message with a descriptor is sent by a `sendmsg` of its own. The kernel ends the read that hands a descriptor over
    with bytes of that same `sendmsg`: so the descriptor belongs to the last message that begins in what was read, and
    none is ever taken for that of a message that came without.

    Args:
        receiving: The socket; stays the caller's.
        decode: Bytes to message.
        carrier: What names a message that carries a descriptor; None for others.
    """

    def __init__(
        self, receiving: socket.socket, decode: Callable[[bytes], T], carrier: Callable[[T], Hashable | None]
    ) -> None:
        self._socket = receiving
        self._decode = decode
        self._carrier = carrier
        self._framing = session.Framing()
        self._incomplete_bytes = 0
        self._held: Descriptor | None = None
        """That of the message which is still incomplete."""
        self._carried: dict[Hashable, Descriptor] = {}
        """By what names messages that were returned."""

    def read(self, flags: int = 0) -> list[T] | None:
        """Return the messages that one read completes; None at the end of the stream.

        Raises:
            ProtocolError: The bytes are no message; the stream cannot be used any further.
            OSError: As `socket.recv` does.
        """
        data, descriptor = receive(self._socket, READ_BYTES, flags)
        begun_before = self._incomplete_bytes > 0
        try:
            messages = [self._decode(framed) for framed in self._cut(data)]
        except BaseException:
            if descriptor is not None:
                descriptor.close()
            raise
        held, self._held = self._held, None
        if held is not None:
            self._give(held, messages, 0)
        if descriptor is not None:
            last = len(messages) - (0 if self._incomplete_bytes else 1)
            first = 1 if begun_before else 0
            self._give(descriptor, messages, last if last >= first else -1)
        return messages if data else None

    def take(self, carrier: Hashable) -> Descriptor | None:
        """Return the descriptor that came with a message, once; it is the caller's from then on."""
        return self._carried.pop(carrier, None)

    def close(self) -> None:
        """Close the descriptors that were not taken; may be called twice."""
        for descriptor in self._carried.values():
            descriptor.close()
        self._carried.clear()
        if self._held is not None:
            self._held.close()
            self._held = None

    def _cut(self, data: bytes) -> Iterator[bytes]:
        self._incomplete_bytes += len(data)
        for framed in self._framing.feed(data):
            self._incomplete_bytes -= _LENGTH_BYTES + len(framed)
            yield framed

    def _give(self, descriptor: Descriptor, messages: list[T], place: int) -> None:
        """Give a descriptor to a message, or keep it for the incomplete one behind them; close it if it is surplus."""
        if place == len(messages):
            self._held = descriptor
            return
        carrier = self._carrier(messages[place]) if place >= 0 else None
        surplus = descriptor if carrier is None else self._carried.pop(carrier, None)
        if surplus is not None:
            surplus.close()
        if carrier is not None:
            self._carried[carrier] = descriptor


_LENGTH_BYTES: Final = len(session.frame(b""))
_NUMBER: Final = struct.Struct("i")
_ROOM_FOR_ONE: Final = socket.CMSG_LEN(_NUMBER.size)
