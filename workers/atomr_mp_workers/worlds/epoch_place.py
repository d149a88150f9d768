"""What a process has of an epoch that it joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.world import MemberReader, MemberWriter


class EpochPlace(NamedTuple):
    """The world, the rank, and the memory and bells by which the ranks meet."""

    name: str
    """The world's name."""
    rank: int
    """This process's rank."""
    epoch: int
    """The epoch."""
    writer: MemberWriter
    """This process's lines, which show where it waits."""
    readers: Sequence[MemberReader]
    """All ranks' lines, by rank."""
    mailboxes: Sequence[memoryview]
    """All ranks' mailboxes in the host's memory, by rank; the own one can be written."""
    bells: Sequence[int]
    """The thread bells, by rank: eventfds that do not block."""
    ended: Callable[[], errors.CollectiveAborted | None]
    """Returns the error if the epoch is over, by the stop word."""
    left_waiting: Callable[[int], None]
    """Is called with a rank that has ended the gang call without meeting, or whose page is damaged."""
