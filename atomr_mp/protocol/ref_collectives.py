"""Collectives on refs, as clients ask for them: their names, and the names of requests of such worlds. Pure."""

from __future__ import annotations

from typing import Final

ALL_GATHER: Final = "all_gather"
ALL_REDUCE: Final = "all_reduce"
ALL_TO_ALL: Final = "all_to_all"
ALL_TO_ALL_V: Final = "all_to_all_v"
BARRIER: Final = "barrier"
BROADCAST: Final = "broadcast"
REDUCE: Final = "reduce"
REDUCE_SCATTER: Final = "reduce_scatter"
SENDRECV: Final = "sendrecv"

COLLECTIVES: Final = frozenset(
    {ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ALL_TO_ALL_V, BARRIER, BROADCAST, REDUCE, REDUCE_SCATTER, SENDRECV}
)
"""Their names."""


def request_of(world: str) -> str:
    """Return the name of the request that runs all collectives of a world."""
    return f"{world}.collective"


def program_of(world: str) -> str:
    """Return the name of the request that runs programs of a world."""
    return f"{world}.program"
