"""Whether what ranks of a `sendrecv` send and receive goes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Unmatched(NamedTuple):
    """Two ranks that do not go together: one sends or receives, and the other does not."""

    rank: int
    other: int
    why: str


def unmatched(pairs: Sequence[Sequence[int]], nowhere: int) -> Unmatched | None:
    """Return the first two ranks that do not go together; None if all do.

    Args:
        pairs: By rank: to whom it sends, and from whom it receives.
        nowhere: Stands for nobody.
    """
    for rank, (to, from_) in enumerate(pairs):
        if to != nowhere and pairs[to][1] != rank:
            return Unmatched(rank, to, sent_in_vain(rank, to, pairs[to][1], nowhere))
        if from_ != nowhere and pairs[from_][0] != rank:
            return Unmatched(rank, from_, awaited_in_vain(rank, from_, pairs[from_][0], nowhere))
    return None


def sent_in_vain(rank: int, to: int, from_: int, nowhere: int) -> str:
    """Say that a rank sends to one that receives from elsewhere."""
    received = "nothing" if from_ == nowhere else f"from rank {from_}"
    return f"rank {rank} sends to rank {to}, which receives {received}"


def awaited_in_vain(rank: int, from_: int, to: int, nowhere: int) -> str:
    """Say that a rank receives from one that sends elsewhere."""
    sent = "nothing" if to == nowhere else f"to rank {to}"
    return f"rank {rank} receives from rank {from_}, which sends {sent}"
