"""The boards of workers whose supervisor was killed, as a node's actor reads them; needs no Ray."""

from __future__ import annotations

import os
import signal
import time

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.ray.boards import Boards
from atomr_mp.ray.failover import StartedCalls
from tests.support import DEADLINE_S, Ledger, wait_generation

MANY = 3000
"""More calls than a board has entries."""


def may_have_started(boards: Boards, *replies: atomr_mp.Reply) -> list[bool]:
    """Return, of each call of a lost pool, whether it may have started."""
    found = boards.started(DEADLINE_S)
    assert found is not None
    started = StartedCalls.told(*found, time.monotonic_ns())
    return [started.may_have(reply.id, reply.sent_ns) for reply in replies]


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_what_had_started_is_known_after_a_supervisor_s_death(ledger: Ledger, standby: str) -> None:
    """Of calls that were answered, run and wait, also of a worker that was replaced just before."""
    with ledger.gate("gate") as gate:
        pool = ledger.start(standby=standby, backoff_initial_s=0.01)
        boards = Boards(pool.run_dir)
        answered = [pool.call("Probe.note", "one")]
        assert answered[0].result() == "one"
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        answered.append(pool.call("Probe.note", "two"))
        assert answered[1].result() == "two"
        held = pool.call("Probe.hold", gate.path)
        gate.wait()
        waiting = [pool.call("Probe.note", f"never-{number}") for number in range(20)]
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        lost = [reply.exception() for reply in (held, *waiting)]
        assert [type(error) for error in lost] == [errors.PoolLost] * 21
        assert may_have_started(boards, *answered, held) == [True] * 3
        assert may_have_started(boards, *waiting) == [False] * 20
        pool.close()
    assert ledger.runs() == ["one", "two"]
    with ledger.start():
        """The next start removes what the killed one has left."""


def test_no_call_that_has_run_is_ever_called_unstarted(ledger: Ledger) -> None:
    """A board keeps the latest starts only; what it has forgotten counts as started."""
    pool = ledger.start()
    boards = Boards(pool.run_dir)
    replies = [pool.call("Probe.note", str(number), wait=True) for number in range(MANY)]
    assert replies[MANY // 2].result() == str(MANY // 2)
    os.kill(pool.supervisor_pid, signal.SIGKILL)
    for reply in replies:
        reply.exception()
    may = may_have_started(boards, *replies)
    runs = list(map(int, ledger.runs()))
    assert len(runs) > MANY // 2
    assert not [number for number in runs if not may[number]]
    pool.close()
    with ledger.start():
        """The next start removes what the killed one has left."""


def test_a_session_that_ends_by_itself_tells_nothing(ledger: Ledger) -> None:
    """While the pool lives, calls may start at any time; its own stop tells clients all by itself."""
    with ledger.start() as pool:
        boards = Boards(pool.run_dir)
        assert boards.started(0.0) is None
    assert boards.started(DEADLINE_S) is not None  # the pool has ended in order


@pytest.mark.parametrize("later", [False, True])
def test_a_worker_whose_board_cannot_be_read_makes_all_unknown(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, later: bool
) -> None:
    """It may have started anything while it lived, also before the worker of now came."""
    pool = ledger.start(backoff_initial_s=0.01)
    with monkeypatch.context() as hidden:
        hidden.setattr("atomr_mp.ray.boards.Board.of", lambda _pid: None)
        boards = Boards(pool.run_dir)
    if later:
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        assert pool.call("Probe.note", "two").result() == "two"
    os.kill(pool.supervisor_pid, signal.SIGKILL)
    assert boards.started(DEADLINE_S) is None
    pool.close()
    with ledger.start():
        """The next start removes what the killed one has left."""
