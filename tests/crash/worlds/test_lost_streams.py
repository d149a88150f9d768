"""Streams of a world while members are killed, hang, are restarted and reloaded."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, shared_devices
from tests.worlds import start

STREAMING: Final = f"{ACTORS}/streaming_worldly.py:Streaming"
KILLS: Final = 6


def sums(size: int, upto: int) -> list[float]:
    """Return what the actor's sums over ranks are."""
    return [float(number * sum(range(1, size + 1))) for number in range(upto)]


@pytest.mark.parametrize("how", ["killed", "hangs"])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_resumable_stream_goes_on_whole(ledger: Ledger, tmp_path: Path, rank: int, at: int, how: str) -> None:
    """Whichever rank ends at whichever step; other streams and calls go on as their methods allow."""
    if how == "hangs" and at == 1:
        pytest.skip("as at another step")
    with start(ledger, STREAMING, 3, standby="hot") as pool:
        world = pool.world("tp")
        once = world.stream("Streaming.count", "once", 10_000, ahead=2)
        assert next(once) == 0.0
        again = world.stream("Streaming.running", [2] * 12, ahead=2)
        assert next(again) == 2
        dying = world.stream("Streaming.dying", 12, rank, at, str(tmp_path / "ended"), how, ahead=3)
        assert list(dying) == sums(3, 12)
        assert list(again) == [2 * number for number in range(2, 13)]
        with pytest.raises((errors.CollectiveAborted, errors.WorkerLost)) as raised:
            list(once)
        assert raised.value.parts >= 1
        assert raised.value.maybe_executed
        assert world.epoch == 2


def test_a_first_rank_that_is_stopped_between_steps_is_replaced(ledger: Ledger) -> None:
    """The others wait for nothing, and it publishes nothing; the stream goes on."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Streaming"], "begin_timeout_s": 1.0}}
    with ledger.start(STREAMING, **shared_devices(2), worlds=worlds, standby="hot") as pool:
        world = pool.world("tp")
        stream = world.stream("Streaming.numbers", 12, ahead=1)
        found = [next(stream)]
        os.kill(pool.devices[0].pid or 0, signal.SIGSTOP)
        assert found + list(stream) == sums(2, 12)
        assert world.epoch == 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [1, 2])
def test_kills_at_random_leave_no_gap_and_no_repetition(ledger: Ledger, size: int) -> None:
    """Of any rank, at any moment of several streams."""
    rng = random.Random(size)
    with start(ledger, STREAMING, size, standby="hot", max_restarts=1000) as pool:
        world = pool.world("tp")
        streams = [world.stream("Streaming.numbers", 400, ahead=rng.randint(1, 16)) for _ in range(3)]
        found: list[list[float]] = [[] for _ in streams]
        for _ in range(KILLS):
            for stream, seen in zip(streams, found, strict=True):
                seen += [next(stream) for _ in range(rng.randrange(40))]
            os.kill(pool.devices[rng.randrange(size)].pid, signal.SIGKILL)
            world.wait_ready(DEADLINE_S)
            pool.wait_ready(DEADLINE_S)
        for stream, seen in zip(streams, found, strict=True):
            seen += list(stream)
            assert stream.result() == "all"
        assert found == [sums(size, 400)] * 3


@pytest.mark.parametrize("way", ["restart 0", "restart 1", "reload"])
@pytest.mark.parametrize("standby", ["hot", "none"])
def test_a_planned_end_moves_resumable_streams_and_waits_for_others(ledger: Ledger, way: str, standby: str) -> None:
    """A stream that cannot go on elsewhere is read to its end within `drain_timeout_s`."""
    with start(ledger, STREAMING, 2, standby=standby) as pool:
        world = pool.world("tp")
        moving = world.stream("Streaming.numbers", 200, ahead=2)
        staying = world.stream("Streaming.count", "staying", 200, ahead=2)
        found = [next(moving), next(staying)]
        if way == "reload":
            reloading = threading.Thread(target=pool.reload, args=(DEADLINE_S,))
            reloading.start()
        else:
            pool.restart(int(way[-1]))
        assert settled(lambda: world.state != "ready" or world.epoch > 1)
        later = world.stream("Streaming.numbers", 20)
        assert [found[1], *staying] == sums(2, 200)
        assert [found[0], *moving] == sums(2, 200)
        assert list(later) == sums(2, 20)
        if way == "reload":
            reloading.join()
        assert world.call("Streaming.where").result(DEADLINE_S)[1] == world.epoch >= 2


def test_a_reader_that_stops_holds_up_a_planned_end_for_a_while_only(ledger: Ledger) -> None:
    """Then the epoch is aborted."""
    with start(ledger, STREAMING, 2, standby="hot", drain_timeout_s=0.5) as pool:
        world = pool.world("tp")
        stopped = world.stream("Streaming.count", "stopped", 100, ahead=2)
        assert next(stopped) == 0.0
        pool.restart(1)
        assert settled(lambda: world.epoch > 1 and world.state == "ready")
        with pytest.raises((errors.CollectiveAborted, errors.WorkerLost)):
            list(stopped)
        assert list(world.stream("Streaming.numbers", 20)) == sums(2, 20)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_while_others_wait_for_it_has_diverged(ledger: Ledger, rank: int) -> None:
    """Its own error is the outcome; the epoch ends, and resumable streams go on in the next one."""
    with start(ledger, STREAMING, 2, standby="hot") as pool:
        world = pool.world("tp")
        other = world.stream("Streaming.numbers", 50, ahead=2)
        with pytest.raises(errors.ActorFailed, match=f"rank {rank} fails at 3") as raised:
            list(world.stream("Streaming.fails", 6, rank, 3, True))
        assert raised.value.rank == rank
        assert list(other) == sums(2, 50)
        assert world.epoch == 2


def test_a_killed_client_leaves_no_stream_behind(ledger: Ledger) -> None:
    """Its generators are closed on all ranks, and the world goes on."""
    with start(ledger, STREAMING, 2, standby="hot") as pool:
        world = pool.world("tp")
        mine = world.stream("Streaming.numbers", 300, ahead=2)
        program = (
            "import atomr_mp, sys, signal\n"
            f"pool = atomr_mp.connect(run_dir={str(pool.run_dir)!r})\n"
            "stream = pool.world('tp').stream('Streaming.count', 'killed', 1000000, ahead=4)\n"
            "next(stream); print('reads', flush=True); signal.pause()\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"reads\n"
            client.kill()
        assert settled(
            lambda: all(
                ["killed", "closed"] in log for log in world.call("Streaming.noted", each=True).result(DEADLINE_S)
            )
        )
        assert list(mine) == sums(2, 300)
