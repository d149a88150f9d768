from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.run import Failure, Progress
from atomr_mp.protocol.messages.devices import Circuit, DeviceState
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of, local_client, settled, wait_generation, wait_state
from tests.waiting import readable

MAPPED = f"{ACTORS}/mapped.py:Mapped"


@pytest.fixture(scope="module", autouse=True)
def as_released() -> Iterator[None]:
    """Run the pools' processes without checks of our own rules, as users have them; all other suites have them on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ATOMR_MP_CHECKS", "0")
        yield


@pytest.fixture(scope="module")
def shared(as_released: None) -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool of two devices, whose workers tests may end, but for all who need another."""
    del as_released  # is in force
    with Ledger() as ledger, ledger.start(MAPPED, gpus=2, backoff_initial_s=0.05, max_restarts=1000) as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool with no history."""
    with atomr_mp.connect(run_dir=shared[1].run_dir) as own:
        own.wait_ready()
        yield own


def test_results_come_in_the_order_of_the_items(pool: atomr_mp.Pool) -> None:
    """Many items on both devices: none is lost or doubled, and every device gets its share."""
    assert list(pool.map("Mapped.square", range(3000))) == [n * n for n in range(3000)]
    devices = {device for device, _ in pool.map("Mapped.where", range(1000))}
    assert devices == {0, 1}


def test_no_items_give_no_results(pool: atomr_mp.Pool) -> None:
    """An empty input is over at once."""
    assert list(pool.map("Mapped.square", [])) == []


def test_items_are_taken_as_they_are_needed(pool: atomr_mp.Pool) -> None:
    """An endless input is no problem, and only a bounded part of it is ever ahead of the results."""
    taken = 0

    def count() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = pool.map("Mapped.square", count(), in_flight=8)
    assert [next(results) for _ in range(100)] == [n * n for n in range(1, 101)]
    assert taken <= 100 + 4 * 8 + 1


def test_killed_workers_cost_an_idempotent_map_nothing(pool: atomr_mp.Pool) -> None:
    """Both workers are killed in mid-map; every result comes, and the progress tells what happened."""
    seen: list[Progress] = []
    results = []
    for result in pool.map("Mapped.square", range(5000), on_progress=seen.append):
        results.append(result)
        if len(results) in {500, 2500}:
            os.kill(pool.devices[len(results) == 500].pid, signal.SIGKILL)
    assert results == [n * n for n in range(5000)]
    last = seen[-1]
    assert (last.done, last.failed, last.in_flight) == (5000, 0, 0)
    assert last.restarts == 2


def test_items_of_other_methods_run_at_most_once(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """An item that may have run when its worker died is not sent again and fails with that; all others succeed."""
    outcomes = list(pool.map("Mapped.note_or_die", range(400), return_failures=True, in_flight=20))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert 200 in [failure.index for failure in failures]
    for failure in failures:
        assert isinstance(failure.error, errors.WorkerLost)
        assert failure.error.maybe_executed
    assert len(outcomes) == 400
    runs = notes.runs()
    assert len(runs) == len(set(runs)), "something has run twice"
    assert set(map(int, runs)) >= {n for n in range(400) if not isinstance(outcomes[n], Failure)}


def test_item_that_kills_its_worker_fails_and_takes_no_other_along(pool: atomr_mp.Pool, notes: Ledger) -> None:
    """It runs three times, then its error comes in its place; the items around it succeed."""
    outcomes = list(pool.map("Mapped.die_at_7", range(60), return_failures=True, in_flight=6))
    failure = outcomes[7]
    assert isinstance(failure, Failure)
    assert failure.index == 7
    assert isinstance(failure.error, errors.WorkerLost)
    assert [n for n in outcomes if n is not failure] == [n for n in range(60) if n != 7]
    assert notes.runs().count("7") == 3


def test_error_of_an_item_is_raised_in_its_place(pool: atomr_mp.Pool) -> None:
    """The results before it come first; the error says which item it was."""
    results = pool.map("Mapped.refuse_3", range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(errors.ActorFailed) as raised:
        next(results)
    assert "item 3" in "".join(raised.value.__notes__)
    assert pool.call("Mapped.square", 3).result() == 9


def test_failures_are_yielded_if_asked_for(pool: atomr_mp.Pool) -> None:
    """An item that cannot be sent, and one that its actor refuses, come out as failures; the rest goes on."""
    outcomes = list(pool.map("Mapped.refuse_3", [1, object(), 3, 4], return_failures=True))
    assert outcomes[0] == 1
    assert outcomes[3] == 4
    unsendable, refused = outcomes[1:3]
    assert isinstance(unsendable.error, errors.InvalidRequest)
    assert (unsendable.index, unsendable.attempts) == (1, 0)
    assert isinstance(refused.error, errors.ActorFailed)
    assert (refused.index, refused.attempts) == (2, 1)


def test_error_of_the_input_comes_after_the_results_before_it(pool: atomr_mp.Pool) -> None:
    """An iterable that raises loses nothing of what it gave before."""

    def broken() -> Iterator[int]:
        yield from range(50)
        raise LookupError("the input is broken")

    results: list[int] = []
    with pytest.raises(LookupError, match="the input is broken"):
        results.extend(pool.map("Mapped.square", broken()))
    assert results == [n * n for n in range(50)]


def test_slow_input_does_not_hold_back_what_it_gave_before(pool: atomr_mp.Pool) -> None:
    """Results come while the input is slow, and not only once the items in flight reach their limit."""
    taken = 0

    def slow() -> Iterator[int]:
        nonlocal taken
        while True:
            time.sleep(0.005)  # an input that takes its time is what is tested
            if taken == 1:  # the worker's time is not
                assert settled(lambda: has_arrived(own))
            yield taken
            taken += 1

    with client_of(pool) as own:
        assert list(own.map("Mapped.square", [3])) == [9]  # its loop is connected from here on
        assert next(own.map("Mapped.square", slow(), in_flight=300)) == 0
    assert taken < 60


def completed(pool: atomr_mp.Pool) -> int:
    """Return how many requests the workers have completed."""
    return sum(worker.completed for worker in pool.status().devices)


def waiting(pool: atomr_mp.Pool) -> int:
    """Return how many requests the workers have received and not completed."""
    return sum(worker.queue_depth for worker in pool.status().devices)


def has_arrived(client: atomr_mp.Pool) -> bool:
    """Return whether an answer to a map waits to be read."""
    links = (link for lane in local_client(client)._loops.values() for link in lane._links)
    return bool(readable([link.connection for link in links if link.connection is not None], 0))


def test_slow_reader_loses_nothing(pool: atomr_mp.Pool) -> None:
    """Answers within their deadline count, however late they are read, even if their worker has died since."""
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while taken < 40:
            taken += 1
            yield taken - 1

    before = completed(pool)
    results = pool.map("Mapped.square", items(), in_flight=20, deadline_s=DEADLINE_S)
    assert next(results) == 0
    assert settled(lambda: completed(pool) > before and not waiting(pool))  # all that was sent; a read sends more
    killed = pool.devices[0]
    os.kill(killed.pid, signal.SIGKILL)
    wait_generation(pool, killed.generation + 1)
    assert list(results) == [n * n for n in range(1, 40)]


def test_maps_may_be_read_in_turn(pool: atomr_mp.Pool) -> None:
    """Two maps in one thread do not disturb each other, nor a call between."""
    together = zip(pool.map("Mapped.square", range(500)), pool.map("Mapped.where", range(500)), strict=True)
    for n, (square, (_, item)) in enumerate(together):
        assert (square, item) == (n * n, n)
        if n % 100 == 0:
            assert pool.call("Mapped.square", n).result() == n * n


def test_map_that_is_not_read_to_its_end_leaves_nothing(pool: atomr_mp.Pool) -> None:
    """What it had in flight is cancelled, and the next map runs as well as the first."""
    for _ in range(5):
        results = pool.map("Mapped.square", range(10**9))
        assert next(results) == 0
        del results
    assert list(pool.map("Mapped.square", range(100))) == [n * n for n in range(100)]


def test_pool_that_is_lost_fails_all_that_remains(ledger: Ledger) -> None:
    """Every remaining item comes out with `PoolLost`, and none waits for ever."""
    outcomes = []
    with (
        ledger.start(MAPPED, gpus=2) as pool,
        ledger.gate("gate") as gate,
    ):  # which nobody passes before the end is known
        items = ([gate.path if n == 200 else "", n] for n in range(3000))
        for outcome in pool.map("Mapped.pass_gate", items, return_failures=True, in_flight=16):
            outcomes.append(outcome)
            if len(outcomes) == 100:
                os.kill(pool.supervisor_pid, signal.SIGKILL)
    assert len(outcomes) == 3000
    assert isinstance(outcomes[-1].error, errors.PoolLost)
    assert all(isinstance(o, Failure) or o == n for n, o in enumerate(outcomes))
    ledger.start(MAPPED).close()  # the next start removes what a killed supervisor has left


def test_devices_that_all_stop_fail_all_that_remains(ledger: Ledger) -> None:
    """When all devices have stopped taking work, every remaining item comes out with `DeviceUnavailable`."""
    with ledger.start(MAPPED, gpus=1, max_restarts=0, give_up=True) as pool:
        outcomes = []
        for outcome in pool.map("Mapped.square", range(500), return_failures=True, in_flight=4):
            outcomes.append(outcome)
            if len(outcomes) == 100:
                os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert len(outcomes) == 500
        assert isinstance(outcomes[-1].error, errors.DeviceUnavailable)


def test_a_map_waits_for_the_trial_of_an_open_circuit(ledger: Ledger) -> None:
    """Items that no device takes now are sent once a device is started again."""
    with ledger.start(MAPPED, gpus=1, max_restarts=0, backoff_initial_s=0.0) as pool:
        outcomes = []
        for outcome in pool.map("Mapped.square", range(500), in_flight=4):
            outcomes.append(outcome)
            if len(outcomes) in {100, 200}:
                wait_state(pool, DeviceState.READY)
                os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert outcomes == [number * number for number in range(500)]
        assert (pool.devices[0].circuit, pool.devices[0].restarts) == (Circuit.HALF_OPEN, 2)


def test_more_in_flight_than_the_windows_admit_is_no_error(ledger: Ledger) -> None:
    """The map keeps to the windows by itself."""
    with ledger.start(MAPPED, gpus=2, window_requests=4) as pool:
        assert list(pool.map("Mapped.square", range(500), in_flight=100)) == [n * n for n in range(500)]


def test_closing_the_pool_ends_a_map_that_is_not_read(ledger: Ledger) -> None:
    """Reading on tells that the pool is gone."""
    with ledger.start(MAPPED) as pool:
        results = pool.map("Mapped.square", range(10**6))
        assert next(results) == 0
    with pytest.raises(errors.PoolLost):
        for _ in results:
            pass


def test_an_iterable_of_items_may_call_and_map_itself(pool: atomr_mp.Pool) -> None:
    """It runs in the reader's thread, which no event loop of the map takes from it."""
    items = (pool.call("Mapped.square", n).result() for n in range(3))
    assert list(pool.map("Mapped.square", items)) == [0, 1, 16]
    assert list(pool.map("Mapped.square", pool.map("Mapped.square", range(3)))) == [0, 1, 16]


def test_map_refuses_to_block_an_event_loop(pool: atomr_mp.Pool) -> None:
    """In a running loop it says what to do instead, and that works."""

    async def main() -> list[int]:
        with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
            next(pool.map("Mapped.square", [1]))
        return await asyncio.to_thread(lambda: list(pool.map("Mapped.square", range(100))))

    assert asyncio.run(main()) == [n * n for n in range(100)]


def test_wrong_calls_are_refused_at_once(pool: atomr_mp.Pool) -> None:
    """Not only when the first result is read."""
    with pytest.raises(errors.InvalidRequest, match=r"Mapped\.cube"):
        pool.map("Mapped.cube", [1])
    with pytest.raises(errors.InvalidRequest, match="attempts"):
        pool.map("Mapped.square", [1], attempts=0)
