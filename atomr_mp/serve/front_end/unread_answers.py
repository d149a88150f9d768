"""Counts the bytes of answers that clients have not read. Pure: it asks those who hold them."""

from __future__ import annotations

from typing import Final, Protocol

from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.problems import Problem, retry_after


class SlowReader(Protocol):
    """A connection whose client does not read as fast as it is answered."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for the client, in the transport and in tasks that want to write."""


class UnreadAnswers:
    """Bounds the bytes of answers that a process holds for clients that do not read.

    Only what waits is counted: a client that reads is not in here.

    Args:
        limits: The limits of one connection and of all.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self.readers: Final[set[SlowReader]] = set()
        """Connections that are counted."""

    def add(self, reader: SlowReader) -> None:
        """Count a connection: its client does not read."""
        self.readers.add(reader)

    def discard(self, reader: SlowReader) -> None:
        """Do not count a connection any longer."""
        self.readers.discard(reader)

    @property
    def total_bytes(self) -> int:
        """Bytes that wait, of all connections."""
        return sum(reader.unread_bytes for reader in self.readers)

    def crowd(self, asking: SlowReader) -> Problem | None:
        """Return why a connection may not call now, None if it may."""
        own, most = asking.unread_bytes if asking in self.readers else 0, self._limits.unread_connection_bytes
        if own > most:
            told = f"{own} bytes of answers wait on this connection, more than {most}; read them, then call again"
        elif (total := self.total_bytes) > self._limits.unread_bytes:
            told = f"{total} bytes of answers wait for clients that do not read them; try again"
        else:
            return None
        return Problem(429, "overloaded", told, headers=(retry_after(0),))
