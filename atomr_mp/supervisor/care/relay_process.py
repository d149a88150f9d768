"""One process of the relay, and the way between it and the supervisor."""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.messages import relay
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.loop import Loop

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

MODULE: Final = "atomr_mp.relay"

PACKET_BYTES: Final = 2**18

STOP_S: Final = 3.0
"""How long it may take to say goodbye to its clients at the pool's end."""


class RelayProcess:
    """A relay that makes everything ready, stands by, and listens when it is ordered to.

    Args:
        settings: How it is to serve; `control` is filled in here.
        loop: The supervisor's loop.
        helpers: Start processes.
        take: Called with each of its messages.
        ended: Called with this and the process's status, after its last message.

    Raises:
        OSError: No process can be made.
    """

    def __init__(
        self,
        settings: relay.RelaySettings,
        loop: Loop,
        helpers: Helpers,
        take: Callable[[relay.FromRelay], object],
        ended: Callable[[RelayProcess, int], object],
    ) -> None:
        self._loop = loop
        self._tell = take
        self._tell_end = ended
        self.listens_since = 0.0
        """When it was ordered to listen, by the loop's own time; 0 while it stands by."""
        self.heard_at = 0.0
        """When its last message was read, or it was ordered to listen, by the loop's own time."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = msgspec.structs.replace(settings, control=theirs.fileno())
        before = helpers.pids
        with theirs:
            try:
                self.kill: Final = helpers.start(
                    MODULE,
                    [msgspec.json.encode(given).decode()],
                    [given.listener, given.control],
                    self._ended,
                )
            except OSError:
                ours.close()
                raise
        (self.pid,) = helpers.pids - before
        ours.setblocking(False)
        self._control: socket.socket | None = ours
        loop.watch(ours.fileno(), select.EPOLLIN, self._on_readable)

    def listen(self) -> None:
        """Have it listen, as soon as it is ready."""
        self.listens_since = self.heard_at = self._loop.own_s
        self.send(relay.RelayListens())

    def send(self, message: relay.ToRelay) -> None:
        """Send it a message. A relay that takes none is about to end, or hangs, and either is noticed."""
        if self._control is None:
            return
        try:
            self._control.send(relay.TO_RELAY.encode(message))
        except OSError as error:
            _LOG.warning("the relay takes no message: %s", error)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, or is about to: its end of the channel is closed."""
        if self._control is None:
            return True
        closed = select.poll()
        closed.register(self._control, select.POLLHUP)
        return bool(closed.poll(0))

    def wait_stopped(self) -> None:
        """Wait until it has ended by itself after `RelayStops`. Blocks, for at most `STOP_S`."""
        if self._control is None:
            return
        self._loop.forget(self._control.fileno())
        self._control.setblocking(True)
        self._control.settimeout(STOP_S)
        try:
            while self._control.recv(PACKET_BYTES):
                pass
        except OSError:
            _LOG.warning("the relay did not end by itself, and is killed")
        self._control.close()
        self._control = None

    def _ended(self, status: int) -> None:
        if self._control is not None:
            self._read()  # messages that the relay sent before its end
        if self._control is not None:
            self._loop.forget(self._control.fileno())
            self._control.close()
            self._control = None
        self._tell_end(self, status)

    def _on_readable(self, _events: int) -> None:
        if not self._read() and self._control is not None:
            self._loop.forget(self._control.fileno())  # the relay is about to end; its pidfd tells when

    def _read(self) -> bool:
        """Read its messages; False if its channel has ended."""
        assert self._control is not None
        while True:
            try:
                packet = self._control.recv(PACKET_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            self.heard_at = self._loop.own_s
            try:
                self._tell(relay.FROM_RELAY.decode(packet))
            except errors.ProtocolError:
                _LOG.exception("the relay sent a message that is dropped")
