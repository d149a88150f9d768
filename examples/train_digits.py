"""Trains the network of the digits example, and writes its weights and the images to try it on.

Run by a person, a few seconds on a CPU: `python examples/train_digits.py`. What it writes is committed, so
that nobody else needs scikit-learn, which only hands over the data: 1,797 images of 8 by 8 pixels, ink from
0 to 16 (the test part of "Optical Recognition of Handwritten Digits" of the UCI repository).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from sklearn.datasets import load_digits

import digits_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

HERE: Final = Path(__file__).parent
WEIGHTS: Final = HERE / "digits_weights.npz"
DATA: Final = HERE / "data"

SPLIT_SEED: Final = 20260101
HELD_OUT: Final = 360
"""Images never trained on: 20 %."""

TRAINING_SEED: Final = 0
HIDDEN: Final = 64
EPOCHS: Final = 40
BATCH: Final = 64
LEARNING_RATE: Final = 3e-3
"""Learning rate at the start; it falls to 0 along half a cosine."""
WEIGHT_DECAY: Final = 1e-3


def main() -> None:
    """Train, measure on the held-out images, write everything."""
    dataset = load_digits()
    images = dataset.data.astype(np.uint8)  # whole numbers from 0 to 16, kept as float64 there
    labels = dataset.target.astype(np.int64)
    held_out, rest = split(len(images))

    weights = train(digits_model.as_images(images[rest]), labels[rest])
    accuracy = measure(weights, images[held_out], labels[held_out])
    np.savez(
        WEIGHTS,
        allow_pickle=False,
        held_out_indices=held_out,
        held_out_accuracy=np.float64(accuracy),
        **weights._asdict(),
    )
    export(images, labels, held_out)
    print(f"{accuracy:.2%} of {len(held_out)} held-out images read correctly; wrote {WEIGHTS} and {DATA}")


def split(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the indices below `count` into the held-out and the rest, each in ascending order."""
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(count)
    return np.sort(shuffled[:HELD_OUT]), np.sort(shuffled[HELD_OUT:])


def train(images: NDArray[np.float32], labels: NDArray[np.int64]) -> digits_model.Weights:
    """Fit the weights by Adam on mini-batches; the same arguments give the same weights on one machine."""
    random = np.random.default_rng(TRAINING_SEED)
    weights = initial_weights(random)
    adam = Adam(weights)
    for epoch in range(EPOCHS):
        rate = LEARNING_RATE * (1 + np.cos(np.pi * epoch / EPOCHS)) / 2
        for batch in batches(random.permutation(len(images))):
            weights = adam.step(weights, gradient(weights, images[batch], labels[batch]), rate)
    return weights


def measure(weights: digits_model.Weights, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    """Say what fraction of the images is read correctly."""
    return float(np.mean(digits_model.predict(weights, digits_model.as_images(images)) == labels))


def export(images: NDArray[np.uint8], labels: NDArray[np.int64], held_out: NDArray[np.int64]) -> None:
    """Write images (n by 64) and labels as uint8, all and the held-out ones, each in the dataset's order."""
    DATA.mkdir(exist_ok=True)
    for name, part in (("all", slice(None)), ("test", held_out)):
        np.save(DATA / f"digits_{name}.npy", images[part], allow_pickle=False)
        np.save(DATA / f"digits_{name}_labels.npy", labels[part].astype(np.uint8), allow_pickle=False)


def initial_weights(random: np.random.Generator) -> digits_model.Weights:
    """Draw weights as suits rectified units (He et al., arXiv:1502.01852)."""

    def layer(inputs: int, outputs: int) -> NDArray[np.float32]:
        return random.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)

    return digits_model.Weights(
        hidden=layer(digits_model.PIXELS, HIDDEN),
        hidden_bias=np.zeros(HIDDEN, np.float32),
        output=layer(HIDDEN, digits_model.DIGITS),
        output_bias=np.zeros(digits_model.DIGITS, np.float32),
    )


def batches(order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut an order of images into mini-batches; the last may be short."""
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def gradient(
    weights: digits_model.Weights, images: NDArray[np.float32], labels: NDArray[np.int64]
) -> digits_model.Weights:
    """Derive the mean cross-entropy of a batch, plus the decay of the two matrices, by each weight."""
    inputs = images / np.float32(digits_model.INK_MAX)
    hidden = np.maximum(inputs @ weights.hidden + weights.hidden_bias, 0)
    scores = hidden @ weights.output + weights.output_bias

    # Of softmax and cross-entropy together: the probabilities, less one at the right digit.
    by_score = np.exp(scores - scores.max(axis=1, keepdims=True))
    by_score /= by_score.sum(axis=1, keepdims=True)
    by_score[np.arange(len(labels)), labels] -= 1
    by_score /= len(labels)

    by_hidden = np.where(hidden > 0, by_score @ weights.output.T, np.float32(0))
    return digits_model.Weights(
        hidden=inputs.T @ by_hidden + WEIGHT_DECAY * weights.hidden,
        hidden_bias=by_hidden.sum(axis=0),
        output=hidden.T @ by_score + WEIGHT_DECAY * weights.output,
        output_bias=by_score.sum(axis=0),
    )


class Adam:
    """Adam with its usual constants (Kingma and Ba, arXiv:1412.6980)."""

    MEAN_DECAY: Final = 0.9
    SQUARE_DECAY: Final = 0.999
    EPSILON: Final = 1e-8

    def __init__(self, weights: digits_model.Weights) -> None:
        self._means = [np.zeros_like(weight) for weight in weights]
        self._squares = [np.zeros_like(weight) for weight in weights]
        self._steps = 0

    def step(self, weights: digits_model.Weights, slopes: digits_model.Weights, rate: float) -> digits_model.Weights:
        """Return the weights after one step down the slopes."""
        self._steps += 1
        moved = []
        for i, (weight, slope) in enumerate(zip(weights, slopes, strict=True)):
            self._means[i] += (1 - self.MEAN_DECAY) * (slope - self._means[i])
            self._squares[i] += (1 - self.SQUARE_DECAY) * (slope**2 - self._squares[i])
            unbiased_mean = self._means[i] / (1 - self.MEAN_DECAY**self._steps)
            unbiased_square = self._squares[i] / (1 - self.SQUARE_DECAY**self._steps)
            step = rate * unbiased_mean / (np.sqrt(unbiased_square) + self.EPSILON)
            moved.append((weight - step).astype(np.float32))
        return digits_model.Weights(*moved)


if __name__ == "__main__":
    main()
