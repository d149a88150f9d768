"""How long to wait before a process is started again. Pure."""

from __future__ import annotations

from typing import Final

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 10.0
"""Longest wait before a front end or a pool is started again. The wait doubles each time, if it did not live long."""

LONG_S: Final = 10.0
"""A front end or pool that has lived this long is started again at once."""


class Backoff:
    """The wait before a process is started again."""

    def __init__(self) -> None:
        self._delay_s = FIRST_RETRY_S

    def next_s(self, lived_s: float) -> float:
        """Return the wait in seconds.

        Args:
            lived_s: How long the last process has lived.
        """
        if lived_s >= LONG_S:
            self._delay_s = FIRST_RETRY_S
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, LAST_RETRY_S)
        return delay_s
