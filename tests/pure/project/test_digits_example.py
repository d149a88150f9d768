from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

import digits_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXAMPLES: Final = Path(digits_model.__file__).parent
WEIGHTS: Final = EXAMPLES / "digits_weights.npz"


@pytest.fixture(scope="module")
def weights() -> digits_model.Weights:
    """Load the committed weights."""
    return digits_model.load(WEIGHTS)


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_forward_pass_agrees_with_a_float64_reference(weights: digits_model.Weights, count: int) -> None:
    """Float32 scores of random images are those computed one image at a time in float64."""
    images = np.random.default_rng(count).uniform(0, 16, (count, 64))
    scores = digits_model.logits(weights, digits_model.as_images(images))
    expected = np.array([reference_scores(weights, image) for image in images]).reshape(count, 10)
    assert scores.dtype == np.float32
    # Sums of 64 products: 64 float32 roundings of terms whose sizes add up to a few tens.
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-4)


def test_prediction_is_the_digit_with_the_highest_score(weights: digits_model.Weights) -> None:
    """Labels are int64, one an image, and no images give no labels."""
    images = digits_model.as_images(np.load(EXAMPLES / "data/digits_test.npy"))
    labels = digits_model.predict(weights, images)
    assert labels.dtype == np.int64
    assert labels.tolist() == [int(np.argmax(reference_scores(weights, image))) for image in images]
    assert digits_model.predict(weights, images[:0]).shape == (0,)


def test_held_out_accuracy_is_as_stated(weights: digits_model.Weights) -> None:
    """The committed weights read the held-out images as well as their file says: at least 97 %."""
    with np.load(WEIGHTS, allow_pickle=False) as file:
        held_out = file["held_out_indices"]
        stated = float(file["held_out_accuracy"])
    images, labels = exported("all")
    read = digits_model.predict(weights, digits_model.as_images(images[held_out]))
    assert np.mean(read == labels[held_out]) == stated
    assert stated >= 0.97


def test_exported_images_are_the_held_out_ones() -> None:
    """The smaller set is 360 images of the larger, at the indices that the weights' file gives, in order."""
    with np.load(WEIGHTS, allow_pickle=False) as file:
        held_out = file["held_out_indices"]
    images, labels = exported("all")
    test_images, test_labels = exported("test")
    assert images.shape == (1797, 64)
    assert len(held_out) == 360
    assert np.all(np.diff(held_out) > 0)
    np.testing.assert_array_equal(test_images, images[held_out])
    np.testing.assert_array_equal(test_labels, labels[held_out])


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (np.zeros(64), "got (64,)"),
        (np.zeros((2, 63)), "got (2, 63)"),
        (np.zeros((1, 8, 8)), "got (1, 8, 8)"),
        (np.full((1, 64), 17), "got 17 to 17"),
        (np.full((1, 64), -1), "got -1 to -1"),
        (np.full((1, 64), np.nan), "got nan to nan"),
        (np.zeros((1, 64), bool), "got bool"),
        (np.zeros((1, 64), complex), "got complex128"),
        (np.full((1, 64), "7"), "got <U1"),
    ],
)
def test_wrong_images_are_refused_with_what_came(images: NDArray[np.generic], text: str) -> None:
    """Shape, dtype and range are checked, and the text names what was sent."""
    with pytest.raises(ValueError, match=re.escape(text)):
        digits_model.as_images(images)


def reference_scores(weights: digits_model.Weights, image: NDArray[np.generic]) -> list[float]:
    """Score one image without a matrix product, in float64."""
    inputs = [float(value) / 16 for value in image.tolist()]
    hidden = [max(value, 0.0) for value in dense(inputs, weights.hidden, weights.hidden_bias)]
    return dense(hidden, weights.output, weights.output_bias)


def dense(inputs: list[float], matrix: NDArray[np.float32], bias: NDArray[np.float32]) -> list[float]:
    """Apply one layer without its non-linearity."""
    columns = matrix.astype(np.float64).T.tolist()
    return [
        sum(value * factor for value, factor in zip(inputs, column, strict=True)) + start
        for column, start in zip(columns, bias.tolist(), strict=True)
    ]


def exported(name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Load a committed set: its images and their labels."""
    return (
        np.load(EXAMPLES / f"data/digits_{name}.npy", allow_pickle=False),
        np.load(EXAMPLES / f"data/digits_{name}_labels.npy", allow_pickle=False),
    )
