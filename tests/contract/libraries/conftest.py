"""Fixtures of the libraries' contract tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import atomr_mp
from tests.support import Ledger


@pytest.fixture(scope="module")
def device(backend: str) -> Iterator[atomr_mp.Device]:
    """A device of a pool of the file's own."""
    with Ledger() as ledger, ledger.start(backend=backend) as pool:
        yield pool.device(0)


@pytest.fixture
def random() -> np.random.Generator:
    """Numbers, the same in every run."""
    return np.random.default_rng(7)
