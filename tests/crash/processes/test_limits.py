"""What a pool's processes may take: threads for numbers, and memory when there is no more of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.process.oom import FIRST, MOST, KillCount, OomKills
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import OMP_THREADS, OTHER_THREADS, merged, thread_limits
from atomr_mp.supervisor.processes.incarnation import Incarnation
from tests.crash.processes.test_process import Threaded
from tests.support import ACTORS, BACKEND, Ledger, settled

LIMITED = f"{ACTORS}/limited.py:Limited"
CORES = len(os.sched_getaffinity(0))


def score(pid: int | str) -> int:
    """Return what the kernel adds to a process's memory when it chooses what to kill."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))


@pytest.mark.parametrize("standby", ["none", "warm", "hot"])
def test_the_kernel_takes_workers_before_their_supervisor(ledger: Ledger, standby: str) -> None:
    """So it does with standbys, the zygote, the relay and helpers: all are replaced, and the supervisor is not."""
    more: dict[str, Any] = {"listen": "tcp://127.0.0.1:0", "insecure": True} if standby == "none" else {}
    with ledger.start(LIMITED, gpus=2, standby=standby, **more) as pool:
        supervisor = psutil.Process(pool.supervisor_pid)
        assert score(supervisor.pid) == score("self")
        assert settled(lambda: len(supervisor.children()) > 2)
        children = [each.pid for each in supervisor.children() if each.status() != psutil.STATUS_ZOMBIE]
        assert {device.worker_pid for device in pool.devices} <= set(children)
        assert settled(lambda: {score(child) for child in children} == {min(MOST, score("self") + FIRST)})


@pytest.mark.skipif(BACKEND != "host", reason="on GPUs the libraries have as many threads as they like")
@pytest.mark.parametrize("standby", ["none", "warm"])
def test_numeric_libraries_share_the_cores(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, standby: str) -> None:
    """Also those that the zygote has imported before; a setting says otherwise."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    every = (OMP_THREADS, *OTHER_THREADS)
    for gpus, setting in ((2, 0), (1, 0)) if standby == "none" else ((1, 1),):
        count = setting or max(1, CORES // gpus)
        with ledger.start(LIMITED, gpus=gpus, standby=standby, threads_per_worker=setting) as pool:
            assert pool.call("Limited.variables").result() == dict.fromkeys(every, str(count))
            assert pool.call("Limited.blas_threads").result() == [count]


def test_what_the_user_has_set_holds(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of OpenMP's is everybody's; one of another library is its own."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    with ledger.start(LIMITED, gpus=1, threads_per_worker=1, standby="warm") as pool:
        assert pool.call("Limited.variables").result() == {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "2",
        }
        assert pool.call("Limited.blas_threads").result() == [2]
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with ledger.start(LIMITED, gpus=1, threads_per_worker=1) as pool:
        assert pool.call("Limited.variables").result()["OPENBLAS_NUM_THREADS"] is None
        assert pool.call("Limited.blas_threads").result() == [2]


names = st.sampled_from([OMP_THREADS, *OTHER_THREADS, "PATH"])


@given(st.integers(0, 64), st.dictionaries(names, st.sampled_from(["1", "7", ""])))
def test_no_limit_replaces_one_that_is_there(threads: int, environment: dict[str, str]) -> None:
    """Nor one that a library would take instead; where there is none, all get the same."""
    limits = thread_limits(threads, environment)
    assert not limits.keys() & environment.keys()
    assert set(limits.values()) <= {str(threads)}
    if OMP_THREADS not in environment:
        assert (OMP_THREADS in limits) == bool(threads)
    else:
        assert not limits


def test_another_number_of_threads_needs_a_restart_of_the_pool() -> None:
    """A reload names the setting, and leaves the workers' environment as it is."""
    old, new = (make_plan(PoolSettings(backend="host", gpus="2", threads_per_worker=count)) for count in (1, 2))
    plan, pending = merged(old, new)
    assert pending == ["threads_per_worker"]
    assert [device.threads for device in plan.devices] == [1, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_a_rise_is_told_for_two_looks(steps: list[tuple[int, bool]]) -> None:
    """Between a kill for memory and the end of its process there may be one look; older kills are others'."""
    now, looks = 5, [5, 5]

    class Rising(KillCount):
        def read(self) -> int:
            return now

    kills = OomKills([Rising(Path("/"), "the test")])
    for more, look in steps:
        now += more
        if look:
            kills.look()
            looks.append(now)
        risen = now > looks[-2]
        assert kills.rise() == (
            f"the oom_kill count of the test rose from {looks[-2]} to {now}, so memory has run out" if risen else ""
        )


def test_without_a_count_nothing_is_told(tmp_path: Path) -> None:
    """The first file that counts is read; one that does not exist, or is something else, is passed over."""
    missing, other, counts = (KillCount(tmp_path / name, name) for name in ("missing", "other", "counts"))
    other.path.write_text("oom_kill x\n", encoding="ascii")
    counts.path.write_text("low 0\noom_kill 2\n", encoding="ascii")
    assert not OomKills([missing, other]).rise()
    kills = OomKills([missing, other, counts])
    counts.path.write_text("low 0\noom_kill 3\n", encoding="ascii")
    assert "of counts rose from 2 to 3" in kills.rise()
    counts.path.unlink()
    assert not kills.rise()


@pytest.mark.parametrize("wanted", [False, True])
def test_a_killed_worker_is_told_with_what_the_kernel_has_counted(tmp_path: Path, *, wanted: bool) -> None:
    """The kernel hides who was killed, so the words claim no more; a kill of the supervisor's own is known."""
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 0\n", encoding="ascii")
    loop, process, owner = Loop(), Threaded(), Mock()
    process.dies_at = process.stops_at = 1
    process.kill = Mock()  # type: ignore[attr-defined]
    told = OomKills([KillCount(events, "the pool's cgroup")])
    worker = Incarnation(0, process, loop, None, owner, owner, 60.0, told)  # type: ignore[arg-type]
    if wanted:
        worker.kill()
    events.write_text("oom_kill 1\n", encoding="ascii")
    owner.stopped = lambda _worker: loop.stop()
    worker.watch_threads()
    os.eventfd_write(process.threads[0], 1)
    loop.run()
    risen = "; the oom_kill count of the pool's cgroup rose from 0 to 1, so memory has run out"
    assert worker.end == f"killed by {signal.Signals(9).name}{'' if wanted else risen}"
    worker.close()
    loop.close()
