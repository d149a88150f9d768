"""Buffers in a device's memory, from a client's side, on real pools."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.strides import is_apart
from atomr_mp.protocol.flow.limits import MAX_PAYLOAD_BYTES
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.data import MAX_RELEASED
from atomr_mp.protocol.values import SHARED_BYTES
from tests.in_turn import in_turn
from tests.support import (
    ACTORS,
    BACKEND,
    DEADLINE_S,
    KEEPER,
    PROBE,
    Gate,
    Ledger,
    client_of,
    hurry,
    in_loop,
    local_client,
    settled,
    wait_generation,
)

PAIRED = f"{ACTORS}/paired.py:Paired"


AT_REST = "used_bytes", "leases", "views", "shared", "open_elsewhere", "client_slabs"
"""Figures of a device's memory that are 0 when no client holds anything."""


@pytest.fixture(scope="module")
def shared() -> Iterator[atomr_mp.Pool]:
    """A pool of one device for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(PROBE, KEEPER) as started:
        started.device().statistics()  # connects
        yield started


@pytest.fixture
def pool(shared: atomr_mp.Pool, ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool with no history; nothing may be left of it, here or in the worker."""
    del ledger  # it only counts
    with client_of(shared) as own:
        yield own
    assert settled(lambda: not any(statistics(shared)[name] for name in AT_REST)), statistics(shared)


@pytest.fixture
def fresh(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of one device, for a test that ends its worker or keeps something in an actor."""
    with ledger.start(PROBE, KEEPER) as started:
        yield started


@pytest.fixture(scope="module")
def failing() -> Iterator[atomr_mp.Pool]:
    """A pool for methods that fail, in whose worker nothing is collected afterwards."""
    with Ledger() as ledger, ledger.start(KEEPER) as started:
        yield started


@pytest.fixture
def two(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """A pool of two devices."""
    with ledger.start(PROBE, KEEPER, gpus=2) as started:
        yield started


def content(dtype: str, shape: tuple[int, ...] = (5, 7)) -> np.ndarray[Any, Any]:
    """Return an array of small numbers, which every element type has."""
    return (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtypes.to_numpy(dtype))


def statistics(pool: atomr_mp.Pool, device: int = 0) -> dict[str, int]:
    """Return a device's figures, once garbage is collected."""
    gc.collect()
    return pool.device(device).statistics()


# --- there and back ------------------------------------------------------------------------------------------------


@in_turn("dtype", sorted(dtypes.ITEM_BYTES))
def test_every_element_type_comes_back(pool: atomr_mp.Pool, dtype: str) -> None:
    """An array is read as it was put."""
    array = content(dtype)
    ref = pool.device().put(array)
    assert (ref.dtype, ref.shape, ref.nbytes) == (dtype, (5, 7), array.nbytes)
    assert ref.numpy_dtype == array.dtype
    back = ref.numpy()
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@in_turn(
    "array",
    [
        np.asfortranarray(content("float32")),
        content("float32")[::-1, ::3],
        content("int64").astype(">i8"),
        np.array(3.0),
        np.zeros((0, 4)),
        np.zeros((3, 0), "int8")[:, :],
        np.broadcast_to(np.float32(7), (4, 5)),
    ],
)
def test_every_order_comes_back(pool: atomr_mp.Pool, array: np.ndarray[Any, Any]) -> None:
    """An array's elements come back in order, whatever its layout."""
    ref = pool.device().put(array)
    assert ref.layout.is_contiguous()
    np.testing.assert_array_equal(ref.numpy(), array)


def test_what_numpy_makes_an_array_of_can_be_put(pool: atomr_mp.Pool) -> None:
    """Lists, numbers, buffers."""
    put = pool.device().put
    assert put([[1, 2], [3, 4]]).numpy().tolist() == [[1, 2], [3, 4]]
    assert put(2.5).numpy() == 2.5
    assert put(memoryview(b"abc")).dtype == "uint8"
    for wrong in (["a"], object(), np.array(["2020-01-01"], "M8[D]"), np.ma.masked_array([1.0])):
        with pytest.raises(errors.InvalidRequest):
            put(wrong)


def test_buffers_are_made_as_arrays_are(pool: atomr_mp.Pool) -> None:
    """A shape and an element type make one; the type may be a name, NumPy's or Python's."""
    device = pool.device()
    assert device.empty(3).shape == (3,)
    assert device.zeros((2, 3)).numpy().tolist() == [[0.0] * 3] * 2
    assert device.full([2], 1 + 2j, np.complex64).numpy().tolist() == [1 + 2j] * 2
    assert device.zeros((), float).dtype == "float64"
    assert device.full(2, 7, dtypes.to_numpy("bfloat16")).numpy().tolist() == [7.0, 7.0]
    for shape, dtype in (((-1,), "float32"), (2, "float128"), (2, "nonsense"), ((2**40, 2**40), "int8")):
        with pytest.raises(errors.InvalidRequest):
            device.empty(shape, dtype)


def test_views_of_refs_are_numpys(pool: atomr_mp.Pool) -> None:
    """Indexing, reshape and transpose name the elements that NumPy's do."""
    array = content("float32", (4, 6)) + np.arange(24, dtype="float32").reshape(4, 6)
    ref = pool.device().put(array)
    np.testing.assert_array_equal(ref[1:3, ::-2].numpy(), array[1:3, ::-2])
    np.testing.assert_array_equal(ref[2].numpy(), array[2])
    np.testing.assert_array_equal(ref.T.numpy(), array.T)
    turned = array.reshape(2, 4, 3).transpose(1, 2, 0)
    np.testing.assert_array_equal(ref.reshape(2, -1, 3).transpose(1, 2, 0).numpy(), turned)
    np.testing.assert_array_equal(np.asarray(ref[..., None]), array[..., None])
    assert pool.call("Keeper.total", ref[:, 0]).result() == array[:, 0].sum()
    assert len(ref) == 4


def test_what_is_read_can_go_where_the_reader_says(pool: atomr_mp.Pool) -> None:
    """Into an array of the right kind, and no other."""
    array = content("float32")
    ref = pool.device().put(array)
    out = np.empty((7, 5), "float32").T
    assert ref.numpy(out=out) is out
    np.testing.assert_array_equal(out, array)
    for wrong in (np.empty((5, 6), "float32"), np.empty((5, 7))):
        with pytest.raises(ValueError, match="must be the same"):
            ref.numpy(out=wrong)
    with pytest.raises(ValueError, match="not a NumPy array"):
        ref.numpy(out=cast("Any", [1.0]))
    with pytest.raises(ValueError, match="view"):
        np.asarray(ref, copy=False)
    assert np.asarray(ref, dtype="float64").dtype == np.float64


# --- views ---------------------------------------------------------------------------------------------------------


def test_a_view_excludes_writers_until_its_last_array_is_gone(pool: atomr_mp.Pool) -> None:
    """A slice of the view is enough to exclude writers; writing goes on afterwards."""
    ref = pool.device().put(np.zeros(1000))
    view = ref.view()
    assert BACKEND == "cuda" or not view.flags.writeable  # CuPy has no arrays that are read-only
    part: np.ndarray[Any, Any] | None = view[10:20].reshape(2, 5)
    del view
    with pytest.raises(errors.BorrowConflict):
        ref.fill(1)
    with pytest.raises(errors.BorrowConflict):
        pool.call("Keeper.add", ref, 1.0).result()
    assert pool.call("Keeper.total", ref).result() == 0
    with pytest.raises(errors.BorrowConflict):
        ref.view(write=True)
    del part
    pool.call("Keeper.add", ref, 2.0).result()
    assert ref.numpy().sum() == 2000


def test_a_writable_view_excludes_everybody(pool: atomr_mp.Pool) -> None:
    """All clients see its writes once it is gone."""
    ref = pool.device().put(np.zeros(1000))
    view = ref.view(write=True)
    view[:] = 3
    for use in (ref.view, ref.numpy, lambda: pool.call("Keeper.total", ref).result()):
        with pytest.raises(errors.BorrowConflict):
            use()
    del view
    assert pool.call("Keeper.total", ref).result() == 3000


def test_a_view_outlives_its_ref(pool: atomr_mp.Pool) -> None:
    """Whether the ref is freed or collected, the array stays as it is, and its memory is not used again."""
    ref = pool.device().put(np.full(1000, 5.0))
    view = ref.view()
    ref.free()
    with pytest.raises(errors.GpuRefReleased):
        ref.view()
    others = [pool.device().full(1000, 6, "float64") for _ in range(3)]
    assert (view == 5).all()
    assert statistics(pool)["views"] == 1
    del view, others
    assert statistics(pool)["used_bytes"] == 0


@pytest.mark.parametrize("way", ["typed", "other"])
@pytest.mark.parametrize("method", ["fail", "fail_on_thread", "fail_in_batch"])
def test_a_request_that_fails_keeps_no_memory(failing: atomr_mp.Pool, method: str, way: str) -> None:
    """Not even until the next collection: an idle worker has none."""
    ref = failing.device(0).put(np.ones(1000))
    assert failing.call(f"Keeper.{method}", ref, way).exception() is not None
    ref.free()
    assert settled(lambda: failing.device(0).statistics()["used_bytes"] == 0)


def test_what_methods_have_made_for_a_client_goes_with_it(pool: atomr_mp.Pool) -> None:
    """Even memory that the used libraries would keep for the next array."""
    before = statistics(pool)
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        ref = other.device().put(np.ones(1000))
        assert other.call("Keeper.total", ref).result() == 1000
        assert other.call("Keeper.weighted", ref, other.device().put(np.ones(1000))).result() == 1000
        assert statistics(pool)["slabs"] > before["slabs"]
    assert settled(lambda: all(statistics(pool)[name] == before[name] for name in ("slabs", "used_bytes")))


@pytest.mark.skipif(BACKEND == "cuda", reason="NumPy takes no memory of a GPU")
def test_other_libraries_see_views(pool: atomr_mp.Pool) -> None:
    """DLPack passes them on without a copy."""
    ref = pool.device().put(content("float32"))
    assert ref.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(ref)
    assert not array.flags.writeable
    with pytest.raises(errors.BorrowConflict):
        ref.fill(1)
    del array
    ref.fill(1)


def test_what_a_request_needs_stays_until_it_is_answered(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Even if the ref is freed while the request waits; then the memory goes."""
    ref = pool.device().put(np.arange(1000.0))
    with ledger.gate("held") as gate:
        held = pool.call("Keeper.make_slowly", gate.path, np.zeros(1))
        gate.wait()
        total = pool.call("Keeper.total", ref)
        ref.free()
        with pytest.raises(errors.GpuRefReleased):
            pool.call("Keeper.total", ref)
        gate.open()
        assert total.result() == 499500  # before the gate is closed, in front of which the worker may still be
    held.result().free()
    assert statistics(pool)["leases"] == 0


def test_a_view_stays_readable_when_its_generation_has_ended(fresh: atomr_mp.Pool) -> None:
    """New uses of the ref are refused as stale, here and in its views."""
    ref = fresh.device().put(np.arange(1000.0))
    view = ref.view()
    with pytest.raises(errors.WorkerLost):
        fresh.call("Probe.fail", "kill").result()
    wait_generation(fresh, 2)
    assert view.sum() == 499500
    assert "stale, now 2" in repr(ref)
    for use in (ref.view, ref[3:].numpy, ref.share, lambda: fresh.call("Keeper.total", ref)):
        with pytest.raises(errors.GpuRefStale) as stale:
            use()
        assert (stale.value.generation, stale.value.current) == (1, 2)
    assert fresh.device().put(np.ones(3)).generation == 2


def test_a_client_closes_with_views_alive(ledger: Ledger) -> None:
    """They stay readable; their descriptors are closed with them."""
    with ledger.start(KEEPER) as pool:
        ref = pool.device().put(np.arange(1000.0))
        view = ref.view()
        array = pool.call("Keeper.large", 100_000).result()
    assert view.sum() == 499500
    assert array[-1] == 99_999
    assert "pool lost" in repr(ref)
    with pytest.raises(errors.PoolLost):
        ref.view()
    with pytest.raises(errors.PoolLost):
        pool.call("Keeper.total", np.zeros(100_000))
    ref.free()
    del view, array


# --- arguments and results -----------------------------------------------------------------------------------------


def test_large_arrays_travel_in_shared_memory(pool: atomr_mp.Pool) -> None:
    """There and back, in any size, and their memory is used again."""
    array = np.random.default_rng(1).random(1_000_000)
    for _ in range(20):
        back = pool.call("Keeper.double", array).result()
    np.testing.assert_array_equal(back, array * 2)
    assert back.flags.writeable
    assert local_client(pool).memory._slabs.nbytes <= 2 * 64 * 2**20
    large = np.ones(5_000_000)  # more than a message may have
    assert pool.call("Keeper.total", large).result() == 5e6
    assert pool.call("Keeper.total", np.asfortranarray(array.reshape(1000, 1000))[::2]).result() == pytest.approx(
        array.reshape(1000, 1000)[::2].sum()
    )
    del back
    assert statistics(pool)["leases"] == 0


def test_what_an_actor_keeps_is_not_written_over(fresh: atomr_mp.Pool) -> None:
    """An argument's memory is used again only when no object in the worker refers to it."""
    for n in range(3):
        assert fresh.call("Keeper.keep", np.full(100_000, float(n))).result() == n + 1
    for _ in range(10):
        fresh.call("Keeper.total", np.full(100_000, 9.0)).result()
    assert fresh.call("Keeper.kept_total").result() == 300_000
    slabs = local_client(fresh).memory._slabs
    assert len(slabs._kept) == 3
    fresh.call("Keeper.drop").result()
    fresh.call("Keeper.total", np.full(100_000, 9.0)).result()
    assert not slabs._kept


def test_requests_on_the_loop_and_on_the_thread_wait_for_each_other(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Each begins once earlier uses of its memory have ended, wherever it runs, and no later."""
    ref = pool.device().zeros(1000, "float64")
    with ledger.gate("gate") as gate:
        first = pool.call("Keeper.add_slowly", gate.path, ref, 1.0)
        gate.wait()
        others = [
            pool.call(f"Keeper.{method}", ref, 1.0) for method in ("add", "add_on_thread", "add", "add_on_thread")
        ]
        total = pool.call("Keeper.total", ref)
        gate.open()
        assert total.result() == 5000
        assert [reply.result() for reply in (first, *others)] == [None] * 5


def test_requests_on_threads_of_one_actor_wait_for_each_other(ledger: Ledger) -> None:
    """Requests that use the same memory run in order, on any free thread; others overtake them."""
    with ledger.start(PAIRED, run_dir="paired") as pool, ledger.gate("gate") as gate:
        ref = pool.device().zeros(1000, "float64")
        first = pool.call("Paired.double_and_add", ref, 1.0, gate.path)
        gate.wait()
        others = [pool.call("Paired.double_and_add", ref, number, "") for number in (2.0, 3.0)]
        assert pool.call("Paired.count").result() == 1
        assert not any(reply.done for reply in others)
        gate.open()
        assert [reply.result() for reply in (first, *others)] == [None] * 3
        assert ref.numpy().tolist() == [11.0] * 1000


def test_what_is_cancelled_is_not_waited_for(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Requests that wait for its memory begin at once."""
    ref = pool.device().zeros(1000, "float64")
    with ledger.gate("gate") as gate:
        held = pool.call("Keeper.wait", gate.path)
        gate.wait()
        cancelled = pool.call("Keeper.add_on_thread", ref, 1.0)
        total = pool.call("Keeper.total", ref)
        assert pool.call("Probe.echo", 1).result() == 1  # both have arrived
        assert not total.done
        cancelled.cancel()
        assert total.result() == 0
        assert isinstance(cancelled.exception(), errors.Cancelled)
        gate.open()
        held.result()


def test_results_are_refs_where_the_method_makes_them(pool: atomr_mp.Pool) -> None:
    """Each has a lease of its own, which is given back when the ref is collected, even if it was never looked at."""
    array = np.arange(100_000.0)
    first, second, third = pool.call("Keeper.make_two", array).result()
    np.testing.assert_array_equal(second.numpy(), array * 2)
    np.testing.assert_array_equal(third, array * 3)
    assert pool.call("Keeper.weighted", first, second).result() == pytest.approx((array * array * 2).sum())
    reply = pool.call("Keeper.make", array)
    assert reply.exception() is None
    assert reply.result().memory == reply.result().memory
    assert statistics(pool)["leases"] == 4
    del first, second, third, reply
    assert statistics(pool)["leases"] == 0
    assert statistics(pool)["used_bytes"] == 0


def test_more_refs_than_an_answer_holds_are_an_error(pool: atomr_mp.Pool) -> None:
    """Only for that call; and none of the refs is left."""
    assert len(pool.call("Keeper.make_many", MAX_RELEASED).result()) == MAX_RELEASED
    with pytest.raises(errors.ActorFailed, match=f"{MAX_RELEASED + 1} refs in one answer"):
        pool.call("Keeper.make_many", MAX_RELEASED + 1, deadline_s=DEADLINE_S).result()
    assert settled(lambda: statistics(pool)["leases"] == 0)
    assert statistics(pool)["used_bytes"] == 0


def test_a_late_answer_gives_its_leases_back(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """No caller will ever look at it."""
    with ledger.gate("gate") as gate:
        reply = pool.call("Keeper.make_slowly", gate.path, np.zeros(100))
        gate.wait()
        hurry(reply)
        with pytest.raises(errors.DeadlineExceeded):
            reply.result()
        gate.open()
    assert settled(lambda: statistics(pool)["leases"] == 0)


def test_an_answer_to_a_closed_loop_leaves_no_leases(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Its connection is closed by then, and the client's other connections go on."""

    async def call(gate: Gate) -> None:
        pool.call("Keeper.make_on_thread_slowly", gate.path, np.zeros(100))
        await asyncio.to_thread(gate.wait)

    async def close_former() -> None:
        await pool.call("Probe.echo", 1)

    def leased_by(number: int) -> int:
        before = statistics(pool)["leases"]
        with ledger.gate(f"closed-{number}") as gate:
            asyncio.run(call(gate))
            asyncio.run(close_former())
            gate.open(2)
            pool.call("Keeper.wait", gate.path).result()  # behind it
        return statistics(pool)["leases"] - before

    # Nothing tells when the worker has heard that the connection is closed: mostly at once.
    assert not all(leased_by(number) for number in range(10))


def test_a_closed_loop_s_call_finds_its_arguments_as_they_were(fresh: atomr_mp.Pool, ledger: Ledger) -> None:
    """Their room is not used for other calls while the call may still start."""

    async def leave(gate: Gate) -> None:
        fresh.call("Keeper.wait", gate.path)
        await asyncio.to_thread(gate.wait)
        fresh.call("Keeper.keep_total", np.ones(100_000))
        await fresh.call("Probe.echo", 1)  # behind it

    async def close_former() -> None:
        await fresh.call("Probe.echo", 1)

    with ledger.gate("left") as gate:
        asyncio.run(leave(gate))
        asyncio.run(close_former())
        gc.collect()
        others = [fresh.call("Keeper.keep_total", np.zeros(100_000)) for _ in range(3)]
        gate.open()
        for reply in others:
            reply.result()
        assert fresh.call("Keeper.kept_total").result() == 100_000


def test_a_late_answer_lets_go_of_what_its_call_referred_to(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """The request goes on until then. Its memory is free afterwards even if its reply is kept."""
    with ledger.gate("gate") as gate:
        reply = pool.call("Keeper.make_slowly", gate.path, pool.device().zeros(100))
        gate.wait()
        hurry(reply)
        with pytest.raises(errors.DeadlineExceeded):
            reply.result()
        gc.collect()
        assert not local_client(pool)._session.releases(0, pool.devices[0].generation).pending
        gate.open()
    assert settled(lambda: statistics(pool)["leases"] == 0)
    assert reply.done


def test_freed_memory_is_there_for_the_next_call(pool: atomr_mp.Pool) -> None:
    """Even without a message in between: memory collected here is freed there before the next request."""
    device = pool.device()
    with device.zeros(1000) as ref:
        before = statistics(pool)["used_bytes"]
    with pytest.raises(errors.GpuRefReleased):
        ref.numpy()
    for _ in range(50):
        device.zeros(1000)
    ref = device.zeros(1000)
    assert statistics(pool)["used_bytes"] == before
    ref.free()
    ref.free()


@pytest.mark.parametrize("how", ["put", "actor"])
def test_memory_that_lies_unused_is_given_up_when_it_is_wanted(ledger: Ledger, how: str) -> None:
    """Mappings that this client keeps for later must not hold memory that others need."""
    with ledger.start(KEEPER, memory_bytes=256 * 2**20) as pool:
        for mib in (40, 48, 56, 64):  # each has a slab of its own, for it does not fit into those before
            with pool.device().put(np.zeros(mib * 2**20, np.uint8)):
                pass
        assert pool.device().statistics()["slab_bytes"] == 208 * 2**20
        large = np.ones(72 * 2**20, np.uint8)
        if how == "put":
            ref = pool.device().put(large)
        else:
            if BACKEND == "host":  # of a GPU's memory this client maps nothing that it has not looked at
                with pytest.raises(errors.OutOfMemory):
                    pool.call("Keeper.make", large).result()
            ref = pool.call("Keeper.make", large).result()  # it says that trying again may help
        assert (ref.numpy() == 1).all()
        with pytest.raises(errors.OutOfMemory):
            pool.device().empty(250 * 2**20, "uint8")
        assert (ref.numpy() == 1).all()


@pytest.mark.parametrize("mib", [2, 32, 100])
def test_all_of_a_small_limit_holds_small_arrays(ledger: Ledger, mib: int) -> None:
    """A slab is as small as what its limit leaves."""
    with ledger.start(gpus=1, memory_bytes=mib * 2**20) as pool:
        fits = mib * 2**20 // 800_000 - 2
        kept = [pool.device().put(np.full(100_000, at, np.float64)) for at in range(fits)]
        with pytest.raises(errors.OutOfMemory):
            kept.extend(pool.device().put(np.ones(100_000)) for _ in range(4))
        assert [float(each.numpy()[-1]) for each in kept[:fits]] == [*range(fits)]


def test_many_arrays_may_be_more_than_a_message_takes(pool: atomr_mp.Pool) -> None:
    """Arrays beyond a message's limit are shared like larger ones, there and back, though each alone would fit."""
    size = SHARED_BYTES - 1
    arrays = [np.full(size, number, "uint8") for number in range(MAX_PAYLOAD_BYTES // size + 3)]
    echoed = pool.call("Probe.echo", arrays).result()
    assert [(array.size, array.min(), array.max()) for array in echoed] == [
        (size, number, number) for number in range(len(arrays))
    ]


def test_a_slab_that_is_opened_again_can_be_closed(pool: atomr_mp.Pool) -> None:
    """Even if it was opened again before the worker heard of the closing."""
    large = np.ones(SHARED_BYTES, "int8")
    pool.device().put(np.ones(3)).free()
    replies = [pool.call("Probe.echo", large) for _ in range(3)]
    assert [reply.exception() for reply in replies] == [None] * 3
    mappings = local_client(pool).memory._mappings
    for reply in replies:
        assert reply.result().all()
        reply.leases = None
        mappings.close_unused(local_client(pool)._session.releases(0, pool.devices[0].generation))
    replies.clear()
    assert settled(lambda: statistics(pool)["open_elsewhere"] == 0)


def test_everything_works_in_an_event_loop(pool: atomr_mp.Pool) -> None:
    """Calls are awaited; blocking methods block the loop for a round trip."""

    async def main() -> None:
        array = np.arange(100_000.0)
        ref = await pool.call("Keeper.make", array)
        np.testing.assert_array_equal(ref.numpy(), array)
        assert (await pool.call("Keeper.large", 200_000))[-1] == 199_999
        totals = await asyncio.gather(*(pool.call("Keeper.total", ref[: n + 1]) for n in range(20)))
        assert totals == [array[: n + 1].sum() for n in range(20)]
        for _ in range(20):
            await pool.call("Keeper.make", array)
        await asyncio.to_thread(ref.fill, 1.0)
        assert await pool.call("Keeper.total", ref) == 100_000
        del ref

    asyncio.run(main())
    assert statistics(pool)["leases"] == 0


# --- several devices, several clients ------------------------------------------------------------------------------


def test_a_call_goes_to_where_its_refs_are(two: atomr_mp.Pool) -> None:
    """Unless it names another device; refs of several devices need a name."""
    refs = [two.device(n).full(1000, n + 1, "float64") for n in range(2)]
    replies = [two.call("Keeper.total", ref) for ref in refs]
    assert [reply.device for reply in replies] == [0, 1]
    assert [reply.result() for reply in replies] == [1000, 2000]
    with pytest.raises(errors.GpuRefWrongDevice):
        two.call("Keeper.weighted", *refs)
    for device in range(2):
        assert two.call("Keeper.weighted", *refs, device=device).result() == 2000
    statistics(two)
    assert statistics(two)["views"] == statistics(two, 1)["views"] == 0


def test_what_is_another_devices_is_copied_and_not_written(two: atomr_mp.Pool) -> None:
    """A device reads another device's memory in place, and borrows it meanwhile."""
    source, target = two.device(0).put(np.arange(12.0).reshape(3, 4)), two.device(1).zeros((4, 3), "float64")
    source.T.copy_to(target)
    np.testing.assert_array_equal(target.numpy(), np.arange(12.0).reshape(3, 4).T)
    with pytest.raises(errors.RequestError):
        two.call("Keeper.add", source, 1.0, device=1).result()
    source.fill(0)
    with pytest.raises(errors.InvalidRequest):
        source.copy_to(target)


@pytest.mark.parametrize("how", ["kill", "restart"])
@pytest.mark.parametrize("lent", ["before", "meanwhile"])
def test_a_loan_is_for_whichever_incarnation_comes(two: atomr_mp.Pool, how: str, lent: str) -> None:
    """A ref can be sent to another device whatever process serves it, or while none does."""
    ref = two.device(0).put(np.arange(1000.0))
    if lent == "before":
        assert two.call("Keeper.total", ref, device=1).result() == 499500
    if how == "restart":
        two.restart(1)
    else:
        assert isinstance(two.call("Probe.fail", "kill", device=1).exception(), errors.WorkerLost)
    assert two.call("Keeper.total", ref[:10], device=1).result() == 45
    wait_generation(two, 2, 1)
    assert two.call("Keeper.total", ref, device=1).result() == 499500


def test_what_is_shared_is_claimed_once(two: atomr_mp.Pool) -> None:
    """Another client of the pool claims it, and keeps it even if the first one ends."""
    pool = two
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready(DEADLINE_S)
        ref = pool.device(1).put(np.arange(10.0))
        shared = ref[2:5].share()
        ref.free()
        theirs = other.claim(shared)
        assert theirs.device == 1
        assert theirs.numpy().tolist() == [2, 3, 4]
        with pytest.raises(errors.GpuRefReleased):
            other.claim(shared)
        with pytest.raises(errors.ProtocolError):
            other.claim(shared[:-1])
        with pytest.raises(errors.InvalidRequest, match="takes the bytes"):
            other.claim(cast("Any", shared.hex()))
        with pytest.raises(errors.GpuRefReleased, match="another client"):
            pool.call("Keeper.total", theirs)
        shared = theirs.share()
        ours = pool.claim(shared)
        assert ours.numpy().sum() == 9
        # The end of our view and their request come by two connections: only what is done here comes after the former.
        assert settled(lambda: statistics(pool, 1)["views"] == 0)
        theirs.fill(0)
        assert ours.numpy().sum() == 0
        ours.free()
        theirs.free()
    assert settled(lambda: statistics(pool, 1)["used_bytes"] == 0)  # the other session ends on its own time


def test_refs_of_another_pool_are_refused(ledger: Ledger) -> None:
    """Nothing is sent."""
    with ledger.start(KEEPER) as pool, ledger.start(KEEPER, run_dir="other") as other:
        ref = pool.device().put(np.ones(3))
        with pytest.raises(errors.PoolMismatch):
            other.call("Keeper.total", ref)
        with pytest.raises(errors.PoolMismatch):
            other.claim(ref.share())


def test_a_restart_makes_what_was_shared_stale(fresh: atomr_mp.Pool) -> None:
    """The memory has gone with the worker."""
    ref = fresh.device().put(np.ones(3))
    shared = ref.share()
    fresh.restart(0)
    wait_generation(fresh, ref.generation + 1)
    with pytest.raises(errors.GpuRefStale):
        fresh.claim(shared)


@pytest.mark.skipif(BACKEND == "cuda", reason="there the worker copies")
def test_a_worker_s_end_in_the_middle_of_a_put_is_not_noticed(
    fresh: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client still has the array, and sends it to the next worker."""
    buffers = local_client(fresh).memory
    mapping = buffers._mapping

    def after_its_end(*arguments: Any) -> Any:
        if fresh.devices[0].generation == 1:
            fresh.restart(0)
            wait_generation(fresh, 2)
        return mapping(*arguments)

    monkeypatch.setattr(buffers, "_mapping", after_its_end)
    ref = fresh.device().put(np.arange(10.0))
    assert ref.generation == 2
    assert ref.numpy().tolist() == list(range(10))


@pytest.mark.parametrize(
    "trouble",
    [
        errors.DeadlineExceeded("the supervisor did not answer within 60 s"),
        errors.Overloaded("the supervisor has no descriptor left"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
    ids=["busy", "overloaded", "descriptors"],
)
def test_a_large_result_that_cannot_be_opened_now_says_that_its_request_ran(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """Whoever goes by `maybe_executed` must not run it twice; the reply keeps its answer."""

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise trouble

    reply = pool.call("Keeper.large", 200_000)
    assert reply.exception() is None
    with monkeypatch.context() as patch:
        patch.setattr(pool._client.memory, "_ask", refuse)
        with pytest.raises(errors.ResultUnread, match="ran") as unread:
            reply.result()
        assert unread.value.maybe_executed
    assert reply.result()[-1] == 199_999


@pytest.mark.parametrize("place", ["thread", "loop"])
def test_a_part_that_cannot_be_opened_now_is_the_next_one_again(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """No part of a stream is passed over, and none is counted before it was read."""

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise errors.Overloaded("the supervisor has no descriptor left")

    async def read() -> list[float]:
        async with pool.stream("Keeper.large_parts", 200_000, 3) as stream:
            with monkeypatch.context() as patch:
                patch.setattr(pool._client.memory, "_ask", refuse)
                for _ in range(2):
                    with pytest.raises(errors.ResultUnread, match="next part"):
                        await anext(stream)
                    assert stream.has_part
                    assert stream.parts == 0
            return [part[0] async for part in stream]

    if place == "loop":
        assert in_loop(read) == [0.0, 1.0, 2.0]
        return
    with pool.stream("Keeper.large_parts", 200_000, 3) as stream:
        with monkeypatch.context() as patch:
            patch.setattr(pool._client.memory, "_ask", refuse)
            for _ in range(2):
                with pytest.raises(errors.ResultUnread, match="next part"):
                    next(stream)
                assert stream.has_part
                assert stream.parts == 0
        assert [part[0] for part in stream] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("what", ["a result", "a part", "a stream's result"])
def test_an_event_loop_turns_while_a_task_opens_large_results(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The supervisor answers as late as it does: other tasks go on, and one of them lets it answer here."""
    ask, go = local_client(pool).memory._ask, threading.Event()

    async def read() -> Any:
        if what == "a result":
            return await pool.call("Keeper.large", 200_000)
        async with pool.stream("Keeper.large_parts", 200_000, 1) as stream:
            return await stream if what == "a stream's result" else await anext(stream)

    async def use() -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def ask_late(*arguments: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(asked.set)
            assert go.wait(DEADLINE_S), "the loop stands still"
            return ask(*arguments, **options)

        monkeypatch.setattr(local_client(pool).memory, "_ask", ask_late)
        reading = asyncio.ensure_future(read())
        await asyncio.wait_for(asked.wait(), 2 * DEADLINE_S)
        assert not reading.done()
        go.set()
        assert (await reading).size == 200_000

    in_loop(use)


STARVED: Final = """
import os, resource, sys
import atomr_mp
from atomr_mp import errors
with atomr_mp.connect(run_dir=sys.argv[1]) as pool:
    reply = pool.call("Keeper.large", int(sys.argv[2]))
    assert reply.exception() is None
    assert "numpy" not in sys.modules and "atomr_mp.client.memory.memory" not in sys.modules
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
    try:
        print(reply.result().size)
    except errors.ResultUnread as error:
        assert error.maybe_executed and error.reason == "os", error
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        print("unread", reply.result()[-1])
"""
"""A client that has no descriptor left when it reads its first array."""


@pytest.mark.parametrize("size", [3, 5_000, 200_000], ids=["in the body", "in a frame", "in shared memory"])
def test_a_client_without_descriptors_reads_its_first_array_later(shared: atomr_mp.Pool, size: int) -> None:
    """It has to import what reads arrays, and open their memory: neither error is a raw one, and no result is lost."""
    found = subprocess.run(
        [sys.executable, "-c", STARVED, str(shared.run_dir), str(size)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (found.stdout.split(), found.stderr[-2000:]) == (["unread", str(float(size - 1))], "")


WRITERS: Final[dict[str, Callable[[atomr_mp.Pool, GpuRef, GpuRef], object]]] = {
    "copy_to": lambda _pool, source, target: source.copy_to(target),
    "fill": lambda _pool, _source, target: target.fill(7),
    "memory.copy": lambda pool, source, target: pool.device().memory.copy(source, target).result(),
    "memory.fill": lambda pool, _source, target: pool.device().memory.fill(target, 7).result(),
    "elementwise.copy": lambda pool, source, target: pool.device().elementwise.copy(source, target).result(),
    "an actor's method": lambda pool, _source, target: pool.call("Keeper.add", target, 7.0).result(),
}
"""Ways to write to a ref's memory."""


@pytest.mark.parametrize("way", WRITERS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.integers(2, 5), rows=st.integers(1, 4), strides=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_a_ref_whose_elements_share_memory_is_not_written(
    pool: atomr_mp.Pool, way: str, columns: int, rows: int, strides: tuple[int, int]
) -> None:
    """Whoever writes; what would be written last would depend on the device. Nothing is changed by the attempt."""
    device = pool.device()
    with device.zeros((64,), "float64") as buffer, device.put(np.ones((rows, columns))) as source:
        target = buffer.as_strided((rows, columns), [8 * stride for stride in strides])
        places = {row * strides[0] + column * strides[1] for row in range(rows) for column in range(columns)}
        if len(places) < rows * columns:
            with pytest.raises(errors.InvalidRequest, match="share memory"):
                WRITERS[way](pool, source, target)
            assert not buffer.numpy().any()
        elif is_apart(target.layout):
            WRITERS[way](pool, source, target)


def test_a_view_whose_elements_share_memory_is_not_writable(pool: atomr_mp.Pool) -> None:
    """It may be read."""
    with pool.device().zeros((4,), "float64") as buffer:
        repeated = buffer.as_strided((3, 4), (0, 8))
        with pytest.raises(errors.InvalidRequest, match="share memory"):
            repeated.view(write=True)
        assert repeated.view().shape == (3, 4)


def test_a_large_result_that_is_read_after_the_close_says_that_its_request_ran(ledger: Ledger) -> None:
    """The pool is lost with the result; its request must not be run again."""
    with ledger.start(KEEPER) as pool:
        reply = pool.call("Keeper.large", 200_000)
        assert reply.exception() is None
    with pytest.raises(errors.PoolLost, match="ran") as lost:
        reply.result()
    assert lost.value.maybe_executed


def test_a_large_result_that_is_let_go_is_told_as_what_it_is(fresh: atomr_mp.Pool) -> None:
    """The request has run. A map reads early, and its unread results outlive their worker."""
    reply = fresh.call("Keeper.large", 200_000)
    assert reply.exception() is None
    fresh.restart(0)
    wait_generation(fresh, 2)
    local_client(fresh)._session.tell(session.ResultsRead(0, 1))
    with pytest.raises(errors.WorkerLost, match="large result") as lost:
        reply.result()
    assert (lost.value.maybe_executed, lost.value.was_running, lost.value.generation) == (True, False, 1)
    results = fresh.map("Keeper.large_again", [200_000] * 8, in_flight=4)
    first = next(results)
    assert settled(lambda: fresh.status().devices[0].completed >= 4)
    fresh.restart(0)
    wait_generation(fresh, 3)
    assert [len(result) for result in (first, *results)] == [200_000] * 8


def test_requests_lost_with_a_worker_give_their_memory_back(fresh: atomr_mp.Pool) -> None:
    """Arguments in shared memory can be used for later ones; earlier ones are not kept for ever."""
    fresh.call("Keeper.keep", np.ones(100_000)).result()
    replies = [fresh.call("Keeper.total", np.ones(100_000)) for _ in range(10)]
    killed = fresh.call("Probe.fail", "kill")
    lost = killed.exception()
    assert isinstance(lost, errors.WorkerLost)
    for reply in replies:
        reply.exception()
    wait_generation(fresh, lost.generation + 1)
    assert fresh.call("Keeper.total", np.ones(100_000)).result() == 100_000
    slabs = local_client(fresh).memory._slabs
    assert not slabs._kept
    slabs._take_back()
    assert sum(len(slab.space._taken) for slab in slabs._slabs) <= 1


# --- the rest ------------------------------------------------------------------------------------------------------


def test_a_ref_is_no_value(pool: atomr_mp.Pool) -> None:
    """It cannot be pickled, has no truth value, and its repr describes it."""
    ref = pool.device().put(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="share"):
        pickle.dumps(ref)
    with pytest.raises(TypeError):
        bool(ref)
    assert "float64[3, 2], strides (8, 24), device 0 generation 1 (current)" in repr(ref.T)


def test_a_view_in_the_devices_own_process_is_refused(pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot open its own memory."""
    ref = pool.device().put(np.zeros(3))
    pid = pool.devices[0].pid
    monkeypatch.setattr(os, "getpid", lambda: pid)
    with pytest.raises(errors.GpuRefSameProcess):
        ref.view()


def test_the_supervisor_has_loaded_nothing_that_computes(two: atomr_mp.Pool) -> None:
    """Slabs pass through it as descriptors: it maps none, and imports neither CUDA nor ZeroMQ nor NumPy."""
    ref = two.device(0).put(np.ones(100_000))
    ref.view()
    two.call("Keeper.total", ref, device=1).result()
    two.call("Keeper.total", np.ones(100_000)).result()
    maps = Path(f"/proc/{two.supervisor_pid}/maps").read_text(encoding="utf-8").lower()
    loaded = ("cuda", "zmq", "numpy", "memfd:atomr-mp-slab", "memfd:atomr-mp-client")
    assert [name for name in loaded if name in maps] == []


def test_a_device_names_its_libraries(pool: atomr_mp.Pool) -> None:
    """An unknown library is not an attribute."""
    device = pool.device()
    assert device.blas is device.blas
    assert pool.device() is device
    with pytest.raises(AttributeError, match="blas"):
        _ = device.nonsense
    with pytest.raises(errors.InvalidRequest):
        pool.device(1)


def test_an_array_where_workers_reach_it_is_not_copied_on_its_way(pool: atomr_mp.Pool) -> None:
    """Whole or in part; its memory is used again once the array has gone."""
    array = pool.host_array((100_000,), "float64")
    array[:] = np.arange(100_000.0)
    slabs = len(local_client(pool).memory._slabs._slabs)
    assert pool.call("Keeper.total", array).result() == array.sum()
    assert pool.call("Keeper.total", array[40_000:]).result() == array[40_000:].sum()
    assert pool.call("Keeper.total", array[::2]).result() == array[::2].sum()
    ref = pool.device().put(array)
    out = pool.host_array((100_000,), "float64")
    assert ref.numpy(out=out) is out
    assert np.array_equal(out, array)
    assert len(local_client(pool).memory._slabs._slabs) == slabs
    del array, out
    gc.collect()
    again = pool.host_array((4_000_000,), "float64")
    assert len(local_client(pool).memory._slabs._slabs) == slabs
    assert again.shape == (4_000_000,)
