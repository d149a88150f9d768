"""Refs shared between sessions: kept until another session claims them, or until they expire. Any thread."""

from __future__ import annotations

import threading
import time
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.memory.arrays import DeviceArray


class Shares:
    """Arrays that wait to be claimed.

    Args:
        index: The device's number in the pool.
    """

    def __init__(self, index: int) -> None:
        self._index: Final = index
        self._lock = threading.Lock()
        self._shares: dict[tuple[int, bytes], tuple[DeviceArray, int]] = {}
        """By buffer and secret: the array, and when it expires; CLOCK_MONOTONIC."""

    def __len__(self) -> int:
        return len(self._shares)

    def share(self, array: DeviceArray, claim: bytes, for_s: float) -> None:
        """Keep an array for a session that will claim it. Any thread."""
        with self._lock:
            self._shares[array.block.id, claim] = array, time.monotonic_ns() + int(for_s * 1e9)

    def claim(self, buffer: int, claim: bytes) -> DeviceArray:
        """Return the ref shared under this secret, once. Any thread.

        Raises:
            GpuRefReleased: No ref is shared under it any more.
        """
        with self._lock:
            self._drop_expired()
            array, _ = self._shares.pop((buffer, claim), (None, 0))
        if array is None:
            raise errors.GpuRefReleased(
                "what was shared is not there: it was claimed, or its time is over; share it again",
                device=self._index,
            )
        return array

    def drop_expired(self) -> None:
        """Release shares that were not claimed in time. Cheap when there are none."""
        if self._shares:
            with self._lock:
                self._drop_expired()

    @property
    def next_expiry_ns(self) -> int | None:
        """When the first share expires; CLOCK_MONOTONIC."""
        # A list at once, since requests on other threads may share meanwhile.
        if not self._shares:
            return None
        return min((until_ns for _, until_ns in list(self._shares.values())), default=None)

    def _drop_expired(self) -> None:
        now_ns = time.monotonic_ns()
        for key in [key for key, (_, until_ns) in self._shares.items() if until_ns < now_ns]:
            del self._shares[key]
