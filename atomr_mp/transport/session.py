"""The session channel's two ends: a client's connection, and the supervisor's listener with its peers.

Nothing here decides anything. The client's end blocks where it says so; the supervisor's end never does: what a
client does not read is queued up to a bound, then the session is over.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol import session

QUEUE_BYTES: Final = 2**20
"""What may wait for a client that does not read."""

READ_BYTES: Final = 65536


class SessionConnection:
    """A client's end.

    Args:
        connected: A connected stream socket; owned from here on.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._framing = session.Framing()
        self._ready: deque[session.FromSupervisor] = deque()
        self.fileno: Final = connected.fileno

    @classmethod
    def connect(cls, path: Path) -> SessionConnection:
        """Connect to a supervisor's socket.

        Raises:
            PoolUnreachable: Nobody listens there.
        """
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.connect(str(path))
        except OSError as error:
            connecting.close()
            raise errors.PoolUnreachable(f"no pool answers at {path} ({error.strerror})") from error
        return cls(connecting)

    def send(self, message: session.FromClient) -> None:
        """Send a message; blocks only while the supervisor does not read.

        Raises:
            PoolLost: The supervisor is gone.
        """
        try:
            self._socket.sendall(session.frame(session.FROM_CLIENT.encode(message)))
        except OSError as error:
            raise errors.PoolLost(f"the pool's supervisor is gone ({error.strerror})") from error

    def receive(self, timeout_s: float | None) -> session.FromSupervisor:
        """Return the next message, waiting for it.

        Raises:
            PoolLost: The supervisor is gone.
            TimeoutError: Nothing came in time.
            ProtocolError: What came is no message.
        """
        self._socket.settimeout(timeout_s)
        try:
            while not self._ready:
                self._read(0)
        finally:
            self._socket.settimeout(None)
        return self._ready.popleft()

    def receive_waiting(self) -> list[session.FromSupervisor]:
        """Return all messages that have arrived, without waiting.

        Raises:
            PoolLost: The supervisor is gone, and all it said has been returned before.
            ProtocolError: What came is no message.
        """
        if not self._ready:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
        messages = list(self._ready)
        self._ready.clear()
        return messages

    def close(self) -> None:
        """Close; may be called twice."""
        self._socket.close()

    def _read(self, flags: int) -> None:
        try:
            received = self._socket.recv(READ_BYTES, flags)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise errors.PoolLost(f"the pool's supervisor is gone ({error.strerror})") from error
        if not received:
            raise errors.PoolLost("the pool's supervisor has ended this session, or is gone")
        for message in self._framing.feed(received):
            self._ready.append(session.FROM_SUPERVISOR.decode(message))


class Credentials(NamedTuple):
    """Who connected, as the kernel says (SO_PEERCRED)."""

    pid: int
    """0 if the peer is in another pid namespace."""
    uid: int


class SessionPeer:
    """The supervisor's end of one session. Never blocks.

    Args:
        connected: A connected stream socket; owned from here on.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._framing = session.Framing()
        self._unsent = bytearray()
        raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, _ = _UCRED.unpack(raw)
        self.credentials: Final = Credentials(pid, uid)
        self.fileno: Final = connected.fileno

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits until the client reads."""
        return bool(self._unsent)

    def send(self, message: session.FromSupervisor) -> bool:
        """Send a message, or queue it; False if the client reads too slowly or has gone: the session is over."""
        self._unsent += session.frame(session.FROM_SUPERVISOR.encode(message))
        return self.flush() and len(self._unsent) <= QUEUE_BYTES

    def flush(self) -> bool:
        """Send what is queued, as far as the client reads; False if it has gone."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return True
            except OSError:
                return False
            del self._unsent[:sent]
        return True

    def receive(self) -> list[session.FromClient] | None:
        """Return the messages that have arrived; None if the client has gone.

        Raises:
            ProtocolError: What came is no message; the session cannot go on.
        """
        try:
            received = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not received:
            return None
        return [session.from_client(message) for message in self._framing.feed(received)]

    def close(self) -> None:
        """Close; may be called twice."""
        self._socket.close()


class SessionListener:
    """The supervisor's socket in the run directory.

    Args:
        path: Where to listen; nothing may be there.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(128)
        self._socket.setblocking(False)
        self.fileno: Final = self._socket.fileno

    def accept(self) -> SessionPeer | None:
        """Return the next client that has connected, None if there is none.

        Raises:
            OSError: No descriptor is left, for one.
        """
        try:
            connected, _ = self._socket.accept()
        except BlockingIOError:
            return None
        return SessionPeer(connected)

    def close(self) -> None:
        """Close; the path is the run directory's to remove."""
        self._socket.close()


def refusal(credentials: Credentials) -> errors.NotAuthorized | None:
    """Return why a peer may not have a session, or None if it may."""
    if credentials.pid == 0:
        return errors.NotAuthorized("the client is in another pid namespace; run it beside the pool")
    if credentials.uid != os.geteuid():
        return errors.NotAuthorized(
            f"the client runs as uid {credentials.uid}, the pool as uid {os.geteuid()}; use the same user"
        )
    return None


_UCRED: Final = struct.Struct("3i")
