"""The worker's end of the control channel: messages over the socket pair that the supervisor made."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections import deque
from typing import Final, NoReturn, TypeVar

from atomr_mp.errors import ProtocolError
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES
from atomr_mp.protocol.messages import control


class SupervisorGoneError(Exception):
    """The control channel has ended: the supervisor has ended too, or dismisses this process."""


T = TypeVar("T")


class ControlChannel:
    """Sends and receives control messages. Sends block: the supervisor always reads.

    Args:
        descriptor: The inherited end of the socket pair; owned from here on.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._socket.setblocking(True)
        self._came: int | None = None
        """The descriptor that came with the last message, until it is taken."""
        self._aside: deque[tuple[control.FromSupervisor, int | None]] = deque()
        """Messages that came before an awaited answer, each with its descriptor."""
        self.fileno: Final = self._socket.fileno

    def send(self, message: control.FromWorker, descriptor: int | None = None) -> None:
        """Send a message; a failure means that the supervisor is gone.

        Args:
            message: The message.
            descriptor: Travels with it; stays the caller's.
        """
        packet = control.FROM_WORKER.encode(message)
        try:
            if descriptor is None or not self._send_with(packet, descriptor):
                self._socket.send(packet)
        except OSError as error:
            raise SupervisorGoneError from error

    def answer(self, kind: type[T]) -> T:
        """Return the next message of a kind; blocks.

        Earlier messages are kept for `receive` and `receive_waiting`; the descriptor does not signal them.
        """
        while True:
            message = self._receive(0)
            if isinstance(message, kind):
                return message
            self._aside.append((message, self.take_descriptor()))

    def receive(self) -> control.FromSupervisor:
        """Return the next message; blocks."""
        return self._first_aside() or self._receive(0)

    def receive_waiting(self) -> control.FromSupervisor | None:
        """Return the next message if one has arrived."""
        try:
            return self._first_aside() or self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def take_descriptor(self) -> int | None:
        """Return the descriptor that came with the message received last, once; the caller's from then on.

        None if none came, either because the message has none, or because a side had no room for it. A descriptor that
        is not taken before the next message is closed.
        """
        descriptor, self._came = self._came, None
        return descriptor

    def await_end(self) -> NoReturn:
        """Do nothing until the supervisor ends this process, or has itself ended.

        Raises:
            SupervisorGoneError: The supervisor has ended.
        """
        while True:
            with contextlib.suppress(ProtocolError):
                self.receive()

    def close(self) -> None:
        """Close; may be called twice."""
        while self._first_aside() is not None:
            pass
        self._drop_descriptor()
        self._socket.close()

    def _first_aside(self) -> control.FromSupervisor | None:
        self._drop_descriptor()
        if not self._aside:
            return None
        message, self._came = self._aside.popleft()
        return message

    def _receive(self, flags: int) -> control.FromSupervisor:
        self._drop_descriptor()
        try:
            # In this much room the kernel puts one descriptor, and closes any others.
            packet, ancillary, _, _ = self._socket.recvmsg(
                MAX_SESSION_MESSAGE_BYTES, _ROOM_FOR_ONE, flags | socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError as error:
            raise SupervisorGoneError from error
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(content) >= _NUMBER.size:
                (self._came,) = _NUMBER.unpack_from(content)
        if not packet:
            raise SupervisorGoneError
        return control.FROM_SUPERVISOR.decode(packet)

    def _send_with(self, packet: bytes, descriptor: int) -> bool:
        """Send a packet with a descriptor; False if too many of this user's descriptors are in flight."""
        try:
            socket.send_fds(self._socket, [packet], [descriptor])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            return False
        return True

    def _drop_descriptor(self) -> None:
        descriptor = self.take_descriptor()
        if descriptor is not None:
            os.close(descriptor)


_NUMBER: Final = struct.Struct("i")
_ROOM_FOR_ONE: Final = socket.CMSG_LEN(_NUMBER.size)
