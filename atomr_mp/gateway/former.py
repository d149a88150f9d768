"""A remote session's calls that an earlier gateway has taken along. Without sockets or clocks.

The supervisor knows them from the workers. Until it has answered, a resumption waits; until nothing of earlier gateways
runs any more, calls that are repeated wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from atomr_mp.gateway.uploads import Request
from atomr_mp.protocol.messages import remote


class Parked(NamedTuple):
    """A repeated call that waits until its first copy has ended."""

    request: Request
    frames: list[memoryview]
    deadline_ns: int


class FormerCalls:
    """The calls of a session under earlier gateways.

    Args:
        former: Whether the session was an earlier gateway's.
    """

    def __init__(self, *, former: bool) -> None:
        self.unknown = former
        """Whether the supervisor has yet to tell which calls had started."""
        self.quiet = not former
        """Whether no call under an earlier gateway runs any more."""
        self.lost: set[int] = set()
        """Calls that may have started, until the client has settled or repeated them."""
        self.welcomed_ns = 0
        """When the connection was welcomed, CLOCK_MONOTONIC. The client told its calls' ages later."""
        self._resuming: remote.Resume | None = None
        self._parked: Final[list[Parked]] = []

    def hold(self, resumption: remote.Resume) -> None:
        """Keep a resumption until the supervisor has answered."""
        self._resuming = resumption

    def take_resumption(self) -> remote.Resume | None:
        """Return the resumption that has waited, None if there is none."""
        resumption, self._resuming = self._resuming, None
        return resumption

    def fates_known(self, unanswered: Iterable[remote.Unanswered], started: Sequence[int], known_since_ns: int) -> None:
        """Take in which calls had started.

        Args:
            unanswered: The client's unanswered calls.
            started: Calls that had started.
            known_since_ns: Calls that were sent earlier may have started without being among them.
        """
        self.unknown = False
        have_started = set(started)
        self.lost = {
            each.id
            for each in unanswered
            # The client's clock only tells an age, so this time is not later than the call was sent.
            if each.id in have_started or self.welcomed_ns - each.age_us * 1000 <= known_since_ns
        }

    def told(self, unanswered: Sequence[int]) -> list[remote.Fate]:
        """Return the fates of the lost calls that a resumption names; forget the other lost calls."""
        self.lost.intersection_update(unanswered)
        return [remote.Fate(number, maybe_executed=True) for number in sorted(self.lost)]

    def park(self, request: Request, frames: list[memoryview], deadline_ns: int) -> None:
        """Have a repeated call wait until `quiet`."""
        self._parked.append(Parked(request, frames, deadline_ns))

    def end(self) -> list[Parked]:
        """Take in that no call under an earlier gateway runs any more; return the calls that have waited for that."""
        self.quiet = True
        parked = self._parked[:]
        self._parked.clear()
        return parked
