"""The run directory is swept while its pool is in use: each file in turn, all of them, and the directory itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.process.files.rundir import RunDirectory
from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger, settled, wait_generation

COMMAND = (sys.executable, "-m", "atomr_mp")


def command(run_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments, "--run-dir", str(run_dir)],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)  # the pool may not have made it anew


def remove_all(run_dir: Path) -> None:
    """Remove what is in the directory."""
    for path in sorted(run_dir.iterdir()):
        remove(path)


def move_away(run_dir: Path) -> None:
    """Give the directory another name, and put an empty one in its place."""
    run_dir.rename(run_dir.with_name("moved"))
    run_dir.mkdir(mode=0o700)


def sweeps(run_dir: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is done to the directory in turn: the files are those of a running pool, whatever they are."""
    for path in sorted(run_dir.iterdir()):
        yield path.name, partial(remove, path)
    for path in sorted((run_dir / "workers").iterdir()):
        yield f"workers/{path.name}", partial(remove, path)
    yield "all", partial(remove_all, run_dir)
    yield "the directory", partial(remove, run_dir)
    yield "the directory for another", partial(move_away, run_dir)


def test_whatever_is_swept_away_the_pool_is_served_found_and_one(ledger: Ledger) -> None:
    """After each: a new client is served at once, a second start is refused, the files are there again."""
    run_dir = ledger.run_dir()
    with ledger.start(standby="hot", metrics="unix:metrics.sock") as pool:
        assert settled(lambda: bool((standby := pool.status().devices[0].standby) and standby.state == "ready"))
        pid, expected = pool.supervisor_pid, {path.name for path in run_dir.iterdir()}
        for name, sweep in list(sweeps(run_dir)):
            sweep()
            with pytest.raises(errors.PoolBusy) as refused:
                RunDirectory.create(run_dir)
            assert refused.value.supervisor_pid == pid, name
            with atomr_mp.connect(run_dir=run_dir) as client:
                assert client.supervisor_pid == pid, name
                assert client.call("Probe.echo", name).result(DEADLINE_S) == name
            assert pool.status().supervisor_pid == pid
            found = RunDirectory.open(run_dir)
            assert found.supervisor.pid == pid, name
            needed = {each for each in expected if each == "lock" or each.endswith(".sock") or each == "workers"}
            assert settled(lambda needed=needed: needed <= {path.name for path in run_dir.iterdir()}), name  # type: ignore[misc]
            assert settled(lambda: _notes(run_dir) >= {worker.pid for worker in pool.status().devices}), name
            assert found.supervisor.pid == pool.supervisor_pid
        generation = pool.devices[0].generation
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, generation + 1)
        assert pool.call("Probe.echo", 1).result() == 1
        assert any(each["event"] == "files_removed" for each in read_events(run_dir / "events.jsonl"))
        assert pool.devices[0].restarts == 1


def _notes(run_dir: Path) -> set[int]:
    return {int(path.name) for path in (run_dir / "workers").iterdir()}


def test_every_command_finds_a_pool_that_was_swept(ledger: Ledger) -> None:
    """A second start is refused with the first one's pid, `status` tells the truth, and `stop` leaves nothing."""
    run_dir = ledger.run_dir()
    start = ("start", "--detach", "--backend", BACKEND, "--gpus", "1", "--actor", PROBE)
    assert command(run_dir, *start).returncode == 0
    pid = RunDirectory.open(run_dir).supervisor.pid
    for order in (start, ("status", "--json"), ("restart", "0"), ("stop",)):
        remove(run_dir)
        done = command(run_dir, *order)
        if order is start:
            assert done.returncode == 1
            assert f"pid {pid}" in done.stderr
            continue
        assert done.returncode == 0, done
        if order[0] == "status":
            assert json.loads(done.stdout)["supervisor_pid"] == pid


def test_a_directory_that_is_not_ours_any_more_stops_the_pool(ledger: Ledger) -> None:
    """One that others may enter is not used: the pool says why, and ends in order."""
    run_dir = ledger.run_dir()
    with ledger.start() as pool:
        move_away(run_dir)
        run_dir.chmod(0o777)
        lost: list[errors.PoolLost] = []
        pool.on_lost(lost.append)
        assert settled(lambda: _lost(pool))
    log = (run_dir / "supervisor.log").read_text()
    assert "its run directory was replaced" in log


def _lost(pool: atomr_mp.Pool) -> bool:
    try:
        pool.call("Probe.echo", 1).result(DEADLINE_S)
    except errors.PoolLost:
        return True
    except errors.AtomrError:
        pass
    return pool.lost is not None
