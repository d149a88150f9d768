"""Actors whose methods are models that tables describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, method


class Parts(TypedDict):
    """A result with two outputs."""

    total: NDArray[np.float32]
    difference: NDArray[np.float32]


class Joined(TypedDict):
    """A result with rows."""

    sums: NDArray[np.float32]
    named: list[str]


class Tables(Actor):
    """Methods of many forms."""

    @method(idempotent=True)
    def scores(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a score for each of three classes, for each row."""
        return np.stack([pixels.sum(axis=1), pixels.max(axis=1), pixels.min(axis=1)], axis=1)

    @method(idempotent=True)
    def combine(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> Parts:
        """Return the sum and the difference."""
        return {"total": a + b, "difference": a - b}

    @method(idempotent=True)
    def told(
        self,
        text: str,
        request_id: str = "",
        options: dict[str, Any] | None = None,
        heard: dict[str, str] | None = None,
    ) -> list[str]:
        """Return all that has come beside the tensor."""
        named = [*sorted((options or {}).items()), *sorted((heard or {}).items())]
        return [text, request_id, *(f"{name}={value}" for name, value in named)]

    @method(idempotent=True)
    def lengths(self, texts: list[str]) -> list[int]:
        """Return the number of characters of each text."""
        return [len(each) for each in texts]

    @method(idempotent=True, thread=True, batch=Batch(max_items=4, max_wait_s=30, rows=True))
    def joined(self, x: NDArray[np.float32], names: list[str]) -> Joined:
        """Return the sum of each row beside the rows of its batch, and the names; only full batches go."""
        return {"sums": np.stack([x.sum(axis=1), np.full(len(x), len(x), np.float32)], axis=1), "named": names}

    @method(idempotent=True)
    def wrong(self, x: NDArray[np.float32]) -> Any:
        """Return another type of elements than its description tells."""
        return x.astype(np.float64)

    @method(thread=True)
    def count(self, most: int) -> Iterator[int]:
        """Yield the numbers below one."""
        yield from range(most)
