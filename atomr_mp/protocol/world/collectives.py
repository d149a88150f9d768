"""The kinds of collectives, as signatures name them. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

KIND_BITS: Final = 8
"""A signature's kind is a `Collective` in so many bits, and the step above them."""


class Collective(IntEnum):
    """Kinds of collectives."""

    BARRIER = 1
    ALL_REDUCE = 2
    REDUCE = 3
    REDUCE_SCATTER = 4
    ALL_GATHER = 5
    BROADCAST = 6
    ALL_TO_ALL = 7
    ALL_TO_ALL_V = 8
    SENDRECV = 9
    REFUSED = 10
    """A rank does not take part, since its part of a collective on refs, or of a program, is refused or has failed."""
    PROGRAM = 11
    """All ranks begin or end a program, which its number of elements names."""


KINDS: Final = {
    **{int(kind): kind.name.lower() for kind in Collective},
    int(Collective.REFUSED): "nothing, since its part was refused or has failed",
}
"""Names by number, as the methods of `context.world` have them."""
