"""Batches of a world: the same requests in the same order on all ranks, each with an outcome of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, settled
from tests.worlds import pools_of_sizes, ready_world

WORLDLY = f"{ACTORS}/worldly.py:Worldly"


pool = pools_of_sizes(WORLDLY, 1, 2, 4)


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready, without memory of former tests."""
    found = ready_world(pool)
    found.call("Worldly.forget").result(DEADLINE_S)
    return found


def factor(world: Any) -> int:
    """Return what a number is multiplied by."""
    return sum(range(1, world.size + 1))


def batches_of(world: Any) -> list[list[int]]:
    """Return the batches that were run; they are the same on all ranks."""
    found = world.call("Worldly.batched", each=True).result(DEADLINE_S)
    assert all(each == found[0] for each in found), found
    return list(found[0])


def flat(batches: list[list[int]]) -> list[int]:
    """Return the requests of batches, in their order."""
    return [number for batch in batches for number in batch]


def test_a_full_batch_runs_at_once(world: Any) -> None:
    """All ranks have run the same requests in the same order."""
    replies = [world.call("Worldly.when_full", n, "") for n in range(24)]
    assert [reply.result(DEADLINE_S) for reply in replies] == [n * factor(world) for n in range(24)]
    assert batches_of(world) == [[*range(8)], [*range(8, 16)], [*range(16, 24)]]


def test_a_batch_that_is_not_full_runs_after_its_time(world: Any) -> None:
    """As the rest of many, too."""
    replies = [world.call("Worldly.together", n, "") for n in range(20)]
    assert [reply.result(DEADLINE_S) for reply in replies] == [n * factor(world) for n in range(20)]
    found = batches_of(world)
    assert flat(found) == list(range(20))
    assert all(len(each) <= 8 for each in found)


def test_requests_that_come_while_a_batch_runs_share_the_next_one(world: Any) -> None:
    """By their keys, though none waits for others; and results are each rank's, if all are asked for."""
    running = world.call("Worldly.wait", 0.3)
    replies = [world.call("Worldly.by_key", n, "", each=True) for n in range(30)]
    assert running.result(DEADLINE_S) == 0.3
    assert [reply.result(DEADLINE_S) for reply in replies] == [[n * factor(world)] * world.size for n in range(30)]
    found = batches_of(world)
    assert sorted(flat(found)) == list(range(30))
    assert all(len({n % 3 for n in each}) == 1 for each in found)
    assert len(found) < 15, "they were not put together"


def test_a_batch_has_as_many_bytes_as_it_may(world: Any) -> None:
    """It begins with so many, long before its time."""
    rows = [np.zeros(1000 + n) for n in range(26)]
    replies = [world.call("Worldly.by_bytes", row) for row in rows]
    assert [reply.result(DEADLINE_S) for reply in replies] == [len(row) for row in rows]
    lengths = [length for [length] in batches_of(world)]
    assert sum(lengths) == 26
    assert max(lengths) == 12


@pytest.mark.parametrize("way", ["fails alone", "fails last"])
def test_one_request_fails_by_itself(world: Any, way: str) -> None:
    """With the error of the lowest rank that has one for it."""
    replies = [world.call("Worldly.when_full", n, way if n == 3 else "") for n in range(8)]
    rank = 0 if way == "fails alone" else world.size - 1
    with pytest.raises(errors.ActorFailed, match=f"3 fails on rank {rank}") as raised:
        replies.pop(3).result(DEADLINE_S)
    assert raised.value.rank == rank
    assert raised.value.maybe_executed
    assert [reply.result(DEADLINE_S) for reply in replies] == [n * factor(world) for n in range(8) if n != 3]
    assert len(batches_of(world)) == 1


@pytest.mark.parametrize(("way", "message"), [("short", "7 results"), ("raises", "fails")])
def test_what_a_rank_does_wrong_fails_the_whole_batch(world: Any, way: str, message: str) -> None:
    """Each of its requests, and none of the next batch."""
    replies = [world.call("Worldly.when_full", n, way if n == 3 else "") for n in range(8)]
    for reply in replies:
        with pytest.raises(errors.ActorFailed, match=message) as raised:
            reply.result(DEADLINE_S)
        assert raised.value.rank == world.size - 1
    assert world.call("Worldly.together", 1, "", deadline_s=DEADLINE_S).result(DEADLINE_S) == factor(world)


def test_what_cannot_be_decoded_or_has_no_key_runs_on_no_rank(world: Any) -> None:
    """Its neighbours do not notice, and the epoch goes on."""
    epoch, replies = world.epoch, []
    for n in range(9):
        replies.append(world.call("Worldly.by_key", n, ""))
        wrong = [("text", ""), (n,), (n, "no key"), (n, f"no key {world.size - 1}")]
        for reply in [world.call("Worldly.by_key", *arguments) for arguments in wrong]:
            with pytest.raises((errors.InvalidRequest, errors.ActorFailed)) as raised:
                reply.result(DEADLINE_S)
            assert raised.value.maybe_executed == isinstance(raised.value, errors.ActorFailed), "the key is its code"
        assert raised.value.rank == world.size - 1
    assert [reply.result(DEADLINE_S) for reply in replies] == [n * factor(world) for n in range(9)]
    assert sorted(flat(batches_of(world))) == [*range(9)]
    assert world.epoch == epoch


def test_a_request_that_nobody_wants_any_longer_is_left_out_of_its_batch(world: Any, tmp_path: Path) -> None:
    """On all ranks: whether it has passed its deadline or was cancelled."""
    busy = world.call("Worldly.wait_once", 0.3, str(tmp_path / "begun"))
    assert settled((tmp_path / "begun").exists)
    ahead = [world.call("Worldly.together", n, "") for n in range(10, 18)]  # a full batch, which is published at once
    late = world.call("Worldly.together", 1, "", deadline_s=0.1)
    unwanted, wanted = world.call("Worldly.together", 2, ""), world.call("Worldly.together", 3, "")
    unwanted.cancel()
    with pytest.raises(errors.DeadlineExceeded):
        late.result(DEADLINE_S)
    with pytest.raises(errors.Cancelled):
        unwanted.result(DEADLINE_S)
    assert wanted.result(DEADLINE_S) == 3 * factor(world)
    assert busy.result(DEADLINE_S) == world.size
    assert [each.result(DEADLINE_S) for each in ahead] == [n * factor(world) for n in range(10, 18)]
    assert flat(batches_of(world)) == [*range(10, 18), 3]


def test_clients_mix_calls_and_batches(pool: atomr_mp.Pool, world: Any) -> None:
    """In opposite orders. Each call has its result, none runs twice, and all ranks have one order."""
    seen: list[BaseException] = []

    def use(client: int) -> None:
        try:
            with atomr_mp.connect(run_dir=pool.run_dir) as own:
                theirs, replies = own.world("tp"), []
                for n in range(client * 1000, client * 1000 + 60):
                    steps = [
                        (f"Worldly.{'together_once' if n % 2 else 'by_key'}", (n, ""), n * factor(world)),
                        ("Worldly.note", (n, n % 5 == 0), n),
                    ]
                    for method, arguments, expected in steps if client % 2 else reversed(steps):
                        replies.append((theirs.call(method, *arguments), expected))
                for reply, expected in replies:
                    assert reply.result(DEADLINE_S) == expected
        except BaseException as error:  # noqa: BLE001 - shown below
            seen.append(error)

    threads = [threading.Thread(target=use, args=(client,)) for client in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not seen
    expected = sorted(n for client in range(1, 4) for n in range(client * 1000, client * 1000 + 60))
    assert sorted(flat(batches_of(world))) == expected
    logs = world.call("Worldly.noted", each=True).result(DEADLINE_S)
    assert all(log == logs[0] for log in logs)
    assert sorted(logs[0]) == expected


def test_status_shows_batches(pool: atomr_mp.Pool, world: Any) -> None:
    """On each device."""
    world.call("Worldly.together", 1, "").result(DEADLINE_S)
    for device in pool.status().devices:
        assert any(each.method == "Worldly.together" and each.items for each in device.batches)
