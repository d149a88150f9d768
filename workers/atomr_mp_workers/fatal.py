"""What is raised when this process must leave."""

from __future__ import annotations

from typing import Final

from atomr_mp import errors


class FatalError(Exception):
    """The context is gone: the caller has been answered, and this process must leave.

    Args:
        error: What to tell the supervisor.
    """

    def __init__(self, error: errors.AtomrError) -> None:
        super().__init__(str(error))
        self.error: Final = error
