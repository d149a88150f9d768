"""The keys of batches, which user code makes: once they are made, they can be hashed and compared whatever they do."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from atomr_mp_workers import own_process


def sound(key: Any) -> Hashable:
    """Return a key that is equal to others as `key` is, and whose hash and comparisons do not fail.

    Raises:
        BaseException: The key cannot be hashed.
    """
    return key if _is_plain(key) else OddKey(key)


class OddKey:
    """A key whose class may define how it is hashed and compared. A key that cannot be compared is equal to none.

    Raises:
        BaseException: The key cannot be hashed.
    """

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Any) -> None:
        self._key: Final = key
        self._hash: Final = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        key = other._key if type(other) is OddKey else other
        try:
            return key is self._key or bool(self._key == key)
        except BaseException:  # noqa: BLE001 - of the key's class; its requests have batches of their own
            return False
        finally:
            own_process.check()


def _is_plain(key: Any) -> bool:
    kind = type(key)
    return kind in _PLAIN or (kind is tuple and all(map(_is_plain, key)))


_PLAIN: Final = frozenset({int, str, bytes, float, bool, type(None)})
