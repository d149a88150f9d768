"""What is left of a pool whose owner is killed, as on a node whose actor Ray has ended; needs no Ray."""

from __future__ import annotations

import os
import signal

import pytest

from atomr_mp.ray.sweeper import sweep_after
from tests.support import PROBE, Ledger, Watched, settled


@pytest.mark.parametrize("supervisor", ["lives", "stopped", "killed"])
def test_no_process_and_no_file_is_left_of_a_pool_whose_owner_was_killed(ledger: Ledger, supervisor: str) -> None:
    """Keys and logs go too, once no process of the pool uses them, also if its supervisor does not end by itself."""
    run_dir, keys = ledger.run_dir(), ledger.path / "run.keys"
    keys.mkdir()
    (keys / "server.key").touch()
    with ledger.program("application", run_dir, PROBE, "1") as program:
        pids = [int(pid) for pid in program.hear()]
        sweeper = sweep_after(run_dir, keys)
        with Watched(pids) as watched:
            number = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}.get(supervisor)
            if number is not None:
                os.kill(pids[0], number)
            assert run_dir.exists()
            program.kill()
            os.close(sweeper)
            assert watched.left() == []
        assert settled(lambda: not run_dir.exists() and not keys.exists())


def test_an_owner_that_has_removed_all_itself_leaves_no_process(ledger: Ledger) -> None:
    """There is nothing to wait for, and nothing to remove."""
    run_dir = ledger.run_dir()
    sweeper = sweep_after(run_dir)
    with ledger.start() as pool:
        assert pool.call("Probe.where").result()
    os.close(sweeper)
    assert settled(lambda: not run_dir.exists())
