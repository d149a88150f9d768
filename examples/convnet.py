"""A small convolutional network reads handwritten digits, as one program of libraries' requests, through kills.

    python examples/convnet.py
    atomr-mp serve --actor examples/convnet.py:Convnet

`Convnet` is the actor. Its process loads the weights and records the program in `setup`, so a new process has both
before its first request; weights that take long to load belong in resident memory. The same code runs on the host and
on a GPU. The program kills the worker in the middle of thousands of requests. They may run twice (`idempotent`), so
those that were lost are sent again, and each is answered once. `train_convnet.py` finds the weights.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray  # at run time too: the runtime checks arguments by their annotations

import atomr_mp
from atomr_mp_workers import Actor, Batch, Context, method
from digits_model import DIGITS, INK_MAX, PIXELS, as_images

HERE: Final = Path(__file__).parent
WEIGHTS: Final = HERE / "convnet_weights.npz"
DATA: Final = HERE / "data"

SIDE: Final = 8
"""Images have 8 rows of 8 pixels."""
BATCH: Final = 64
"""Images that one run of the program takes."""
KILL_EVERY: Final = 3600
"""Answers between two kills: ten rounds of the images, and more than are on their way at a time."""

SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "conv1": (8, 1, 3, 3),
    "conv1_bias": (8,),
    "conv2": (16, 8, 3, 3),
    "conv2_bias": (16,),
    "linear": (16 * PIXELS // 4, DIGITS),
    "linear_bias": (DIGITS,),
}
"""The arrays of weights, all float32."""


class Convnet(Actor):
    """Reads 8 by 8 images of handwritten digits."""

    def setup(self, context: Context) -> None:
        """Put the weights on the device, and record the program. Its arrays exist only while it runs."""
        self._context = context
        with np.load(WEIGHTS, allow_pickle=False) as file:
            weights = {name: context.keep(file[name]) for name in SHAPES}
        with context.libraries.program() as p:
            images = p.input("images", (BATCH, 1, SIDE, SIDE), "float32")
            hidden = p.dnn.conv2d(images, weights["conv1"], weights["conv1_bias"], padding=1, activation="relu")
            hidden = p.dnn.conv2d(hidden, weights["conv2"], weights["conv2_bias"], padding=1, activation="relu")
            pooled = p.dnn.max_pool2d(hidden, 2).reshape(BATCH, -1)
            scores = p.blas_lt.matmul(pooled, weights["linear"], bias=weights["linear_bias"], epilogue="bias")
            p.returns(p.dnn.softmax(scores))
        self._program: Any = p

    @method(
        idempotent=True,
        thread=True,  # the loop goes on while this waits for the GPU
        batch=Batch(max_items=BATCH),
        example=lambda: (np.zeros(PIXELS, np.uint8),),  # so a new process has its plans before it is ready
    )
    def read(self, images: list[NDArray[np.generic]]) -> list[NDArray[np.float32] | TypeError | ValueError]:
        """Return how likely an image is each digit: 10 numbers, float32, whose sum is 1.

        An image is 64 values from 0 (blank) to 16 (ink), row after row, of any integer or floating dtype. What is none
        is refused, alone in its batch.
        """
        batch = np.zeros((BATCH, PIXELS), np.float32)
        refused: dict[int, TypeError | ValueError] = {}
        for place, image in enumerate(images):
            try:
                batch[place] = as_images(image[np.newaxis])[0] / np.float32(INK_MAX)
            except (TypeError, ValueError) as wrong:  # TypeError: a ref to a GPU's memory
                refused[place] = wrong
        given = self._context.keep(batch.reshape(BATCH, 1, SIDE, SIDE))
        found = self._program.run(images=given).numpy()
        return [refused.get(place, found[place]) for place in range(len(images))]


def main() -> None:
    """Read the held-out images many times over, and kill the worker meanwhile."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--backend", default="auto", choices=("auto", "host", "cuda"))
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    images, labels = np.load(DATA / "digits_test.npy"), np.load(DATA / "digits_test_labels.npy")
    asked = [*images] * (KILL_EVERY * (options.kills + 1) // len(images))
    answers: list[NDArray[np.float32]] = []
    killed: set[int] = set()
    sent_again: list[int] = []
    with atomr_mp.start(
        actors=[f"{__file__}:Convnet"], gpus=1, backend=options.backend, max_restarts=options.kills
    ) as pool:
        answered = pool.map("Convnet.read", asked, on_progress=lambda progress: sent_again.append(progress.resubmitted))
        for answer in answered:
            answers.append(answer)
            if len(answers) % KILL_EVERY == 0 and len(answers) < len(asked):
                killed.add(pool.devices[0].pid)
                os.kill(pool.devices[0].pid, signal.SIGKILL)
    digits = np.argmax(answers, axis=1).reshape(-1, len(images))
    assert digits.size == len(asked), "an image was answered twice, or not"
    assert (digits == digits[0]).all(), "an image was not always read the same"
    print(
        f"{digits.size:,} images read, each answered once; {len(killed)} workers killed, "
        f"{sent_again[-1]:,} images sent again"
    )
    print(f"{np.mean(digits[0] == labels):.2%} of {len(labels)} held-out images read correctly")


if __name__ == "__main__":
    main()
