"""What every target is."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from fuzzing import trees

__all__ = ["Target", "damage"]


class Target(ABC):
    """A part of the code that takes bytes from others. Use it with `with`."""

    name: ClassVar[str]
    """Its name, and that of its folder in the corpus."""

    is_live: ClassVar[bool] = False
    """Whether other processes take the bytes: a check then waits for them, and is not bounded by processor time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:  # noqa: B027 - most have nothing
        """Release everything that the checks have used."""

    @abstractmethod
    def make(self, rng: random.Random) -> bytes:
        """Return a valid input."""

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return a changed input: by its structure, in most cases."""
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = trees.mutated(rng, data) if rng.random() < 0.8 else damage(rng, data)
        return data

    @abstractmethod
    def check(self, data: bytes) -> None:
        """Have the code take an input.

        Raises:
            Exception: A find. Typed errors that the code may raise are suppressed.
        """


def damage(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with some cut off, changed, added or repeated."""
    at, count = rng.randint(0, len(data)), rng.choice((1, 1, 2, 4, 8, 64))
    noise = rng.randbytes(count) if rng.random() < 0.5 else bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF)),)) * count
    match rng.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + noise + data[at:]
        case 2:
            return data[:at] + noise + data[at + count :]
        case 3:
            return data[:at] + data[at + count :]
        case _:
            return data[:at] + data[max(0, at - count) :]
