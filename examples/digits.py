"""A user's actor: it reads handwritten digits with a small network, in a worker process of its own.

Start it by path: `examples/digits.py:Digits`. The weights lie beside this file; see `train_digits.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray  # at run time too: the runtime checks arguments by their annotations

import digits_model
from atomr_mp_workers import Actor, Context, method

WEIGHTS: Final = Path(__file__).with_name("digits_weights.npz")


class Digits(Actor):
    """Reads 8 by 8 images of handwritten digits.

    An image is 64 values from 0 (blank) to 16 (ink), row after row, of any integer or floating dtype.
    """

    _weights: digits_model.Weights

    def setup(self, context: Context) -> None:
        """Load the weights, to the GPU if there is one; the worker is ready only once this returns."""
        self._weights = digits_model.load(WEIGHTS)
        self._cupy: Any = None
        if context.backend == "cuda":
            import cupy

            self._cupy = cupy
            self._weights = digits_model.Weights(*map(cupy.asarray, self._weights))

    @method(idempotent=True)
    def predict(self, image: NDArray[np.generic]) -> int:
        """Read one image of 64 values.

        Raises:
            ValueError: It is not 64 numbers from 0 to 16.
        """
        image = np.asarray(image)
        if image.shape != (digits_model.PIXELS,):
            raise ValueError(f"an image must have the shape ({digits_model.PIXELS},); got {image.shape}")
        return int(self.predict_many(image[np.newaxis])[0])

    @method(idempotent=True)
    def predict_many(self, images: NDArray[np.generic]) -> NDArray[np.int64]:
        """Read n images, n by 64 values: n digits.

        Raises:
            ValueError: They are not n by 64 numbers from 0 to 16.
        """
        digits: NDArray[np.int64] = self._host(digits_model.predict(self._weights, self._checked(images)))
        return digits

    @method(idempotent=True)
    def embed_many(self, images: NDArray[np.generic]) -> NDArray[np.float32]:
        """Turn n images, n by 64 values, into vectors by which they can be compared: n by 32, float32.

        Raises:
            ValueError: They are not n by 64 numbers from 0 to 16.
        """
        vectors: NDArray[np.float32] = self._host(digits_model.embed(self._weights, self._checked(images)))
        return vectors

    def _checked(self, images: NDArray[np.generic]) -> Any:
        checked = digits_model.as_images(images)
        return checked if self._cupy is None else self._cupy.asarray(checked)

    def _host(self, found: Any) -> Any:
        return found if self._cupy is None else self._cupy.asnumpy(found)

    def teardown(self) -> None:
        """Let the weights go."""
        del self._weights
