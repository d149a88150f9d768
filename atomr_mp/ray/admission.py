"""Room for the keys of a pool's clients. Pure.

Each process that calls a pool of another node has a key of its own, and Ray may end its processes at any time. A client
whose key was removed for a new one has it admitted again when it joins again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from atomr_mp.remote.keys import Admitted, AdmittedKey

ADMITTED: Final = 1024
"""Most keys at a time: the relay reads them all whenever one is added."""


def is_full(before: Admitted, new: AdmittedKey, most: int = ADMITTED) -> bool:
    """Return whether a key has to be removed for a new one."""
    return len(before.keys) >= most and before.find(new.name) is None


def admit(before: Admitted, new: AdmittedKey, connected: Collection[str], most: int = ADMITTED) -> Admitted:
    """Return the list with a new key; if there are too many, without the oldest one that has no session.

    Args:
        before: The keys that are admitted, the oldest first.
        new: The new one.
        connected: Names of keys that have sessions.
        most: Most keys at a time; more only if all have sessions.

    Raises:
        ConfigurationError: The key is another client's.
    """
    if is_full(before, new, most):
        oldest = next((each.name for each in before.keys if each.name not in connected), None)
        if oldest is not None:
            before, _ = before.revoking(oldest)
    return before.admitting(new)
