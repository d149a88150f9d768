"""Worlds that sessions make: each collective on refs against NumPy, what is refused, order, limits, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.made_world import MadeWorld
from tests import made_worlds
from tests.made_worlds import arrays_of, put, same
from tests.support import BACKEND, DEADLINE_S, Gate, Ledger, open_descriptors, settled

SIZES = [0, 1, 7, 4097, 70_001]
SOON_S = 1.0


books, pool, gate, world, pair = (
    made_worlds.books,
    made_worlds.pool,
    made_worlds.gate,
    made_worlds.world,
    made_worlds.pair,
)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "float16", "complex64"])
def test_all_reduce(pool: atomr_mp.Pool, world: MadeWorld, count: int, dtype: str) -> None:
    """Into new refs, given ones, and in place; by all operators."""
    arrays = arrays_of(world, count, dtype)
    total = np.add.reduce(arrays, dtype=dtype)
    refs = put(pool, world, arrays)
    same(world.all_reduce(refs).result(DEADLINE_S), [total] * world.size)
    same(refs, arrays)
    out = put(pool, world, [np.zeros_like(array) for array in arrays])
    given = world.all_reduce(refs, out=out).result(DEADLINE_S)
    assert all(one is other for one, other in zip(given, out, strict=True))
    same(out, [total] * world.size)
    world.all_reduce(refs, out=refs).result(DEADLINE_S)
    same(refs, [total] * world.size)


@pytest.mark.parametrize(("op", "function"), [("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)])
def test_operators(pool: atomr_mp.Pool, world: MadeWorld, op: str, function: Any) -> None:
    """Of whole numbers and others."""
    for dtype in ("int32", "float64"):
        arrays = arrays_of(world, (3, 5), dtype)
        same(
            world.all_reduce(put(pool, world, arrays), op).result(DEADLINE_S),
            [function.reduce(arrays).astype(dtype)] * world.size,
        )


def test_factors(pool: atomr_mp.Pool, world: MadeWorld) -> None:
    """One for all ranks or one for each."""
    arrays = arrays_of(world, 9, "float64")
    refs = put(pool, world, arrays)
    same(world.all_reduce(refs, factor=2.0).result(DEADLINE_S), [2 * np.add.reduce(arrays)] * world.size)
    factors = [float(rank + 1) for rank in range(world.size)]
    expected = np.add.reduce([array * factor for array, factor in zip(arrays, factors, strict=True)])
    same(world.all_reduce(refs, factor=factors).result(DEADLINE_S), [expected] * world.size)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "uint8", "bool"])
def test_moving(pool: atomr_mp.Pool, world: MadeWorld, count: int, dtype: str) -> None:
    """All collectives that compute nothing."""
    size, arrays = world.size, arrays_of(world, count, dtype)
    refs, root = put(pool, world, arrays), world.size - 1
    same(world.all_gather(refs).result(DEADLINE_S), [np.stack(arrays)] * size)
    pairs = [(rank, (rank + 1) % size) for rank in range(size)]
    same(world.sendrecv(refs, pairs).result(DEADLINE_S), [arrays[rank - 1] for rank in range(size)])
    same(world.sendrecv(refs, []).result(DEADLINE_S), [None] * size)
    same(world.broadcast(refs, root).result(DEADLINE_S), [arrays[root]] * size)
    world.broadcast(refs, root, out=refs).result(DEADLINE_S)
    same(refs, [arrays[root]] * size)
    rows = [np.repeat(array, size).reshape(count, size).T.copy() for array in arrays]
    expected = [np.stack([row[rank] for row in rows]) for rank in range(size)]
    same(world.all_to_all(put(pool, world, rows)).result(DEADLINE_S), expected)


@pytest.mark.parametrize("count", SIZES)
def test_reductions_to_some(pool: atomr_mp.Pool, world: MadeWorld, count: int) -> None:
    """`reduce` gives the result to one rank, `reduce_scatter` a part to each."""
    size, arrays = world.size, arrays_of(world, (world.size, count), "float64")
    refs, total = put(pool, world, arrays), np.add.reduce(arrays)
    for root in range(size):
        found = world.reduce(refs, root).result(DEADLINE_S)
        same(found, [total if rank == root else None for rank in range(size)])
    out = pool.device(world.devices[0]).put(np.zeros_like(total))
    found = world.reduce(refs, out=out).result(DEADLINE_S)
    assert found[0] is out
    same(found, [total, *[None] * (size - 1)])
    same(world.reduce_scatter(refs).result(DEADLINE_S), [total[rank : rank + 1] for rank in range(size)])


def test_lists_of_any_lengths(pool: atomr_mp.Pool, world: MadeWorld) -> None:
    """`all_to_all_v` sends a ref from each rank to each."""
    size = world.size
    arrays = [[np.full((rank + 2 * to, 3), 10 * rank + to, "int32") for to in range(size)] for rank in range(size)]
    parts = [
        [pool.device(device).put(array) for array in row] for device, row in zip(world.devices, arrays, strict=True)
    ]
    found = world.all_to_all_v(parts).result(DEADLINE_S)
    for rank, row in enumerate(found):
        same(row, [arrays[sender][rank] for sender in range(size)])


def test_a_barrier(world: MadeWorld) -> None:
    """It needs no refs."""
    assert world.barrier().result(DEADLINE_S) == [None] * world.size


def test_views_and_overlaps(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """Refs may be views with gaps, and outputs may lie over inputs in any way."""
    arrays = [np.arange(12.0).reshape(3, 4) + rank for rank in range(2)]
    refs = put(pool, pair, arrays)
    columns = [ref[:, 1] for ref in refs]
    same(pair.all_reduce(columns).result(DEADLINE_S), [arrays[0][:, 1] + arrays[1][:, 1]] * 2)
    pair.all_reduce([ref[:2] for ref in refs], out=[ref[1:] for ref in refs]).result(DEADLINE_S)
    total = arrays[0][:2] + arrays[1][:2]
    same(refs, [np.concatenate([array[:1], total]) for array in arrays])


def test_devices_of_the_pool_and_numbers_of_numpy_name_a_world_and_its_ranks(pool: atomr_mp.Pool) -> None:
    """A device of another pool is refused."""
    with pool.world([pool.device(1), 0]) as world:
        assert world.devices == (1, 0)
        refs = put(pool, world, [np.full(2, 5.0), np.zeros(2)])
        same(world.sendrecv(refs, [(np.int64(0), np.int64(1))]).result(DEADLINE_S), [None, np.full(2, 5.0)])  # type: ignore[list-item]
    with (
        atomr_mp.connect(run_dir=pool.run_dir) as other,
        pytest.raises(errors.InvalidRequest, match="of the same pool; got"),
    ):
        pool.world([other.device(0), 1])


def test_what_a_client_can_know_is_refused_before_anything_is_sent(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """With the error that says it; the world works afterwards."""
    refs = put(pool, pair, [np.zeros((2, 3))] * 2)
    other, short, whole = (
        put(pool, pair, [np.zeros(shape, dtype)] * 2) for shape, dtype in [((3, 2), "f8"), ((2,), "f8"), ((2, 3), "i4")]
    )
    numbers: Any = [np.zeros(2)] * 2
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (errors.GpuRefWrongDevice, "rank 0 of the world is device 0", lambda: pair.all_reduce(refs[::-1])),
        (errors.InvalidRequest, "2 ranks, and got 1", lambda: pair.all_reduce(refs[:1])),
        (errors.InvalidRequest, "takes refs", lambda: pair.all_reduce(numbers)),
        (errors.InvalidRequest, "in a list", lambda: pair.all_reduce(refs[0])),
        (errors.WorldMismatch, "2 float64", lambda: pair.all_reduce([refs[0], short[1]])),
        (errors.WorldMismatch, "int32", lambda: pair.broadcast([refs[0], whole[1]])),
        (errors.InvalidRequest, "did you mean sum?", lambda: pair.all_reduce(refs, "sun")),
        (errors.InvalidRequest, "`out` of rank 0 has shape", lambda: pair.all_reduce(refs, out=other)),
        (errors.InvalidRequest, "elements of int32", lambda: pair.all_reduce(refs, out=whole)),
        (
            errors.InvalidRequest,
            "`out` of rank 0 of shape (3,) is written and has strides",
            lambda: pair.all_reduce([ref[0] for ref in refs], out=[ref.as_strided((3,), (0,)) for ref in other]),
        ),
        (errors.GpuRefWrongDevice, "device 1", lambda: pair.all_reduce(refs, out=refs[::-1])),
        (errors.InvalidRequest, "not divisible by 2", lambda: pair.all_to_all(other)),
        (errors.InvalidRequest, "from 0 to 1", lambda: pair.broadcast(refs, 2)),
        (errors.InvalidRequest, "rank 0 sends twice", lambda: pair.sendrecv(refs, [(0, 1), (0, 0)])),
        (errors.InvalidRequest, "ranks from 0 to 1; got (0, 5)", lambda: pair.sendrecv(refs, [(0, 5)])),
        (errors.InvalidRequest, "ranks from 0 to 1; got (0, True)", lambda: pair.sendrecv(refs, [(0, True)])),
        (errors.InvalidRequest, "a factor for all ranks", lambda: pair.all_reduce(refs, factor=[1.0, None])),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind) as raised:
            call()
        assert text in str(raised.value)
    freed = put(pool, pair, [np.zeros(2)] * 2)
    freed[1].free()
    with pytest.raises(errors.GpuRefReleased):
        pair.all_reduce(freed)
    assert pair.barrier().result(DEADLINE_S) == [None, None]
    assert pair.epoch == 1


def test_what_only_a_worker_can_know_is_refused_on_all_ranks(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """At once, with the error of the rank that has it; outputs stay as they were, and the world works on."""
    refs = put(pool, pair, [np.ones(3)] * 2)
    before = time.monotonic()
    for op, arrays in [("avg", [np.ones(3, "i4")] * 2), ("sum", [np.ones(3, "?")] * 2)]:
        with pytest.raises(errors.InvalidRequest, match="is not computed"):
            pair.all_reduce(put(pool, pair, arrays), op).result(DEADLINE_S)
    with pytest.raises(errors.RequestError):
        pool.call("Exchanging.fail", refs[1]).result(DEADLINE_S)
    with pytest.raises(errors.GpuRefUndefined) as undefined:
        pair.all_reduce(refs).result(DEADLINE_S)
    assert not undefined.value.maybe_executed
    assert time.monotonic() < before + SOON_S
    same(refs[:1], [np.ones(3)])
    pair.broadcast(refs, out=refs).result(DEADLINE_S)  # the root's is defined
    view = refs[0].view()  # a client's view excludes writers, and its end is unknown
    with pytest.raises(errors.BorrowConflict):
        pair.all_reduce(refs, out=refs).result(DEADLINE_S)
    del view
    assert time.monotonic() < before + SOON_S
    assert pair.epoch == 1


def test_collectives_take_their_turns_with_other_requests(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """On the loop and on threads, as a sequential model has them; nothing waits for an answer in between."""
    choices = random.Random(7)
    for _ in range(12):
        model = [np.ones(4) * (rank + 1) for rank in range(2)]
        refs = put(pool, pair, model)
        reads: list[tuple[Any, float]] = []
        replies: list[Any] = []
        for _ in range(40):
            rank = choices.randrange(2)
            match choices.choice(["add", "multiply", "first", "read", "reduce", "reduce", "move", "new"]):
                case "add":
                    model[rank] = model[rank] + 1
                    replies.append(pool.call("Exchanging.add", refs[rank], 1.0))
                case "multiply":
                    model[rank] = model[rank] * 0.5
                    replies.append(pool.call("Exchanging.multiply", refs[rank], 0.5))
                case "first" | "read" as name:
                    reads.append((pool.call(f"Exchanging.{name}", refs[rank]), model[rank][0]))
                case "reduce":
                    model = [(model[0] + model[1]) / 2] * 2
                    replies.append(pair.all_reduce(refs, "avg", out=refs))
                case "move":
                    model = [model[rank]] * 2
                    replies.append(pair.broadcast(refs, rank, out=refs))
                case "new":
                    replies.append(pair.all_gather(refs))
        for reply in replies:
            reply.result(DEADLINE_S)
        assert [reply.result(DEADLINE_S) for reply, _ in reads] == [expected for _, expected in reads]
        same(refs, model)


def test_a_collective_waits_for_a_writer_and_a_reader_for_it(pool: atomr_mp.Pool, pair: MadeWorld, gate: Gate) -> None:
    """While calls of the same world that do not need that memory go on."""
    refs, others = put(pool, pair, [np.ones(2)] * 2), put(pool, pair, [np.ones(2)] * 2)
    held = pool.call("Exchanging.hold", refs[1], gate.path, 10.0)
    gate.wait()
    summed = pair.all_reduce(refs, out=refs)
    read = pool.call("Exchanging.read", refs[0])
    same(pair.all_reduce(others).result(DEADLINE_S), [np.full(2, 2.0)] * 2)
    assert not summed.done
    assert not read.done
    gate.open()
    held.result(DEADLINE_S)
    summed.result(DEADLINE_S)
    assert read.result(DEADLINE_S) == 12.0


def test_what_needs_no_memory_of_a_waiting_collective_goes_on(pool: atomr_mp.Pool, pair: MadeWorld, gate: Gate) -> None:
    """On the stream, too, where a request that waits for the collective came first: others may wait for the later one.

    Of the later ones, one reads a ref of the other device, so that writers there wait for it.
    """
    refs, others = put(pool, pair, [np.ones(2)] * 2), put(pool, pair, [np.ones(2)] * 2)
    library = pool.device(1).elementwise
    held = pool.call("Exchanging.hold", refs[0], gate.path, 10.0)
    gate.wait()
    summed = pair.all_reduce(refs)
    behind = [library.add(refs[1], others[1], refs[1]), library.multiply(refs[1], others[1])]
    same([library.add(others[1], others[1]).result(DEADLINE_S)], [np.full(2, 2.0)])
    same([library.copy(others[0]).result(DEADLINE_S)], [np.ones(2)])
    same(pair.all_reduce(others).result(DEADLINE_S), [np.full(2, 2.0)] * 2)
    pool.call("Exchanging.add", others[0], 1.0).result(DEADLINE_S)
    assert not any(reply.done for reply in (held, summed, *behind))
    gate.open()
    same(summed.result(DEADLINE_S), [np.full(2, 12.0)] * 2)
    same([behind[1].result(DEADLINE_S), refs[1]], [np.full(2, 2.0)] * 2)


def test_a_collective_that_is_cancelled_while_its_refs_are_in_use_runs_on_no_rank(
    pool: atomr_mp.Pool, pair: MadeWorld, gate: Gate
) -> None:
    """What is behind it goes on at once, where the memory is free."""
    refs = put(pool, pair, [np.ones(2)] * 2)
    held = pool.call("Exchanging.hold", refs[1], gate.path, 10.0)
    gate.wait()
    summed = pair.all_reduce(refs)
    added = pool.call("Exchanging.add", refs[0], 1.0)  # behind it on rank 0
    summed.cancel()
    with pytest.raises(errors.Cancelled):
        summed.result(DEADLINE_S)
    added.result(DEADLINE_S)
    gate.open()
    held.result(DEADLINE_S)
    assert pool.call("Exchanging.read", refs[1]).result(DEADLINE_S) == 11.0
    same(pair.all_reduce(refs).result(DEADLINE_S), [np.full(2, 13.0)] * 2)


def test_two_worlds_over_the_same_refs(pool: atomr_mp.Pool) -> None:
    """Calls of one client in turn; the ranks of the second world are the other way around."""
    with pool.world([0, 1]) as one, pool.world([1, 0]) as other:
        refs = put(pool, one, [np.ones(3), np.full(3, 2.0)])
        replies: list[Any] = []
        for _ in range(50):
            replies.append(one.all_reduce(refs, "avg", out=refs))
            replies.append(other.all_reduce(refs[::-1], out=refs[::-1]))
            replies.append(pool.call("Exchanging.multiply", refs[1], 0.5))
            replies.append(pool.call("Exchanging.add", refs[0], 0.0))
        for reply in replies:
            reply.result(DEADLINE_S)
        model = [1.0, 2.0]
        for _ in range(50):
            model = [sum(model), sum(model) * 0.5]
        same(refs, [np.full(3, each) for each in model])


def test_of_calls_that_wait_for_each_other_one_is_refused(pool: atomr_mp.Pool, books: Ledger) -> None:
    """Two clients each come first on one device: one call ends at once, unbegun, and the other goes on."""
    crossed = 0
    with atomr_mp.connect(run_dir=pool.run_dir) as client, pool.world([0, 1]) as mine, client.world([0, 1]) as its:
        for attempt in range(10):
            refs = put(pool, mine, [np.ones(2)] * 2)
            idle = put(pool, mine, [np.ones(2)] * 2)
            theirs = [client.claim(ref.share()) for ref in refs]
            with books.gate(f"crossing-{attempt}") as gate:
                stands = pool.call("Exchanging.stand", gate.path, device=1)
                gate.wait()
                # Sessions take turns, so the other client's part overtakes the one behind these.
                reads = [pool.call("Exchanging.read", idle[1]) for _ in range(30)]
                first = mine.all_reduce(refs, out=refs)
                pool.call("Exchanging.read", idle[0]).result(DEADLINE_S)  # device 0 has taken the part before it
                second = its.broadcast(theirs, 1, out=theirs)  # reads what it has first
                reads.append(client.call("Exchanging.read", theirs[0]))
            stands.result(DEADLINE_S)
            outcomes = [first.exception(DEADLINE_S), second.exception(DEADLINE_S)]
            refused = [each for each in outcomes if isinstance(each, errors.BorrowConflict)]
            if outcomes == [None, None]:
                continue
            assert [each.maybe_executed for each in refused] == [False]
            if refused[0] is outcomes[0]:
                assert outcomes[1] is None
                same(theirs, [np.ones(2)] * 2)
            else:
                assert isinstance(outcomes[0], errors.GpuRefUndefined), (
                    "it was behind what the other should have written"
                )
            assert mine.barrier().result(DEADLINE_S) == its.barrier().result(DEADLINE_S)
            crossed += 1
            if crossed == 2:
                break
    assert crossed


def test_many_clients_over_shared_refs_never_stand_still(pool: atomr_mp.Pool) -> None:
    """In opposite orders, with writers between: whoever is in another's way is refused, all others run."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(atomr_mp.connect(run_dir=pool.run_dir)) for _ in range(2)]
        made = pool.world([0, 1])
        stack.callback(made.close)
        own = [put(pool, made, [np.ones(2)] * 2) for _ in range(2)]
        ended, outcomes = [0] * 2, list[BaseException | None]()

        def use(number: int) -> None:
            client = clients[number]
            with client.world([[0, 1], [1, 0]][number]) as world:
                refs = [[client.claim(share) for share in pair] for pair in shares[number]]
                replies: list[Any] = []
                for round_ in range(40):
                    pair = refs[round_ % 2 if number else (round_ + 1) % 2]
                    ordered = pair[::-1] if number else pair
                    replies.append(world.all_reduce(ordered, "avg", out=ordered))
                    replies.append(client.call("Exchanging.add", pair[round_ % 2], 0.0))
                    if len(replies) > 8:
                        outcomes.append(replies.pop(0).exception(DEADLINE_S))
                for reply in replies:
                    outcomes.append(reply.exception(DEADLINE_S))
                    ended[number] += 1

        shares = [[[ref.share() for ref in pair] for pair in own] for _ in range(2)]
        threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert all(ended)
        assert {type(each) for each in outcomes} <= {type(None), errors.BorrowConflict, errors.GpuRefUndefined}
        same(made.all_reduce(own[0]).result(DEADLINE_S), [np.full(2, 2.0)] * 2)


def test_in_an_event_loop(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """Replies are awaited."""

    async def use() -> None:
        refs = put(pool, pair, [np.ones(2), np.zeros(2)])
        for expected in (1.0, 2.0, 4.0):
            await pair.all_reduce(refs, out=refs)
            same(await asyncio.to_thread(lambda: refs), [np.full(2, expected)] * 2)
        made = await pair.all_gather(refs)
        same(made, [np.full((2, 2), 4.0)] * 2)

    asyncio.run(use())


def test_a_session_sees_only_its_own_worlds(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """Others neither hear of them nor use them."""
    with atomr_mp.connect(run_dir=pool.run_dir) as client:
        with pytest.raises(errors.InvalidRequest):
            client.world(pair.name)
        assert not client._client.worlds.by_number
        client._client.worlds.take(pair.info)
        stolen = MadeWorld(client._client, pair._number)
        with pytest.raises(errors.InvalidRequest, match="another session's"):
            stolen.barrier().result(DEADLINE_S)
        stolen.close()
    assert pair.barrier().result(DEADLINE_S) == [None, None]


@pytest.mark.parametrize("devices", [[], [0, 0], [4], [-1], [True], ["0"], 3, None])
def test_devices_that_cannot_be(pool: atomr_mp.Pool, devices: Any) -> None:
    """Typed, and nothing is made."""
    with pytest.raises(errors.InvalidRequest):
        pool.world(devices)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_began_nowhere_leaves_refs_as_they_were(
    pool: atomr_mp.Pool, pair: MadeWorld, gate: Gate, rank: int
) -> None:
    """A collective that one rank refuses on arrival, and that is late on the other."""
    refs, out = put(pool, pair, [np.ones(3)] * 2), put(pool, pair, [np.zeros(3)] * 2)
    assert isinstance(pool.call("Exchanging.fail", refs[rank]).exception(DEADLINE_S), errors.ActorFailed)
    held = pool.call("Exchanging.hold", refs[1 - rank], gate.path, 2.0)
    gate.wait()
    error = pair.all_reduce(refs, out=out, deadline_s=0.3).exception(DEADLINE_S)
    assert isinstance(error, errors.DeadlineExceeded)
    assert not error.maybe_executed
    gate.open()
    held.result(DEADLINE_S)
    for ref in out:  # what was on its way then may be refused
        assert settled(lambda ref=ref: not pool.call("Exchanging.first", ref).exception(DEADLINE_S))  # type: ignore[misc]
    same(out, [np.zeros(3)] * 2)


def test_a_session_has_so_many_worlds_and_no_more(pool: atomr_mp.Pool) -> None:
    """Closing one makes room; the client's end closes all."""
    with atomr_mp.connect(run_dir=pool.run_dir) as client:
        most = 16 if BACKEND == "host" else 4
        made = [client.world([0]) for _ in range(most)]
        with pytest.raises(errors.Overloaded, match=f"{most} worlds"):
            client.world([0])
        made[0].close()
        assert client.world([0]).barrier().result(DEADLINE_S) == [None]
    assert settled(lambda: not worlds_of(pool))


def test_a_world_is_closed_with_its_last_reference(pool: atomr_mp.Pool) -> None:
    """At once, or when garbage is collected; so there may be any number of them, one after the other."""
    with atomr_mp.connect(run_dir=pool.run_dir) as client:
        for number in range(40):
            world = client.world([0, 1])
            assert world.barrier().result(DEADLINE_S) == [None, None]
            if number % 2:
                around: list[Any] = [world]
                around.append(around)
                del around, world
                gc.collect()
            assert settled(lambda: len(worlds_of(pool)) <= 1)
        kept = client.world([0])
        assert settled(lambda: [each.name for each in worlds_of(pool)] == [kept.name])
        kept.close()
    assert settled(lambda: not worlds_of(pool))


def test_a_reply_that_is_awaited_keeps_its_world(pool: atomr_mp.Pool, gate: Gate) -> None:
    """Its parts have not begun anywhere. Behind its end the world is closed, though the reply is there."""
    refs = [pool.device(device).put(np.ones(3)) for device in (0, 1)]
    before = {each.name for each in worlds_of(pool)}
    held = pool.call("Exchanging.hold", refs[1], gate.path, 0.0)
    gate.wait()
    reply = pool.world([0, 1]).all_reduce(refs)
    gc.collect()
    (name,) = {each.name for each in worlds_of(pool)} - before
    assert not reply.done
    gate.open()
    held.result(DEADLINE_S)
    same(reply.result(DEADLINE_S), [np.full(3, 2.0)] * 2)
    assert settled(lambda: name not in {each.name for each in worlds_of(pool)})


def test_a_closed_world_takes_nothing(pool: atomr_mp.Pool) -> None:
    """Calls that were sent before are answered."""
    world = pool.world([0, 1])
    refs = put(pool, world, [np.ones(2)] * 2)
    reply = world.all_reduce(refs)
    world.close()
    world.close()
    assert reply.exception(DEADLINE_S) is None or isinstance(reply.exception(), errors.CollectiveAborted)
    with pytest.raises(errors.DeviceUnavailable, match="closed"):
        world.barrier()
    assert settled(lambda: world.state == "ended")
    with pytest.raises(errors.DeviceUnavailable, match="closed"):
        world.wait_ready(DEADLINE_S)


def test_worlds_leave_nothing(pool: atomr_mp.Pool) -> None:
    """Two hundred of them are made, used and closed: no descriptor, no thread and no memory of theirs is left."""

    def held() -> list[tuple[int, int]]:
        pids = [pool.supervisor_pid, *[device.pid or 0 for device in pool.devices]]
        return [(len(open_descriptors(pid)), threads_of(pid)) for pid in pids]

    def use() -> None:
        with pool.world([0, 1, 2]) as world:
            refs = put(pool, world, [np.ones(100_000)] * 3)
            world.all_reduce(refs, out=refs).result(DEADLINE_S)

    for _ in range(30):  # a driver's threads come with the first few
        use()
    assert settled(lambda: not worlds_of(pool))
    before = held()
    for _ in range(200):
        use()
    assert settled(lambda: not worlds_of(pool))
    supervisor, *workers = before
    most = tuple(map(max, *workers))  # what one of them has begun by then, others may begin later
    allowed = (*supervisor, *most * len(workers))
    assert settled(lambda: all(now <= then for now, then in zip(itertools.chain(*held()), allowed, strict=True))), (
        before,
        held(),
        [thread_names(device.pid or 0) for device in pool.devices],
    )
    testing.assert_nothing_left(pool, DEADLINE_S)


def worlds_of(pool: atomr_mp.Pool) -> list[Any]:
    """Return the worlds that the supervisor has."""
    return list(pool.status().worlds)


def thread_names(pid: int) -> list[str]:
    """Return the names of a process's threads."""
    return sorted(each.read_text().strip() for each in Path(f"/proc/{pid}/task").glob("*/comm"))


def threads_of(pid: int) -> int:
    """Return how many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
