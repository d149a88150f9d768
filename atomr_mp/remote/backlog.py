"""A remote session's window: how much may be unanswered, and which calls wait for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.flow.flight import RETRY_AFTER_S, Window
from atomr_mp.remote.facts import Facts


class RemoteBacklog:
    """Counts unanswered calls, and holds calls that wait for room. Hold the session's lock.

    Args:
        max_waiting: How many calls may wait.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self.waiting: Final[deque[tuple[Reply, Facts]]] = deque()
        """Calls without an id yet."""
        self._waiting_bytes = 0
        self.window = Window(1, 0)
        """The window's size, from the gateway."""
        self.unanswered = 0
        """Number of calls that count."""
        self.nbytes = 0
        """Bytes of the counted calls' arguments."""

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Reply]:
        return (reply for reply, _ in self.waiting)

    def lets_in(self, nbytes: int) -> bool:
        """Whether a new call of so many bytes may be sent: there is room, and none waits that came before."""
        return not self.waiting and self.has_room(nbytes)

    def has_room(self, nbytes: int) -> bool:
        """Whether a call of so many bytes may be sent."""
        if self.unanswered >= self.window.requests:
            return False
        return not self.unanswered or self.nbytes + nbytes <= self.window.payload_bytes

    def count(self, nbytes: int) -> None:
        """Count a call that is sent."""
        self.unanswered += 1
        self.nbytes += nbytes

    def discount(self, nbytes: int) -> None:
        """Stop counting a call."""
        self.unanswered -= 1
        self.nbytes -= nbytes

    def check_size(self, nbytes: int) -> None:
        """Refuse arguments that would never have room.

        Raises:
            InvalidRequest: The arguments are larger than the window.
        """
        if nbytes > self.window.payload_bytes:
            raise errors.InvalidRequest(
                f"the arguments take {nbytes} bytes, and all calls of this session together may have "
                f"{self.window.payload_bytes}: send them in parts, or have the key admitted for more (--max-bytes)"
            )

    def hold(self, reply: Reply, facts: Facts, *, wait: bool) -> None:
        """Hold a call until it has room.

        Raises:
            Overloaded: `wait` is False, or too many calls wait.
        """
        waiting, window = len(self.waiting), self.window
        if not wait or waiting >= self._max_waiting or self._waiting_bytes + facts.nbytes > window.payload_bytes:
            raise errors.Overloaded(
                f"{self.unanswered} requests of this session are unanswered ({self.nbytes} bytes), {waiting} wait for "
                f"room; the window is {window.requests} requests and {window.payload_bytes} bytes, and "
                f"{self._max_waiting} may wait (max_waiting)",
                window=window.requests,
                retry_after_s=RETRY_AFTER_S,
            )
        self.waiting.append((reply, facts))
        self._waiting_bytes += facts.nbytes

    def next(self) -> tuple[Reply, Facts] | None:
        """Take the next call for which there is room, None if there is none. A call that has ended needs no room."""
        while self.waiting and (self.waiting[0][0].is_over or self.has_room(self.waiting[0][1].nbytes)):
            reply, facts = self.waiting.popleft()
            self._waiting_bytes -= facts.nbytes
            if not reply.is_over:
                return reply, facts
        return None

    def clear(self) -> None:
        """Forget all calls that wait."""
        self.waiting.clear()
        self._waiting_bytes = 0
