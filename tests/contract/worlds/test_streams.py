"""Streams of a world: one order of steps on all ranks, credit, ends, on one to four ranks."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers.worlds.order.publisher import AHEAD
from tests.support import ACTORS, DEADLINE_S, settled
from tests.worlds import pools_of_sizes, ready_world

STREAMING = f"{ACTORS}/streaming_worldly.py:Streaming"


pool = pools_of_sizes(STREAMING, 1, 2, 4)


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready, and in the same epoch afterwards: no stream ends one."""
    found = ready_world(pool)
    epoch = found.epoch
    yield found
    assert found.call("Streaming.noted", deadline_s=DEADLINE_S).result() is not None
    assert found.epoch == epoch


def logs(world: Any, since: int = 0) -> list[list[Any]]:
    """Return what the ranks have noted, by rank."""
    return [each[since:] for each in world.call("Streaming.noted", each=True, deadline_s=DEADLINE_S).result()]


def all_noted(world: Any, since: int, entry: list[Any]) -> bool:
    """Return whether all ranks have noted an entry."""
    return all(entry in log for log in logs(world, since))


def total(world: Any) -> int:
    """Return what a sum of 1 over ranks gives."""
    return sum(range(1, world.size + 1))


def same_logs(world: Any, since: int) -> list[Any]:
    """Return what has been noted, on all ranks alike."""
    found = logs(world, since)
    assert all(each == found[0] for each in found)
    return found[0]


def test_the_caller_gets_what_rank_0_yields_and_returns(world: Any) -> None:
    """All ranks take all steps, and their collectives meet, in `finally` too."""
    before = len(logs(world)[0])
    with world.stream("Streaming.count", "a", 5) as stream:
        assert list(stream) == [float(number * total(world)) for number in range(5)]
        assert stream.result() == "a of rank 0"
    assert same_logs(world, before) == [*[["a", n] for n in range(5)], ["a", "closed"], ["a", float(total(world))]]
    assert list(world.actor("Streaming").count(name="b", upto=2, meets=False)) == [0, 1]


def test_a_coroutine_reads_a_stream(world: Any) -> None:
    """By `async for`, and its result by `await`."""

    async def main() -> None:
        stream = world.stream("Streaming.count", "a", 40, ahead=3)
        assert [number async for number in stream] == [float(number * total(world)) for number in range(40)]
        assert await stream == "a of rank 0"
        async with world.stream("Streaming.slow", "left", 0.001) as slow:
            async for number in slow:
                if number == 3:
                    break

    for _ in range(10):  # the loop is closed just behind the order to end the stream, which may be lost with it
        before = len(logs(world)[0])
        asyncio.run(main())
        assert settled(functools.partial(all_noted, world, before, ["left", "closed"]))


def test_arrays_come_whole_and_other_ranks_send_nothing(world: Any) -> None:
    """Small and large ones; what other ranks yield and return need not even be sendable."""
    for size in (3, 200_000):
        found = list(world.stream("Streaming.arrays", 3, size))
        assert [(len(each), int(each[0]), int(each[-1])) for each in found] == [(size, n, n) for n in range(3)]


def test_a_reader_that_stops_holds_up_nobody(world: Any) -> None:
    """A stream takes as many steps as it has credit for, on all ranks; others go on meanwhile."""
    before = len(logs(world)[0])
    stopped = world.stream("Streaming.count", "stopped", 50, ahead=2)
    other = world.stream("Streaming.count", "other", 30)
    assert settled(lambda: ["stopped", 1] in logs(world, before)[0])
    assert len(list(other)) == 30
    for _ in range(10):
        assert world.call("Streaming.note", "call").result() == total(world)
    seen = same_logs(world, before)
    assert [entry for entry in seen if entry[0] == "stopped"] == [["stopped", 0], ["stopped", 1]]
    assert list(stopped) == [float(number * total(world)) for number in range(50)]
    same_logs(world, before)


@pytest.mark.parametrize("how", ["close", "leave", "forget"])
def test_a_stream_that_is_left_is_closed_on_all_ranks_at_one_place(world: Any, how: str) -> None:
    """So that even collectives in `finally` meet."""
    before = len(logs(world)[0])
    stream = world.stream("Streaming.count", how, 10_000, ahead=4)
    for _ in range(5):
        next(stream)
    if how == "close":
        stream.close()
        with pytest.raises(errors.Cancelled):
            stream.result()
    elif how == "leave":
        with stream:
            pass
    else:
        del stream
    assert settled(lambda: [how, float(total(world))] in logs(world, before)[-1])
    same_logs(world, before)


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("is_last", [False, True])
def test_an_error_of_any_rank_at_any_step_ends_the_stream(world: Any, at: int, *, is_last: bool) -> None:
    """Its parts come first. The generators of the others are closed, and the world goes on in its epoch."""
    failing = world.size - 1 if is_last else 0
    stream = world.stream("Streaming.fails", 6, failing, at, False)
    seen: list[float] = []
    with pytest.raises(errors.ActorFailed, match=f"rank {failing} fails at {at}") as raised:
        seen.extend(stream)
    assert seen == [float(number) for number in range(raised.value.parts)]
    assert raised.value.rank == failing
    assert raised.value.parts == at + (failing > 0), "rank 0 takes the step at which another one fails"
    assert list(world.stream("Streaming.count", "next", 3)) == [float(n * total(world)) for n in range(3)]


@pytest.mark.parametrize("shorter", [0, 1])
def test_ranks_that_end_at_different_steps_have_diverged(world: Any, shorter: int) -> None:
    """The stream ends with the rank that has ended first; the world goes on."""
    if world.size == 1:
        pytest.skip("one rank differs from none")
    lengths = [3] * world.size
    lengths[shorter] = 2
    stream = world.stream("Streaming.lengths", lengths)
    with pytest.raises(errors.CollectiveAborted) as raised:
        list(stream)
    assert raised.value.diverged
    assert raised.value.rank == shorter
    assert raised.value.parts == (2 if shorter == 0 else 3)
    assert list(world.stream("Streaming.lengths", [3] * world.size)) == [0, 1, 2]


@pytest.mark.parametrize("which", ["first_s", "between_s", "deadline_s"])
def test_a_deadline_ends_a_stream_and_its_generators(world: Any, which: str) -> None:
    """Also between two steps."""
    before = len(logs(world)[0])
    options: dict[str, Any] = {which: 0.2}
    seconds = {"first_s": 0.4, "between_s": 0.4, "deadline_s": 0.01}[which]
    stream = world.stream("Streaming.slow", which, seconds, **options)
    with pytest.raises(errors.DeadlineExceeded):
        for _ in stream:
            pass
    assert settled(lambda: [which, "closed"] in logs(world, before)[-1])
    same_logs(world, before)


def test_a_stream_that_nobody_wants_before_its_turn_begins_on_no_rank(world: Any) -> None:
    """It waits behind a long step, and behind as many calls as may be published."""
    before = len(logs(world)[0])
    long = world.stream("Streaming.slow", "long", 0.5)
    ahead = [world.call("Streaming.note", number) for number in range(AHEAD)]
    late = world.stream("Streaming.count", "late", 5, first_s=0.1)
    left = world.stream("Streaming.count", "left", 5)
    left.close()
    with pytest.raises(errors.DeadlineExceeded):
        next(late)
    with pytest.raises(errors.Cancelled):
        left.result()
    assert next(long) == 0
    long.close()
    assert [each.result(DEADLINE_S) for each in ahead] == [total(world)] * AHEAD
    assert len(list(world.stream("Streaming.count", "wanted", 5))) == 5
    names = {entry[0] for entry in same_logs(world, before) if isinstance(entry, list)}
    assert names == {"long", "wanted"}


def test_what_cannot_be_is_refused(world: Any) -> None:
    """Before anything is sent, with what to do."""
    with pytest.raises(errors.InvalidRequest, match=r"World\.stream"):
        world.call("Streaming.count", "a", 1)
    with pytest.raises(errors.InvalidRequest, match=r"World\.call"):
        world.stream("Streaming.noted")
    with pytest.raises(errors.InvalidRequest, match="each"):
        world.actor("Streaming", each=True).count("a", 1)
    with pytest.raises(errors.WrongArgument, match="deadline_s"):
        world.stream("Streaming.count", "a", 1, deadlines=1)
    with pytest.raises(errors.InvalidRequest, match="upto"):
        list(world.stream("Streaming.count", "a", "many"))


def test_a_client_that_ends_leaves_no_stream_behind(pool: atomr_mp.Pool, world: Any) -> None:
    """Its generators are closed on all ranks; streams of others go on."""
    before = len(logs(world)[0])
    mine = world.stream("Streaming.count", "mine", 300, ahead=2)
    with atomr_mp.connect(run_dir=pool.run_dir) as own:
        theirs = own.world("tp").stream("Streaming.count", "theirs", 100_000, ahead=4)
        for _ in range(3):
            next(theirs)
    assert settled(lambda: ["theirs", float(total(world))] in logs(world, before)[-1])
    assert len(list(mine)) == 300
    same_logs(world, before)


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
        self._streams: list[tuple[Any, int, int]] = []
        """Streams, with how many parts were read, and how many there are."""

    def run(self, steps: int) -> None:
        """Take steps, and read all streams to their ends."""
        for number in range(steps):
            what = self._random.choice(["open", "read", "read", "read", "close", "call"])
            if what == "call":
                assert self._world.call("Streaming.note", number).result() == total(self._world)
            elif what == "open" and len(self._streams) < 5:
                self._open(f"{self._seed}.{number}")
            elif what != "open" and self._streams:
                self._read(*self._streams.pop(self._random.randrange(len(self._streams))), closes=what == "close")
        for stream, seen, upto in self._streams:
            assert len(list(stream)) == upto - seen

    def _open(self, name: str) -> None:
        upto, meets = self._random.randrange(12), self._random.random() < 0.5
        made = self._world.stream("Streaming.count", name, upto, meets, ahead=self._random.randint(1, 4))
        self._streams.append((made, 0, upto))

    def _read(self, stream: Any, seen: int, upto: int, *, closes: bool) -> None:
        if closes:
            stream.close()
            return
        found = next(stream, None)
        if seen == upto:
            assert found is None
        else:
            assert found in {seen, float(seen * total(self._world))}
            self._streams.append((stream, seen + 1, upto))


def test_streams_and_calls_of_several_clients_keep_one_order(pool: atomr_mp.Pool, world: Any) -> None:
    """A random walk against a model: each stream yields its numbers, and all ranks have noted the same."""
    before = len(logs(world)[0])
    failed: list[BaseException] = []

    def walk(seed: int) -> None:
        try:
            with atomr_mp.connect(run_dir=pool.run_dir) as own:
                Walker(own.world("tp"), seed).run(60)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=walk, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert settled(lambda: all(is_quiet(log) for log in logs(world, before)))
    assert len(same_logs(world, before)) > 100


def is_quiet(log: list[Any]) -> bool:
    """Return whether all streams that have begun are closed."""
    entries = [entry for entry in log if isinstance(entry, list)]
    closed = [entry for entry in entries if entry[1] == "closed"]
    return len(closed) == len({entry[0] for entry in entries})
