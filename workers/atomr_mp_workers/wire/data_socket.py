"""The worker's end of the data channel: a socket that speaks ZeroMQ's protocol, as a ROUTER, with admitted sessions.

A peer must show a session's secret (PLAIN) before it can send a message, so an unknown peer can make the worker hold
one command of `zmtp.MAX_COMMAND_BYTES` at most. No library thread stands between the loop and its peers: it would take
much of a call's time (docs/notes/speed.md).
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages.data import session_of
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp import stream
from atomr_mp.wire.courier import Courier
from atomr_mp.wire.ends import PeerNotReadingError
from atomr_mp_workers.wire.data_peer import DataPeer

FLUSH_MS: Final = 1000
"""How long the last answers may take to reach the kernel when the socket is closed in good order."""

UNREAD_BYTES: Final = 4 * 2**20
"""Unread bytes that a peer may always have, even if its window is smaller."""

MOST_UNREAD: Final = 4
"""How many times as much may be unread once the calls are answered that came before the peer was paused."""

STALL_S: Final = 10.0
"""How long a paused peer may take no byte of what waits for it."""

BACKLOG: Final = 4096
"""Length of the accept queue; a client that finds it full does not try again."""


@checks.owned()
class DataSocket:
    """Receives calls and sends replies; never blocks. One thread only. A `WorkerEnd`.

    Args:
        endpoint: Address to bind.
        window: Bytes that one connection may have unanswered. While more bytes of answers than that are unread, no
            messages are received from it.
        secret: Returns the secret of a session's public name, None if there is no such session.
        former_secret: The same for ended sessions; their late logins are turned away, and not counted as refused.
        poll: The loop's poll object; pass the descriptors that it reports to `look`.
    """

    def __init__(
        self,
        endpoint: str,
        window: Window,
        secret: Callable[[bytes], bytes | None],
        poll: select.epoll,
        former_secret: Callable[[bytes], bytes | None] = lambda _session: None,
    ) -> None:
        self._secret = secret
        self._former_secret = former_secret
        self._unread_bytes = max(window.payload_bytes, UNREAD_BYTES)
        self._poll = poll
        self._courier = Courier("atomr-mp late answers", at_once=True)
        self._peers: dict[int, DataPeer] = {}
        """Peers by descriptor."""
        self._logged_in: dict[bytes, DataPeer] = {}
        """Peers by routing id."""
        self.received: Final[deque[tuple[bytes, memoryview | tuple[int, ...]]]] = deque()
        """(routing id, message), see `framing.unpack`; a violation of the protocol is queued as an empty message, a
        connection's end as the numbers of the messages that were not sent whole."""
        self._reads = False
        self._refused = 0
        self._path = Path(endpoint.removeprefix("ipc://"))
        self._listener = _listen(self._path)
        poll.register(self._listener, select.EPOLLIN)
        self._spare: int | None = _spare()
        """A spare descriptor, closed for a moment to turn away a connection when no other is left."""

    def read(self) -> None:
        """Receive messages from now on; before, peers are only let in."""
        self._reads = True
        for peer in self._peers.values():
            peer.listen(to_messages=True)

    def look(self, ready: Collection[int]) -> int:
        """Serve these descriptors as far as possible; return how many peers were refused."""
        behind = bool(self.received)  # then read first the messages that came before
        for descriptor in ready:
            peer = self._peers.get(descriptor)
            if peer is not None and not (behind and peer.ready):
                self._serve(peer)
        if self._listener.fileno() in ready:
            self._accept()
        refused, self._refused = self._refused, 0
        return refused

    def send(self, routing_id: bytes, header: bytes, frames: list[Buffer], number: int = 0) -> bool:
        """Send a message; False if the peer has disconnected and will not get it.

        Args:
            routing_id: The peer's.
            header: The header.
            frames: Its payload frames.
            number: Tells what the message is, if the connection ends before it was sent whole; grows.

        Raises:
            PeerNotReadingError: Too many bytes wait for the peer, or it has taken none of them for `STALL_S`.
        """
        peer = self._logged_in.get(routing_id)
        if peer is None:
            return False
        if peer.unsent_bytes > self._unread_bytes and (
            peer.pause() > STALL_S or peer.unsent_bytes > self._unread_bytes * MOST_UNREAD
        ):
            raise PeerNotReadingError
        peer.send(header, frames)
        if peer.keeps:
            peer.mark(number)
        if peer.gone:
            self._close(peer)
            return False
        return True

    def forget(self, session: bytes) -> None:
        """Close a session's connections: it has ended.

        Args:
            session: Its public name.
        """
        for routing_id, peer in list(self._logged_in.items()):
            if session_of(routing_id) == session:
                self._close(peer)

    def rebind(self) -> None:
        """Listen at the same path by a new file: the one before was removed. Connections stay."""
        if self._listener.fileno() < 0:
            return
        try:
            made = _listen(self._path)
        except OSError as error:  # the supervisor asks again
            _LOG.warning("the data socket cannot be bound anew: %s", error)
            return
        self._accept()  # those who have connected before the file was removed
        self._poll.unregister(self._listener)
        self._listener.close()
        self._listener = made
        self._poll.register(made, select.EPOLLIN)

    def close(self, *, flush: bool) -> None:
        """Close; with `flush`, wait until the replies have left, at most `FLUSH_MS`.

        May be called twice.
        """
        if self._listener.fileno() < 0:
            return
        until_s = time.monotonic() + FLUSH_MS / 1000 * flush
        for peer in list(self._peers.values()):
            peer.flush(until_s)
            self._close(peer)
        self._courier.close()
        self._poll.unregister(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        if self._spare is not None:
            os.close(self._spare)

    def _serve(self, peer: DataPeer) -> None:
        if not peer.ready:
            self._log_in(peer)
        elif not self._reads:  # the descriptor can only tell of an end
            peer.drop()
        else:
            self._receive(peer)
        if peer.gone:
            self._close(peer)

    def _log_in(self, peer: DataPeer) -> None:
        self._receive(peer)
        if peer.ready:
            self._logged_in[peer.routing_id] = peer
            if not self._reads:
                peer.listen(to_messages=False)

    def _receive(self, peer: DataPeer) -> None:
        try:
            peer.receive()
        except errors.ProtocolError as error:
            peer.drop()
            if not peer.ready:
                self._refused += 1
                return
            _LOG.warning("a client's connection is closed: %s", error)
            peer.messages.append(memoryview(b""))  # to tell its session
        messages = peer.messages
        while messages:
            self.received.append((peer.routing_id, messages.popleft()))

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE}:
                    return  # it has gone again
                self._turn_away()
                return
            router = stream.Router(self._admits, self._takes)
            peer = DataPeer(connected, router, self._poll, self._courier)
            self._peers[peer.descriptor] = peer

    def _turn_away(self) -> None:
        """Close a connection for which no descriptor is left; poll would report it for ever."""
        if self._spare is not None:
            os.close(self._spare)
        with contextlib.suppress(OSError):  # another thread was faster to take it
            self._listener.accept()[0].close()
            self._refused += 1
        self._spare = _spare()

    def _close(self, peer: DataPeer) -> None:
        del self._peers[peer.descriptor]
        if peer.ready:
            del self._logged_in[peer.routing_id]
        peer.close()
        if peer.ready and self._reads:
            self.received.append((peer.routing_id, tuple(peer.waiting)))

    def _admits(self, username: bytes, password: bytes) -> bool:
        """Return whether the login shows a living session's secret; count a peer that shows none."""
        session = _session_named(username)
        if session is not None:
            if _shows(password, self._secret(session)):
                return True
            if _shows(password, self._former_secret(session)):
                return False  # the client has closed, and the supervisor told that before its login came
        self._refused += 1
        return False

    def _takes(self, username: bytes, routing_id: bytes) -> bool:
        """Return whether a session lives and its routing id is its own and free; count a peer that takes another's."""
        session = _session_named(username)
        if session is None or session_of(routing_id) != session:
            self._refused += 1
            return False
        if self._secret(session) is None:  # it has ended in the middle of this login
            return False
        holder = self._logged_in.get(routing_id)
        if holder is None:
            return True
        if not holder.hung_up():
            self._refused += 1
            return False
        while self._reads and not holder.gone:  # the holder has gone without the loop's notice: read its messages first
            self._receive(holder)
        self._close(holder)
        return True


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


_LOG: Final = logging.getLogger("atomr_mp.worker")


def _spare() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _shows(password: bytes, secret: bytes | None) -> bool:
    return secret is not None and hmac.compare_digest(password, secret.hex().encode())


def _session_named(username: bytes) -> bytes | None:
    try:
        return bytes.fromhex(username.decode("ascii"))
    except ValueError:
        return None
