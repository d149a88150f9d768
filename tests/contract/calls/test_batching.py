"""Methods that take many requests at a time, called like any other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, settled, wait_generation

BATCHED = f"{ACTORS}/batched.py:Batched"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(BATCHED) as pool:
        yield ledger, pool


@pytest.fixture
def ledger(shared: tuple[Ledger, atomr_mp.Pool]) -> Ledger:
    """The shared pool's ledger."""
    return shared[0]


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool; afterwards the worker is as before and has nothing to do."""
    with client_of(shared[1]) as own:
        yield own


@pytest.fixture
def others(pool: atomr_mp.Pool) -> Iterator[list[atomr_mp.Pool]]:
    """Three further clients."""
    clients = [atomr_mp.connect(run_dir=pool.run_dir) for _ in range(3)]
    for client in clients:
        client.wait_ready()
    yield clients
    for client in clients:
        client.close()


def been_read(pool: atomr_mp.Pool) -> None:
    """See that the worker has read what this client has sent so far, and goes on."""
    assert pool.call("Batched.alone", 7).result() == 7


SIZES = (1_000, 99_000, 131_071, 131_072, 140_000, 299_000, 300_001, 900_000)
"""On both sides of the size from which arrays come through shared memory."""


@pytest.mark.parametrize("where", ["client", "device"])
def test_arrays_count_wherever_they_lie(ledger: Ledger, pool: atomr_mp.Pool, where: str) -> None:
    """In the request, in memory shared with the client or on the device; one that is larger is alone."""
    kept = {nbytes: pool.call("Batched.keep", nbytes).result() for nbytes in SIZES} if where == "device" else {}
    with ledger.gate(f"counted-{where}") as gate:
        first = pool.call("Batched.arrays_by_bytes", np.zeros(1), gate.path)
        gate.wait()
        sizes = [nbytes for nbytes in SIZES for _ in range(4)]
        replies = [
            pool.call("Batched.arrays_by_bytes", kept.get(nbytes, np.zeros(nbytes, np.uint8)), "") for nbytes in sizes
        ]
        been_read(pool)
        gate.open()
        assert first.result() == 8
        for nbytes, reply in zip(sizes, replies, strict=True):
            assert reply.result() <= 300_000 or reply.result() == nbytes
        assert any(reply.result() > nbytes for nbytes, reply in zip(sizes, replies, strict=True))


def figures(pool: atomr_mp.Pool, method: str) -> tuple[int, int]:
    """Return how many batches a method has had, and how many requests in them."""
    (found,) = [each for each in pool.status().devices[0].batches if each.method == method]
    assert sum(found.sizes.values()) == found.batches
    return found.batches, found.items


@pytest.mark.parametrize("method", ["Batched.sizes", "Batched.sizes_on_thread"])
def test_requests_of_many_clients_are_one_batch(pool: atomr_mp.Pool, others: list[atomr_mp.Pool], method: str) -> None:
    """Each client calls with its own item and gets its own result; the figures count the batch."""
    before = figures(pool, method)
    replies = [client.call(method, f"item {number}") for number, client in enumerate([pool, *others])]
    assert [reply.result() for reply in replies] == [[4, f"item {number}"] for number in range(4)]
    batches, items = figures(pool, method)
    assert (batches - before[0], items - before[1]) == (1, 4)


def test_what_arrives_while_a_batch_runs_is_the_next(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """No request waits without need: the first goes alone, and those behind it go together."""
    with ledger.gate("running") as gate:
        first = pool.call("Batched.hold", gate.path, 0)
        gate.wait()
        rest = [pool.call("Batched.hold", "", number) for number in range(1, 12)]
        been_read(pool)
        gate.open()
        assert first.result() == [0]
        assert [reply.result() for reply in rest] == [list(range(1, 9))] * 8 + [[9, 10, 11]] * 3


def test_on_the_loop_each_request_is_in_one_batch(
    ledger: Ledger, pool: atomr_mp.Pool, others: list[atomr_mp.Pool]
) -> None:
    """The loop reads nothing while it runs a batch; requests that arrive by its end are neither lost nor doubled."""
    with ledger.gate("loop") as gate:
        first = pool.call("Batched.hold_on_loop", gate.path, 0)
        gate.wait()
        rest = [
            client.call("Batched.hold_on_loop", "", 3 * number + at)
            for number, client in enumerate(others)
            for at in (1, 2, 3)
        ]
        gate.open()
        assert first.result() == [0]
        batches = [reply.result() for reply in rest]
        assert all(number in batch for number, batch in enumerate(batches, 1))
        assert sorted(number for batch in {tuple(batch) for batch in batches} for number in batch) == list(range(1, 10))


def test_single_requests_and_batches_take_turns_on_a_thread(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """Neither kind keeps the other out, in any number."""
    with ledger.gate("turns") as gate, ledger.gate("second") as second:
        held = [pool.call("Batched.hold_alone", gate.path), pool.call("Batched.hold_alone", second.path)]
        gate.wait()
        batch = [pool.call("Batched.hold", "", number) for number in range(3)]
        been_read(pool)
        gate.open()
        assert [reply.result() for reply in batch] == [[0, 1, 2]] * 3, "before the second single request has ended"
        second.wait()
        second.open()
        assert [reply.result() for reply in held] == [None, None]


def test_a_failure_is_of_its_item_alone(pool: atomr_mp.Pool) -> None:
    """A result that is an exception fails its own request; so does a result that cannot be sent."""
    replies = [pool.call("Batched.roots", number) for number in (4.0, -1.0, 9.0, 0.0)]
    assert [reply.result() for reply in (replies[0], *replies[2:])] == [2.0, 3.0, 0.0]
    with pytest.raises(errors.ActorFailed, match="no root") as caught:
        replies[1].result()
    assert caught.value.exception == "builtins.ValueError"
    kinds = ("typed", "fine", "unsendable", "exit")
    typed, fine, unsendable, gone = [pool.call("Batched.refuse", kind).exception for kind in kinds]
    error = typed()
    assert isinstance(error, errors.OutOfMemory)
    assert error.requested_bytes == 7
    assert fine() is None
    assert isinstance(unsendable(), errors.ActorFailed)
    assert "SystemExit" in str(gone())


def test_a_request_that_cannot_be_decoded_harms_none(pool: atomr_mp.Pool) -> None:
    """The others run, and it is refused."""
    replies = [pool.call("Batched.roots", number) for number in (4.0, "four", 9.0, 16.0)]
    assert [replies[at].result() for at in (0, 2, 3)] == [2.0, 3.0, 4.0]
    error = replies[1].exception()
    assert isinstance(error, errors.InvalidRequest)
    assert not error.maybe_executed


@pytest.mark.parametrize(
    ("kind", "said"), [("raise", "all of them"), ("short", "given 4 items and returned 3"), ("none", "a NoneType")]
)
def test_what_the_method_raises_or_does_wrong_is_everybodys(pool: atomr_mp.Pool, kind: str, said: str) -> None:
    """All requests of the batch fail, typed."""
    for reply in [pool.call("Batched.refuse", each) for each in ("a", "b", kind, "c")]:
        with pytest.raises(errors.ActorFailed, match=said):
            reply.result()
    assert [pool.call("Batched.alone", 1).result()] == [1]


def test_what_is_cancelled_or_late_is_in_no_batch(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """Neither runs; the requests around them do."""
    with ledger.gate("late") as gate:
        first = pool.call("Batched.hold", gate.path, 0)
        gate.wait()
        rest = [pool.call("Batched.hold", "", number) for number in (1, 2, 3)]
        late = pool.call("Batched.hold", "", 4, deadline_s=0.01)
        rest[1].cancel()
        been_read(pool)
        error = late.exception()
        assert isinstance(error, errors.DeadlineExceeded)
        gate.open()
        assert first.result() == [0]
        assert [rest[at].result() for at in (0, 2)] == [[1, 3]] * 2
        cancelled = rest[1].exception()
        assert isinstance(cancelled, errors.Cancelled)
        assert not cancelled.maybe_executed


def test_what_a_client_has_queued_ends_with_it(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """Its requests are in no batch once its session has ended; other clients' requests are."""
    with ledger.gate("gone") as gate, atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        first = pool.call("Batched.hold", gate.path, 0)
        gate.wait()
        for number in range(3):
            other.call("Batched.hold", "", number)
        been_read(other)
        mine = pool.call("Batched.hold", "", 9)
        been_read(pool)
        other.close()
        assert settled(lambda: pool.status().sessions == 2)
        been_read(pool)
        gate.open()
        assert first.result() == [0]
        assert mine.result() == [9]


def test_only_what_has_something_in_common_is_together(pool: atomr_mp.Pool) -> None:
    """By a method of the actor, or by shape; an item without a key fails alone."""
    replies = [pool.call("Batched.by_parity", number) for number in (1, 2, 3, -1, 4, 5, 6, 7, 8)]
    error = replies.pop(3).exception()
    assert isinstance(error, errors.ActorFailed)
    assert "no parity" in error.message
    assert [reply.result() for reply in replies[:2]] == [[1, 3, 5, 7], [2, 4, 6, 8]]
    arrays = [np.full(shape, shape, np.float32) for shape in (2, 3, 2, 3)]
    doubled = [pool.call("Batched.stacked", array) for array in arrays]
    for array, reply in zip(arrays, doubled, strict=True):
        np.testing.assert_array_equal(reply.result(), 2 * array)


def test_bytes_close_a_batch(pool: atomr_mp.Pool) -> None:
    """As many as fit; an item larger than the limit is alone."""
    replies = [pool.call("Batched.by_bytes", "x" * length) for length in (400, 400, 400, 2000, 1000)]
    assert [reply.result() for reply in replies] == [2, 2, 1, 1, 1]


def test_a_death_is_told_to_all_of_the_batch(ledger: Ledger) -> None:
    """Its requests were running; requests that waited for another batch certainly were not."""
    with (
        ledger.gate("dying") as gate,
        ledger.start(BATCHED, run_dir="dies", backoff_initial_s=0.05) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
    ):
        other.wait_ready()
        waiting = pool.call("Batched.sizes", 1)
        been_read(pool)
        replies = [client.call("Batched.die", gate.path) for client in (pool, other, pool, other)]
        gate.wait()
        gate.open()
        for reply in replies:
            error = reply.exception()
            assert isinstance(error, errors.WorkerLost)
            assert error.maybe_executed
            assert error.was_running
        error = waiting.exception()
        assert isinstance(error, errors.WorkerLost)
        assert not error.maybe_executed
        wait_generation(pool, 2)
        assert [reply.result()[0] for reply in [pool.call("Batched.sizes", n) for n in range(4)]] == [4] * 4


def test_refs_are_items_and_results(pool: atomr_mp.Pool, others: list[atomr_mp.Pool]) -> None:
    """A result of a batch of several clients lies in its own client's memory."""
    refs = [pool.device().put(np.full(100, float(number))) for number in range(4)]
    assert [reply.result() for reply in [pool.call("Batched.sums", ref) for ref in refs]] == [0.0, 100.0, 200.0, 300.0]
    kept = [client.call("Batched.kept", float(number)) for number, client in enumerate([pool, *others])]
    results = [reply.result() for reply in kept]
    assert [ref.numpy().tolist() for ref in results] == [[float(number)] * 3 for number in range(4)]
    assert len({ref.slab for ref in results}) == 4, "no client maps what another can see"
    alone = [pool.call("Batched.kept", float(number)).result for number in range(4)]
    assert len({result().slab for result in alone}) == 1


def test_what_waits_for_memory_joins_a_later_batch(pool: atomr_mp.Pool) -> None:
    """Writers of one buffer are never in one batch, and wait for its readers; a cancelled reader releases them."""
    ref = pool.device().zeros(3, "float64")
    assert [reply.result() for reply in [pool.call("Batched.increment", ref) for _ in range(3)]] == [1, 1, 1]
    reader = pool.call("Batched.sums", ref)
    writer = pool.call("Batched.increment", ref)
    been_read(pool)
    assert not writer.done
    others = [pool.call("Batched.sums", np.ones(1)) for _ in range(3)]
    assert reader.result() == 9.0
    assert writer.result() == 1
    assert [reply.result() for reply in others] == [1.0] * 3
    reader = pool.call("Batched.sums", ref)
    writer = pool.call("Batched.increment", ref)
    been_read(pool)
    reader.cancel()
    assert writer.result() == 1
    assert ref.numpy().tolist() == [5.0] * 3


def test_the_longest_wait_is_kept(ledger: Ledger) -> None:
    """A request that no other joins runs when its time has come, without any other event."""
    with ledger.start(f"{ACTORS}/patient.py:Patient", run_dir="patient") as pool:
        assert pool.call("Patient.sizes", 0).result() == 1
        began = time.monotonic()

        async def send() -> list[int]:
            # Behind one that is under way, what is called in a turn of a loop travels in one message.
            alone, *replies = pool.call("Patient.alone"), *(pool.call("Patient.sizes", number) for number in range(3))
            await alone
            return await asyncio.gather(*replies)

        assert asyncio.run(send()) == [3] * 3
        assert 0.2 <= time.monotonic() - began < DEADLINE_S
        batches, _ = pool.figures().workers[0].batches
        assert (batches.batches, batches.items) == (2, 4)
        assert 0.2 <= batches.longest_wait_s <= batches.wait_s


def test_the_longest_wait_is_kept_behind_what_the_thread_has(ledger: Ledger) -> None:
    """The loop had no deadline while the thread was busy."""
    with ledger.start(f"{ACTORS}/patient.py:Patient", run_dir="behind") as pool, ledger.gate("busy") as gate:
        busy = pool.call("Patient.hold_on_thread", gate.path)
        gate.wait()
        waits = pool.call("Patient.sizes_on_thread", 0)
        assert pool.call("Patient.alone").result() is None  # it has been read
        gate.open()
        assert busy.result() is None
        assert waits.result() == 1


def test_an_actor_may_have_several_threads(ledger: Ledger) -> None:
    """As many requests or batches run at a time, each on its own thread, and no more; they begin in order."""
    with ledger.start(f"{ACTORS}/paired.py:Paired", run_dir="paired") as pool:
        for _ in range(20):
            one, other = [pool.call("Paired.meet") for _ in range(2)]
            assert one.result() != other.result()
        batches = [pool.call("Paired.meet_in_batch", number) for number in range(4)]
        assert [reply.result() for reply in batches] == [[0, 1], [0, 1], [2, 3], [2, 3]]
        mixed = [pool.call("Paired.meet"), *(pool.call("Paired.meet_in_batch", number) for number in range(2))]
        assert [reply.result() for reply in mixed[1:]] == [[0, 1], [0, 1]]
        with ledger.gate("one") as one_gate, ledger.gate("other") as other_gate:
            held = [pool.call("Paired.hold", gate.path) for gate in (one_gate, other_gate)]
            one_gate.wait()
            other_gate.wait()
            behind = pool.call("Paired.count")
            assert not behind.done
            other_gate.open()
            assert behind.result() == 1, "while the first still runs"
            one_gate.open()
            assert [reply.result() for reply in held] == [None, None]


def test_a_drain_waits_for_batches_which_wait_for_nobody(ledger: Ledger) -> None:
    """The worker answers all received requests before it leaves, and does not wait for more."""
    with ledger.start(BATCHED, run_dir="drained", drain_timeout_s=DEADLINE_S) as pool:
        replies = [pool.call("Batched.sizes", number) for number in range(2)]
        been_read(pool)
        pool.restart(0)
        assert [reply.result() for reply in replies] == [[2, 0], [2, 1]]
        wait_generation(pool, 2)


def test_a_map_fills_batches(pool: atomr_mp.Pool) -> None:
    """Enough is in flight by default; more or less if the caller says so."""
    before = figures(pool, "Batched.sizes")
    assert list(pool.map("Batched.sizes", range(400))) == [[4, number] for number in range(400)]
    assert list(pool.map("Batched.sizes", range(40), batch_size=4)) == [[4, number] for number in range(40)]
    batches, items = figures(pool, "Batched.sizes")
    assert (batches - before[0], items - before[1]) == (110, 440)
    with pytest.raises(errors.InvalidRequest, match="batch_size"):
        pool.map("Batched.sizes", [], batch_size=0)
