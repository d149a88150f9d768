"""The data channel's end in a client: one connection for each (lane, incarnation). Only translates.

It speaks ZeroMQ's protocol to the worker's socket by itself, without libzmq: a call then wakes no thread of libzmq on
its way out, and none on its way in, which is much of what it takes (docs/notes/speed.md); the end of the worker is
the end of the stream, behind its last answer; and an application that forks has no threads of libzmq's in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.zmtp import stream
from atomr_mp.transport.session import credentials
from atomr_mp.wire.connection import Connection
from atomr_mp.wire.ends import NEVER

WRITABLE_MS: Final = 1
"""How long `send` waits for the worker's end to make room: one that runs takes microseconds."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class Login(NamedTuple):
    """Credentials of a client's connections to a worker."""

    session: bytes
    secret: bytes
    window: Window


class DataConnection(Connection):
    """Sends calls and receives replies; never blocks for long, but where it says so. For one thread at a time.

    What cannot be sent at once, because the login is not over or the worker's end makes no room, is sent by `advance`.

    Args:
        endpoint: Address of one incarnation's data socket.
        login: The session's proof.
        lane: Number of this connection in the session.
        pending: Called with this when there is something to `advance`.

    Raises:
        OSError: No descriptor is left, or the worker's queue of connections is full.
    """

    late = False
    """All that an ended worker had sent is here when its end is reported."""

    def __init__(
        self, endpoint: str, login: Login, lane: int, pending: Callable[[DataConnection], object] = lambda _: None
    ) -> None:
        user, secret = login.session.hex().encode(), login.secret.hex().encode()
        talk = stream.Dealer(data.routing_id(login.session, lane), user, secret)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            super().__init__(connected, talk, pending, patience_ms=WRITABLE_MS)
            with contextlib.suppress(FileNotFoundError, ConnectionError):  # the worker has ended: so will this
                connected.connect(endpoint.removeprefix("ipc://"))
                if (uid := credentials(connected).uid) != os.geteuid():  # it is shown no secret
                    _LOG.error("a process of uid %d listens at %s: nothing is sent there", uid, endpoint)
                    connected.shutdown(socket.SHUT_RDWR)
                self._send(talk.opening, socket.MSG_NOSIGNAL)
        except BaseException:
            connected.close()
            raise
        pending(self)

    @property
    def has_message(self) -> bool:
        """Whether `receive` would return a message that the descriptor no longer signals."""
        return bool(self._stream.messages)

    @property
    def waits_for(self) -> int:
        """Events to poll the descriptor for before `advance`; 0 if there is nothing to do."""
        return select.EPOLLIN if not self._stream.ready and not self.ended else super().waits_for

    def receive(self) -> memoryview | None:
        """Return the next message, or None if there is none; see `framing.unpack`."""
        messages: deque[memoryview] = self._stream.messages
        while not messages:
            if not self._fill():
                return None
        return messages.popleft()

    def advance(self) -> None:
        """Do as much of the owed work as possible."""
        if not self._stream.ready:
            self._fill()
        else:
            super().advance()

    def when_over(self, _call: Callable[[], object]) -> None:
        """Do nothing: only the descriptor tells of the end."""

    def take_back(self) -> int:
        """Return that there are none: a socket is full only where a worker has stopped reading."""
        return NEVER

    def stop(self) -> None:
        """Have nothing sent to this end from now on; what has arrived can be received.

        The kernel refuses each later write of the worker, which so knows that it does not arrive.
        """
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RD)

    def wait_disconnected(self, timeout_ms: int) -> None:
        """Wait until everything has been received that the ended worker had sent, at most `timeout_ms`."""
        until_s = time.monotonic() + timeout_ms / 1000
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while not self.ended:
            if not self._fill():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                readable.poll(left_s * 1000)

    @property
    def _may_send(self) -> bool:
        return bool(self._stream.ready)

    def _fill(self) -> bool:
        """Receive the waiting messages; False if nothing is."""
        try:
            found = super()._fill()
        except errors.ProtocolError:  # a worker gone wild; whoever receives just now is not to blame
            _LOG.exception("a worker's data connection is not read on")
            self.ended, found = True, False
        if self.ended:
            self._unsent.clear()
        elif found and self._unsent and self._stream.ready:
            super().advance()
            if self._unsent:
                self._pending(self)
        return found
