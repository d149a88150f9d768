"""Random numbers through a pool: the same ones whatever happens to the worker in between."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.cases.rng_cases import SIGNIFICANCE, assert_follows_its_law
from tests.support import Ledger, wait_generation

NUMBERS = 1001


def drawn(generator: Any) -> list[Any]:
    """Return replies with numbers of several laws."""
    return [
        generator.normal(size=NUMBERS, dtype="float64"),
        generator.random(size=(7, 11)),
        generator.bits(size=5, dtype="uint64"),
        generator.poisson(lam=4.0, size=NUMBERS),
        generator.gamma(shape=0.5, size=NUMBERS),
        generator.beta(a=2.0, b=3.0, size=NUMBERS),
    ]


def arrays(replies: list[Any]) -> list[Any]:
    """Return the numbers."""
    return [reply.result().numpy() for reply in replies]


def test_numbers_are_the_same_after_a_restart_of_the_worker(ledger: Ledger) -> None:
    """A generator knows how far it is, and a killed worker takes nothing with it."""
    with ledger.start(max_restarts=1000, backoff_initial_s=0.0) as pool:
        device = pool.device()
        undisturbed = device.rng.generator(seed=11)
        expected = arrays(drawn(undisturbed)) + arrays(drawn(undisturbed))
        points = device.rng.generator(kind="sobol32", dimensions=3)
        expected_points = arrays([points.random(size=(500, 3)), points.random(size=(500, 3))])

        disturbed = device.rng.generator(seed=11)
        again = device.rng.generator(kind="sobol32", dimensions=3)
        before = arrays([*drawn(disturbed), again.random(size=(500, 3))])
        lost = disturbed.offset
        os.kill(wait_generation(pool, 1).pid, signal.SIGKILL)
        wait_generation(pool, 2)
        after = arrays([*drawn(disturbed), again.random(size=(500, 3))])
        replayed = arrays(drawn(device.rng.generator(seed=11, offset=lost)))

        for one, other in zip(before[:-1] + after[:-1], expected, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(after[:-1], replayed, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip([before[-1], after[-1]], expected_points, strict=True):
            np.testing.assert_array_equal(one, other)


def test_numbers_go_where_they_are_wanted(ledger: Ledger, backend: str) -> None:
    """Into new arrays, into one that is given, and into a part of one."""
    with ledger.start(backend=backend) as pool:
        device = pool.device()
        generator = device.rng.generator(seed=3)
        whole = device.zeros((200, 300))
        assert generator.normal(whole[:, ::2], loc=5.0, scale=0.5).result() is None
        found = whole.numpy()
        assert_follows_its_law(found[:, ::2].reshape(-1), "normal", {"loc": 5.0, "scale": 0.5})
        assert not found[:, 1::2].any()
        made = generator.exponential(size=10_001).result()
        assert (made.shape, made.dtype) == ((10_001,), "float32")
        assert_follows_its_law(made.numpy(), "exponential", {})
        weights = device.put(np.array([1.0, 0.0, 3.0], np.float32))
        index = generator.choice(weights, size=10_000).result().numpy()
        assert index.dtype == np.int64
        counted = np.bincount(index, minlength=3)
        assert counted[1] == 0
        assert abs(counted[0] - 2500) < 4 * (10_000 * 0.25 * 0.75) ** 0.5
        assert SIGNIFICANCE < 0.001
        bad, out = device.put(np.array([1.0, -1.0])), device.zeros(4, "int64")
        with pytest.raises(errors.NumericalError, match="p has a weight") as told:
            generator.choice(bad, out).result()
        assert (told.value.library, told.value.undefined, told.value.maybe_executed) == ("rng", "out", True)
        with pytest.raises(errors.GpuRefUndefined, match=r"rng\.choice.*numerical_error"):
            out.numpy()
        assert isinstance(device.rng.random(size=3).result(), atomr_mp.GpuRef)


def test_what_the_host_does_not_have_names_the_nearest(ledger: Ledger) -> None:
    """No generator is passed off as another."""
    with ledger.start(backend="host") as pool:
        generator = pool.device().rng.generator(seed=3, kind="xorwow")
        with pytest.raises(errors.Unsupported, match="nearest that it has is philox4_32_10"):
            generator.random(size=3).result()


def test_a_program_gives_the_same_numbers_in_every_run(ledger: Ledger, backend: str) -> None:
    """Those that its request gives alone, for it says where they begin; another step uses them."""
    with ledger.start(backend=backend) as pool:
        device = pool.device()
        with device.program() as p:
            noise = p.rng.generator(seed=5, offset=9).normal(size=(4, 8))
            p.returns(p.elementwise.add(noise, noise))
        alone = device.rng.generator(seed=5, offset=9).normal(size=(4, 8)).result().numpy()
        for _ in range(2):
            np.testing.assert_array_equal(p.run().result().numpy(), alone + alone)
