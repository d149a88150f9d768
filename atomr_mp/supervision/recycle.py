"""Decides when a healthy worker is replaced: by limits on its requests, age and memory. Pure.

It is for what grows by itself: leaks, fragments, caches. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from atomr_mp.protocol.words import counted
from atomr_mp.supervision.settings import PoolSettings

JITTER: Final = 0.2
"""Largest part of `max_age_s` by which a worker is replaced early: those that began together do not end together."""


MEMORY_AFTER_S: Final = 30.0
"""Age from which memory counts: a limit that a worker passes while it is set up must not replace it without end."""


PATIENCE_S: Final = 60.0
"""How long a due worker is left because clients hold buffers in it, which would be lost with it."""


class Life(NamedTuple):
    """The counts, age and memory of a ready worker."""

    age_s: float
    early: float
    """Drawn once for each incarnation, from 0 to 1: how much of the jitter it has."""
    requests: int
    """Requests that it has started."""
    memory_bytes: int
    leases: int = 0
    """Number of clients' leases of its buffers."""
    waited_s: float = 0.0
    """How long it has been due."""
    device_bytes: int = 0
    """Its device memory."""
    by_driver: bool = False
    """The driver has counted it; otherwise the worker itself has."""


def has_limit(limits: PoolSettings) -> bool:
    """Return whether there is a limit."""
    return bool(limits.max_requests or limits.max_age_s or limits.max_memory_bytes or limits.max_device_bytes)


def due(limits: PoolSettings, life: Life) -> str:
    """Return the reason to replace a worker, with the numbers; empty if it is not."""
    if 0 < limits.max_requests <= life.requests:
        return f"it has run {counted(life.requests, 'request')} (max_requests {limits.max_requests})"
    if 0 < limits.max_age_s * (1 - JITTER * life.early) <= life.age_s:
        return f"it is {life.age_s:.0f} s old (max_age_s {limits.max_age_s:g}, up to a fifth less)"
    if 0 < limits.max_memory_bytes <= life.memory_bytes and life.age_s >= MEMORY_AFTER_S:
        return f"it takes {life.memory_bytes} bytes of memory (max_memory_bytes {limits.max_memory_bytes})"
    if 0 < limits.max_device_bytes <= life.device_bytes and life.age_s >= MEMORY_AFTER_S:
        who = "by what the driver tells, it takes" if life.by_driver else "its slabs take"
        return f"{who} {life.device_bytes} bytes of its device (max_device_bytes {limits.max_device_bytes})"
    return ""


def choose(limits: PoolSettings, ready: Mapping[int, Life], *, away: int) -> tuple[int, str] | None:
    """Return the device whose worker has to be replaced now, and the reason; None if none is.

    One at a time: nobody is replaced while another device is away. The one that has passed its limit for the longest
    is not known; the oldest goes first, so that each has its turn.

    Args:
        limits: The pool's settings; 0 stands for no limit.
        ready: The workers that are ready, by device.
        away: How many devices are on their way to be ready; those that are stopped do not count.
    """
    if away:
        return None
    for device in sorted(ready, key=lambda device: -ready[device].age_s):
        life = ready[device]
        why = due(limits, life)
        if why and (not life.leases or life.waited_s >= PATIENCE_S):
            return device, why
    return None
