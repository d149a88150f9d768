"""The credit of a stream: how many parts, and how many bytes of them, may be on their way or unread. Pure.

Both ends count from the stream's first part. A part is sent while there is credit for one more and the bytes granted
are not used up, so the last may go beyond these by its own size.
"""

from __future__ import annotations

from typing import Self

from atomr_mp import errors
from atomr_mp.protocol.flow.limits import MAX_AHEAD


class SenderCredit:
    """The worker's side.

    Args:
        parts: How many parts were granted.
        nbytes: How many bytes of them.
        sent: How many parts another incarnation has sent.
        sent_bytes: How many bytes of them.

    Raises:
        ProtocolError: More than may be granted at a time.
    """

    __slots__ = ("_bytes", "_parts", "sent", "sent_bytes")

    def __init__(self, parts: int, nbytes: int, sent: int = 0, sent_bytes: int = 0) -> None:
        self._parts = self._bytes = 0
        self.sent = sent
        """Parts that were sent."""
        self.sent_bytes = sent_bytes
        self.grant(parts, nbytes)

    def __bool__(self) -> bool:
        return self.sent < self._parts and self.sent_bytes < self._bytes

    def grant(self, parts: int, nbytes: int) -> None:
        """Take in how far the stream may go; what says less than an earlier one changes nothing.

        Raises:
            ProtocolError: More than may be granted at a time.
        """
        if parts > self.sent + MAX_AHEAD:
            raise errors.ProtocolError(f"credit for {parts - self.sent} parts of a stream; the limit is {MAX_AHEAD}")
        self._parts, self._bytes = max(parts, self._parts), max(nbytes, self._bytes)

    def send(self, nbytes: int) -> int:
        """Record that a part is sent; return its number."""
        self.sent += 1
        self.sent_bytes += nbytes
        return self.sent - 1


class ReaderCredit:
    """The client's side.

    Args:
        parts: How many parts may be on their way or unread at a time.
        nbytes: How many bytes of them.
    """

    __slots__ = (
        "_ahead",
        "_ahead_bytes",
        "_due",
        "_due_bytes",
        "_overdue",
        "_read",
        "_read_bytes",
        "nbytes",
        "parts",
        "received",
        "received_bytes",
    )

    def __init__(self, parts: int, nbytes: int) -> None:
        self._ahead, self._ahead_bytes = parts, nbytes
        self.parts, self.nbytes = parts, nbytes
        """The granted credit."""
        self.received = 0
        """Parts that have come."""
        self.received_bytes = 0
        self._read = self._read_bytes = 0
        self._set_due()

    @classmethod
    def passed(cls, parts: int, nbytes: int, received: int, received_bytes: int) -> Self:
        """Return the credit of a reader that passes on what another grants, who may have parts already."""
        credit = cls(parts, nbytes)
        credit.received, credit.received_bytes = received, received_bytes
        return credit

    def extend(self, parts: int, nbytes: int) -> None:
        """Grant what another has granted; what says less than an earlier one changes nothing."""
        self.parts, self.nbytes = max(parts, self.parts), max(nbytes, self.nbytes)

    @property
    def is_used_up(self) -> bool:
        """Whether no part may come before more credit is granted."""
        return self.received >= self.parts or self.received_bytes >= self.nbytes

    def receive(self, number: int, nbytes: int = 0) -> None:
        """Record that a part has come.

        Raises:
            ProtocolError: It is not the next one, or exceeds the credit.
        """
        if number != self.received or self.received >= self.parts:
            raise errors.ProtocolError(
                f"part {number} of a stream, where part {self.received} of {self.parts} that were granted would come"
            )
        self.received += 1
        self.received_bytes += nbytes

    def read(self, nbytes: int, *, is_last: bool = True) -> bool:
        """Record that a part was read; return whether it is time to grant more, which is noted too.

        Args:
            nbytes: Its size.
            is_last: Whether no further part has come yet.
        """
        read = self._read = self._read + 1
        read_bytes = self._read_bytes = self._read_bytes + nbytes
        if read < self._due and read_bytes < self._due_bytes:
            return False
        if not is_last and read < self._overdue and read_bytes < self._due_bytes:
            return False
        self.parts, self.nbytes = read + self._ahead, read_bytes + self._ahead_bytes
        self._set_due()
        return True

    def _set_due(self) -> None:
        """Note when to grant more: each grant is a message.

        It is due for a half, so that the worker goes on meanwhile; for three quarters if parts come together, as from a
        quick worker, since all of them would take two messages else.
        """
        self._due = self._read + max(1, (self._ahead + 1) // 2)
        self._overdue = self._read + max(1, 3 * self._ahead // 4)
        self._due_bytes = self._read_bytes + max(1, self._ahead_bytes // 2)
