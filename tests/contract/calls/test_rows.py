"""Methods that take the rows of many requests as one call."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, settled, wait_generation

ROWED = f"{ACTORS}/rowed.py:Rowed"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests that leave it as it was."""
    with Ledger() as ledger, ledger.start(ROWED) as pool:
        yield ledger, pool


@pytest.fixture
def ledger(shared: tuple[Ledger, atomr_mp.Pool]) -> Ledger:
    """The shared pool's ledger."""
    return shared[0]


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool."""
    with client_of(shared[1]) as own:
        yield own


@pytest.fixture
def other(pool: atomr_mp.Pool) -> Iterator[atomr_mp.Pool]:
    """Another client of it."""
    with client_of(pool) as own:
        yield own


def been_read(pool: atomr_mp.Pool) -> None:
    """See that the worker has read what this client has sent so far, and goes on."""
    assert pool.call("Rowed.alone", 7).result() == 7


def figures(pool: atomr_mp.Pool, method: str) -> tuple[int, int]:
    """Return how many batches a method has had, and how many rows in them."""
    (found,) = [each for each in pool.status().devices[0].batches if each.method == method]
    return found.batches, found.items


def test_rows_of_several_clients_are_one_call(pool: atomr_mp.Pool, other: atomr_mp.Pool) -> None:
    """By position and by name; each gets its own rows, and the figures count rows."""
    before = figures(pool, "Rowed.together")
    x = np.arange(16.0).reshape(8, 2)
    replies = [
        pool.call("Rowed.together", x[:3]),
        other.call("Rowed.together", kwargs={"x": x[3:7]}),
        pool.call("Rowed.together", x[7:], kwargs={"scale": 1.0}),
    ]
    whole = np.concatenate([reply.result() for reply in replies])
    assert whole.tolist() == np.column_stack([x, np.full(8, 8.0)]).tolist()
    batches, rows = figures(pool, "Rowed.together")
    assert (batches - before[0], rows - before[1]) == (1, 8)
    assert sorted(reply.batch_rows for reply in replies) == [0, 0, 8], "one of them stands for the batch"


def test_a_batch_is_full_when_the_next_does_not_fit(pool: atomr_mp.Pool) -> None:
    """No request is cut, and none waits for rows that cannot come."""
    first, second = (pool.call("Rowed.together", np.zeros((rows, 1))) for rows in (5, 6))
    assert first.result()[:, 1].tolist() == [5.0] * 5
    last = pool.call("Rowed.together", np.zeros((2, 1)))
    assert second.result()[:, 1].tolist() == [8.0] * 6
    assert last.result()[:, 1].tolist() == [8.0] * 2


def test_what_cannot_be_joined_is_apart(pool: atomr_mp.Pool) -> None:
    """Other element types, lengths behind the first, other arguments, and the actor's own key."""
    x = np.zeros((4, 2))
    kinds: list[tuple[Any, ...]] = [(x,), (x.astype("float64"), 2.0), (np.zeros((4, 3)),)]
    halves = [[pool.call("Rowed.together", *kind) for kind in kinds] for _ in range(2)]
    assert all(reply.result()[:, -1].tolist() == [8.0] * 4 for half in halves for reply in half)
    numbers = [pool.call("Rowed.by_parity", np.array([number] * 4)) for number in (1, 2, 3, 4)]
    assert [reply.result()[0] for reply in numbers] == [[1] * 4 + [3] * 4, [2] * 4 + [4] * 4] * 2
    mixed = [
        pool.call("Rowed.same", x) for x in (np.zeros((4, 1), "int32"), [1, 2, 3, 4], np.ones((4, 1), "int32"), [5] * 4)
    ]
    assert mixed[1].result() == [1, 2, 3, 4]
    assert mixed[3].result() == [5] * 4
    assert mixed[2].result().dtype == np.int32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.zeros((9, 1)),), "Rowed.together: a request has from 1 to 8 rows (max_items of its Batch), not 9"),
        ((np.zeros((0, 1)),), "from 1 to 8 rows"),
        ((np.zeros(()),), "without dimensions"),
        (([1.0],), "Expected"),
    ],
)
def test_a_bad_request_is_refused_alone(pool: atomr_mp.Pool, arguments: tuple[Any, ...], said: str) -> None:
    """Before it is in a batch, which goes on."""
    good = pool.call("Rowed.together", np.zeros((4, 5)))
    with pytest.raises(errors.InvalidRequest) as caught:
        pool.call("Rowed.together", *arguments).result()
    assert said in str(caught.value)
    assert not caught.value.maybe_executed
    assert len(pool.call("Rowed.together", np.zeros((4, 5))).result()) == len(good.result()) == 4


def test_refs_are_refused(pool: atomr_mp.Pool) -> None:
    """In words; the ref can be used afterwards, also by who writes it."""
    ref = pool.device().put(np.zeros((2, 2)))
    with pytest.raises(errors.InvalidRequest, match=r"Rowed\.together joins the rows of arrays, and takes no refs"):
        pool.call("Rowed.together", ref).result()
    ref.fill(1)
    assert ref.numpy().tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("short", "Rowed.wrong was given 8 rows and returned 7 rows; with Batch(rows=True)"),
        ("column", "returned 7 rows as 'short'"),
        ("part", "returned 7 rows at [1]"),
        ("none", "returned a NoneType"),
        ("scalar", "returned a int"),
        ("nothing", "returned nothing"),
        ("raise", "one of these rows is bad"),
    ],
)
def test_a_result_with_other_rows_fails_its_batch(pool: atomr_mp.Pool, kind: str, said: str) -> None:
    """As an exception of the method does."""
    for error in [reply.exception() for reply in [pool.call("Rowed.wrong", np.arange(4), kind) for _ in range(2)]]:
        assert isinstance(error, errors.ActorFailed)
        assert said in str(error)
        assert error.maybe_executed


def test_rows_that_cannot_be_sent_fail_their_own_request(pool: atomr_mp.Pool) -> None:
    """The other tells the rows of the batch."""
    bad, good = (pool.call("Rowed.wrong", x, "unsendable") for x in (-np.ones(4, int), np.ones(4, int)))
    assert isinstance(bad.exception(), errors.ActorFailed)
    assert good.result() == [1] * 4
    assert good.batch_rows == 8


def test_large_arrays_are_joined_and_split(pool: atomr_mp.Pool, other: atomr_mp.Pool) -> None:
    """Those that travel in shared memory; an array of one client shows nothing of another's."""
    arrays = [np.full((4, 100_000), float(number)) for number in range(2)]
    replies = [client.call("Rowed.same", array) for client, array in zip((pool, other), arrays, strict=True)]
    for reply, array in zip(replies, arrays, strict=True):
        assert np.array_equal(reply.result(), array)
        base = reply.result().base
        assert base is None or getattr(base, "nbytes", array.nbytes) <= array.nbytes + 4096


def test_late_and_cancelled_requests_are_left_out(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """The batch has the rows of the others."""
    with ledger.gate("left") as gate:
        first = pool.call("Rowed.hold", gate.path, np.zeros(1, int))
        gate.wait()
        late = pool.call("Rowed.hold", "", np.array([1, 1]), deadline_s=0.05)
        unwanted, one, two = (pool.call("Rowed.hold", "", np.array([at, at])) for at in (2, 3, 4))
        unwanted.cancel()
        with pytest.raises(errors.DeadlineExceeded):
            late.result()
        been_read(pool)
        gate.open()
        assert first.result() == [[0]]
        assert one.result() == [[3, 3, 4, 4]] * 2 == two.result()
        assert isinstance(unwanted.exception(), errors.Cancelled)


def test_a_client_that_leaves_takes_its_rows_along(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """The batch has those of the others."""
    with ledger.gate("leaves") as gate:
        first = pool.call("Rowed.hold", gate.path, np.zeros(1, int))
        gate.wait()
        with atomr_mp.connect(run_dir=pool.run_dir) as leaving:
            leaving.wait_ready()
            gone = leaving.call("Rowed.hold", "", np.array([1, 1]))
            been_read(leaving)
        assert settled(lambda: pool.status().devices[0].queue_depth == 1), "the one that runs"
        stays = pool.call("Rowed.hold", "", np.array([2, 2]))
        been_read(pool)
        gate.open()
        assert first.result() == [[0]]
        assert stays.result() == [[2, 2]] * 2
        assert gone.exception() is not None


def test_an_answer_tells_how_long_its_method_has_run(ledger: Ledger, pool: atomr_mp.Pool) -> None:
    """Not how long it has waited for the one before, though it was taken ahead."""
    with ledger.gate("runs") as gate:
        first = pool.call("Rowed.hold", gate.path, np.zeros(1, int))
        gate.wait()
        held_ns = time.monotonic_ns()
        behind = [pool.call("Rowed.hold", "", np.array([at])) for at in range(4)]
        been_read(pool)
        opened_ns = time.monotonic_ns()
        gate.open()
        first.result()
        assert first.ran_ns >= opened_ns - held_ns
        for each in behind:
            each.result()
            assert 0 < each.ran_ns <= time.monotonic_ns() - opened_ns
    plain = pool.call("Rowed.alone", 1)
    assert plain.result() == 1
    assert plain.ran_ns > 0


def test_a_map_sends_each_item_as_a_request(pool: atomr_mp.Pool) -> None:
    """With rows of its own."""
    items = [np.full((rows, 2), float(at)) for at, rows in enumerate((1, 2, 3) * 30)]
    found = list(pool.map("Rowed.sums", items))
    assert all(sums.tolist() == [2.0 * at] * len(items[at]) for at, (sums, _) in enumerate(found))


def test_no_request_has_the_rows_of_another(pool: atomr_mp.Pool) -> None:
    """Threads of several clients, with arrays of several kinds; all are answered as if they were alone."""
    generator = np.random.default_rng(5)
    requests = [
        generator.integers(0, 100, (int(generator.integers(1, 9)), *shape)).astype(dtype)
        for _ in range(32)
        for shape in ((3,), (2, 2))
        for dtype in ("float32", "int64")
    ]
    with client_of(pool) as second, concurrent.futures.ThreadPoolExecutor(64) as threads:

        def ask(at: int) -> list[Any]:
            client = (pool, second)[at % 2]
            return [client.call("Rowed.sums", requests[(at * 7 + step) % len(requests)]).result() for step in range(8)]

        for at, results in enumerate(threads.map(ask, range(64))):
            for step, (sums, rows) in enumerate(results):
                x = requests[(at * 7 + step) % len(requests)]
                assert sums.dtype == x.dtype
                assert np.array_equal(sums, x.reshape(len(x), -1).sum(axis=1, dtype=x.dtype))
                assert len(set(rows)) == 1
                assert len(x) <= rows[0] <= 8


def test_killed_under_load_each_is_answered_once_and_right(ledger: Ledger) -> None:
    """Idempotent requests are sent again."""
    with ledger.start(ROWED, run_dir="killed") as pool, concurrent.futures.ThreadPoolExecutor(32) as threads:

        def ask(at: int) -> bool:
            x = np.arange(float(1 + at % 4) * 3).reshape(-1, 3) + at
            names = [f"n{at}.{row}" for row in range(len(x))]
            found = pool.call("Rowed.model", x, names, deadline_s=DEADLINE_S).result()
            return found["names"] == [name.upper() for name in names] and np.allclose(found["total"], x @ [1, 2, 3])

        answers = [threads.submit(ask, at) for at in range(1500)]
        for generation in (2, 3):
            os.kill(pool.devices[0].worker_pid or 0, signal.SIGKILL)
            wait_generation(pool, generation)
        assert all(each.result() for each in answers)
