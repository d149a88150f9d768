"""Calls of a world: one reply, one order, one outcome, on one to four ranks."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.lanes.gangs import Gangs
from atomr_mp.operator.doctor import examine
from atomr_mp.operator.pool_status import WorldStatus
from atomr_mp.protocol.messages.suspects import RequestKey
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import pools_of_sizes, ready_world

WORLDLY = f"{ACTORS}/worldly.py:Worldly"
SOON_S = 2.0


pool = pools_of_sizes(WORLDLY, 1, 2, 4)


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready."""
    return ready_world(pool)


def test_a_call_runs_on_all_ranks_and_has_one_result(world: Any) -> None:
    """Rank 0's, or all of them by rank; on a thread of the world's own, after a rehearsal in setup."""
    places = world.call("Worldly.where", each=True).result(DEADLINE_S)
    assert [place[:2] for place in places] == [[rank, world.size] for rank in range(world.size)]
    assert len({place[2] for place in places}) == 1
    assert len({place[3] for place in places}) == world.size
    assert not any(place[4] for place in places)
    assert all(place[5] == [world.size] * 3 for place in places)
    assert world.call("Worldly.where").result(DEADLINE_S)[0] == 0


@pytest.mark.parametrize("count", [0, 1, 1000, 300_001])
def test_ranks_sum(world: Any, count: int) -> None:
    """Arrays of any size, as arguments and results too."""
    x = np.arange(count, dtype="float64")
    expected = x * sum(range(1, world.size + 1))
    for got in world.call("Worldly.add", x, each=True).result(DEADLINE_S):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(world.actor("Worldly").add(x).result(DEADLINE_S), expected)


def test_each_collective_gives_what_numpy_does(world: Any) -> None:
    """On arrays with a row for each rank."""
    n = world.size
    x = np.arange(3.0 * n).reshape(n, 3)
    found = world.call("Worldly.all_of", x, each=True).result(DEADLINE_S)
    own = [x * (rank + 1) for rank in range(n)]
    total = np.sum(own, axis=0)
    for rank, (summed, gathered, part, reduced, sent, swapped, parts, neighbour) in enumerate(found):
        np.testing.assert_array_equal(summed, total)
        np.testing.assert_array_equal(gathered, np.stack(own))
        np.testing.assert_array_equal(np.asarray(part).reshape(-1), total[rank])
        if rank == n - 1:
            np.testing.assert_array_equal(reduced, total)
        else:
            assert reduced is False
        np.testing.assert_array_equal(sent, own[n - 1])
        np.testing.assert_array_equal(swapped, np.stack([each[rank] for each in own]))
        for other, each in enumerate(parts):
            np.testing.assert_array_equal(each, np.full(rank + other, other))
        np.testing.assert_array_equal(neighbour, own[(rank - 1) % n])


def test_many_calls_of_many_clients_have_one_order(pool: atomr_mp.Pool, world: Any) -> None:
    """Each client's calls meet their like on all ranks, and none is lost or runs twice."""
    before = len(world.call("Worldly.noted").result(DEADLINE_S))
    errors_seen: list[BaseException] = []

    def call(client: int) -> None:
        try:
            with atomr_mp.connect(run_dir=pool.run_dir) as own:
                theirs = own.world("tp")
                replies = [theirs.call("Worldly.note", client * 1000 + n, n % 3 == 0) for n in range(40)]
                for n, reply in enumerate(replies):
                    assert reply.result(DEADLINE_S) == client * 1000 + n
        except BaseException as error:  # noqa: BLE001 - shown below
            errors_seen.append(error)

    threads = [threading.Thread(target=call, args=(client,)) for client in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors_seen
    logs = world.call("Worldly.noted", each=True).result(DEADLINE_S)
    assert all(log == logs[0] for log in logs)
    assert sorted(logs[0][before:]) == sorted(client * 1000 + n for client in range(1, 5) for n in range(40))


@pytest.mark.parametrize("meets", [False, True])
def test_the_lowest_failed_rank_is_the_outcome(world: Any, *, meets: bool) -> None:
    """The others leave at once, and the world goes on."""
    last = world.size - 1
    began_s = time.monotonic()
    with pytest.raises(errors.ActorFailed, match=f"rank {last} fails") as raised:
        world.call("Worldly.fail", [last], meets).result(DEADLINE_S)
    assert raised.value.rank == last
    assert raised.value.maybe_executed
    assert world.call("Worldly.add", 1.0).result(DEADLINE_S) == sum(range(1, world.size + 1))
    assert time.monotonic() - began_s < SOON_S
    with pytest.raises(errors.ActorFailed, match="rank 0 fails"):
        world.call("Worldly.fail", list(range(world.size)), meets).result(DEADLINE_S)


@pytest.mark.parametrize("way", ["count", "type", "operator", "kind", "root"])
def test_ranks_that_differ_are_told_so(world: Any, way: str) -> None:
    """On all ranks, with both sides; the world goes on in the same epoch."""
    if world.size == 1:
        pytest.skip("one rank differs from none")
    epoch = world.epoch
    with pytest.raises(errors.WorldMismatch) as raised:
        world.call("Worldly.differ", way).result(DEADLINE_S)
    assert raised.value.rank == 0
    assert world.call("Worldly.add", 1.0).result(DEADLINE_S) == sum(range(1, world.size + 1))
    assert world.epoch == epoch


def test_a_deadline_ends_the_reply_alone(world: Any) -> None:
    """All ranks finish what runs, and what is behind it."""
    reply = world.call("Worldly.wait", 0.5, deadline_s=0.1)
    behind = world.call("Worldly.add", 1.0)
    with pytest.raises(errors.DeadlineExceeded):
        reply.result(DEADLINE_S)
    assert behind.result(DEADLINE_S) == sum(range(1, world.size + 1))


@pytest.mark.parametrize("how", ["late", "cancelled"])
def test_what_waits_behind_a_long_call_and_is_not_wanted_runs_on_no_rank(world: Any, how: str) -> None:
    """So a world that was overloaded is not busy with calls whose callers have gone."""
    epoch, since = world.epoch, len(world.call("Worldly.noted").result(DEADLINE_S))
    long = world.call("Worldly.wait", 0.5)
    wanted = [world.call("Worldly.note", -1)]  # it is published ahead
    unwanted = [world.call("Worldly.note", n, True, deadline_s=0.1 if how == "late" else None) for n in range(40)]
    if how == "cancelled":
        for each in unwanted:
            each.cancel()
    wanted.append(world.call("Worldly.note", -2))
    for each in unwanted:
        with pytest.raises(errors.DeadlineExceeded if how == "late" else errors.Cancelled):
            each.result(DEADLINE_S)
    assert [each.result(DEADLINE_S) for each in (long, *wanted)] == [0.5, -1, -2]
    noted = world.call("Worldly.noted", each=True).result(DEADLINE_S)
    assert [each[since:] for each in noted] == [[-1, -2]] * world.size
    assert world.epoch == epoch


def test_event_loops_call_too(pool: atomr_mp.Pool, world: Any) -> None:
    """Replies are awaited."""

    async def use() -> list[float]:
        theirs = pool.world("tp")
        return list(await asyncio.gather(*(theirs.call("Worldly.add", float(n)) for n in range(20))))

    factor = sum(range(1, world.size + 1))
    assert asyncio.run(use()) == [n * factor for n in range(20)]


def test_wrong_use_is_told_in_the_caller_s_words(pool: atomr_mp.Pool, world: Any) -> None:
    """Before anything runs."""
    with pytest.raises(errors.InvalidRequest, match="tp"):
        pool.call("Worldly.where").result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="tp"):
        pool.world("nope")
    with pytest.raises(errors.InvalidRequest, match="nope"):
        world.call("Worldly.nope").result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest):
        world.call("Worldly.add").result(DEADLINE_S)
    with pytest.raises(errors.ActorFailed):
        world.call("Worldly.add", "text").result(DEADLINE_S)
    ref = pool.device(0).put(np.ones(3))
    with pytest.raises(errors.InvalidRequest, match="ref"):
        world.call("Worldly.add", ref).result(DEADLINE_S)
    ref.free()
    assert world.call("Worldly.add", 2.0).result(DEADLINE_S) == 2 * sum(range(1, world.size + 1))


def test_status_shows_it(pool: atomr_mp.Pool, world: Any) -> None:
    """With its epoch and devices."""
    [found] = pool.status().worlds
    assert (found.name, found.state, list(found.devices)) == ("tp", "ready", list(range(world.size)))


def test_a_client_with_few_calls_does_not_wait_for_one_with_many(pool: atomr_mp.Pool, world: Any) -> None:
    """They take turns, though the many were there first."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        many = [world.call("Worldly.wait", 0.01) for _ in range(60)]
        many[0].result(DEADLINE_S)
        few = other.world("tp")
        for _ in range(3):
            few.call("Worldly.where").result(DEADLINE_S)
        assert not many[-1].done, "the last of the many waits still"
        assert [reply.result(DEADLINE_S) for reply in many] == [0.01] * 60


LAZY = """
import sys
import numpy
from atomr_mp_workers import Actor, method
class Lazy(Actor):
    @method
    def has_collectives(self) -> bool:
        return "atomr_mp_workers.worlds.exchange.collectives" in sys.modules
"""


def test_a_first_collective_imports_nothing(ledger: Ledger, tmp_path: Path) -> None:
    """A standby that takes over would make all ranks wait for that."""
    actor = tmp_path / "lazy.py"
    actor.write_text(LAZY)
    with ledger.start(f"{actor}:Lazy", gpus=2, worlds={"tp": {"devices": [0, 1], "actors": ["Lazy"]}}) as pool:
        assert pool.world("tp").call("Lazy.has_collectives", each=True).result(DEADLINE_S) == [True, True]


def test_status_and_doctor_show_who_waits_for_whom(pool: atomr_mp.Pool, world: Any, tmp_path: Path) -> None:
    """By rank, and in a sentence, while a call waits for one rank."""
    last, gate = world.size - 1, tmp_path / "gate"
    reply = world.call("Worldly.meet_late", last, str(gate))

    def shown() -> WorldStatus:
        [found] = pool.status().worlds
        return found

    if world.size > 1:
        assert settled(lambda: "wait" in shown().waits)
        found = shown()
        assert f"in barrier for rank {last}, which has not met it for " in found.waits
        [told] = [each for each in examine(pool.run_dir)[1] if each.kind == "world"]
        assert found.waits[:20] in told.what
    else:
        assert settled(lambda: shown().members[0].doing.startswith("runs call "))
        found = shown()
    assert [each.doing for each in found.members] == [
        *["waits in barrier"] * last,
        f"runs call {found.published}",
    ]
    assert [(each.rank, each.device, each.begun, each.begun - each.ended) for each in found.members] == [
        (rank, rank, found.published, 1) for rank in range(world.size)
    ]
    gate.touch()
    reply.result(DEADLINE_S)
    assert settled(lambda: [each.doing for each in shown().members] == ["is idle"] * world.size)
    assert not shown().waits


@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_that_is_to_run_alone_on_one_rank_only_is_refused(
    pool: atomr_mp.Pool, world: Any, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """By rank 0, at once, though no honest client sends one; the world keeps its epoch."""
    if world.size == 1:
        pytest.skip("one rank differs from none")
    whole: Any = Gangs._parts

    def forged(self: Gangs, *arguments: Any) -> Any:
        for number, part in enumerate(whole(self, *arguments)):
            part.alone = RequestKey(part.method, bytes(16)) if number == rank else None
            yield part

    epoch = world.epoch
    with monkeypatch.context() as patched:
        patched.setattr(Gangs, "_parts", forged)
        reply = world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S)
        with pytest.raises(errors.InvalidRequest, match="do not agree on whether it runs alone") as raised:
            reply.result()
    assert not raised.value.maybe_executed
    assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result() == sum(range(1, world.size + 1))
    assert world.epoch == epoch
    assert pool.lost is None
