"""Messages between a test and processes of its own: a length, and so many bytes."""

from __future__ import annotations

import socket
import struct
from typing import Final

LENGTH: Final = struct.Struct("=Q")


def exactly(connection: socket.socket, count: int) -> bytes:
    """Receive so many bytes.

    Raises:
        AssertionError: The other process has ended.
    """
    found = bytearray()
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise AssertionError("the process has ended")
        found += more
    return bytes(found)
