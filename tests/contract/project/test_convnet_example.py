"""examples/convnet.py: one program reads digits as float64 does, and goes on through kills of its worker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest
import scipy.signal
from numpy.typing import NDArray

import atomr_mp
import convnet
import train_convnet
from atomr_mp import testing
from tests.support import DEADLINE_S, Ledger, settled, wait_generation
from tests.tolerances import assert_close

EXAMPLE: Final = convnet.HERE / "convnet.py"
PROGRAM_S: Final = 120.0
"""How long the program may take, on a busy machine."""
KILLS: Final = 2
AT_A_TIME: Final = 250
"""Calls that are sent before one is answered; a client may have 256 at a device."""

Exact = NDArray[np.float64]


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool that serves the network."""
    with Ledger() as ledger, ledger.start(f"{EXAMPLE}:Convnet", backend=backend, max_restarts=100, faults=[]) as pool:
        yield pool


@pytest.fixture(scope="module")
def weights() -> dict[str, Exact]:
    """The committed weights, in float64."""
    with np.load(convnet.WEIGHTS, allow_pickle=False) as file:
        return {name: file[name].astype(np.float64) for name in convnet.SHAPES}


@pytest.fixture(scope="module")
def images() -> NDArray[np.uint8]:
    """The images that the network was not trained on."""
    loaded: NDArray[np.uint8] = np.load(convnet.DATA / "digits_test.npy")
    return loaded


@pytest.fixture(scope="module")
def expected(weights: dict[str, Exact], images: NDArray[np.uint8]) -> Exact:
    """What each of them gives, by another way than any library of ours, and than the training."""
    return np.array([probabilities(weights, image.reshape(8, 8) / 16.0) for image in images])


def probabilities(weights: dict[str, Exact], image: Exact) -> Exact:
    """Read one image, channel by channel, in float64."""
    first = correlated(image[np.newaxis], weights["conv1"], weights["conv1_bias"])
    second = correlated(first, weights["conv2"], weights["conv2_bias"])
    pooled = np.array(
        [[[channel[i : i + 2, j : j + 2].max() for j in range(0, 8, 2)] for i in range(0, 8, 2)] for channel in second]
    )
    scores = np.array([pooled.ravel() @ column for column in weights["linear"].T]) + weights["linear_bias"]
    powers = np.exp(scores - scores.max())
    divided: Exact = powers / powers.sum()
    return divided


def correlated(channels: Exact, weight: Exact, bias: Exact) -> Exact:
    """Correlate with each kernel, add its bias, and cut off what is below 0."""
    return np.array(
        [
            sum(
                scipy.signal.correlate2d(channel, part, mode="same")
                for channel, part in zip(channels, kernel, strict=True)
            ).clip(min=-start)
            + start
            for kernel, start in zip(weight, bias, strict=True)
        ]
    )


def check(found: list[NDArray[np.float32]], expected: Exact) -> None:
    """See that each answer is the exact one, within what float32 allows of sums of 256 products."""
    assert all((each.dtype.name, each.shape) == ("float32", (10,)) for each in found)
    assert_close(found, np.resize(expected, (len(found), 10)), "float32", length=256)


def test_answers_are_those_of_a_float64_reference(
    pool: atomr_mp.Pool, images: NDArray[np.uint8], expected: Exact
) -> None:
    """Alone, in batches that are not full, and in full ones."""
    check([pool.call("Convnet.read", images[0]).result(DEADLINE_S)], expected)
    check(list(pool.map("Convnet.read", images)), expected)
    (figures,) = pool.status().devices[0].batches
    assert figures.items > figures.batches


def test_held_out_accuracy_is_as_stated(pool: atomr_mp.Pool, images: NDArray[np.uint8], expected: Exact) -> None:
    """The committed weights are a small file, and read these images as well as it says: at least 98 %."""
    labels = np.load(convnet.DATA / "digits_test_labels.npy")
    with np.load(convnet.WEIGHTS, allow_pickle=False) as file:
        stated = float(file["held_out_accuracy"])
    read = np.argmax(list(pool.map("Convnet.read", images)), axis=1)
    assert np.mean(read == labels) == stated == np.mean(expected.argmax(axis=1) == labels)
    assert stated >= 0.98
    assert convnet.WEIGHTS.stat().st_size < 100_000


def test_a_wrong_image_is_refused_alone(pool: atomr_mp.Pool, images: NDArray[np.uint8], expected: Exact) -> None:
    """The others of its batch are read."""
    wrong = {5: np.zeros(63, np.uint8), 9: np.zeros((8, 8), np.uint8), 13: np.full(64, 17), 17: np.full(64, np.nan)}
    replies = [pool.call("Convnet.read", wrong.get(place, image)) for place, image in enumerate(images[:20])]
    texts = {place: str(replies[place].exception(DEADLINE_S)) for place in wrong}
    for place, text in {5: "got (1, 63)", 9: "got (1, 8, 8)", 13: "got 17 to 17", 17: "got nan to nan"}.items():
        assert text in texts[place]
    right = [place for place in range(20) if place not in wrong]
    check([replies[place].result(DEADLINE_S) for place in right], expected[right])


@pytest.mark.parametrize("point", ["decode", "enqueue", "before_reply"])
def test_every_answer_is_right_and_comes_once_through_kills(
    pool: atomr_mp.Pool, images: NDArray[np.uint8], expected: Exact, point: testing.Point
) -> None:
    """The worker is killed before the program runs, or when it has run and nothing is answered.

    The next one, which has the weights again, answers the calls that were lost, and those that were on their way.
    """
    generation = pool.devices[0].generation
    told: list[int] = []
    with testing.inject(pool, at=point, fault=testing.Kill(), of="Convnet.read") as killed:
        replies = [pool.call("Convnet.read", image) for image in images[:AT_A_TIME]]
        for reply in replies:
            reply.add_done_callback(lambda reply: told.append(id(reply)))
        check([reply.result(DEADLINE_S) for reply in replies], expected)
        assert len(killed.wait()) == 1
    assert settled(lambda: len(told) >= len(replies))
    assert sorted(told) == sorted(map(id, replies))
    assert wait_generation(pool, generation + 1).generation == generation + 1


@pytest.mark.timeout(PROGRAM_S + 20)
def test_the_program_counts_answers_and_kills(backend: str) -> None:
    """It compares the answers itself."""
    arguments = [str(EXAMPLE), "--kills", str(KILLS), "--backend", backend]
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert ran.returncode == 0, ran.stderr
    counted, accuracy = ran.stdout.splitlines()
    assert re.fullmatch(r"10,800 images read, each answered once; 2 workers killed, [\d,]+ images sent again", counted)
    with np.load(convnet.WEIGHTS, allow_pickle=False) as file:
        assert accuracy == f"{file['held_out_accuracy']:.2%} of 360 held-out images read correctly"


def test_the_training_follows_the_gradient(weights: dict[str, Exact]) -> None:
    """By central differences of the mean cross-entropy, one element of each array of weights after another."""
    random = np.random.default_rng(4)
    images, labels = random.uniform(0, 1, (3, 1, 8, 8)), np.array([3, 0, 7])

    def loss(moved: dict[str, Exact]) -> float:
        return -float(np.mean([np.log(probabilities(moved, images[n, 0])[labels[n]]) for n in range(3)]))

    slopes = train_convnet.gradient(weights, images, labels)
    assert slopes.keys() == weights.keys()
    for name, slope in slopes.items():
        assert slope.shape == weights[name].shape
        for place in random.choice(slope.size, 4):
            step = np.zeros(slope.size)
            step[place] = 1e-5
            ahead, behind = (
                loss({**weights, name: weights[name] + sign * step.reshape(slope.shape)}) for sign in (1, -1)
            )
            assert slope.flat[place] == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-8)
