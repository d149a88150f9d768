"""Trains the small convolutional network of `convnet.py`, and writes its weights.

Run by a person, a minute on a CPU: `python examples/train_convnet.py`. It needs NumPy alone, and trains on the images
that `train_digits.py` has written, but for the held-out ones. What it writes is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from convnet import DATA, SHAPES, SIDE, WEIGHTS
from digits_model import INK_MAX, as_images

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.floating]
    """float32; float64 where more digits are wanted."""
    Weights = dict[str, Array]

SPLIT: Final = WEIGHTS.with_name("digits_weights.npz")
"""Names the held-out images."""
SEED: Final = 0
EPOCHS: Final = 40
BATCH: Final = 32
LEARNING_RATE: Final = 0.05
"""Learning rate at the start; it falls to 0 along half a cosine."""
MOMENTUM: Final = 0.9
WEIGHT_DECAY: Final = 1e-3


def main() -> None:
    """Train, measure on the held-out images, write the weights."""
    images = as_images(np.load(DATA / "digits_all.npy")).reshape(-1, 1, SIDE, SIDE) / np.float32(INK_MAX)
    labels = np.load(DATA / "digits_all_labels.npy").astype(np.int64)
    with np.load(SPLIT, allow_pickle=False) as file:
        held_out = file["held_out_indices"]
    rest = np.setdiff1d(np.arange(len(images)), held_out)
    weights = train(images[rest], labels[rest])
    scores, _ = forward(weights, images[held_out])
    accuracy = float(np.mean(scores.argmax(axis=1) == labels[held_out]))
    np.savez(WEIGHTS, allow_pickle=False, held_out_accuracy=np.float64(accuracy), **weights)
    print(f"{accuracy:.2%} of {len(held_out)} held-out images read correctly; wrote {WEIGHTS}")


def train(images: Array, labels: NDArray[np.int64]) -> Weights:
    """Fit the weights by gradient descent with momentum; the same arguments give the same weights on one machine."""
    random = np.random.default_rng(SEED)
    weights = initial_weights(random)
    speeds = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for epoch in range(EPOCHS):
        rate = np.float32(LEARNING_RATE * (1 + np.cos(np.pi * epoch / EPOCHS)) / 2)
        order = random.permutation(len(images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for name, slope in gradient(weights, moved(images[batch], random), labels[batch]).items():
                decay = 0.0 if name.endswith("bias") else WEIGHT_DECAY
                speeds[name] = np.float32(MOMENTUM) * speeds[name] - rate * (slope + np.float32(decay) * weights[name])
                weights[name] = weights[name] + speeds[name]
    return weights


def moved(images: Array, random: np.random.Generator) -> Array:
    """Move each image by at most one pixel: digits are the same a little to the left, or higher."""
    down, right = random.integers(0, 3, (2, len(images)))
    chosen: Array = windows(images, SIDE)[np.arange(len(images)), :, down, right]
    return chosen


def initial_weights(random: np.random.Generator) -> Weights:
    """Draw weights as suits rectified units (He et al., arXiv:1502.01852); biases are 0."""
    return {
        name: np.zeros(shape, np.float32)
        if len(shape) == 1
        else random.normal(0, np.sqrt(2 / fan_in(shape)), shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def fan_in(shape: tuple[int, ...]) -> int:
    """Count the inputs of one output: of a convolution's weight (k, c, height, width), or of a matrix by columns."""
    return int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]


def forward(weights: Mapping[str, Array], images: Array) -> tuple[Array, list[Array]]:
    """Score n images (n, 1, 8, 8): n by 10; and return what each layer was given."""
    first = np.maximum(convolve(images, weights["conv1"], weights["conv1_bias"]), 0)
    second = np.maximum(convolve(first, weights["conv2"], weights["conv2_bias"]), 0)
    pooled = windows_of_two(second).max(axis=-1)
    flat = pooled.reshape(len(images), -1)
    return flat @ weights["linear"] + weights["linear_bias"], [images, first, second, pooled]


def gradient(weights: Mapping[str, Array], images: Array, labels: NDArray[np.int64]) -> Weights:
    """Derive the mean cross-entropy of a batch by each weight."""
    scores, (_, first, second, pooled) = forward(weights, images)
    # Of softmax and cross-entropy together: the probabilities, less one at the right digit.
    by_score = np.exp(scores - scores.max(axis=1, keepdims=True))
    by_score /= by_score.sum(axis=1, keepdims=True)
    by_score[np.arange(len(labels)), labels] -= 1
    by_score /= len(labels)

    by_pooled = (by_score @ weights["linear"].T).reshape(pooled.shape)
    found: Weights = {"linear": pooled.reshape(len(images), -1).T @ by_score, "linear_bias": by_score.sum(axis=0)}
    by_second = spread(second, pooled, by_pooled) * (second > 0)
    found["conv2"], found["conv2_bias"] = by_weight(first, by_second), by_second.sum(axis=(0, 2, 3))
    # A convolution's gradient by its image is one with the kernel turned round, and channels in each other's place.
    turned = weights["conv2"][:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    by_first = convolve(by_second, turned, np.float32(0)) * (first > 0)
    found["conv1"], found["conv1_bias"] = by_weight(images, by_first), by_first.sum(axis=(0, 2, 3))
    return found


def convolve(images: Array, weight: Array, bias: Array | np.float32) -> Array:
    """Correlate images (n, c, height, width) with a weight (k, c, 3, 3), with padding: n, k, height, width."""
    sums = np.tensordot(windows(images), weight, axes=([1, 4, 5], [1, 2, 3])) + bias
    correlated: Array = sums.transpose(0, 3, 1, 2)
    return correlated


def by_weight(images: Array, slopes: Array) -> Array:
    """Derive by a convolution's weight."""
    derived: Array = np.tensordot(slopes, windows(images), axes=([0, 2, 3], [0, 2, 3]))
    return derived


def windows(images: Array, side: int = 3) -> Array:
    """Return all square windows of images with one pixel of padding around: n, c, down, right, side, side."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found: Array = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(2, 3))
    return found


def windows_of_two(images: Array) -> Array:
    """Cut images into windows of 2 by 2: n, c, height / 2, width / 2, 4."""
    n, c, height, width = images.shape
    cut = images.reshape(n, c, height // 2, 2, width // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    return cut.reshape(n, c, height // 2, width // 2, 4)


def spread(images: Array, maxima: Array, slopes: Array) -> Array:
    """Give each maximum's slope to its pixel; of equal ones, which are 0 after ReLU, all get it and pass none on."""
    chosen = windows_of_two(images) == maxima[..., np.newaxis]
    n, c, height, width = maxima.shape
    cut = (chosen * slopes[..., np.newaxis]).reshape(n, c, height, width, 2, 2)
    given: Array = cut.transpose(0, 1, 2, 4, 3, 5).reshape(images.shape)
    return given


if __name__ == "__main__":
    main()
