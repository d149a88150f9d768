"""Checks of what a method gives a collective, and of when it calls one; the same on all backends."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_mp import errors


def check_rank(rank: Any, what: str, world: str, size: int) -> int:
    """Return a rank that a method names.

    Args:
        rank: The rank.
        what: The argument's name.
        world: The world's name.
        size: How many ranks there are.

    Raises:
        InvalidRequest: There is no such rank.
    """
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < size:
        raise errors.InvalidRequest(f"`{what}` is {rank!r}; the ranks of world {world!r} are 0 to {size - 1}")
    return int(rank)


def part_shape(shape: tuple[int, ...], world: str, size: int) -> tuple[int, ...]:
    """Return the shape of one of as many parts of the first axis as there are ranks.

    Args:
        shape: The shape of the whole.
        world: The world's name.
        size: How many ranks there are.

    Raises:
        InvalidRequest: There is no first axis, or it cannot be divided.
    """
    if not shape or shape[0] % size:
        raise errors.InvalidRequest(
            f"the first axis has to be divisible by {size}, the size of world {world!r}; the array has shape {shape}"
        )
    return (shape[0] // size, *shape[1:])
