"""Says what the relay has refused, for the event log: at once, and then at most once a minute. Pure."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.words import counted

EVERY_S: Final = 60.0
"""Least time between two events: a stranger may try all day."""


class Refusals:
    """Follows the counts of refusals."""

    def __init__(self) -> None:
        self._keys = self._others = 0
        """The counts of the last event."""
        self._due_s = 0.0

    def look(self, keys: int, address: str, others: int, now_s: float) -> str:
        """Return the text of an event; empty if there is none to write now.

        Args:
            keys: How many handshakes were refused so far.
            address: Where the last of them came from.
            others: How many channels and packets were refused so far.
            now_s: A time that only grows.
        """
        handshakes, rest = keys - self._keys, others - self._others
        if now_s < self._due_s or not (handshakes > 0 or rest > 0):
            return ""
        self._keys, self._others, self._due_s = keys, others, now_s + EVERY_S
        told = []
        if handshakes > 0:
            told.append(f"{counted(handshakes, 'connection')} whose key is not admitted, the last from {address}")
        if rest > 0:
            told.append(f"{counted(rest, 'channel or packet', 'channels or packets')} beyond a limit or the rules")
        return f"the relay has refused {' and '.join(told)}"
