"""Continuous batching in a world while members are killed, hang, are restarted and reloaded."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import start

STEPPING: Final = f"{ACTORS}/stepping_worldly.py:Stepping"
KILLS: Final = 6


def ask(name: str, upto: int, how: str = "", rank: int = 0, at: int = -1, once: str = "") -> dict[str, Any]:
    """Return the argument of a stream."""
    return {"name": name, "upto": upto, "how": how, "rank": rank, "at": at, "once": once}


def numbers(size: int, upto: int) -> list[int]:
    """Return what a stream sends."""
    return [number * sum(range(1, size + 1)) for number in range(upto)]


def noted(world: Any) -> list[list[Any]]:
    """Return what each rank has noted, and which streams are live there."""
    found: list[list[Any]] = world.call("Stepping.noted", each=True, deadline_s=DEADLINE_S).result()
    return found


def check_logs(world: Any) -> None:
    """Check that nothing is left, and that ranks which were in an epoch have seen the same there."""
    assert settled(lambda: all(left == [] for _, left in noted(world)))
    logs = [[step for step in log if isinstance(step, list)] for log, _ in noted(world)]
    for epoch in {step[0] for log in logs for step in log if step[1]}:
        # A step of an epoch that was aborted may not have begun on all; what has is the same. Steps without live
        # streams tell each process of the end by itself.
        seen = [[step for step in log if step[0] == epoch and step[1]] for log in logs]
        length = min(len(each) for each in seen if each)
        assert all(each[:length] == seen[0][:length] for each in seen if each and seen[0])


@pytest.mark.parametrize("how", ["kills", "hangs"])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1, 7])
def test_resumable_streams_go_on_whole(ledger: Ledger, tmp_path: Path, rank: int, at: int, how: str) -> None:
    """Whichever rank ends at whichever step, with those that share it; others end, and say so."""
    if how == "hangs" and at == 1:
        pytest.skip("as at another step")
    with start(ledger, STEPPING, 3, standby="hot") as pool:
        world = pool.world("tp")
        once = world.stream("Stepping.count", ask("once", 10**9), ahead=2)
        assert next(once) == 0
        beside = world.stream("Stepping.go_on", ask("beside", 30), ahead=2)
        assert next(beside) == 0
        dying = world.stream("Stepping.go_on", ask("dies", 12, how, rank, at, str(tmp_path / "once")), ahead=3)
        assert list(dying) == numbers(3, 12)
        assert list(beside) == numbers(3, 30)[1:]
        with pytest.raises((errors.CollectiveAborted, errors.WorkerLost)) as raised:
            list(once)
        assert raised.value.parts >= 1
        assert raised.value.maybe_executed
        assert world.epoch == 2
        check_logs(world)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [1, 2])
def test_kills_at_random_leave_no_gap_and_no_repetition(ledger: Ledger, size: int) -> None:
    """Of any rank, at any moment of several streams, more than may be live."""
    rng = random.Random(size)
    with start(ledger, STEPPING, size, standby="hot", max_restarts=1000) as pool:
        world = pool.world("tp")
        streams = [
            world.stream("Stepping.go_on", ask(f"s{number}", 300), ahead=rng.randint(1, 16)) for number in range(4)
        ]
        later = [world.stream("Stepping.go_on", ask(f"later {number}", 50), first_s=120) for number in range(2)]
        found: list[list[int]] = [[] for _ in streams]
        for _ in range(KILLS):
            for stream, seen in zip(streams, found, strict=True):
                seen += [next(stream) for _ in range(rng.randrange(40))]
            os.kill(pool.devices[rng.randrange(size)].pid, signal.SIGKILL)
            world.wait_ready(DEADLINE_S)
            pool.wait_ready(DEADLINE_S)
        for stream, seen in zip(streams, found, strict=True):
            seen += list(stream)
        assert found == [numbers(size, 300)] * len(streams)
        assert [list(stream) for stream in later] == [numbers(size, 50)] * 2
        check_logs(world)


@pytest.mark.parametrize("way", ["restart 0", "restart 1", "reload"])
@pytest.mark.parametrize("standby", ["hot", "none"])
def test_a_planned_end_moves_resumable_streams_and_waits_for_others(ledger: Ledger, way: str, standby: str) -> None:
    """A stream that cannot go on elsewhere is read to its end within `drain_timeout_s`."""
    with start(ledger, STEPPING, 2, standby=standby) as pool:
        world = pool.world("tp")
        moving = world.stream("Stepping.go_on", ask("moving", 200), ahead=2)
        staying = world.stream("Stepping.count", ask("staying", 200), ahead=2)
        found = [next(moving), next(staying)]
        if way == "reload":
            reloading = threading.Thread(target=pool.reload, args=(DEADLINE_S,))
            reloading.start()
        else:
            pool.restart(int(way[-1]))
        assert settled(lambda: world.state != "ready" or world.epoch > 1)
        later = world.stream("Stepping.go_on", ask("later", 20))
        assert [found[1], *staying] == numbers(2, 200)
        assert [found[0], *moving] == numbers(2, 200)
        assert list(later) == numbers(2, 20)
        if way == "reload":
            reloading.join()
        assert world.epoch >= 2
        check_logs(world)


def test_a_reader_that_stops_holds_up_a_planned_end_for_a_while_only(ledger: Ledger) -> None:
    """Then the epoch is aborted."""
    with start(ledger, STEPPING, 2, standby="hot", drain_timeout_s=0.5) as pool:
        world = pool.world("tp")
        stopped = world.stream("Stepping.count", ask("stopped", 100), ahead=2)
        assert next(stopped) == 0
        pool.restart(1)
        assert settled(lambda: world.epoch > 1 and world.state == "ready")
        with pytest.raises((errors.CollectiveAborted, errors.WorkerLost)):
            list(stopped)
        assert list(world.stream("Stepping.count", ask("behind", 20))) == numbers(2, 20)
        check_logs(world)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_step_raises_while_others_wait_for_it_has_diverged(ledger: Ledger, rank: int) -> None:
    """Its own error is the outcome for all streams of the step; the epoch ends, and streams of other methods go on."""
    with start(ledger, STEPPING, 2, standby="hot") as pool:
        world = pool.world("tp")
        other = world.stream("Stepping.go_on", ask("other", 50), ahead=2)
        beside = world.stream("Stepping.count", ask("beside", 10**9), ahead=4096)
        assert next(beside) == 0
        raising = world.stream("Stepping.count", ask("raises", 6, "raises", rank, 3))
        for stream in (raising, beside):
            with pytest.raises(errors.ActorFailed, match=f"rank {rank} raises at 3") as raised:
                list(stream)
            assert raised.value.rank == rank
        assert list(other) == numbers(2, 50)
        assert world.epoch == 2
        check_logs(world)


def test_a_killed_client_leaves_no_stream_behind(ledger: Ledger) -> None:
    """A step tells all ranks, and the world goes on in its epoch."""
    with start(ledger, STEPPING, 2, standby="hot") as pool:
        world = pool.world("tp")
        mine = world.stream("Stepping.count", ask("mine", 300), ahead=2)
        program = (
            "import atomr_mp, sys, signal\n"
            f"pool = atomr_mp.connect(run_dir={str(pool.run_dir)!r})\n"
            f"stream = pool.world('tp').stream('Stepping.count', {ask('killed', 10**9)!r}, ahead=4)\n"
            "next(stream); print('reads', flush=True); signal.pause()\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"reads\n"
            client.kill()
        assert settled(
            lambda: all(any("killed" in step[-1] for step in log if isinstance(step, list)) for log, _ in noted(world))
        )
        assert list(mine) == numbers(2, 300)
        assert world.epoch == 1
        check_logs(world)
