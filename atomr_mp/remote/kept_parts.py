"""The parts of a remote stream that the gateway keeps until its client has them, through any cut. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

P = TypeVar("P")


class KeptPart(NamedTuple, Generic[P]):
    """A part and its sizes."""

    part: P
    nbytes: int
    """Bytes in the gateway's memory."""
    counted: int
    """Bytes in the stream's credit."""


class KeptParts(Generic[P]):
    """Parts in order. Those that the client has are forgotten; the others were sent or wait.

    Args:
        start: How many parts the client has from an earlier gateway.
        start_bytes: Their bytes in the credit.
    """

    def __init__(self, start: int = 0, start_bytes: int = 0) -> None:
        self._kept: Final[deque[KeptPart[P]]] = deque()
        self.acknowledged = start
        """How many parts the client is known to have."""
        self.acknowledged_bytes = start_bytes
        """Their bytes in the credit."""
        self.sent = start
        """How many parts the client has, or were sent on its connection."""
        self.nbytes = 0
        """Bytes of the kept parts."""

    @property
    def made(self) -> int:
        """Number of parts made so far."""
        return self.acknowledged + len(self._kept)

    def add(self, part: P, nbytes: int, counted: int) -> None:
        """Keep the next part."""
        self._kept.append(KeptPart(part, nbytes, counted))
        self.nbytes += nbytes

    def find(self, number: int) -> P | None:
        """Return a part that is kept, None for any other."""
        at = number - self.acknowledged
        return self._kept[at].part if 0 <= at < len(self._kept) else None

    def unsent(self) -> P | None:
        """Return the next part to send, None if there is none."""
        at = self.sent - self.acknowledged
        return self._kept[at].part if at < len(self._kept) else None

    def acknowledge(self, received: int) -> int:
        """Forget the parts that the client has; return how many bytes that frees.

        Args:
            received: How many it has in all; fewer than it has said before changes nothing.

        Raises:
            ValueError: The client has more than were sent.
        """
        if received > self.sent:
            raise ValueError(f"{received} parts of a stream are acknowledged, and {self.sent} were sent")
        freed = 0
        while self.acknowledged < received:
            gone = self._kept.popleft()
            self.acknowledged += 1
            self.acknowledged_bytes += gone.counted
            freed += gone.nbytes
        self.nbytes -= freed
        return freed

    def resume(self, received: int) -> int:
        """Take in how many parts the client has on a new connection, to send the others again; return the bytes freed.

        Raises:
            ValueError: The client has more than were made, or fewer than it has said before.
        """
        if not self.acknowledged <= received <= self.made:
            raise ValueError(f"{received} parts of a stream have come, of {self.acknowledged} to {self.made}")
        self.sent = max(self.sent, received)
        freed = self.acknowledge(received)
        self.sent = received
        return freed
