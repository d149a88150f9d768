"""A cluster over two raylets of this host, whose workers, actors and raylets are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import digits_model
from tests.support import Ledger, settled
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'atomr-mp[ray]'"),
    pytest.mark.timeout(240),
]

PROGRAM = Path(__file__).parents[2] / "programs" / "clustering.py"
LEDGER = PROGRAM.with_name("clustering_ledger.py")
FAULTS = PROGRAM.with_name("clustering_faults.py")
RAY_ENDS_S = 30.0
"""How long Ray may take to end its own processes, after an order."""
EXAMPLES = Path(digits_model.__file__).parent


class Ended(NamedTuple):
    """The output of a program."""

    out: list[str]
    """Lines of its standard output."""
    errors: str


def run(ledger: Ledger, program: Path, *arguments: str, timeout_s: float = 200.0) -> Ended:
    """Run a program that starts Ray, with a temporary directory of its own."""
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"TMPDIR": str(ledger.path), "XDG_RUNTIME_DIR": ""}
    out, errors = ledger.path / "out", ledger.path / "errors"
    with out.open("w") as out_file, errors.open("w") as errors_file:  # not pipes: Ray's processes would have them too
        ended = subprocess.run(
            [sys.executable, str(program), *arguments],
            stdout=out_file,
            stderr=errors_file,
            cwd=ledger.path,  # Ray puts this directory in front of its workers' import path
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    assert ended.returncode == 0, errors.read_text()[-20000:]
    # Ray's own processes may take their time; the ledger's 2 s are for ours.
    assert settled(lambda: not rays(ledger), RAY_ENDS_S), rays(ledger)
    return Ended(out.read_text().splitlines(), errors.read_text())


def rays(ledger: Ledger) -> dict[int, bytes]:
    """Return the command lines of Ray's processes that are left."""
    found = {}
    for pid in ledger.processes():
        with contextlib.suppress(OSError):  # it has ended since
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"atomr_mp" not in command:
                found[pid] = command
    return found


def test_a_cluster_survives_what_ends_workers_and_ends_with_its_raylets(ledger: Ledger) -> None:
    """Each call is answered once, across the end of workers, of an actor and of a raylet, and errors come whole.

    A call that had not started when its pool was lost goes on elsewhere. Of a dataset the deadly batch is named, and
    all other rows are right. No file of a pool is left, also of one that was not closed.
    """
    seen = json.loads(run(ledger, PROGRAM).out[-1])
    assert set(seen["refused"]) == {"invalid_request"}
    assert seen["bad_setting"] == "configuration_error"
    assert (seen["bad_actor"], seen["closed"]) == ("actor_load_failed", "pool_lost")
    assert "is free for the relay" in seen["ports_taken"]
    assert seen["local"] == [False, True]
    assert (seen["workers"], seen["least_loaded"], seen["answered_by"]) == (2, [0, 0, 1, 1], 2)
    assert (seen["by_actor"], seen["map"], seen["streamed"], seen["awaited"]) == (
        8,
        True,
        [[0, 1, 2]] * 3,
        [0, 1, 0, 2, 4, 6],
    )
    assert seen["streamed_ref"] == [0.0, 1.0, 2.0]
    assert seen["first"] == 0
    assert seen["stream_lost"] in {"pool_lost", "worker_lost"}  # of its worker's end its pool may still tell
    assert seen["arrived"] == [True, 4]
    assert seen["replica"] == [8, [0, 1, 2], "actor_failed"]
    if isinstance(missing := seen["served"], str):
        assert importlib.util.find_spec(missing) is None  # ray[serve] is not installed
    else:
        assert seen["served"] == [True, [0, 1, 2], "deadline_exceeded", True, 8]
    assert seen["met"] == [True] * 8
    assert seen["totals"] == [45.0, 45.0]
    assert seen["status"] == [True, True]
    assert seen["lost"] == [["worker_lost", 0, True]] * 2
    assert seen["failed"] == ["actor_failed", "builtins.ValueError"]
    assert seen["after"] == [True, True]
    assert [seen[name] for name in ("no_method", "no_node", "not_idempotent")] == ["invalid_request"] * 3
    assert (seen["rows"], seen["right"], seen["null"]) == (40, 30, 10)
    assert seen["across_actor"] == ["None"] * 6
    nothing: dict[str, list[str]] = {"run_twice": [], "answered_unrun": [], "lost_unrun": [], "denied": []}
    assert [seen[f"{each}_killed"] for each in ("supervisor", "actor", "raylet")] == [nothing] * 3
    assert (seen["stale"], seen["new_epoch"], seen["new_pool"]) == ("gpu_ref_stale", True, 4)
    assert (seen["moving"], seen["moved"]) == (2, ["None"] * 10)
    assert (seen["pool_gone"], seen["once"], seen["still"]) == (True, True, True)
    assert seen["awaited_unreachable"] == ["pool_unreachable", 6]
    assert seen["unreachable"] == "pool_unreachable"
    assert seen["supervisors_ended"] == [True] * 4
    assert seen["files_left"] == []
    assert seen["ray_over"]  # nothing of ours begins it anew


def test_three_nodes_lose_no_call_and_keep_nothing_while_their_processes_end_or_stand_still(ledger: Ledger) -> None:
    """Killed: a worker, a relay, a supervisor, Ray's actor, a raylet that is reaped. Stopped: these, GCS and driver.

    Each call is answered once, and runs once unless it may run twice; processes, descriptors and memory of each node
    are as before.
    """
    seen = json.loads(run(ledger, LEDGER).out[-1])
    assert seen["calls"] > 500
    assert seen["not_called_back_once"] == seen["run_twice"] == seen["answered_unrun"] == seen["denied"] == []
    assert seen["again_failed"] == {}
    codes = {each.partition(",")[0] for each in seen["codes"]}  # whether it may have run is told behind
    assert codes <= {"none", "connection_lost", "session_lost", "pool_lost", "worker_lost"}
    assert (seen["same_epochs"], seen["pool_gone"]) == (True, True)
    assert [each.partition("-")[0] for each in seen["after"]] == ["after"] * 2
    assert seen["grown"] == seen["grown_beside"] == []
    assert seen["pools_left"] == []


def test_digits_are_read_and_embedded_by_ray_data_while_workers_are_killed(ledger: Ledger) -> None:
    """They are those of a direct call of the network, each once and in order."""
    images, vectors = EXAMPLES / "data/digits_test.npy", ledger.path / "vectors.npy"
    read = run(ledger, EXAMPLES / "digits_ray.py", str(images), "--kills", "4", "--vectors", str(vectors))
    weights, checked = digits_model.load(EXAMPLES / "digits_weights.npz"), digits_model.as_images(np.load(images))
    expected = digits_model.predict(weights, checked)
    assert len(expected) > 0
    assert [line for line in read.out if line.isdigit()] == [str(each) for each in expected]
    embedded = np.load(vectors)
    ink = checked.astype(np.float64) / digits_model.INK_MAX
    reference = np.maximum(ink @ weights.hidden.astype(np.float64) + weights.hidden_bias, 0.0)
    largest = float(np.abs(weights.hidden).max())
    assert embedded.dtype == np.float32
    assert_close(embedded, reference, "float32", length=digits_model.PIXELS, magnitude=largest)
    assert "killed worker" in read.errors


@pytest.mark.at_random
@pytest.mark.timeout(540)
def test_a_cluster_survives_nodes_that_differ_and_what_is_killed_and_stopped(ledger: Ledger) -> None:
    """Differing nodes are errors of the start; a lost relay, supervisor, Ray actor or GCS ends no call."""
    seen = json.loads(run(ledger, FAULTS, timeout_s=500.0).out[-1])
    assert seen["version"][0] == "configuration_error"
    assert "has atomr-mp 0.0.1" in seen["version"][1]
    assert seen["absent"][0] == "configuration_error"
    assert "No module named 'atomr_mp'" in seen["absent"][1]
    assert seen["broken"][0] == "actor_load_failed"
    assert "node 1" in seen["broken"][1] or "node 0" in seen["broken"][1]
    assert seen["no_room"][0] == "pool_unreachable"
    assert seen["bad_left"] == []
    assert seen["driver"] == [True, True]
    assert (seen["relay"], seen["same_epoch"]) == (["None"] * 5, True)
    assert seen["supervisors"] == [[4, 6]] * 2
    assert seen["actor_stopped"] == [4, 4]
    assert (seen["serves_on"], seen["stopped"], seen["elsewhere"]) == (4, True, [8] * 8)
    assert seen["stopped_s"] >= 10.0
    assert seen["gcs"] == [10]
    assert "PoisonRequest" in seen["job"]
