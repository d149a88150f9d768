"""The mailboxes of a world's processes on their devices, as the process's place in the world sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol


class FormingFailedError(Exception):
    """What an epoch needs on devices could not be made.

    Args:
        reason: Why.
        is_unfit: Whether this process has to be replaced.
    """

    def __init__(self, reason: str, *, is_unfit: bool) -> None:
        super().__init__(reason)
        self.is_unfit: Final = is_unfit


class Mailboxes(Protocol):
    """The mailboxes of a world's processes on devices, where there are some."""

    def map(self) -> None:
        """Map those that have come.

        Raises:
            Unsupported: The device of this process cannot reach one.
        """

    def join(self, epoch: int, generations: Sequence[int], wake: Callable[[], object], /) -> bool:
        """Join an epoch whose members have these generations by rank; return whether that is done.

        If it is not, `wake` has the loop look once `formed` has something to say.

        Raises:
            AtomrError: One has not come, or cannot be reached.
        """

    def formed(self) -> bool:
        """Return whether the epoch was joined.

        Raises:
            FormingFailedError: It will not be.
        """

    def over(self) -> None:
        """End all that waits for others on the device: the epoch is over. Does not wait. Once is enough."""

    def forget(self, rank: int, generation: int, /) -> None:
        """Give back that of a process that has ended."""


class NoMailboxes:
    """Stands for them on the host backend."""

    def map(self) -> None:
        """Map nothing."""

    def join(self, _epoch: int, _generations: Sequence[int], _wake: Callable[[], object], /) -> bool:
        """Join nothing."""
        return True

    def formed(self) -> bool:
        """Return True."""
        return True

    def over(self) -> None:
        """End nothing."""

    def forget(self, _rank: int, _generation: int, /) -> None:
        """Give nothing back."""
