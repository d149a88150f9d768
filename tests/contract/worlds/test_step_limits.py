"""Continuous batching in a world at its limits: parts without room, readers that never come, and ends of all kinds."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.lanes import gang_streams
from atomr_mp.client.worlds import gang_stream
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import on_host, start

STEPPING = f"{ACTORS}/stepping_worldly.py:Stepping"

pytestmark = on_host


def ask(name: str, upto: int, how: str = "", rank: int = 0) -> dict[str, Any]:
    """Return the argument of a stream."""
    return {"name": name, "upto": upto, "how": how, "rank": rank}


def logs(world: Any) -> list[list[Any]]:
    """Return what each rank has noted."""
    found = world.call("Stepping.noted", each=True, deadline_s=DEADLINE_S).result()
    return [log for log, _ in found]


def is_gone(world: Any, name: str) -> bool:
    """Return whether the methods of all ranks know that a stream is gone."""
    return all(any(name in step[-1] for step in log if isinstance(step, list)) for log in logs(world))


def test_parts_without_room_are_held_and_come_before_the_end(ledger: Ledger) -> None:
    """The method has ended the stream by then, and others have its place."""
    with start(ledger, STEPPING) as pool:
        world = pool.world("tp")
        held = [world.stream("Stepping.burst", ask(f"held {number}", 100, "ends"), ahead=2) for number in range(6)]
        assert next(held[0]) == 0
        for number, stream in enumerate(held):
            assert [*([0] if not number else []), *stream] == list(range(100))
            assert stream.result() == "the end"
        assert all(log == logs(world)[0] for log in logs(world))


def test_more_parts_than_may_be_held_end_the_stream_alone(ledger: Ledger) -> None:
    """With `Overloaded` of rank 0, which alone holds parts. The next step tells all ranks."""
    with start(ledger, STEPPING) as pool:
        world = pool.world("tp")
        beside = world.stream("Stepping.count", ask("beside", 50), ahead=2)
        with pytest.raises(errors.Overloaded, match="has no room"):
            list(world.stream("Stepping.burst", ask("too many", 5000), ahead=2))
        assert len(list(beside)) == 50
        assert settled(lambda: is_gone(world, "too many"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_ends_a_stream_with_held_parts_has_diverged(ledger: Ledger, rank: int) -> None:
    """Nothing waits for the reader."""
    with start(ledger, STEPPING) as pool:
        world = pool.world("tp")
        stream = world.stream("Stepping.burst", ask("alone", 100, "ends alone", rank), ahead=2)
        with pytest.raises(errors.CollectiveAborted) as raised:
            list(stream)
        assert raised.value.diverged
        assert raised.value.rank == rank
        assert len(list(world.stream("Stepping.burst", ask("next", 10, "ends")))) == 10
        assert world.epoch == 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("planned", [False, True])
def test_held_parts_outlast_the_epoch_or_go_again(ledger: Ledger, rank: int, *, planned: bool) -> None:
    """All ranks have ended the stream, and a member is replaced: the reader has all of it, once."""
    with start(ledger, STEPPING, standby="hot") as pool:
        world = pool.world("tp")
        held = world.stream("Stepping.burst", ask("held", 100, "ends"), ahead=2)
        assert next(held) == 0
        assert world.call("Stepping.note", "behind it").result() == 3.0
        if planned:
            pool.restart(rank)
        else:
            os.kill(pool.devices[rank].pid or 0, signal.SIGKILL)
        assert list(held) == list(range(1, 100))
        assert settled(lambda: world.epoch == 2 and world.state == "ready")
        assert len(list(world.stream("Stepping.burst", ask("next", 10, "ends")))) == 10


@pytest.mark.parametrize("how", ["", "ends"])
def test_a_stream_that_nobody_reads_is_ended_on_all_ranks(ledger: Ledger, how: str) -> None:
    """After `stall_s`, whether it is live or has held parts; its parts can still be read."""
    with start(ledger, STEPPING, stall_s=1.0) as pool:
        world = pool.world("tp")
        stream = world.stream("Stepping.burst", ask("stalled", 100, how), ahead=3)
        live = world.stream("Stepping.count", ask("live", 100), ahead=3)
        assert settled(lambda: is_gone(world, "live") and (how == "ends" or is_gone(world, "stalled")))
        for each in (stream, live):
            seen: list[int] = []
            with pytest.raises(errors.DeadlineExceeded, match="stall_s") as raised:
                seen.extend(each)
            assert raised.value.parts == len(seen) == 3
        assert len(list(world.stream("Stepping.burst", ask("next", 10, "ends")))) == 10


def test_a_step_that_returns_something_fails_its_streams(ledger: Ledger) -> None:
    """On all ranks."""
    with start(ledger, STEPPING) as pool:
        world = pool.world("tp")
        with pytest.raises(errors.ActorFailed, match="returns None"):
            list(world.stream("Stepping.returns", ask("returns", 1)))
        assert len(list(world.stream("Stepping.count", ask("next", 10)))) == 10


def test_a_pool_that_closes_ends_its_streams(ledger: Ledger) -> None:
    """Their readers get `PoolLost` at once, those of waiting streams too."""
    pool = start(ledger, STEPPING)
    streams = [pool.world("tp").stream("Stepping.count", ask(f"closing {n}", 10**9), ahead=2) for n in range(6)]
    assert next(streams[0]) == 0
    pool.close()
    for stream in streams:
        with pytest.raises(errors.PoolLost):
            list(stream)


def test_a_limit_of_streams_holds(ledger: Ledger) -> None:
    """What one rank alone refuses is refused on all."""
    with start(ledger, STEPPING, max_streams=1) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        world = pool.world("tp")
        first = world.stream("Stepping.count", ask("first", 5), ahead=1)
        assert next(first) == 0
        with pytest.raises(errors.Overloaded, match="max_streams"):
            list(other.world("tp").stream("Stepping.count", ask("refused", 5)))
        assert len(list(first)) == 4
        assert len(list(other.world("tp").stream("Stepping.count", ask("later", 5)))) == 5


def test_sent_parts_that_nobody_has_sent_are_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that makes them up fails its own stream, and no process."""

    def part_of(*arguments: Any) -> Any:
        part = gang_stream.part_of(*arguments)
        part.sent = [b"\xc1"]
        return part

    with start(ledger, STEPPING) as pool:
        world = pool.world("tp")
        beside = world.stream("Stepping.count", ask("beside", 50), ahead=2)
        with monkeypatch.context() as patched:
            patched.setattr(gang_streams, "part_of", part_of)
            with pytest.raises(errors.InvalidRequest):
                list(world.stream("Stepping.go_on", ask("made up", 5)))
        assert len(list(beside)) == 50
        assert world.epoch == 1
