"""The schedule of disturbances, which follows from a seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Disturbance(NamedTuple):
    """One."""

    at_s: float
    """Seconds since the beginning of its round."""
    kind: str
    roll: float
    """A number from 0 to 1 that decides the rest."""

    def choose(self, among: Sequence[T]) -> T:
        """Return one of several, by the roll."""
        return among[int(self.roll * len(among))]

    def again(self) -> Disturbance:
        """Return the same disturbance with another roll, for a second choice."""
        return self._replace(roll=self.roll * 7919 % 1)


def schedule(seed: str, every_s: Mapping[str, float], duration_s: float) -> list[Disturbance]:
    """Return the disturbances of a round, in order.

    Args:
        seed: Decides it.
        every_s: How often each kind comes, on average.
        duration_s: How long the round is.
    """
    return sorted(each for kind, mean_s in every_s.items() for each in _of(seed, kind, mean_s, duration_s))


def _of(seed: str, kind: str, mean_s: float, duration_s: float) -> Iterator[Disturbance]:
    chance = random.Random(f"{seed} {kind}")
    at_s = mean_s * chance.random()
    while at_s < duration_s:
        yield Disturbance(at_s, kind, chance.random())
        at_s += 2 * mean_s * chance.random()
