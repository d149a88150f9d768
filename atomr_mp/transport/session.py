"""The session channel's two ends: a client's connection, and the supervisor's listener with its peers.

Nothing here decides anything. The client's end blocks where it says so; the supervisor's end never does: what a
client does not read is queued up to a bound, then the session is over. File descriptors travel beside the first byte of
their message; those that come with messages that carry none are closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Hashable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from atomr_mp import errors
from atomr_mp.process.files import beacon
from atomr_mp.process.files.safedir import inode
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import operators, session
from atomr_mp.protocol.own_time import Patience
from atomr_mp.protocol.tunnel.clock import PoolClock
from atomr_mp.transport import descriptors
from atomr_mp.transport.descriptors import Descriptor, Incoming

QUEUE_BYTES: Final = 2**20
"""Most bytes that may wait for a client that does not read."""

ANEW_S: Final = 3.0
"""How long a living supervisor may take to make a socket anew that was removed: it looks once a second."""

QUEUE_S: Final = 30.0
"""How long to wait for a place in the queue of a supervisor that takes no connections."""

DESCRIPTOR_BYTES: Final = 2**16
"""Bytes that a descriptor counts for while it waits for such a client, since a process has few descriptors."""


class SessionEnd(Protocol):
    """A client's end of a session: on this machine, or carried from another."""

    @property
    def clock(self) -> PoolClock:
        """What is known of the pool's CLOCK_MONOTONIC."""

    @property
    def supervisor_pid(self) -> int:
        """The process at the other end, 0 if it is not known."""

    def fileno(self) -> int:
        """Return the descriptor that says when to call `receive_waiting`."""

    def send(self, message: session.FromClient, descriptor: int | None = None) -> None:
        """Send a message; see `SessionConnection.send`."""

    def goodbye(self) -> ErrorInfo | None:
        """Return why the supervisor has ended this session, if it said so."""

    def receive(self, timeout_s: float | None) -> session.FromSupervisor:
        """Return the next message, waiting for it; see `SessionConnection.receive`."""

    def receive_waiting(self) -> list[session.FromSupervisor]:
        """Return all messages that have arrived; see `SessionConnection.receive_waiting`."""

    def take_descriptor(self, request_id: int, /) -> int | None:
        """Return the descriptor that came with the `SlabOpened` of this id, once."""

    def take_offered(self, offered: session.SlabOffered, /) -> int | None:
        """Return the descriptor that came with an offer, once."""

    def hang_up(self) -> None:
        """End it for all processes that have a copy of it. Does not wait."""

    def close(self) -> None:
        """Close; may be called twice."""


def receive_within(connection: SessionEnd, patience: Patience) -> session.FromSupervisor:
    """Return the next message, waiting for it for as long as this patience lasts.

    Raises:
        PoolLost: The session has ended.
        TimeoutError: Nothing came in time.
        ProtocolError: The bytes are no message.
    """
    while True:
        try:
            return connection.receive(max(0.001, patience.wait_s))
        except TimeoutError:
            if not patience.left_s:
                raise


class SessionConnection:
    """A client's end, on the pool's machine.

    Args:
        connected: A connected stream socket; owned from here on.
        supervisor_pid: The process at the other end, 0 if it is not known.
    """

    def __init__(self, connected: socket.socket, supervisor_pid: int = 0) -> None:
        connected.setblocking(True)
        self._socket = connected
        self.supervisor_pid: Final = supervisor_pid
        self._incoming: Incoming[session.FromSupervisor] = Incoming(
            connected, session.FROM_SUPERVISOR.decode, carrier_to_client
        )
        self._ready: deque[session.FromSupervisor] = deque()
        self.fileno: Final = connected.fileno
        self.clock: Final = PoolClock()
        """The pool's clock, which is this process's."""

    @classmethod
    def connect(cls, path: Path, *, patient: bool = True, queue_s: float = QUEUE_S) -> SessionConnection:
        """Connect to a supervisor's socket.

        Args:
            path: The socket.
            patient: Wait, blocking, for a socket that was removed, and which a living supervisor makes anew.
            queue_s: How long to wait for a supervisor that takes no connections, once its queue of them is full.

        Raises:
            PoolUnreachable: Nobody listens there.
            NotAuthorized: A process of another user does.
        """
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bound(connecting, queue_s)
            _connect(connecting, path, ANEW_S if patient else 0.0)
            _bound(connecting, 0.0)
            listener = credentials(connecting)
        except BlockingIOError as error:
            connecting.close()
            raise errors.PoolUnreachable(
                f"the supervisor at {path} has taken no connection for {queue_s:.3g} s, and many wait for it: it is "
                "stopped, busy or stuck; see `atomr-mp doctor`"
            ) from error
        except OSError as error:
            connecting.close()
            raise errors.PoolUnreachable(f"no pool answers at {path} ({error.strerror})") from error
        if listener.uid != os.geteuid():
            connecting.close()
            raise errors.NotAuthorized(
                f"a process of uid {listener.uid} listens at {path}, and we are uid {os.geteuid()}: it is not our "
                "pool; connect as the user who started the pool, and see who may write the directories above"
            )
        return cls(connecting, listener.pid)

    def send(self, message: session.FromClient, descriptor: int | None = None) -> None:
        """Send a message; blocks only while the supervisor does not read. One thread at a time.

        Args:
            message: The message.
            descriptor: Travels with it, if it is one that carries any (`RegisterSlab`); stays the caller's.

        Raises:
            PoolLost: The supervisor is gone, or has ended this session; the message was not taken.
        """
        data = session.frame(session.FROM_CLIENT.encode(message))
        try:
            sent = 0 if descriptor is None else descriptors.send(self._socket, data, descriptor)
            self._socket.sendall(data[sent:])
        except OSError as error:
            why = f"the connection to the pool's supervisor has ended ({error.strerror})"
            raise errors.PoolLost(why, maybe_executed=False) from error

    def goodbye(self) -> ErrorInfo | None:
        """Return why the supervisor has ended this session, if it said so. What it said stays to be received.

        A message that cannot be sent does not tell why; the supervisor's last words, still unread, do.
        """
        with contextlib.suppress(OSError, errors.AtomrError):
            while True:
                self._read(socket.MSG_DONTWAIT)
        return next((message.error for message in self._ready if isinstance(message, session.Goodbye)), None)

    def receive(self, timeout_s: float | None) -> session.FromSupervisor:
        """Return the next message, waiting for it.

        Raises:
            PoolLost: The supervisor is gone.
            TimeoutError: Nothing came in time.
            ProtocolError: The bytes are no message.
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
            ProtocolError: The bytes are no message.
        """
        if not self._ready:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
        messages = list(self._ready)
        self._ready.clear()
        return messages

    def take_descriptor(self, request_id: int) -> int | None:
        """Return the descriptor that came with the `SlabOpened` of this id, once; the caller's from then on.

        None if none came: it has a handle instead, or no descriptor could be had, on either side. What is not taken
        is closed with the connection.
        """
        return self._take(request_id)

    def take_offered(self, offered: session.SlabOffered | session.SlabKept) -> int | None:
        """Return the descriptor that came with an offer, once; the caller's from then on. None if none came."""
        return self._take(offered)

    def take_ring(self, ring: operators.TraceRing) -> int | None:
        """Return the descriptor that came with a `TraceRing`, once; the caller's from then on. None if none came."""
        return self._take(ring)

    def _take(self, carrier: Hashable) -> int | None:
        descriptor = self._incoming.take(carrier)
        return None if descriptor is None else descriptor.detach()

    def close(self) -> None:
        """Close; may be called twice."""
        self._socket.close()
        self._incoming.close()

    def hang_up(self) -> None:
        """End it for all processes that have a copy of its descriptor by a fork, too. Does not wait."""
        with contextlib.suppress(OSError):  # the supervisor has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def _read(self, flags: int) -> None:
        try:
            messages = self._incoming.read(flags)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise errors.PoolLost(f"the connection to the pool's supervisor has ended ({error.strerror})") from error
        if messages is None:
            raise errors.PoolLost(
                "the connection to the pool's supervisor has ended without a word: it was killed, or its log says why "
                "it has ended this session; connect again, once the pool runs (`atomr-mp status`)"
            )
        self._ready += messages


def _bound(connecting: socket.socket, seconds: float) -> None:
    """Bound the time that a blocking connect, or a send, may take; 0 for no bound."""
    whole, part = divmod(round(seconds * 1e6), 1_000_000)
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, part))


def _connect(connecting: socket.socket, path: Path, anew_s: float) -> None:
    """Connect, and wait so long for a supervisor that lives, and whose socket was removed, to make it anew."""
    until = time.monotonic() + anew_s
    while True:
        try:
            connecting.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() >= until or beacon.holder(path.parent) in {0, os.getpid()}:
                raise
            time.sleep(ANEW_S / 50)
        else:
            return


class Credentials(NamedTuple):
    """The process at the other end, by the kernel (SO_PEERCRED)."""

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
        self._incoming: Incoming[session.FromClient] = Incoming(connected, session.from_client, _carrier_to_supervisor)
        self._unsent: deque[tuple[memoryview, Descriptor | None]] = deque()
        self._unsent_bytes = 0
        self.credentials: Final = credentials(connected)
        self.fileno: Final = connected.fileno
        self.gone = False
        """Whether nothing more is sent: the client has gone, or `say_no_more` was called."""

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits until the client reads."""
        return bool(self._unsent)

    def send(self, message: session.FromSupervisor, descriptor: Descriptor | None = None) -> bool:
        """Send a message, or queue it; False if the client reads too slowly: the session is over.

        Nothing is sent to a client that has gone. `receive` tells of that, behind the last that it has said.

        Args:
            message: The message.
            descriptor: Travels with it; owned from here on.
        """
        data = memoryview(session.frame(session.FROM_SUPERVISOR.encode(message)))
        self._unsent.append((data, descriptor))
        self._unsent_bytes += len(data) + (0 if descriptor is None else DESCRIPTOR_BYTES)
        self.flush()
        return self._unsent_bytes <= QUEUE_BYTES

    def flush(self) -> None:
        """Send queued messages, as far as the client reads."""
        if self.gone:
            self._drop_unsent()
        while self._unsent:
            data, descriptor = self._unsent[0]
            try:
                sent = descriptors.send(self._socket, data, None if descriptor is None else descriptor.fileno())
            except BlockingIOError:
                return
            except OSError:
                self._stop(socket.SHUT_RDWR)  # what it has said before can be read, and then its end
                return
            self._unsent_bytes -= sent
            if descriptor is not None:  # it went with the first byte
                descriptor.close()
                self._unsent_bytes -= DESCRIPTOR_BYTES
            if sent < len(data):
                self._unsent[0] = (data[sent:], None)
            else:
                self._unsent.popleft()

    def say_no_more(self) -> None:
        """Send nothing more, and let the client know; what it says is still received."""
        self._stop(socket.SHUT_WR)

    def receive(self) -> list[session.FromClient] | None:
        """Return the messages that have arrived; None if the client has gone.

        Raises:
            ProtocolError: The bytes are no message; the session cannot go on.
        """
        try:
            return self._incoming.read()
        except BlockingIOError:
            return []
        except OSError:
            return None

    def take_descriptor(self, request_id: int) -> Descriptor | None:
        """Return the descriptor that came with the `RegisterSlab` of this id, once; the caller's from then on."""
        return self._incoming.take(request_id)

    def open_pidfd(self) -> int | None:
        """Return a pidfd of the client's process, which the caller closes; None if the process has gone.

        Raises:
            OSError: No descriptor is left.
        """
        try:
            try:
                return self._socket.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
            except OSError as error:
                if error.errno != errno.ENOPROTOOPT:
                    raise
            # Before Linux 6.5. If the process has ended and its pid is another's by now, that one is waited for too.
            return os.pidfd_open(self.credentials.pid)
        except OSError as error:
            if error.errno in _NO_SUCH_PROCESS:
                return None
            raise

    def close(self) -> None:
        """Close; may be called twice."""
        self._socket.close()
        self._incoming.close()
        self._drop_unsent()

    def _stop(self, how: int) -> None:
        self.gone = True
        with contextlib.suppress(OSError):  # the client has closed it
            self._socket.shutdown(how)
        self._drop_unsent()

    def _drop_unsent(self) -> None:
        for _, descriptor in self._unsent:
            if descriptor is not None:
                descriptor.close()
        self._unsent.clear()
        self._unsent_bytes = 0


class SessionListener:
    """The supervisor's socket in the run directory.

    Args:
        path: Where to listen; nothing may be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            self._inode = inode(path)
            path.chmod(0o600)
        except OSError:
            self._socket.close()
            raise
        self._socket.listen(128)
        self._socket.setblocking(False)
        self.fileno: Final = self._socket.fileno

    def is_lost(self) -> bool:
        """Return whether its file was removed, or is another by now."""
        return inode(self._path) != self._inode

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


def credentials(connected: socket.socket) -> Credentials:
    """Return who connected to a socket, or who listened where it has connected to."""
    pid, uid, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Credentials(pid, uid)


def refusal(peer: Credentials) -> errors.NotAuthorized | None:
    """Return why a peer may not have a session, or None if it may."""
    if peer.pid == 0:
        return errors.NotAuthorized("the client is in another pid namespace; run it beside the pool")
    if peer.uid != os.geteuid():
        return errors.NotAuthorized(
            f"the client runs as uid {peer.uid}, the pool as uid {os.geteuid()}; use the same user"
        )
    return None


def carrier_to_client(message: session.FromSupervisor) -> Hashable | None:
    """Return the name by which a message to a client finds its descriptor; None if it carries none."""
    if isinstance(message, session.SlabOffered | session.SlabKept):
        return message
    if isinstance(message, operators.TraceRing):
        return message
    return message.id if isinstance(message, session.SlabOpened) and not message.handle else None


def _carrier_to_supervisor(message: session.FromClient) -> int | None:
    return message.id if isinstance(message, session.RegisterSlab) else None


_UCRED: Final = struct.Struct("3i")

_SO_PEERPIDFD: Final = 77
"""Not in `socket` yet; the same number on all architectures but parisc and sparc."""

_NO_SUCH_PROCESS: Final = frozenset({errno.ESRCH, errno.EINVAL, errno.ENODATA})
"""The kernel's errors, by version, for a process that was reaped, or whose pid is a thread's by now."""
