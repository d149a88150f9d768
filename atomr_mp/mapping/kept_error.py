"""An exception that is raised later than it was caught."""

from __future__ import annotations


class KeptError:
    """Keeps an exception until it is raised, and not longer.

    Its traceback shows the frames in which it is raised. If one of them still led to it, all that they refer to would
    stay until Python's cyclic collector runs.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __bool__(self) -> bool:
        return self._error is not None

    def keep(self, error: BaseException) -> None:
        """Keep an exception, in the place of the one before."""
        self._error = error

    def raise_kept(self) -> None:
        """Raise the exception if there is one, and keep it no longer."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
