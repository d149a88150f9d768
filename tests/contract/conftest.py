"""What the contract suites share: every backend is to pass the same tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """A backend, for pools to start on; a test that asks for it runs on each that this machine has."""
    found: str = request.param
    return found
