"""The ends of the data channel, as the rest of a process sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, Protocol

from atomr_mp.protocol.values import Buffer

NEVER: Final = 2**63 - 1
"""A time that never comes."""


class PeerNotReadingError(Exception):
    """Too much waits for the peer, because it does not read its answers."""


class ClientEnd(Protocol):
    """A client's connection to one incarnation of a worker. For one thread at a time."""

    ended: bool
    """The worker's end is closed, and all that it had sent has been received."""
    broken: bool
    """Something could not be sent: the worker's end is closed."""
    late: bool
    """What an ended worker had sent may come later than the report of its end; `ended` comes behind it."""

    def fileno(self) -> int:
        """Return the descriptor that says when to look again, unless `has_message`; readable for ever once `ended`."""

    def writer_fileno(self) -> int:
        """Return the descriptor to poll before `advance`."""

    @property
    def has_message(self) -> bool:
        """Whether `receive` would return a message that the descriptor no longer signals."""

    @property
    def ready(self) -> bool:
        """Whether the worker has let it in."""

    @property
    def waits_for(self) -> int:
        """Events to poll `writer_fileno` for before `advance`; 0 if there is nothing to be done."""

    def send(self, header: bytes, frames: list[Buffer]) -> None:
        """Send a message. If the worker has ended, it goes nowhere."""

    def receive(self) -> memoryview | None:
        """Return the next message, or None if there is none; see `framing.unpack`."""

    def advance(self) -> None:
        """Do as much of the owed work as possible."""

    def when_over(self, call: Callable[[], object]) -> None:
        """Have this called, on another thread, once that thread has found the end and no receiver has.

        A connection whose descriptor is the only thing that tells of its end never calls it.
        """

    def wait_disconnected(self, timeout_ms: int) -> None:
        """Wait until everything has been received that the ended worker had sent, at most `timeout_ms`."""

    def take_back(self) -> int:
        """Drop the messages that have not begun to leave this process; return the time since which they were given.

        By CLOCK_MONOTONIC; `NEVER` if there are none.
        """

    def stop(self) -> None:
        """Have nothing sent to this end from now on; what has arrived can be received, and the worker knows what."""

    def close(self) -> None:
        """Close; may be called twice."""


class WorkerEnd(Protocol):
    """A worker's socket, with all its peers. One thread only."""

    @property
    def received(self) -> deque[tuple[bytes, memoryview | tuple[int, ...]]]:
        """(routing id, message); a violation of the protocol is queued as an empty message.

        A connection's end is queued as the numbers of the messages that were not sent whole.
        """

    def read(self) -> None:
        """From now on receive messages; before, peers are only let in."""

    def look(self, ready: Collection[int]) -> int:
        """Serve these descriptors as far as possible; return how many peers were refused."""

    def send(self, routing_id: bytes, header: bytes, frames: list[Buffer], number: int = 0) -> bool:
        """Send a message; False if the peer has disconnected. Its number tells what it is if the connection ends.

        Raises:
            PeerNotReadingError: Too much waits for the peer.
        """

    def forget(self, session: bytes) -> None:
        """Close a session's connections: it has ended."""

    def rebind(self) -> None:
        """Listen at the same place by a new file: the one before was removed. Connections stay."""

    def close(self, *, flush: bool) -> None:
        """Close; with `flush`, wait for a bounded time until the replies that were sent have left."""
