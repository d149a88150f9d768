"""A file that changes under a running world: its members never run different code in one call."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from tests.support import DEADLINE_S, Ledger, settled
from tests.worlds import on_host

pytestmark = on_host

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


def test_operators_are_told_that_a_world_waits(ledger: Ledger, tmp_path: Path) -> None:
    """By the status, by the doctor's exit status, and by an event, though all devices are ready."""
    actor, imported = tmp_path / "scaled.py", tmp_path / "scale_of_worlds.py"
    actor.write_text(ACTOR)
    imported.write_text("SCALE = 1\n")
    worlds = {"tp": {"devices": [0, 1], "actors": ["Scaled"]}}
    with ledger.start(f"{actor}:Scaled", gpus=2, worlds=worlds) as pool:
        pool.world("tp").wait_ready(DEADLINE_S)
        assert pool.status().state == "healthy"
        assert _commanded("doctor", pool.run_dir)[0] == 0
        imported.write_text("SCALE = 100\n")
        os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
        assert settled(lambda: all(each.admitted for each in pool.devices) and "code" in pool.world("tp").info.reason)
        assert (pool.status().state, pool.status().reason) == ("degraded", "world tp is waiting")
        assert _commanded("status", pool.run_dir)[0] == 1
        status, told = _commanded("doctor", pool.run_dir)
        assert (status, "all is well" in told) == (1, False), told
        assert "1 unwell" in told
        assert settled(lambda: "different code" in _waits(pool.run_dir))
        pool.reload()
        assert pool.world("tp").call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 200
        assert pool.status().state == "healthy"


def _commanded(command: str, run_dir: Path) -> tuple[int, str]:
    """Run a command; return its exit status and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "atomr_mp.cli", command, "--run-dir", str(run_dir)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "COLUMNS": "250"},
    )
    return done.returncode, done.stdout + done.stderr


def _waits(run_dir: Path) -> str:
    """Return the latest reason for which a world waits, by the event log."""
    events = read_events(run_dir / "events.jsonl")
    return next((str(each["reason"]) for each in reversed(list(events)) if each["event"] == "world_waits"), "")


def test_all_members_take_over_together(ledger: Ledger, tmp_path: Path) -> None:
    """While the last one is set up beside the others, the world goes on with the old code."""
    actor, imported = tmp_path / "scaled.py", tmp_path / "scale_of_worlds.py"
    actor.write_text(ACTOR)
    imported.write_text("SCALE = 1\n")
    worlds = {"tp": {"devices": [0, 1, 2], "actors": ["Scaled"]}}
    with (
        ledger.start(f"{actor}:Scaled", gpus=3, worlds=worlds, standby="hot", standby_starts=3) as pool,
        ledger.gate("last") as gate,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        world = pool.world("tp")
        assert settled(lambda: all(device.standby is not None for device in pool.devices))
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 3
        imported.write_text("SCALE = 100\n")
        waits = f"open('{gate.path}.here', 'a').write('1\\n'); open('{gate.path}.go', 'rb', buffering=0).read(1)"
        set_up = "self.world = context.world"
        actor.write_text(ACTOR.replace(set_up, f"{set_up}\n        if context.world.rank == 2: {waits}"))
        epoch = world.epoch
        reload = threads.submit(pool.reload)
        gate.wait()
        assert settled(lambda: [each.standby for each in pool.devices].count(None) == 1), "the others are ready"
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 3
        assert world.epoch == epoch
        gate.open()
        reload.result(DEADLINE_S)
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 300
        assert world.epoch == epoch + 1


@pytest.mark.parametrize(
    "imports", ["from scale_of_worlds import SCALE", "SCALE = import_module('scale_of_worlds').SCALE"]
)
def test_code_that_has_changed_since_the_load_is_not_imported(ledger: Ledger, tmp_path: Path, imports: str) -> None:
    """A standby that was loaded before an edit takes over, and its first call imports what was edited."""
    actor, imported = tmp_path / "scaled.py", tmp_path / "scale_of_worlds.py"
    late = ACTOR.replace("from scale_of_worlds import SCALE", "from importlib import import_module")
    actor.write_text(late.replace("        return", f"        {imports}\n        return"))
    imported.write_text("SCALE = 1\n")
    worlds = {"tp": {"devices": [0, 1], "actors": ["Scaled"]}}
    with ledger.start(f"{actor}:Scaled", gpus=2, worlds=worlds, standby="hot") as pool:
        world = pool.world("tp")
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 2
        assert settled(lambda: all(device.standby is not None for device in pool.devices))
        imported.write_text("SCALE = 100\n")
        os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
        with pytest.raises(errors.AtomrError, match="has changed since this worker loaded the actor Scaled") as raised:
            world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S)
        assert "reload the pool" in str(raised.value)
        pool.reload()
        assert world.call("Scaled.scaled", deadline_s=DEADLINE_S).result(DEADLINE_S) == 200
