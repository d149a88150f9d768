"""Continuous batching in a world: the same streams in each step on all ranks, credit, ends, on one to four ranks."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, settled
from tests.worlds import pools_of_sizes, ready_world

STEPPING = f"{ACTORS}/stepping_worldly.py:Stepping"
LIVE = 4


pool = pools_of_sizes(STEPPING, 1, 2, 4)


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready; afterwards in the same epoch, with nothing left, and all ranks have seen the same."""
    found = ready_world(pool)
    epoch = found.epoch
    yield found
    assert settled(lambda: all(left == [] for _, left in noted(found)))
    logs = [log for log, _ in noted(found)]
    assert all(log == logs[0] for log in logs)
    assert found.epoch == epoch


def noted(world: Any) -> list[list[Any]]:
    """Return what each rank has noted, and which streams are live there."""
    found: list[list[Any]] = world.call("Stepping.noted", each=True, deadline_s=DEADLINE_S).result()
    return found


def steps_of(world: Any, name: str) -> list[list[Any]]:
    """Return the steps in which a stream was on rank 0, each with what was live, ready, new and gone."""
    return [
        step[2:] for step in noted(world)[0][0] if isinstance(step, list) and any(name in some for some in step[2:])
    ]


def total(world: Any) -> int:
    """Return what a sum of rank + 1 over ranks gives."""
    return sum(range(1, world.size + 1))


def ask(name: str, upto: int = 5, how: str = "", rank: int = 0, at: int = -1) -> dict[str, Any]:
    """Return the argument of a stream."""
    return {"name": name, "upto": upto, "how": how, "rank": rank, "at": at}


def numbers(world: Any, upto: int) -> list[int]:
    """Return what a stream sends."""
    return [number * total(world) for number in range(upto)]


def test_streams_share_steps_and_each_gets_its_own(world: Any) -> None:
    """More of them than may be live wait for a place; the result is that of rank 0."""
    streams = [world.stream("Stepping.count", ask(f"own {number}", 3 + number)) for number in range(2 * LIVE)]
    for number, stream in enumerate(streams):
        assert list(stream) == numbers(world, 3 + number)
        assert stream.result() == f"own {number} of rank 0"
    shared = [live for live, *_ in steps_of(world, "own 3")]
    assert max(map(len, shared)) > 1
    assert max(map(len, shared)) <= LIVE


def test_a_reader_that_stops_holds_up_nobody(world: Any) -> None:
    """Its stream stays live and is not ready; others join, go on and leave, and calls take turns with them."""
    stopped = world.stream("Stepping.count", ask("stopped", 40), ahead=2)
    assert next(stopped) == 0
    for number in range(3):
        assert list(world.stream("Stepping.count", ask(f"beside {number}", 20))) == numbers(world, 20)
        assert world.call("Stepping.note", number).result() == total(world)
    assert len([1 for _, ready, *_ in steps_of(world, "stopped") if "stopped" in ready]) <= 3
    assert list(stopped) == numbers(world, 40)[1:]


@pytest.mark.parametrize("how", ["close", "leave", "forget", "deadline", "stopped"])
def test_a_stream_that_is_left_is_gone_on_all_ranks(world: Any, how: str) -> None:
    """In one step, which all of them take with the same streams."""
    options = {"deadline": {"deadline_s": 0.5}}.get(how, {})
    beside = world.stream("Stepping.count", ask(f"beside {how}", 400), ahead=2)
    stream = world.stream("Stepping.count", ask(how, 10**9), ahead=2, **options)
    assert next(stream) == 0
    if how == "leave":
        with stream:
            pass
    elif how == "forget":
        del stream
    elif how == "deadline":
        with pytest.raises(errors.DeadlineExceeded):
            list(stream)
    else:
        if how == "stopped":
            assert [next(beside) for _ in range(50)] == numbers(world, 50)
            assert "stopped" not in steps_of(world, "stopped")[-1][1]
        stream.close()
    assert len(list(beside)) == (350 if how == "stopped" else 400)
    assert settled(lambda: how in steps_of(world, how)[-1][3])
    assert [how in gone for *_, gone in steps_of(world, how)].count(True) == 1


def test_a_stream_that_waits_and_is_left_never_begins(world: Any) -> None:
    """Its place in the line is given up on all ranks."""
    holding = [world.stream("Stepping.count", ask(f"holds {number}", 10), ahead=1) for number in range(LIVE)]
    waiting = world.stream("Stepping.count", ask("waits"))
    behind = world.stream("Stepping.count", ask("behind"))
    assert world.call("Stepping.note", "behind them").result()
    waiting.close()
    for stream in holding:
        assert list(stream) == numbers(world, 10)
    assert list(behind) == numbers(world, 5)
    assert steps_of(world, "waits") == []


@pytest.mark.parametrize("how", ["fails", "ends", "cannot send"])
@pytest.mark.parametrize("is_last", [False, True])
def test_what_ends_a_stream_on_one_rank_ends_it_on_all(world: Any, how: str, *, is_last: bool) -> None:
    """Others go on beside it; one step tells all ranks that it is gone."""
    rank = world.size - 1 if is_last else 0
    name = f"{how} {rank} {is_last}"
    beside = world.stream("Stepping.count", ask(f"beside {name}", 60), ahead=2)
    stream = world.stream("Stepping.count", ask(name, 30, how, rank, 7))
    seen: list[int] = []
    if world.size == 1 and how == "ends":
        assert list(stream) == numbers(world, 7)
    elif how == "cannot send" and rank:
        assert list(stream) == numbers(world, 30)  # what other ranks send goes nowhere
    else:
        with pytest.raises(errors.CollectiveAborted if how == "ends" else errors.AtomrError) as raised:
            seen.extend(stream)
        assert raised.value.rank == rank
        assert seen == numbers(world, raised.value.parts)
        assert raised.value.parts in {7, 8}
        if isinstance(raised.value, errors.CollectiveAborted):
            assert raised.value.diverged
    assert list(beside) == numbers(world, 60)


@pytest.mark.parametrize("how", ["raises", "raises after all"])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_step_that_raises_fails_all_of_its_streams(world: Any, how: str, *, is_last: bool) -> None:
    """With that rank's error; the next step tells all ranks that they are gone, and later streams run."""
    rank = world.size - 1 if is_last else 0
    if how == "raises" and world.size > 1:
        pytest.skip("it leaves its peers waiting, which ends the epoch")
    name = f"{how} {rank} {is_last}"
    beside = world.stream("Stepping.count", ask(f"beside {name}", 10**9), ahead=4096)
    assert next(beside) == 0
    stream = world.stream("Stepping.count", ask(name, 30, how, rank, 7))
    for each in (stream, beside):
        with pytest.raises(errors.ActorFailed, match=f"rank {rank} raises") as raised:
            list(each)
        assert raised.value.rank == rank
    assert list(world.stream("Stepping.count", ask(f"behind {name}"))) == numbers(world, 5)
    assert [name in gone for *_, gone in steps_of(world, name)].count(True) == 1


def test_arguments_that_do_not_fit_fail_their_stream_alone(world: Any) -> None:
    """It begins on no rank."""
    beside = world.stream("Stepping.count", ask("beside the misfit", 30), ahead=2)
    with pytest.raises(errors.InvalidRequest, match="upto"):
        list(world.stream("Stepping.count", {"name": "misfit", "upto": "many"}))
    assert list(beside) == numbers(world, 30)
    assert steps_of(world, "misfit") == []


def test_a_client_that_ends_leaves_no_stream_behind(pool: atomr_mp.Pool, world: Any) -> None:
    """Neither live ones nor those that wait for a place; streams of others go on."""
    mine = world.stream("Stepping.count", ask("mine", 300), ahead=2)
    with atomr_mp.connect(run_dir=pool.run_dir) as own:
        theirs = [own.world("tp").stream("Stepping.count", ask(f"theirs {at}", 10**9), ahead=4) for at in range(6)]
        assert next(theirs[0]) == 0
    assert list(mine) == numbers(world, 300)
    assert settled(lambda: "theirs 0" in steps_of(world, "theirs 0")[-1][3])


class Walker:
    """One client's random use of a world, and what it should see.

    Args:
        world: The world.
        seed: The seed.
    """

    def __init__(self, world: Any, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._random = random.Random(seed)
        self._streams: list[tuple[Any, int, int, bool]] = []
        """Streams, with how many parts were read, how many there are, and whether an error comes behind them."""

    def run(self, steps: int) -> None:
        """Take steps, and read all streams to their ends."""
        for number in range(steps):
            what = self._random.choice(["open", "open", "read", "read", "read", "close", "call"])
            if what == "call":
                assert self._world.call("Stepping.note", number).result() == total(self._world)
            elif what == "open" and len(self._streams) < 5:
                self._open(f"{self._seed}.{number}")
            elif what != "open" and self._streams:
                self._read(*self._streams.pop(self._random.randrange(len(self._streams))), closes=what == "close")
        while self._streams:
            self._read(*self._streams.pop(), closes=False)

    def _open(self, name: str) -> None:
        upto, rank = self._random.randrange(1, 12), self._random.randrange(self._world.size)
        at = self._random.randrange(upto) if self._random.random() < 0.2 else -1
        asked = ask(name, upto, "fails" if at >= 0 else "", rank, at)
        made = self._world.stream("Stepping.many", asked, ahead=self._random.randint(1, 4))
        # Rank 0 sends the number at which another rank fails.
        self._streams.append((made, 0, upto if at < 0 else at + (rank > 0), at >= 0))

    def _read(self, stream: Any, seen: int, upto: int, fails: bool, *, closes: bool) -> None:  # noqa: FBT001 - a tuple
        if closes:
            stream.close()
            return
        if seen < upto:
            assert next(stream) == seen * total(self._world)
            self._streams.append((stream, seen + 1, upto, fails))
        elif fails:
            with pytest.raises(errors.ActorFailed, match="fails at"):
                next(stream)
        else:
            assert next(stream, None) is None


def test_several_clients_against_a_model(pool: atomr_mp.Pool, world: Any) -> None:
    """A random walk: each stream sends its numbers, and all ranks take the same steps, by the fixture."""
    assert world.state == "ready"
    failed: list[BaseException] = []

    def walk(seed: int) -> None:
        try:
            with atomr_mp.connect(run_dir=pool.run_dir) as own:
                Walker(own.world("tp"), seed).run(80)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=walk, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
