"""Messages to a process that it has not taken yet."""

from __future__ import annotations

import socket
from collections import deque
from typing import Final, NamedTuple

from atomr_mp.protocol.messages import control
from atomr_mp.transport import descriptors
from atomr_mp.transport.descriptors import Descriptor


class Outbox:
    """The queue before a process's control channel, which holds few messages while the process is busy.

    Args:
        channel: Our end of the control channel; stays the caller's.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._unsent: deque[_Unsent] = deque()

    def __len__(self) -> int:
        return len(self._unsent)

    def put(self, message: control.FromSupervisor, descriptor: Descriptor | None) -> None:
        """Queue a message; the descriptor travels with it, and is owned from here on."""
        session = message.number if isinstance(message, _OF_A_SESSION) else 0
        opens = isinstance(message, control.SessionOpened)
        self._unsent.append(_Unsent(control.FROM_SUPERVISOR.encode(message), descriptor, session, opens))

    def send(self) -> bool:
        """Send waiting messages; return whether all were sent.

        Raises:
            OSError: The channel has ended; waiting messages are dropped.
        """
        while self._unsent:
            packet, descriptor, _, _ = self._unsent[0]
            try:
                descriptors.send(self._channel, packet, None if descriptor is None else descriptor.fileno())
            except BlockingIOError:
                return False
            except OSError:
                self.drop()
                raise
            self._unsent.popleft()
            if descriptor is not None:
                descriptor.close()
        return True

    def withdraw(self, session: int) -> bool:
        """Drop messages that wait here for an ended session; False if the process may have heard of it.

        Otherwise two messages for each session that comes and goes would wait for a process that does not read.
        """
        if not any(each.opens and each.session == session for each in self._unsent):
            return False
        kept = deque(each for each in self._unsent if each.session != session)
        for each in self._unsent:
            if each.session == session and each.descriptor is not None:
                each.descriptor.close()
        self._unsent = kept
        return True

    def drop(self) -> None:
        """Drop all waiting messages."""
        for each in self._unsent:
            if each.descriptor is not None:
                each.descriptor.close()
        self._unsent.clear()


class _Unsent(NamedTuple):
    """A message that the process has not taken."""

    packet: bytes
    descriptor: Descriptor | None
    session: int
    """The session that it is about; 0 for none."""
    opens: bool
    """Whether it introduces that session to the process."""


_OF_A_SESSION: Final = (
    control.SessionOpened,
    control.ClientSlab,
    control.ClientSlabForgotten,
    control.ForeignSlab,
    control.ExportSlab,
    control.ResultSlabOpened,
    control.SessionUnmapped,
    control.SessionAway,
)
