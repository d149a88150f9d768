"""`atomr-mp doctor` on pools that live, that have lost something, and that were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp.client.lanes.session import PoolSession
from atomr_mp.operator.doctor import examine
from atomr_mp.protocol import process_tags
from atomr_mp.supervision.audit.findings import Finding, State, Supervision
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, Watched, settled, wait_generation

SLEEP: Final = (sys.executable, "-I", "-S", "-c", "import signal; signal.pause()")


def doctor(run_dir: Path, *options: str) -> tuple[int, str]:
    """Run the command; return its exit status and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "atomr_mp.cli", "doctor", "--run-dir", str(run_dir), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "COLUMNS": "250"},
    )
    return done.returncode, done.stdout + done.stderr


def found(run_dir: Path, state: State, lasts_s: float = 2.0) -> list[Finding]:
    """Return the findings of a state."""
    return [each for each in examine(run_dir, lasts_s)[1] if each.state is state]


def test_a_pool_in_use_has_nothing_unaccounted(ledger: Ledger) -> None:
    """Processes, sessions, memory and sockets are shown, to people and to programs."""
    with ledger.start(gpus=2) as pool:
        ref = pool.device(0).put(np.ones(100_000))
        view = np.asarray(ref.view()) if pool.status().backend == "host" else ref.view()
        ref.copy_to(pool.device(1).empty(100_000, "float64"))
        status, told = doctor(pool.run_dir, "--leaks")
        assert status == 0, told
        assert "all is well" in told
        assert f"the supervisor, pid {pool.supervisor_pid}" in told
        status, told = doctor(pool.run_dir, "--leaks", "--json")
        shown: dict[str, Any] = json.loads(told)
        assert (status, shown["supervisor"], shown["unaccounted"]) == (0, "answers", 0)
        pids = {each["pid"] for each in shown["findings"] if each["kind"] == "process"}
        assert {device.pid for device in pool.devices} <= pids
        sessions = [each["pid"] for each in shown["findings"] if each["kind"] == "session" and "calls" in each["what"]]
        assert sessions == [os.getpid()]
        del view
    status, told = doctor(pool.run_dir, "--leaks")
    assert status == 0, told
    assert "ended in order" in told


def test_an_idle_pool_with_a_standby_has_nothing_unaccounted(ledger: Ledger) -> None:
    """The standby has made a slab ahead, and its memory figures are right before it has served."""
    with ledger.start(gpus=2, standby="hot") as pool:
        assert settled(lambda: all(each.standby and each.standby.state == "ready" for each in pool.status().devices))
        status, told = doctor(pool.run_dir, "--leaks")
        assert status == 0, told


@pytest.mark.parametrize("what", ["process", "socket", "note"])
def test_what_nobody_knows_of_is_unaccounted(ledger: Ledger, what: str) -> None:
    """A process with the pool's mark, a socket of no incarnation, a note of no worker."""
    with ledger.start() as pool:
        stray: subprocess.Popen[bytes] | None = None
        path = {"socket": pool.run_dir / "d0-g99.sock", "note": pool.run_dir / "workers" / "99999999"}.get(what)
        try:
            if path is None:
                stray = subprocess.Popen(SLEEP, env={**os.environ, process_tags.RUN_DIR: str(pool.run_dir)})
            else:
                path.touch()
            finding, *others = found(pool.run_dir, State.UNACCOUNTED)
            assert not others
            assert finding.kind == what
            assert finding.remedy
            if stray is not None:
                assert finding.pid == stray.pid
                assert abs((finding.since or 0) - time.time()) < DEADLINE_S
                assert doctor(pool.run_dir)[0] == 0
                assert doctor(pool.run_dir, "--leaks")[0] == 1
        finally:
            if stray is not None:
                stray.kill()
                stray.wait()
            if path is not None:
                path.unlink()
        assert not found(pool.run_dir, State.UNACCOUNTED)


def test_memory_that_waits_for_nothing_is_unaccounted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has ended and not said so, whose process lives and has nothing mapped."""
    with ledger.start() as pool:
        if pool.status().backend != "host":
            pytest.skip("a GPU's memory is mapped by no name")
        client = atomr_mp.connect(run_dir=pool.run_dir)
        client.wait_ready()
        ref = client.device(0).put(np.ones(100_000))
        assert not found(pool.run_dir, State.UNACCOUNTED)
        monkeypatch.setattr(PoolSession, "say_bye", lambda *_: None)
        client.close()
        (finding,) = found(pool.run_dir, State.UNACCOUNTED)
        assert (finding.kind, finding.pid) == ("session", os.getpid())
        assert "has ended; its memory waits" in finding.what
        assert doctor(pool.run_dir, "--leaks")[0] == 1
        del ref


def test_what_a_client_has_mapped_of_a_dead_worker_is_shown_with_its_pid(ledger: Ledger) -> None:
    """It is shown as long as the client has an array there, and no longer."""
    with ledger.start() as pool:
        if pool.status().backend != "host":
            pytest.skip("a GPU's memory is mapped by no name")
        view = pool.device(0).put(np.ones(100_000)).view()
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        (held,) = found(pool.run_dir, State.HELD)
        assert (held.kind, held.pid) == ("memory", os.getpid())
        assert "device 0 generation 1, which has ended" in held.what
        assert held.since is not None
        assert abs(held.since - time.time()) < DEADLINE_S
        assert view.sum() == 100_000
        del view
        assert settled(lambda: not found(pool.run_dir, State.HELD))
        assert not found(pool.run_dir, State.UNACCOUNTED)


def test_resident_memory_is_told_with_who_has_it_mapped(ledger: Ledger) -> None:
    """It outlives the worker that filled it, and is accounted for."""
    with ledger.start(f"{ACTORS}/housed.py:Housed", gpus=2) as pool:
        if pool.status().backend != "host":
            pytest.skip("a GPU's memory is mapped by no name")
        for generation in (1, 2):
            wait_generation(pool, generation)
            (told,) = (each for each in found(pool.run_dir, State.OK) if "resident memory" in each.what)
            assert all(str(device.pid) in told.what for device in pool.devices)
            assert not found(pool.run_dir, State.UNACCOUNTED)
            os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 3)


def test_what_an_actor_starts_is_its_worker_s_and_outlives_only_a_killed_supervisor(ledger: Ledger) -> None:
    """It is found by its mark even if it has left its group and session, and has another parent."""
    pool = ledger.start(PROBE)
    started = pool.call("Probe.fork_and_start").result()
    assert not found(pool.run_dir, State.UNACCOUNTED)
    with Watched(started[2:]) as watched:
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        assert settled(lambda: {each.pid for each in found(pool.run_dir, State.UNACCOUNTED)} == set(started[2:]))
        supervision, findings = examine(pool.run_dir, 0.5)
        assert supervision is Supervision.KILLED
        assert {each.kind for each in findings if each.state is State.HELD} == {"supervisor", "socket", "note"}
        assert doctor(pool.run_dir, "--leaks")[0] == 1
        for pid in started[2:]:
            os.kill(pid, signal.SIGKILL)
        assert watched.left() == []
    status, told = doctor(pool.run_dir, "--leaks")
    assert status == 0, told
    assert "was killed" in told
    pool.close()
    with ledger.start():
        """The next start cleans up."""
    assert not found(pool.run_dir, State.UNACCOUNTED)


def test_where_there_is_no_pool_nothing_is_looked_at(ledger: Ledger) -> None:
    """A missing pool is an error, not a finding."""
    status, told = doctor(ledger.path / "nowhere", "--leaks")
    assert (status, "there is no pool" in told) == (2, True)
