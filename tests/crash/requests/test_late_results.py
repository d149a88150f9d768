"""Large results that are read after their worker's end: an answer that was sent stays readable."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.testing import Kill, Poison
from tests.support import ACTORS, DEADLINE_S, Ledger, local_client, settled, standby_of, standby_pid, wait_generation

KEEPER: Final = f"{ACTORS}/keeper.py:Keeper"
ONCE, AGAIN = "Keeper.large", "Keeper.large_again"
COUNT: Final = 41_000
"""Elements of a large result: 320 KiB."""

OFTEN: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0, "max_suspicions": 0}


@pytest.fixture(scope="module", params=["none", "hot"])
def pool(request: pytest.FixtureRequest) -> Iterator[atomr_mp.Pool]:
    """A pool without a standby, or with one."""
    settings = OFTEN | {"standby": request.param, "hang_timeout_s": 0.3}
    with Ledger() as ledger, ledger.start(KEEPER, faults=[], **settings) as started:
        started.call(ONCE, COUNT).result()
        yield started


def kill(pool: atomr_mp.Pool) -> None:
    """End the worker by a signal."""
    os.kill(pool.devices[0].pid, signal.SIGKILL)


def restart(pool: atomr_mp.Pool) -> None:
    """Have it finish and leave."""
    pool.restart(0)


def poison(pool: atomr_mp.Pool) -> None:
    """Have it say that its context is lost."""
    with testing.inject(pool, at="enqueue", fault=Poison(), of="Keeper.kept_total"):
        assert isinstance(pool.call("Keeper.kept_total").exception(), errors.ContextPoisoned)


ENDS: Final[list[Callable[[atomr_mp.Pool], None]]] = [kill, restart, poison]


def right(result: Any) -> bool:
    """Return whether it is the result that was asked for."""
    return bool(np.array_equal(result, np.arange(float(COUNT))))


def ready(pool: atomr_mp.Pool) -> None:
    """Wait until the device answers, and what is to stand by does."""
    pool.call(ONCE, 1).result(DEADLINE_S)
    if standby_of(pool).mode == "hot":
        assert settled(lambda: standby_of(pool).state == "ready")


def kept(pool: atomr_mp.Pool, generation: int) -> int:
    """Return how many slabs of an incarnation the supervisor has open."""
    links = []
    for path in Path(f"/proc/{pool.supervisor_pid}/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except FileNotFoundError:
            continue
    return sum(f"-d0-g{generation} " in link for link in links)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("method", [ONCE, AGAIN])
def test_what_was_answered_is_read_after_its_worker_s_end(
    pool: atomr_mp.Pool, method: str, end: Callable[[atomr_mp.Pool], None]
) -> None:
    """Any end will do, also for calls that are never sent again. After the second reading the memory goes."""
    ready(pool)
    before = pool.devices[0].generation
    replies = [pool.call(method, COUNT) for _ in range(4)]
    assert all(reply.exception() is None for reply in replies)
    first = replies[0].result()
    end(pool)
    assert right(replies[1].result())  # just while it ends
    wait_generation(pool, before + 1)
    assert all(right(reply.result()) for reply in replies)
    assert right(replies[1].result())
    assert right(first)
    assert settled(lambda: kept(pool, before) <= 1)  # what was just handed over is not kept
    replies.clear()
    del first
    gc.collect()
    pool.call(ONCE, 1).result(DEADLINE_S)
    assert settled(lambda: pool.devices[0].state == "ready" and kept(pool, before) == 0)
    testing.assert_nothing_left(pool, DEADLINE_S)


def test_a_worker_is_not_asked_for_results_that_it_has_handed_in(pool: atomr_mp.Pool) -> None:
    """The supervisor has the descriptors: readers do not wait for a busy worker."""
    ready(pool)
    before = pool.devices[0]
    assert right(pool.call(ONCE, COUNT).result(DEADLINE_S))
    reply = pool.call(ONCE, COUNT)
    assert reply.exception() is None
    local_client(pool).memory._mappings.close_unused(local_client(pool)._session.releases(0, 1))
    with testing.inject(pool, at="export", fault=Kill()) as injected:
        assert right(reply.result(DEADLINE_S))
        assert injected.fired == []
    assert pool.devices[0].pid == before.pid
    del reply
    assert settled(lambda: pool.call(ONCE, 1).result() is not None and pool.device(0).statistics()["leases"] == 0)


def test_a_stopped_worker_that_is_killed_has_answered(pool: atomr_mp.Pool) -> None:
    """A question to it waits in its channel, and its end answers it."""
    ready(pool)
    before = pool.devices[0]
    reply = pool.call(ONCE, COUNT)
    assert reply.exception() is None
    os.kill(before.pid, signal.SIGSTOP)
    found: list[Any] = []
    reading = Thread(target=lambda: found.append(reply.result()))
    reading.start()
    os.kill(before.pid, signal.SIGKILL)
    reading.join(DEADLINE_S)
    assert right(found[0])
    wait_generation(pool, before.generation + 1)


def test_loops_and_maps_read_what_was_answered(pool: atomr_mp.Pool) -> None:
    """Results that arrive in an event loop, while another thread hears of the end."""
    ready(pool)
    before = pool.devices[0].generation

    async def use() -> None:
        replies = [pool.call(ONCE, COUNT) for _ in range(4)]
        arrived = asyncio.Semaphore(0)
        for reply in replies:
            reply.add_done_callback(lambda _: arrived.release())
        for _ in replies:
            await arrived.acquire()
        kill(pool)
        await asyncio.to_thread(wait_generation, pool, before + 1)
        for reply in replies:
            assert right(await reply)

    asyncio.run(use())
    kill(pool)
    assert all(map(right, pool.map(AGAIN, [COUNT] * 6, in_flight=3)))


def test_a_session_s_results_go_with_it(pool: atomr_mp.Pool) -> None:
    """A closed client that had not read them."""
    ready(pool)
    before = pool.devices[0].generation
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        other.wait_ready()
        reply = other.call(ONCE, COUNT)
        assert reply.exception() is None
        kill(pool)
        wait_generation(pool, before + 1)
        assert settled(lambda: kept(pool, before) >= 1)
    assert settled(lambda: len(pool.call(ONCE, 1).result()) == 1 and kept(pool, before) == 0)
    with pytest.raises(errors.PoolLost, match="ran"):
        reply.result()


def test_a_standby_has_the_slabs_of_those_who_read_large_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are mapped before it takes over, without a question. A standby that is lost leaves none mapped."""
    with Ledger() as ledger, ledger.start(KEEPER, faults=[], **OFTEN, standby="hot") as pool:
        memory, asked = local_client(pool).memory, list[object]()
        ask = memory._ask

        def counted(*question: Any, **options: Any) -> Any:
            asked.append(question)
            return ask(*question, **options)

        monkeypatch.setattr(memory, "_ask", counted)
        assert right(pool.call(ONCE, COUNT).result())
        assert len(asked) == 1
        ready(pool)
        assert settled(lambda: offered(pool))
        os.kill(standby_pid(pool), signal.SIGKILL)
        assert settled(lambda: not offered(pool))
        for end in (restart, poison):
            ready(pool)
            assert settled(lambda: offered(pool))
            before = pool.devices[0].generation
            end(pool)
            wait_generation(pool, before + 1)
            asked.clear()
            assert right(pool.call(AGAIN, COUNT).result())
            assert asked == []
            assert settled(lambda: min(mapped(pool)) == pool.devices[0].generation)
        assert pool.device(0).statistics()["open_elsewhere"] == 1
        testing.assert_nothing_left(pool, DEADLINE_S)


def mapped(pool: atomr_mp.Pool) -> set[int]:
    """Return the incarnations whose slabs this client has mapped."""
    return {releases.generation for releases, _ in local_client(pool).memory._mappings._mapped}


def offered(pool: atomr_mp.Pool) -> bool:
    """Return whether this client has slabs of a standby."""
    pool._client.read_session()
    return max(mapped(pool), default=0) > pool.devices[0].generation
