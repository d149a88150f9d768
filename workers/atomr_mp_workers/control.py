"""The control channel's end in the worker: messages over the socket pair that the supervisor made."""

from __future__ import annotations

import socket
from typing import Final

from atomr_mp.protocol import control
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES


class SupervisorGoneError(Exception):
    """The control channel has ended: so has the supervisor, or it does not want this process any more."""


class ControlChannel:
    """Sends and receives control messages. Sends block: the supervisor always reads.

    Args:
        descriptor: The inherited end of the socket pair; owned from here on.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._socket.setblocking(True)
        self.fileno: Final = self._socket.fileno

    def send(self, message: control.FromWorker) -> None:
        """Send a message; one that cannot be sent means that the supervisor is gone."""
        try:
            self._socket.send(control.FROM_WORKER.encode(message))
        except OSError as error:
            raise SupervisorGoneError from error

    def receive(self) -> control.FromSupervisor:
        """Return the next message; blocks."""
        return self._receive(0)

    def receive_waiting(self) -> control.FromSupervisor | None:
        """Return the next message if one has arrived."""
        try:
            return self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def _receive(self, flags: int) -> control.FromSupervisor:
        try:
            packet = self._socket.recv(MAX_SESSION_MESSAGE_BYTES, flags)
        except ConnectionError as error:
            raise SupervisorGoneError from error
        if not packet:
            raise SupervisorGoneError
        return control.FROM_SUPERVISOR.decode(packet)
