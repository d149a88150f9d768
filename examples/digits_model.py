"""The numerics of the digits example: a small network that reads handwritten digits, with NumPy alone.

Pure but for `load`. `digits.py` hosts it in a worker; `train_digits.py` finds its weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

PIXELS: Final = 64
"""Values of an image: 8 rows of 8, one row after the other."""
INK_MAX: Final = 16
"""The darkest value of a pixel; 0 is blank."""
DIGITS: Final = 10


class Weights(NamedTuple):
    """Two dense layers, float32, row-major; the hidden layer has h units."""

    hidden: NDArray[np.float32]
    """64 by h."""
    hidden_bias: NDArray[np.float32]
    """h."""
    output: NDArray[np.float32]
    """h by 10."""
    output_bias: NDArray[np.float32]
    """10."""


def predict(weights: Weights, images: NDArray[np.float32]) -> NDArray[np.int64]:
    """Read images that `as_images` has checked: the likeliest digit of each."""
    labels: NDArray[np.int64] = logits(weights, images).argmax(axis=1)
    return labels


def logits(weights: Weights, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Score each of n images (n by 64, ink from 0 to 16) for each digit: n by 10, the higher the likelier."""
    return embed(weights, images) @ weights.output + weights.output_bias


def embed(weights: Weights, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the hidden layer's values for each of n images: n by h. Images of one digit have vectors that are near."""
    vectors: NDArray[np.float32] = np.maximum(images / np.float32(INK_MAX) @ weights.hidden + weights.hidden_bias, 0)
    return vectors


def as_images(values: ArrayLike) -> NDArray[np.float32]:
    """Check what a caller sent, and convert it to what `predict` takes.

    Args:
        values: n by 64 numbers (n may be 0), of any integer or floating dtype, each from 0 to 16.

    Raises:
        ValueError: Shape, dtype or values are not those; the text says what came and what was expected.
    """
    images = np.asarray(values)
    if images.ndim != 2 or images.shape[1] != PIXELS:
        raise ValueError(f"images must have the shape (n, {PIXELS}), one row per image; got {images.shape}")
    if images.dtype.kind not in "iuf":
        raise ValueError(f"images must hold integers or floating-point numbers; got {images.dtype}")
    # Put so that a NaN, which compares false with everything, is refused too.
    if images.size and not (images.min() >= 0 and images.max() <= INK_MAX):
        raise ValueError(
            f"the values of an image are 0 (blank) to {INK_MAX} (ink); got {images.min()} to {images.max()}"
        )
    return images.astype(np.float32)


def load(path: Path) -> Weights:
    """Read the weights from the file that `train_digits.py` writes."""
    with np.load(path, allow_pickle=False) as file:
        return Weights(*(file[name] for name in Weights._fields))
