"""The model of `tensor_parallel.py`: a transformer's block whose heads and hidden units are shared out over ranks.

Its weights are random, from a fixed seed: what it says makes no sense, but is the same each time. It computes with
NumPy or CuPy, whichever `xp` is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

BYTES: Final = 256
"""A token of a prompt is a byte."""

FIRST: Final = 32
"""A token that the model says is one of the 95 bytes from the blank to the tilde."""

SAID: Final = 95
LONGEST: Final = 2048
"""Tokens of a prompt and its answer."""

WIDTH, HEADS, HIDDEN = 128, 8, 512
HEAD: Final = WIDTH // HEADS

WEIGHTS: Final[dict[str, tuple[tuple[int, int], int | None]]] = {
    "embedding": ((BYTES, WIDTH), None),
    "places": ((LONGEST, WIDTH), None),
    "queries": ((WIDTH, WIDTH), 1),
    "keys": ((WIDTH, WIDTH), 1),
    "values": ((WIDTH, WIDTH), 1),
    "joined": ((WIDTH, WIDTH), 0),
    "up": ((WIDTH, HIDDEN), 1),
    "down": ((HIDDEN, WIDTH), 0),
    "output": ((WIDTH, SAID), None),
}
"""The shape of each matrix, and the axis along which it is cut: columns first, then rows. None: all ranks have all."""


def layout(size: int, dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shapes and the type of one rank's weights, for `Context.resident`."""
    return {
        name: (tuple(length // size if at == axis else length for at, length in enumerate(shape)), dtype)
        for name, (shape, axis) in WEIGHTS.items()
    }


def draw_weights(arrays: Mapping[str, Any], rank: int, size: int, xp: Any) -> None:
    """Write a rank's slices of the whole model's weights."""
    for number, (name, (shape, axis)) in enumerate(WEIGHTS.items()):
        whole = np.random.default_rng(number).standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
        arrays[name][...] = xp.asarray(whole if axis is None else np.split(whole, size, axis)[rank])


class Cache:
    """The keys and values of one text, of one rank's heads."""

    def __init__(self, longest: int, heads: int, xp: Any) -> None:
        self.keys = xp.zeros((heads, longest, HEAD), np.float32)
        self.values = xp.zeros_like(self.keys)
        self.length = 0


class Model:
    """One rank's part of the model.

    Matrices are multiplied in the type of the weights, all else is computed in float32.

    Args:
        weights: This rank's, see `layout`.
        all_reduce: Sums an array over all ranks.
        xp: NumPy or CuPy.
    """

    def __init__(self, weights: Mapping[str, Any], all_reduce: Callable[[Any], Any], xp: Any) -> None:
        self._weights, self._all_reduce, self._xp = weights, all_reduce, xp

    def cache(self, longest: int) -> Cache:
        """Return an empty cache for a text of so many tokens."""
        return Cache(longest, self._weights["queries"].shape[1] // HEAD, self._xp)

    def scores(self, tokens: list[int], cache: Cache) -> Any:
        """Take in the next tokens of a text; return the scores of what may follow, SAID numbers, alike on all ranks."""
        xp, begin, end = self._xp, cache.length, cache.length + len(tokens)
        cache.length = end
        embedding, places = self._weights["embedding"][xp.asarray(tokens)], self._weights["places"][begin:end]
        x = embedding.astype(np.float32) + places.astype(np.float32)
        normal = _normal(x)
        queries, keys, values = (
            self._product(normal, name).reshape(len(tokens), -1, HEAD).swapaxes(0, 1)
            for name in ("queries", "keys", "values")
        )
        cache.keys[:, begin:end], cache.values[:, begin:end] = keys, values
        seen = self._attention(queries, cache.keys[:, :end], cache.values[:, :end])
        x += self._all_reduce(self._product(seen.swapaxes(0, 1).reshape(len(tokens), -1), "joined"))
        hidden = self._product(_normal(x), "up")
        x += self._all_reduce(self._product(hidden / (1 + xp.exp(-hidden)), "down"))
        return self._product(_normal(x[-1:]), "output")[0]

    def _attention(self, queries: Any, keys: Any, values: Any) -> Any:
        """Attend to what is before each query, which stand for the last places: all (heads, places, HEAD)."""
        xp, end = self._xp, keys.shape[1]
        visible = xp.arange(end) <= xp.arange(end - queries.shape[1], end)[:, None]
        fits = xp.where(visible, queries @ keys.swapaxes(1, 2) * HEAD**-0.5, np.float32(-np.inf))
        shares = xp.exp(fits - fits.max(axis=-1, keepdims=True))
        return shares @ values / shares.sum(axis=-1, keepdims=True)

    def _product(self, x: Any, name: str) -> Any:
        weights = self._weights[name]
        return (x.astype(weights.dtype, copy=False) @ weights).astype(np.float32, copy=False)


def tokens_of(text: str) -> list[int]:
    """Return the bytes of a text."""
    return list(text.encode())


def draw(scores: np.ndarray[Any, Any], temperature: float, seed: int, place: int) -> int:
    """Draw the token at a place of an answer; at temperature 0 take the likeliest. Chance depends on seed and place."""
    if temperature > 0:
        scores = scores / temperature + np.random.default_rng((abs(seed), place)).gumbel(size=SAID)
    return FIRST + int(scores.argmax())


def _normal(x: Any) -> Any:
    return x * ((x * x).mean(axis=-1, keepdims=True) + 1e-6) ** -0.5
