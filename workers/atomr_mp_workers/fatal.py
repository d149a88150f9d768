"""The exception that makes this process leave."""

from __future__ import annotations

from typing import Final

from atomr_mp import errors


class HalfDoneError(BaseException):
    """A fault of ours has left something half done that is not one request's alone: this process must end.

    It passes by whatever contains faults, which catches `Exception`.
    """


class FatalError(Exception):
    """The context is gone: the caller has been answered, and this process must end.

    Args:
        error: The error for the supervisor.
        noticed: The request whose error it is, if it is one's. With a lost context it need not be the cause.
    """

    def __init__(self, error: errors.AtomrError, noticed: str = "") -> None:
        super().__init__(str(error))
        self.error: Final = error
        self.noticed: Final = noticed
