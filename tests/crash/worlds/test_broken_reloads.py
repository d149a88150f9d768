"""A member that dies while the next ones of all are set up: the world comes back, whatever becomes of the reload."""

from __future__ import annotations

import concurrent.futures
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from atomr_mp import errors
from tests.support import DEADLINE_S, Ledger, settled
from tests.worlds import on_host

pytestmark = on_host

ACTOR = """
import os
import numpy as np

from atomr_mp_workers import Actor, Context, method


class Flagged(Actor):
    def setup(self, context: Context) -> None:
        self.world = context.world
        if os.path.exists({flag!r}) and context.world.rank == 2:
            open({gate!r} + ".here", "a").write("1\\n")
            open({gate!r} + ".go", "rb", buffering=0).read(1)
            if os.path.exists({bad!r}):
                raise RuntimeError("the weights are not there")

    @method(idempotent=True)
    def total(self) -> float:
        return float(self.world.all_reduce(np.ones(1))[0])
"""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_a_world_comes_back_from_a_death_amid_a_reload(
    ledger: Ledger, tmp_path: Path, rank: int, *, fails: bool
) -> None:
    """The dead member's next was started by the reload. If that fails, so does no epoch of it with the others."""
    flag, bad = tmp_path / "flag", tmp_path / "bad"
    worlds = {"tp": {"devices": [0, 1, 2], "actors": ["Flagged"]}}
    with ledger.gate("last") as gate, concurrent.futures.ThreadPoolExecutor() as threads:
        actor = tmp_path / "flagged.py"
        actor.write_text(ACTOR.format(flag=str(flag), bad=str(bad), gate=str(gate.path)))
        many: dict[str, Any] = {"standby": "hot", "standby_starts": 3, "backoff_initial_s": 0.0}
        with ledger.start(f"{actor}:Flagged", gpus=3, worlds=worlds, **many) as pool:
            world = pool.world("tp")
            assert settled(lambda: all(device.standby is not None for device in pool.devices))
            flag.touch()
            if fails:
                bad.touch()
            reload = threads.submit(pool.reload)
            gate.wait()
            generation = pool.devices[rank].generation
            os.kill(pool.devices[rank].pid or 0, signal.SIGKILL)
            assert settled(lambda: pool.devices[rank].admitted and pool.devices[rank].generation > generation)
            flag.unlink()
            gate.open()
            error = reload.exception(DEADLINE_S)
            if fails:
                assert isinstance(error, errors.SetupFailed)
                assert "the weights are not there" in str(error)
            else:
                assert error is None
            assert world.call("Flagged.total", deadline_s=DEADLINE_S).result(DEADLINE_S) == 3
            assert pool.status().state == "healthy"
