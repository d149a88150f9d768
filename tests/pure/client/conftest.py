"""Fixtures that tests of the client share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def interrupting() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, as it does in an application."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
