"""A worker that writes over its own board harms no other, and nothing that it held is reported as not executed."""

from __future__ import annotations

import collections
import mmap
import os
import subprocess
import sys
import time
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.board.check import defect, look
from atomr_mp.protocol.board.page import BOARD_BYTES, FIRST_SLOT, FORGOTTEN, Counter
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.messages.operators import EndCount
from tests.support import ACTORS, Ledger, wait_generation, wait_state

STRAY: Final = f"{ACTORS}/stray.py:Stray"
BUSY: Final = """
import mmap, sys, time
from atomr_mp.protocol.board import BoardWriter
writer = BoardWriter(memoryview(mmap.mmap(int(sys.argv[1]), 0)))
for number in range(2**60):
    writer.receive(1)
    slot = writer.start(1, number, time.monotonic_ns(), 2**60)
    now_ns = time.monotonic_ns()
    writer.end(slot, now_ns, now_ns - 1000)
    if number == 2000:
        print("busy", flush=True)
"""
NEVER_MIND: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0}


def disbelieved(pool: atomr_mp.Pool) -> list[str]:
    """Return what the event log says of boards that are not believed."""
    return [str(event["text"]) for event in read_events(pool.run_dir / "events.jsonl") if event["event"] == "board"]


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
    """Clients decode what they get, whatever the board says; what ran counts as maybe executed."""
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
        figures = pool.figures().workers[0].figures
        assert figures.received < 100, "nothing of a board that is not believed is counted"


def test_what_a_busy_worker_is_just_writing_is_no_damage() -> None:
    """A process writes a board as fast as it can, and another judges it all the time."""
    fd = os.memfd_create("atomr-mp-board")
    os.ftruncate(fd, BOARD_BYTES)
    words = memoryview(mmap.mmap(fd, BOARD_BYTES)).cast("Q")
    command = [sys.executable, "-c", BUSY, str(fd)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE) as writer:
        os.close(fd)
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"busy\n"
            found = collections.Counter(look(words, time.monotonic_ns)[1] for _ in range(300))
        finally:
            writer.kill()
    assert found == {"": 300}
    assert defect(words, time.monotonic_ns()) == "", "killed between any two words"


def test_figures_of_a_damaged_board_never_fall(ledger: Ledger) -> None:
    """A worker's figures from before the damage to its board are counted; what the damage shows is not."""
    with ledger.start(STRAY, **NEVER_MIND) as pool:
        actor = pool.actor("Stray")
        for number in range(50):
            assert actor.echo(number).result() == number
        before = pool.figures().workers[0].figures
        assert before.answered >= 50
        assert isinstance(actor.write(int(Counter.RECEIVED), 3, 0xFF, die=True).exception(), errors.WorkerLost)
        wait_generation(pool, 2)
        after = pool.figures().workers[0].figures
        assert before.answered <= after.answered < before.answered + 50
        assert before.received <= after.received < before.received + 50


def test_a_living_worker_with_such_a_board_is_drained_and_replaced(ledger: Ledger) -> None:
    """Callers do not notice. It counts as an unplanned end: what does so again and again opens the circuit."""
    with ledger.start(STRAY, max_restarts=1, backoff_initial_s=30.0) as pool:
        before = pool.actor("Stray").write(FORGOTTEN, 1, 0xFF, die=False).result()
        wait_generation(pool, 2)
        assert pool.actor("Stray").write(40, 0, 0, die=False).result() != before
        assert any("not believed" in text for text in disbelieved(pool))
        assert pool.devices[0].restarts == 1
        pool.actor("Stray").write(FORGOTTEN, 1, 0xFF, die=False).result()
        tripped = wait_state(pool, DeviceState.TRIPPED)
        assert (tripped.generation, tripped.restarts) == (2, 2)
        assert "not believed" in tripped.reason
        assert pool.figures().workers[0].figures.ends == [EndCount("board", 2)]
