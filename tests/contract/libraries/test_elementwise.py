"""Elementwise arithmetic through a pool; its numbers are proved without processes, in `tests/pure`."""

from __future__ import annotations

import numpy as np

import atomr_mp
from tests.support import Ledger


def test_an_iteration_stays_on_the_device(backend: str) -> None:
    """Newton's square root, without a number that leaves the device; each result is the next one's argument."""
    with Ledger() as ledger, ledger.start(backend=backend) as pool:
        device: atomr_mp.Device = pool.device(0)
        arithmetic = device.elementwise
        squares = device.put(np.arange(1.0, 50).reshape(7, 7))
        half, root = device.full((), 0.5, "float64"), device.put(np.ones((7, 7)))
        for _ in range(12):
            quotient = arithmetic.divide(squares, root).result()
            arithmetic.add(root, quotient, root)
            arithmetic.multiply(root, half, root)
        np.testing.assert_allclose(root.numpy(), np.sqrt(squares.numpy()), rtol=1e-12)
        found = arithmetic.greater(root, device.full((), 4.0, "float64")).result()
        picked = arithmetic.where(found, root, squares).result()
        np.testing.assert_allclose(picked.numpy(), np.where(root.numpy() > 4, root.numpy(), squares.numpy()))
        assert arithmetic.cast(found, dtype="int64").result().numpy().sum() == 33
