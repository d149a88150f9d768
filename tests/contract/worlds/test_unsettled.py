"""Collectives that seem right until their call ends: nothing that was made of them reaches a caller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors.unsettled import Ask
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger
from tests.worlds import start

UNSETTLED = f"{ACTORS}/unsettled.py:Unsettled"
UPTO = 12

pytestmark = pytest.mark.skipif(BACKEND != "host", reason="what it tests is not the backend's")


@pytest.mark.parametrize("method", ["numbers_of", "step"])
@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_stream_goes_on_from_what_was_right(ledger: Ledger, tmp_path: Path, method: str, at: int) -> None:
    """The parts of the step that failed are made anew in the next epoch."""
    with start(ledger, UNSETTLED) as pool:
        world = pool.world("tp")
        ask = Ask(UPTO, at, str(tmp_path / "once"))
        assert list(world.stream(f"Unsettled.{method}", ask, ahead=3)) == list(range(UPTO))
        assert world.epoch >= 2  # a rank that had not come to it fails in the next one


def test_a_call_has_no_wrong_result(ledger: Ledger, tmp_path: Path) -> None:
    """An idempotent one runs again."""
    with start(ledger, UNSETTLED) as pool:
        world = pool.world("tp")
        assert world.call("Unsettled.call", Ask(0, 5, str(tmp_path / "once"))).result(DEADLINE_S) == 5
        assert world.epoch >= 2  # a rank that had not come to it fails in the next one
