"""The mailboxes of a world's processes on their devices, as the process's place in the world sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Mailboxes(Protocol):
    """The mailboxes of a world's processes on devices, where there are some."""

    def map(self) -> None:
        """Map those that have come.

        Raises:
            Unsupported: The device of this process cannot reach one.
        """

    def join(self, epoch: int, generations: Sequence[int], /) -> None:
        """Join an epoch whose members have these generations by rank.

        Raises:
            AtomrError: One has not come, or cannot be reached.
        """

    def forget(self, rank: int, generation: int, /) -> None:
        """Give back that of a process that has ended."""


class NoMailboxes:
    """Stands for them on the host backend."""

    def map(self) -> None:
        """Map nothing."""

    def join(self, _epoch: int, _generations: Sequence[int], /) -> None:
        """Join nothing."""

    def forget(self, _rank: int, _generation: int, /) -> None:
        """Give nothing back."""
