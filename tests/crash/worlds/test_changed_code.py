"""A file that changes under a running world: its members never run different code in one call."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from atomr_mp import errors
from tests.support import BACKEND, DEADLINE_S, Ledger, settled

pytestmark = pytest.mark.skipif(BACKEND != "host", reason="worlds run on the host backend")

ACTOR = """
import numpy as np

from atomr_mp_workers import Actor, Context, method
from scale_of_worlds import SCALE


class Scaled(Actor):
    def setup(self, context: Context) -> None:
        self.world = context.world

    @method(idempotent=True)
    def scaled(self) -> float:
        return float(self.world.all_reduce(np.full(1, float(SCALE)))[0])
"""


def test_a_member_with_other_code_waits_for_a_reload(ledger: Ledger, tmp_path: Path) -> None:
    """It is said why; after the reload all have the new code."""
    actor, imported = tmp_path / "scaled.py", tmp_path / "scale_of_worlds.py"
    actor.write_text(ACTOR)
    imported.write_text("SCALE = 1\n")
    worlds = {"tp": {"devices": [0, 1, 2], "actors": ["Scaled"]}}
    with ledger.start(f"{actor}:Scaled", gpus=3, worlds=worlds) as pool:
        world = pool.world("tp")
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 3
        os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 3, "nothing has changed"
        imported.write_text("SCALE = 100\n")
        os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
        assert settled(lambda: "different code" in world.info.reason)
        with pytest.raises(errors.DeadlineExceeded, match="different code"):
            world.call("Scaled.scaled", deadline_s=0.2).result(DEADLINE_S)
        pool.reload()
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 300
