"""The channel between the gateway and its supervisor: each packet is one message."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

from atomr_mp import checks
from atomr_mp.protocol.messages import remote

PACKET_BYTES: Final = 2**16
"""Size of the receive buffer; no message to the gateway is larger."""


@checks.owned(by_maker=True)
class SupervisorChannel:
    """The gateway's end.

    Args:
        loop: The event loop.
        descriptor: A connected socket of packets; owned from here on.
        take: Called with each message.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, take: Callable[[remote.ToGateway], None]
    ) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._take = take
        loop.add_reader(descriptor, self._on_readable)

    def tell(self, message: remote.FromGateway) -> None:
        """Send a message; drop it if the supervisor has no room."""
        with contextlib.suppress(OSError):
            self._socket.send(remote.FROM_GATEWAY.encode(message))

    def close(self) -> None:
        """Close it."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_readable(self) -> None:
        try:
            packet = self._socket.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:  # the supervisor has ended, and this process follows
            self._loop.remove_reader(self._socket.fileno())
            return
        self._take(remote.TO_GATEWAY.decode(packet))
