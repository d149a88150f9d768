"""A worker that writes over its own board harms nobody else, and nothing that it held is told as not executed."""

from __future__ import annotations

from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.board import FIRST_SLOT, FORGOTTEN, Counter
from tests.support import ACTORS, Ledger, wait_generation

STRAY: Final = f"{ACTORS}/stray.py:Stray"
NEVER_MIND: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0}


def disbelieved(pool: atomr_mp.Pool) -> list[str]:
    """Return what the event log says of boards that are not believed."""
    return [str(event["text"]) for event in read_events(pool.run_dir / "events.msgpack") if event["event"] == "board"]


@pytest.mark.parametrize(
    ("word", "count", "byte"),
    [
        (FORGOTTEN, 1, 0xFF),
        (int(Counter.RECEIVED), 20, 0xFF),
        (FIRST_SLOT, 4096, 0xFF),
        (FIRST_SLOT, 4096, 0),
        (0, FIRST_SLOT, 0),
    ],
)
def test_a_stray_write_before_a_death_costs_nobody_the_pool(ledger: Ledger, word: int, count: int, byte: int) -> None:
    """Clients decode what they are told, whatever the board says; what ran counts as maybe executed."""
    with ledger.start(STRAY, gpus=2, **NEVER_MIND) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        struck, well = pool.actor("Stray", device=0), other.actor("Stray", device=1)
        assert struck.echo(1).result() == 1
        lost = struck.write(word, count, byte, die=True).exception()
        assert type(lost) is errors.WorkerLost
        assert lost.maybe_executed
        wait_generation(pool, 2)
        assert well.echo(2).result() == 2
        assert struck.echo(3).result() == 3
        assert other.actor("Stray", device=0).echo(4).result() == 4
        assert len(disbelieved(pool)) == 1
        figures = pool.status().workers[0].figures
        assert figures.received < 100, "nothing of a board that is not believed is counted"


def test_a_living_worker_with_such_a_board_is_drained_and_replaced(ledger: Ledger) -> None:
    """Callers do not notice."""
    with ledger.start(STRAY, **NEVER_MIND) as pool:
        before = pool.actor("Stray").write(FORGOTTEN, 1, 0xFF, die=False).result()
        wait_generation(pool, 2)
        assert pool.actor("Stray").write(40, 0, 0, die=False).result() != before
        assert any("not believed" in text for text in disbelieved(pool))
        assert pool.status().workers[0].device.restarts == 0
