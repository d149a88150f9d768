"""Epochs that members have left, by their answers, before the supervisor tells of it. Pure.

A call that is sent into such an epoch may begin on the ranks that have not noticed, and then ends in doubt. So a lane
holds calls until it hears of another epoch or state. Where no such news comes, as from a member that was stopped before
it could tell the supervisor, nothing else would ever find that out. So calls are held for `HOLD_NS` once per epoch.
"""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.messages.devices import WorldInfo

HOLD_NS: Final = 2_000_000_000
"""How long to wait for the supervisor's news: it comes within milliseconds, or not at all."""


class LeftEpochs:
    """The latest epoch of each world that a member has left.

    Args:
        hold_ns: How long to wait for the supervisor's news.
    """

    def __init__(self, hold_ns: int = HOLD_NS) -> None:
        self._hold_ns: Final = hold_ns
        self._left: Final[dict[int, tuple[int, int]]] = {}
        """By world: the epoch, and until when calls are held."""

    def note(self, world: int, epoch: int, now_ns: int) -> None:
        """Take in that a member has left an epoch."""
        if epoch > self._left.get(world, (0, 0))[0]:
            self._left[world] = epoch, now_ns + self._hold_ns

    def held_until_ns(self, world: WorldInfo, now_ns: int) -> int | None:
        """Return until when calls of a world in its present epoch are held; None if they are not."""
        epoch, until_ns = self._left.get(world.number, (0, 0))
        return until_ns if epoch == world.epoch and now_ns < until_ns else None

    def forget(self, world: int) -> None:
        """Forget a world."""
        self._left.pop(world, None)
