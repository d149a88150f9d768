"""`atomr-mp ready` over a pool with a world, which waits while one of its devices takes no work."""

from __future__ import annotations

import os
import signal

import pytest

from atomr_mp import cli
from atomr_mp.protocol.messages.devices import WorldState
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import on_host

pytestmark = on_host


def test_a_pool_is_ready_when_its_worlds_are(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--any` one device is enough."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Worldly"]}}
    with ledger.start(f"{ACTORS}/worldly.py:Worldly", gpus=2, worlds=worlds, max_restarts=0, give_up=True) as pool:
        where = ["--run-dir", str(pool.run_dir)]
        assert cli.main(["ready", "--deadline", str(DEADLINE_S), *where]) == 0
        os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
        assert settled(lambda: pool.world("tp").state is WorldState.WAITING, DEADLINE_S)
        capsys.readouterr()
        assert cli.main(["ready", "--deadline", "1", *where]) == 1
        told = capsys.readouterr().err
        assert "the world tp was not ready within" in told
        assert "1 of 2 devices answered, 0 of 1 world ready" in told
        assert cli.main(["ready", "--any", "--deadline", "1", *where]) == 0
