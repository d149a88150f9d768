"""Calls with items: requests that are sent as one, and answered in parts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.reply import ItemsReply
from atomr_mp.mapping.run import Failure
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, client_of, settled

PARCELLED = f"{ACTORS}/parcelled.py:Parcelled"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(PARCELLED) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool; afterwards the worker is as before and has nothing to do."""
    with client_of(shared[1]) as own:
        yield own


def sent_together(pool: atomr_mp.Pool, method: str, items: Sequence[Any], deadline_s: float = DEADLINE_S) -> list[Any]:
    """Return the outcomes of items of one call, each a result or an error."""

    async def send() -> ItemsReply:
        reply = pool._client.submit_items(method, [(item,) for item in items], deadline_s=deadline_s)
        with contextlib.suppress(errors.AtomrError):
            await reply
        return reply

    return outcomes(asyncio.run(send()), len(items))


def outcomes(reply: ItemsReply, count: int) -> list[Any]:
    """Return the outcomes of its items, each a result or an error."""
    found: list[Any] = [reply.exception()] * count
    for part in reply.parts:
        results = reply.results(part) if len(part.failed) < len(part.places) else []
        for at, place in enumerate(part.places):
            found[place] = part.failed.get(place) or results[at]
    return found


def figures(pool: atomr_mp.Pool, method: str) -> tuple[int, int]:
    """Return how many batches a method has had, and how many items in them."""
    (found,) = [each for each in pool.status().devices[0].batches if each.method == method]
    return found.batches, found.items


def requests(pool: atomr_mp.Pool) -> tuple[int, int, int]:
    """Return how many requests the worker has started, completed, and answered with a failure."""
    worker = pool.figures().workers[0]
    return worker.started, worker.completed, worker.figures.failed


def test_items_of_calls_fill_batches(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """Calls of any number of items: the rest of one call shares a batch with the next."""
    batches, items = figures(pool, "Parcelled.count")
    started, completed, _ = requests(pool)

    async def send() -> list[ItemsReply]:
        with notes.gate("filling") as gate:
            held = pool.call("Parcelled.hold_one", gate.path)
            await asyncio.to_thread(gate.wait)
            replies = [
                pool._client.submit_items("Parcelled.count", [(n,) for n in range(7)], deadline_s=DEADLINE_S)
                for _ in range(8)
            ]
            assert await pool.call("Parcelled.single", 1) == 1  # behind them, so all wait for the actor's thread
            gate.open()
            await asyncio.gather(held, *replies)
        return replies

    found = [outcomes(reply, 7) for reply in asyncio.run(send())]
    assert [[item for _, item in each] for each in found] == [list(range(7))] * 8
    assert {size for each in found for size, _ in each} == {8}
    assert figures(pool, "Parcelled.count") == (batches + 7, items + 56)
    assert requests(pool)[:2] == (started + 58, completed + 58)


def test_a_map_sends_its_items_together(pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls of whole batches, in order, and none is lost."""
    calls: list[int] = []
    submit = pool._client.submit_items

    def note(method: str, items: Sequence[Sequence[Any]], **options: Any) -> ItemsReply:
        calls.append(len(items))
        return submit(method, items, **options)

    monkeypatch.setattr(pool._client, "submit_items", note)
    assert [item for _, item in pool.map("Parcelled.count", range(1000))] == list(range(1000))
    assert len(calls) < 250
    assert max(calls) == 8
    assert list(pool.map("Parcelled.single", range(100))) == list(range(100))
    assert sum(calls) <= 1000


def test_items_of_a_call_are_in_batches_of_their_own_kind(pool: atomr_mp.Pool) -> None:
    """A call is answered in parts, by the key of its items."""
    found = sent_together(pool, "Parcelled.by_parity", range(8))
    assert found == [[0, 2, 4, 6], [1, 3, 5, 7]] * 4
    assert all(number in batch for number, batch in enumerate(pool.map("Parcelled.by_parity", range(400))))


def test_a_failure_is_of_its_item_alone(pool: atomr_mp.Pool) -> None:
    """Whether the method returns the failure, or a result that cannot be sent."""
    failed = requests(pool)[2]
    found = sent_together(pool, "Parcelled.roots", [4, -1, 9, -2, -3, 16])
    assert [found[at] for at in (0, 2, 5)] == [2, 3, 4]
    assert isinstance(found[1], errors.ActorFailed)
    assert found[1].exception == "builtins.ValueError"
    assert found[1].maybe_executed
    assert isinstance(found[3], errors.OutOfMemory)
    assert found[3].requested_bytes == 7
    assert isinstance(found[4], errors.ActorFailed)
    assert "cannot be sent" in str(found[4])
    assert requests(pool)[2] == failed + 3
    mapped = list(pool.map("Parcelled.roots", [n if n % 10 else -1 for n in range(100)], return_failures=True))
    assert [n for n, each in enumerate(mapped) if isinstance(each, Failure)] == list(range(0, 100, 10))
    assert [each for n, each in enumerate(mapped) if n % 10] == [n**0.5 for n in range(100) if n % 10]


def test_what_the_method_raises_is_of_all_its_batch(pool: atomr_mp.Pool) -> None:
    """And of no other."""
    found = sent_together(pool, "Parcelled.refuse", [1, 2, 3, -4, 5, 6, 7, 8])
    assert all(isinstance(each, errors.ActorFailed) for each in found[:4])
    assert found[4:] == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("method", "bad"),
    [
        ("Parcelled.by_parity", "seven"),
        ("Parcelled.by_parity", -1),
        ("Parcelled.by_parity", -2),
        ("Parcelled.roots", None),
    ],
)
def test_a_call_with_an_item_that_does_not_fit_is_refused_and_a_map_finds_the_item(
    pool: atomr_mp.Pool, method: str, bad: object
) -> None:
    """The failing item is unknown, so none of the call has run."""
    started, _, _ = requests(pool)
    found = sent_together(pool, method, [1, bad, 2])
    assert {type(each) for each in found} <= {errors.InvalidRequest, errors.ActorFailed}
    assert not any(each.maybe_executed for each in found)
    assert requests(pool)[0] == started
    items = [bad if n == 17 else n for n in range(40)]
    mapped = list(pool.map(method, items, return_failures=True))
    assert [n for n, each in enumerate(mapped) if isinstance(each, Failure)] == [17]


def test_errors_of_items_with_long_texts_are_clipped(pool: atomr_mp.Pool) -> None:
    """Any number of errors of any length: their answer reaches the client."""
    found = sent_together(pool, "Parcelled.verbose", range(256))
    assert len(found) == 256
    assert all(isinstance(each, errors.ActorFailed) for each in found)
    assert all(str(each).endswith("\u20ac") for each in found)
    assert max(len(str(each)) for each in found) < 10_000


def test_a_result_with_code_of_its_own_that_fails_is_its_item_s(pool: atomr_mp.Pool) -> None:
    """And no other's, whether of this call or beside it."""
    found = sent_together(pool, "Parcelled.strange", range(8))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(found[3], errors.ActorFailed)
    assert "no interface" in str(found[3])


@pytest.mark.parametrize("method", ["nested", "nested_single"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_result_that_cannot_be_read_is_its_item_s_failure(
    pool: atomr_mp.Pool, tmp_path: Path, method: str, *, kept: bool
) -> None:
    """It ends no map: neither this one nor, with a journal, the next."""
    depths = [1, 2, 100, 3, 4, 5]
    for _ in range(2):
        journal = tmp_path / "journal" if kept else None
        found = list(pool.map(f"Parcelled.{method}", depths, return_failures=True, journal=journal))
        assert [isinstance(each, Failure) for each in found] == [depth == 100 for depth in depths]
        assert isinstance(found[2].error, errors.ActorFailed)
        assert found[2].error.maybe_executed
    results = pool.map(f"Parcelled.{method}", depths)
    assert [next(results), next(results)] == [[None], [[None]]]
    with pytest.raises(errors.ActorFailed, match="nested deeper") as raised:
        next(results)
    assert "item 2" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("window", [1, 2])
def test_a_map_goes_on_in_small_windows_also_after_another_was_left(ledger: Ledger, window: int) -> None:
    """Items of the earlier map may fill the windows: then items fail with that, and no caller waits for ever."""
    with ledger.start(PARCELLED, window_requests=window) as pool:
        assert list(pool.map("Parcelled.roots", range(100))) == [n**0.5 for n in range(100)]
        with ledger.gate("gate") as gate:
            left: Any = pool.map("Parcelled.hold_one", [gate.path] * 64)
            thread = threading.Thread(target=next, args=(left, None))
            thread.start()
            gate.wait()
            others = list(pool.map("Parcelled.roots", range(20), return_failures=True, deadline_s=1))
            assert all(isinstance(each, Failure | float) for each in others)
            gate.open(100)
            thread.join()
            left.close()
        roots = [n**0.5 for n in range(100)]
        assert settled(lambda: list(pool.map("Parcelled.roots", range(100), return_failures=True)) == roots)


def test_items_that_are_late_are_told_so(ledger: Ledger) -> None:
    """Even if some items of their call are still answered after the deadline."""
    with ledger.start(PARCELLED) as pool, ledger.gate("gate") as gate:
        # As many as are in flight at a time, with time for the first of them also on a busy machine.
        mapped = pool.map("Parcelled.hold_one", [gate.path] * 32, return_failures=True, deadline_s=5)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(mapped))
        thread.start()
        for _ in range(3):
            gate.wait()
            gate.open()
        gate.wait()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        gate.open(100)
        failures = [each for each in found if isinstance(each, Failure)]
        assert len(found) == 32
        assert {type(each.error) for each in failures} == {errors.DeadlineExceeded}
        assert settled(lambda: all(worker.queue_depth == 0 for worker in pool.status().devices))


def test_results_that_are_too_much_for_one_answer_come_in_several(pool: atomr_mp.Pool) -> None:
    """Also where one alone is larger than an answer's body."""
    lengths = [2**21, 3, 2**21, 2**21, 2**22 - 10, 2**22 - 10, 5, 2**22 + 1]
    found = sent_together(pool, "Parcelled.texts", lengths)
    assert [len(each) for each in found] == lengths
    assert [len(each) for each in pool.map("Parcelled.texts", lengths)] == lengths


@pytest.mark.parametrize("length", [3, 5000, 40000])
def test_arrays_are_items_and_results(pool: atomr_mp.Pool, length: int) -> None:
    """In the body, in frames of their own, in shared memory: then they are not sent together."""
    arrays = [np.random.default_rng(n).random(length) for n in range(30)]
    for array, doubled in zip(arrays, pool.map("Parcelled.doubled", arrays), strict=True):
        np.testing.assert_array_equal(doubled, 2 * array)


@pytest.mark.parametrize("length", [1, 300, 20000, 2**20])
def test_an_array_has_the_results_of_a_batch_in_its_rows(pool: atomr_mp.Pool, length: int) -> None:
    """For items of a call and for single ones; however it travels."""
    for row in [*pool.map("Parcelled.rows", [length] * 14), pool.call("Parcelled.rows", length).result()]:
        assert row.shape == (length,)
        assert row.dtype == np.float32
        assert (row == length).all()


def test_refs_are_results_and_go_by_themselves_as_items(pool: atomr_mp.Pool) -> None:
    """Refs in a call's answers belong to the session until it releases them."""
    refs = list(pool.map("Parcelled.kept", [float(n) for n in range(10)]))
    assert [ref.numpy()[0] for ref in refs] == list(range(10))
    with pytest.raises(errors.InvalidRequest, match="ref"):
        sent_together(pool, "Parcelled.doubled", refs)
    doubled = [array if BACKEND == "host" else array.numpy() for array in pool.map("Parcelled.doubled", refs)]
    assert [array[0] for array in doubled] == [2 * n for n in range(10)]
    del refs
    gc.collect()  # the error's traceback had them too
    # What is given back goes with the next call.
    assert settled(lambda: pool.call("Parcelled.single", 1).result() and pool.status().devices[0].leases == 0)


def test_a_call_is_cancelled_or_late_as_a_whole_until_it_has_begun(
    shared: tuple[Ledger, atomr_mp.Pool], pool: atomr_mp.Pool
) -> None:
    """Nothing of it runs then, and its place in the window is free again."""
    ledger = shared[0]
    with ledger.gate("gate") as gate:
        first = pool.call("Parcelled.hold", gate.path)
        rest = [pool.call("Parcelled.hold", "") for _ in range(7)]
        gate.wait()

        async def send() -> tuple[ItemsReply, ItemsReply]:
            items = [("",)] * 3
            late = pool._client.submit_items("Parcelled.hold", items, deadline_s=0.2)
            cancelled = pool._client.submit_items("Parcelled.hold", items, deadline_s=DEADLINE_S)
            cancelled.cancel()
            for reply in (late, cancelled):
                with pytest.raises((errors.DeadlineExceeded, errors.Cancelled)):
                    await reply
            assert await pool.call("Parcelled.single", 1) == 1  # the worker has read of both ends by then
            return late, cancelled

        late, cancelled = asyncio.run(send())
        gate.open()
        assert [reply.result() for reply in (first, *rest)] == [8] * 8
    assert {type(each) for each in outcomes(late, 3)} == {errors.DeadlineExceeded}
    assert {type(each) for each in outcomes(cancelled, 3)} == {errors.Cancelled}
    assert sent_together(pool, "Parcelled.hold", [""] * 8) == [8] * 8


def test_where_few_may_wait_a_map_sends_fewer(pool: atomr_mp.Pool) -> None:
    """A call with too many items is refused, and its items then go one by one."""
    found = sent_together(pool, "Parcelled.few", range(8))
    assert {type(each) for each in found} == {errors.Overloaded}
    assert list(pool.map("Parcelled.few", range(100))) == list(range(100))


def test_what_has_no_items_says_so(pool: atomr_mp.Pool) -> None:
    """A method that takes them one by one, or bounds their bytes."""
    found = sent_together(pool, "Parcelled.single", range(3))
    assert {type(each) for each in found} == {errors.InvalidRequest}
    assert "takes no items" in str(found[0])


@pytest.mark.parametrize("how", ["kill", "poison"])
def test_an_item_that_ends_its_worker_takes_no_other_along(ledger: Ledger, how: str) -> None:
    """Other items of its call are sent again, each alone as long as it may be the cause."""
    settings: dict[str, Any] = {"max_restarts": 100, "backoff_initial_s": 0.01, "max_suspicions": 2}
    with ledger.start(PARCELLED, gpus=2, **settings) as pool:
        items = [[n, how if n == 70 else ""] for n in range(200)]
        mapped = list(pool.map("Parcelled.die", items, return_failures=True))
        failures = [each for each in mapped if isinstance(each, Failure)]
        assert [failure.index for failure in failures] == [70]
        assert isinstance(failures[0].error, errors.PoisonRequest)
        assert [each for each in mapped if not isinstance(each, Failure)] == [n for n in range(200) if n != 70]
        assert Counter(ledger.runs())["70"] == sum(device.restarts for device in pool.devices) == 2


def test_a_planned_end_is_not_noticed(ledger: Ledger) -> None:
    """A worker that is being replaced answers the requests it has received; the next worker gets the others."""
    with ledger.start(PARCELLED) as pool:
        found = []
        for n, item in enumerate(pool.map("Parcelled.count", range(2000), attempts=1)):
            found.append(item[1])
            if n % 500 == 250:
                pool.restart(0)
        assert found == list(range(2000))
        assert pool.devices[0].generation == 5
