"""The relay's end of the channel to its supervisor: each packet is one message."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Final

from atomr_mp.protocol.messages import relay
from atomr_mp.supervisor.loop import Loop

PACKET_BYTES: Final = 2**16
"""Size of the receive buffer; no message to the relay is larger."""


class RelayControl:
    """The relay's end.

    Args:
        loop: The relay's loop.
        descriptor: A connected socket of packets; owned from here on.
        take: Called with each message.
    """

    def __init__(self, loop: Loop, descriptor: int, take: Callable[[relay.ToRelay], None]) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._take = take
        loop.watch(descriptor, select.EPOLLIN, self._on_readable)

    def tell(self, message: relay.FromRelay) -> None:
        """Send a message; drop it if the supervisor has no room."""
        with contextlib.suppress(OSError):
            self._socket.send(relay.FROM_RELAY.encode(message))

    def _on_readable(self, _events: int) -> None:
        try:
            packet = self._socket.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:  # the supervisor has ended, and this process follows
            self._loop.forget(self._socket.fileno())
            return
        self._take(relay.TO_RELAY.decode(packet))
