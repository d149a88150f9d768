"""A lane's channel: the connection of a client to one incarnation of a worker, whose bytes are not looked at."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.relay.channel import RelayChannel, Send
from atomr_mp.supervisor.loop import Loop
from atomr_mp.transport.session import credentials
from atomr_mp.wire.connection import CHUNK_BYTES

SEND_BUFFER_BYTES: Final = 2**20
"""The send buffer asked of the kernel, as local clients ask for."""


class UnixEnd:
    """A unix socket in the relay's loop, watched for what is of interest only.

    A socket whose other end has closed is always ready, so one that is of no interest is not watched at all.

    Args:
        loop: The relay's loop.
        connected: The socket; owned from here on.
        ready: Called with its events.
    """

    def __init__(self, loop: Loop, connected: socket.socket, ready: Callable[[int], None]) -> None:
        connected.setblocking(False)
        self._loop = loop
        self._ready = ready
        self.socket: Final = connected
        self._events = 0
        self._last = memoryview(b"")
        """What is sent before it is closed."""

    def want(self, *, read: bool, write: bool) -> None:
        """Watch it for these events."""
        events = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        if events == self._events:
            return
        if not events:
            self._loop.forget(self.socket.fileno())
        elif not self._events:
            self._loop.watch(self.socket.fileno(), events, self._ready)
        else:
            self._loop.rewatch(self.socket.fileno(), events)
        self._events = events

    def close(self) -> None:
        """Close it."""
        self.want(read=False, write=False)
        self.socket.close()

    def close_after(self, last: bytes) -> None:
        """Close it once it has taken these bytes, or cannot take them; until then the loop keeps it."""
        self.want(read=False, write=False)
        self._last, self._ready = memoryview(last), self._send_last
        self._send_last(0)

    def _send_last(self, _events: int) -> None:
        while self._last:
            try:
                self._last = self._last[self.socket.send(self._last, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self.want(read=False, write=True)
                return
            except OSError:  # the other end is closed
                break
        self.close()


class LaneChannel(RelayChannel):
    """Carries bytes between a client and a worker's socket.

    Args:
        route: Its connection.
        send: Sends a packet.
        ended: Called with this when it has ended.
        loop: The relay's loop.
        path: The worker's socket.
        key: The device and its incarnation.

    Raises:
        OSError: Nobody listens there, or the queue of connections is full.
    """

    def __init__(
        self,
        route: bytes,
        send: Send,
        ended: Callable[[Any], object],
        loop: Loop,
        path: str,
        key: tuple[int, int],
    ) -> None:
        super().__init__(ChannelKind.LANE, route, send, ended)
        self.key: Final = key
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            connected.connect(path)
            if credentials(connected).uid != os.geteuid():  # it is shown no secret
                raise ConnectionRefusedError
        except OSError:
            connected.close()
            raise
        self._far: Final = UnixEnd(loop, connected, self._on_ready)
        self._unsent: Final[deque[memoryview]] = deque()
        """What the worker's socket has not taken yet; the client's window bounds it."""
        self._deaf = False
        """The worker has stopped taking bytes; what it has sent is still read."""
        self._look()

    def _receive(self, payload: memoryview) -> None:
        if not self._unsent:
            sent = self._send_some(payload)
            if sent == len(payload):
                return
            payload = payload[sent:]
        self._unsent.append(memoryview(bytes(payload)))
        self._look()

    def _stop(self) -> None:
        # The kernel refuses each later write of the worker, which so knows that it does not arrive.
        with contextlib.suppress(OSError):  # it has ended
            self._far.socket.shutdown(socket.SHUT_RD)

    def _has_room(self) -> None:
        self._look()

    def _close(self) -> None:
        self._unsent.clear()
        self._far.close()

    def _on_ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT and not self.over and self._outgoing.room:
            self._read()
        if not self.over:
            self._look()

    def _read(self) -> None:
        try:
            chunk = self._far.socket.recv(min(CHUNK_BYTES, self._outgoing.room))
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            self._say(chunk)
        else:
            self.end()

    def _flush(self) -> None:
        while self._unsent:
            piece = self._unsent.popleft()
            sent = self._send_some(piece)
            if sent < len(piece):
                self._unsent.appendleft(piece[sent:])
                break
        self._acknowledge()

    def _send_some(self, piece: memoryview) -> int:
        """Return how many bytes the worker's socket has taken; all, if it has stopped taking any: they are lost."""
        sent = len(piece)
        if not self._deaf:
            try:
                sent = self._far.socket.send(piece, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return 0
            except OSError:
                self._deaf = True
        self._passed_on(sent)
        return sent

    def _look(self) -> None:
        self._far.want(read=self._outgoing.room > 0, write=bool(self._unsent))
