"""Fixtures of the contract suites: every backend has to pass the same tests."""

from __future__ import annotations

import pytest

import atomr_mp
from tests.support import Ledger


@pytest.fixture(scope="session", params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """A backend, for pools to start on; a test that asks for it runs on each that this machine has."""
    found: str = request.param
    return found


@pytest.fixture
def notes(shared: tuple[Ledger, atomr_mp.Pool]) -> Ledger:
    """The ledger of a file's `shared` pool, with nothing noted yet."""
    (shared[0].path / "runs").unlink(missing_ok=True)
    return shared[0]
