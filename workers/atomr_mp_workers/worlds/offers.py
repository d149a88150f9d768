"""Worlds that were offered to this process before its start: their files, and what they are."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.messages import control
from atomr_mp_workers.worlds.order.files import WorldFiles


class WorldOffers:
    """Takes in what the supervisor tells of worlds before `Start`."""

    def __init__(self) -> None:
        self.files: Final[dict[int, WorldFiles]] = {}
        """By the world's number."""
        self.offered: Final[list[control.WorldOffered]] = []

    def take(self, message: control.FromSupervisor, descriptor: int | None) -> bool:
        """Take in a message; return False if it is not about worlds, so that its descriptor is the caller's."""
        match message:
            case control.WorldFile():
                if descriptor is not None:  # else there was no room for it, and what needs it will say so
                    self.of(message.world).add(message, descriptor)
                return True
            case control.WorldOffered():
                self.offered.append(message)
                return True
        return False

    def of(self, world: int) -> WorldFiles:
        """Return the files of a world."""
        return self.files.setdefault(world, WorldFiles())
