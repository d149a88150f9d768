"""Bounds the bytes of answers that a front end holds for clients that do not read them, over HTTP and gRPC together."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.client.reply import set_done
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.problems import ClientLeft, Problem, retry_after

SMALL_BYTES: Final = 64 * 2**10
"""Answers up to this size wait for no room: connections and streams are bounded by number."""


class SlowReader(Protocol):
    """A connection whose client does not read as fast as it is answered."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for the client, in the transport and in tasks that want to write."""


def _too_late(waited_s: float) -> errors.DeadlineExceeded:
    why = f"the answer had no room for {waited_s:g} s (stall_s): other clients have not read theirs (unread_bytes)"
    return errors.DeadlineExceeded(why, maybe_executed=True)


class UnreadAnswers:
    """The answers of a front end that are not with their clients yet.

    A large answer is made once there is room for it. Until then its arrays lie where the worker has put them: a result
    that waits has no copy in this process. Clients that read are not in here.

    Args:
        limits: The limits of one connection and of all.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self.readers: Final[set[SlowReader]] = set()
        """Connections that are counted."""
        self._made_bytes = 0
        """Bytes of answers that are being made, or that gRPC has and has not sent."""
        self.queued_bytes = 0
        """Bytes of answers that wait until others of their stream are sent, and have not been made."""
        self._waiting: Final[dict[asyncio.Future[None], int]] = {}
        """Bytes of answers that wait for room, the oldest first."""

    def add(self, reader: SlowReader) -> None:
        """Count a connection: its client does not read."""
        self.readers.add(reader)

    def discard(self, reader: SlowReader) -> None:
        """Do not count a connection any longer."""
        self.readers.discard(reader)
        self._let_in()

    @property
    def copied_bytes(self) -> int:
        """Bytes of answers that lie in this process."""
        return self._made_bytes + sum(reader.unread_bytes for reader in self.readers)

    def crowd(self, asking: SlowReader | None = None) -> Problem | None:
        """Return why no call may run now, None if one may.

        Args:
            asking: The connection that asks; None if it has no bound of its own.
        """
        most, own = self._limits.unread_connection_bytes, 0
        if asking is not None and asking in self.readers:
            own = asking.unread_bytes
        if own > most:
            told = f"{own} bytes of answers wait on this connection, more than {most}; read them, then call again"
        elif (total := self.copied_bytes + self.queued_bytes + sum(self._waiting.values())) > self._limits.unread_bytes:
            told = f"{total} bytes of answers wait for clients that do not read them; try again"
        else:
            return None
        return Problem(429, "overloaded", told, headers=(retry_after(0),))

    async def take(self, nbytes: int, left: asyncio.Future[None] | None = None) -> None:
        """Wait for room for an answer, and count it until it is given back.

        Args:
            nbytes: About how many bytes it will have.
            left: Done once the client has left.

        Raises:
            ClientLeft: The client has left while the answer waited.
            DeadlineExceeded: It has waited for `stall_s`, in which clients that read nothing are given up.
        """
        if nbytes <= SMALL_BYTES or (not self._waiting and self._has_room(nbytes)):
            self._made_bytes += nbytes
            return
        turn, stall_s = asyncio.get_running_loop().create_future(), self._limits.stall_s
        self._waiting[turn] = nbytes
        try:
            await asyncio.wait(
                {turn} if left is None else {turn, left}, timeout=stall_s, return_when=asyncio.FIRST_COMPLETED
            )
            if turn in self._waiting:
                raise ClientLeft if left is not None and left.done() else _too_late(stall_s)
        except BaseException:
            if self._waiting.pop(turn, None) is None:
                self.give_back(nbytes)  # it was let in, and this task ends
            else:
                self._let_in()
            raise

    def give_back(self, nbytes: int) -> None:
        """Count an answer no longer: it was sent, or its client has left."""
        self._made_bytes -= nbytes
        self._let_in()

    def _has_room(self, nbytes: int) -> bool:
        """Return whether an answer may be made. One that is larger than the limit is made alone."""
        copied = self.copied_bytes
        return not copied or copied + nbytes <= self._limits.unread_bytes

    def _let_in(self) -> None:
        """Let the oldest of those that wait make their answers."""
        while self._waiting:
            turn, nbytes = next(iter(self._waiting.items()))
            if not self._has_room(nbytes):
                return
            del self._waiting[turn]
            self._made_bytes += nbytes
            set_done(turn)
