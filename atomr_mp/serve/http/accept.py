"""What the header `Accept` says of a media type, see RFC 9110, 12.5.1. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple


class Weight(NamedTuple):
    """How much a client wants a media type; a larger weight is wanted more."""

    quality: float
    """From 0, not at all, to 1."""
    precision: int
    """How precisely the header names the type: 2 by its name, 1 by its kind, 0 as any type."""


MOST: Final = 32
"""Media types, and parameters of one, that are looked at; browsers name fewer than ten."""

NOT_ACCEPTED: Final = Weight(0.0, 0)


def weight(accept: bytes, media_type: bytes) -> Weight:
    """Return how much a client wants a media type. What names it most precisely counts.

    Args:
        accept: The header; parameters of media types other than `q` are ignored.
        media_type: The type, such as b"text/plain".
    """
    ranges = {media_type: 2, media_type.partition(b"/")[0] + b"/*": 1, b"*/*": 0}
    found: list[tuple[int, float]] = []
    for each in accept.split(b",", MOST)[:MOST]:
        name, *parameters = (part.strip().lower() for part in each.split(b";", MOST)[:MOST])
        if (precision := ranges.get(name)) is not None:
            found.append((precision, _quality(parameters)))
    if not found:
        return NOT_ACCEPTED
    precision, quality = max(found)
    return Weight(quality, precision)


def _quality(parameters: list[bytes]) -> float:
    """Return the value of `q`; 1 if there is none, or it is no number from 0 to 1."""
    for each in parameters:
        name, _, value = each.partition(b"=")
        if name.rstrip() == b"q":
            try:
                quality = float(value)
            except ValueError:
                return 1.0
            return quality if 0 <= quality <= 1 else 1.0
    return 1.0
