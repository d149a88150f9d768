"""Streams by `tcp://`: the tests of local ones, unchanged, with a client that comes through a relay.

Tests that start pools with settings of their own are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

import atomr_mp
from tests import remote as served
from tests.contract.streams import test_async_methods, test_steps, test_streams
from tests.support import Ledger

_RECEIVED: Final = "a thread of a remote client receives by itself, so a part may be there that nobody waits for"

LOCAL: Final[dict[str, str]] = {"test_a_stream_is_read_where_it_was_opened": _RECEIVED}
"""Why a test is not for remote clients, by its name."""


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, served.Served]]:
    """A pool that listens, for all tests."""
    with Ledger() as ledger:
        actors = test_streams.STREAMER, test_streams.CREW, test_steps.ENGINE, test_async_methods.AWAITER
        found = served.serve(ledger, *actors, window_requests=32)
        with found.pool:
            yield ledger, found


@pytest.fixture
def pool(shared: tuple[Ledger, served.Served]) -> Iterator[atomr_mp.Pool]:
    """A remote client, with no history."""
    with shared[1].client() as own:
        yield own


for _module in (test_streams, test_steps, test_async_methods):
    globals().update(served.repeated(_module, LOCAL))
