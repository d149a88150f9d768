"""Releases of a remote client, in numbered messages that are repeated after cuts until the gateway has them. Pure.

That is leases, and requests that it has given up before their answer or all their parts had come. The gateway counts
leases for the client as it sends them. It frees those of answers and parts that the client has not taken: they may be
lost with a connection, or come later, when the client ignores them. So each lease is freed once.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from atomr_mp.protocol.messages.remote import MAX_REMOTE_IDS, GivenUp, RefsReleased


class SentRelease(NamedTuple):
    """A message's content."""

    serial: int
    refs: list[RefsReleased]
    given_up: list[GivenUp]


class SentReleases:
    """The messages of a session with one gateway that this has not acknowledged, and what waits for the next one."""

    def __init__(self) -> None:
        self._serial = 0
        self._unacknowledged: Final[deque[SentRelease]] = deque()
        self._waiting: Final[deque[GivenUp]] = deque()
        """Requests that were given up since the last message."""

    @property
    def untold(self) -> int:
        """Number of given-up requests that wait for the next message."""
        return len(self._waiting)

    def give_up(self, number: int, parts: int) -> None:
        """Take in that a request that was sent has its outcome without its answer.

        Args:
            number: Its id.
            parts: How many parts of it the client has taken, if it is a stream; else 0.
        """
        self._waiting.append(GivenUp(number, parts))

    def next(self, refs: list[RefsReleased]) -> SentRelease | None:
        """Return the next message, None if there is nothing to give back.

        Args:
            refs: Leases to give back.
        """
        if not (refs or self._waiting):
            return None
        given_up = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_REMOTE_IDS // 2))]
        self._serial += 1
        release = SentRelease(self._serial, refs, given_up)
        self._unacknowledged.append(release)
        return release

    def acknowledge(self, serial: int) -> None:
        """Take in that the gateway has processed all messages up to a serial."""
        while self._unacknowledged and self._unacknowledged[0].serial <= serial:
            self._unacknowledged.popleft()

    def unacknowledged(self) -> list[SentRelease]:
        """Return the messages to repeat after a resumption."""
        return list(self._unacknowledged)

    def given_up(self) -> list[GivenUp]:
        """Return the requests that a resumption names, as many as it may.

        The gateway settles every request that the resumption does not name as unanswered, and counts its leases for the
        client unless it is named here. The first ones are named: so many gather only on a connection that has ended
        unnoticed, and then the last ones have not arrived.
        """
        found = [each for release in self._unacknowledged for each in release.given_up]
        return [*found, *self._waiting][:MAX_REMOTE_IDS]

    def gateway_ended(self) -> None:
        """Forget all: the gateway that held the leases has ended."""
        self._unacknowledged.clear()
        self._waiting.clear()
        self._serial = 0
