"""Memory that remembers each store, to check every state that another process may see in between."""

from __future__ import annotations

from collections.abc import Sequence


class Stores:
    """Stands for a memoryview of words, or a slice of it.

    Args:
        words: The words, all zero at first.
        stores: Each store's index and value, in order; shared by all slices.
        indexes: Which of the words are these.
    """

    def __init__(self, words: list[int], stores: list[tuple[int, int]], indexes: Sequence[int]) -> None:
        self.words = words
        self.stores = stores
        self._indexes = indexes

    @classmethod
    def zeros(cls, count: int) -> Stores:
        """Return so many words."""
        return cls([0] * count, [], range(count))

    def cast(self, _format: str) -> Stores:
        """Be the words themselves."""
        return self

    def __len__(self) -> int:
        return len(self._indexes)

    def __getitem__(self, at: int | slice) -> int | Stores:
        if isinstance(at, slice):
            return Stores(self.words, self.stores, self._indexes[at])
        return self.words[self._indexes[at]]

    def __setitem__(self, at: int, value: int) -> None:
        self.words[self._indexes[at]] = value
        self.stores.append((self._indexes[at], value))
