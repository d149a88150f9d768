"""Carried clients through cuts: each call has one outcome and one run, arrays are whole, and nothing is left."""

from __future__ import annotations

import asyncio
import collections
import functools
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Final, Self

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests import remote as served
from tests.crash.remote.test_remote_lost import connect, runs, through
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, settled

ACTOR: Final = f"{ACTORS}/noting.py:Noting"
CUTS: Final = int(os.environ.get("ATOMR_MP_TEST_ROUNDS", "24"))
"""Cuts of the test under load; hours by a larger number."""

GRACE_S: Final = 0.5


class Load:
    """Counted calls from a thread and an event loop, and arrays in both directions, until it is stopped."""

    def __init__(self, pool: atomr_mp.Pool) -> None:
        self.pool = pool
        self.over = False
        self.calls = 0
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._do, args=(each,)) for each in (self._call, self._loop, self._echo, self._put)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over = True
        for thread in self._threads:
            thread.join()

    def goes_on(self, before: int) -> bool:
        """Return whether a call was made since there were so many, or something has failed."""
        return self.calls > before or bool(self.failures)

    def _do(self, use: Callable[[], None]) -> None:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - the main thread fails by it
            self.failures.append(error)

    def _tag(self) -> str:
        with self._lock:
            self.calls += 1
            return str(self.calls)

    def _call(self) -> None:
        flying: collections.deque[tuple[str, atomr_mp.Reply]] = collections.deque()
        while flying or not self.over:
            if not self.over:
                tag = self._tag()
                flying.append((tag, self.pool.call("Noting.once", tag, deadline_s=DEADLINE_S)))
            if self.over or len(flying) > 10:
                tag, reply = flying.popleft()
                assert reply.result() == tag

    def _loop(self) -> None:
        async def one() -> None:
            while not self.over:
                tag = self._tag()
                assert await self.pool.call("Noting.once", tag, deadline_s=DEADLINE_S) == tag

        async def arrays() -> None:
            number = 0.5
            while not self.over:
                number += 1
                content = np.full(150_000, number)
                found = await self.pool.call("Probe.echo", content, deadline_s=DEADLINE_S)
                np.testing.assert_array_equal(found, content)

        async def use() -> None:
            await asyncio.gather(one(), one(), arrays())

        asyncio.run(use())

    def _echo(self) -> None:
        number = 0
        while not self.over:
            number += 1
            content = np.full(3000, number, "float64")
            np.testing.assert_array_equal(
                self.pool.call("Probe.echo", content, deadline_s=DEADLINE_S).result(), content
            )

    def _put(self) -> None:
        number = 0
        while not self.over:
            number += 1
            content = np.full(250_000, number, "float64")
            ref = self.pool.device(0).put(content)
            np.testing.assert_array_equal(ref.numpy(), content)
            ref.free()


def test_cuts_are_not_noticed(ledger: Ledger) -> None:
    """Of all connections or of one, by RST and by FIN, after any byte: the session, its calls and its memory go on."""
    chance = random.Random(39)
    found = served.serve(ledger, ACTOR, PROBE)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        with Load(pool) as load:
            for _ in range(CUTS):
                before = load.calls
                match chance.choice(["all", "one", "after", "half"]):
                    case "all":
                        proxy.cut()
                    case "one":
                        proxy.cut_one(chance)
                    case "after":
                        proxy.cut_after = chance.randrange(1, 100_000)
                    case _:
                        proxy.half_close(chance.choice(["up", "down"]))
                assert settled(functools.partial(load.goes_on, before), DEADLINE_S)
                assert load.failures == []
        assert load.failures == []
        assert set(runs(ledger).values()) == {1}
        assert len(runs(ledger)) == load.calls
        remote = found.pool.status().remote
        assert remote is not None
        assert remote.restarts == 0
        assert pool.call("Noting.same", 1).result() == 1  # the last releases travel with it
        assert settled(lambda: found.pool.status().devices[0].leases == 0, DEADLINE_S)


def test_an_idle_client_comes_back_by_itself(ledger: Ledger) -> None:
    """It makes no call meanwhile, and the relay keeps its session for a short time only."""
    found = served.serve(ledger, ACTOR, remote_grace_s=2.0)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        ref = pool.device().put(np.ones(3))
        assert pool.call("Noting.once", "before").result() == "before"
        proxy.stalled = {"up", "down"}
        proxy.cut()
        assert settled(lambda: [each.connected for each in found.sessions] == [False], DEADLINE_S)
        proxy.heal()
        assert settled(lambda: [each.connected for each in found.sessions] == [True], DEADLINE_S)
        assert ref.numpy().sum() == 3
        assert pool.call("Noting.once", "after").result() == "after"


def test_calls_go_on_while_their_client_is_away(ledger: Ledger) -> None:
    """Their answers are there when it is back, also if their worker has ended meanwhile."""
    found = served.serve(ledger, ACTOR)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool, ledger.gate("held") as gate:
        pool.wait_ready()
        held = pool.call("Noting.hold", gate.path, "held")
        (worker,) = gate.wait()
        before = found.pool.status().devices[0].completed
        proxy.stalled = {"up", "down"}
        proxy.cut()
        gate.open()
        assert settled(lambda: found.pool.status().devices[0].completed > before, DEADLINE_S)
        os.kill(worker, signal.SIGKILL)
        assert settled(lambda: found.pool.devices[0].pid not in {0, worker}, DEADLINE_S)
        proxy.heal()
        assert held.result() == "held"
        assert pool.call("Noting.once", "next").result() == "next"


def test_who_is_away_for_too_long_has_lost_the_session(ledger: Ledger) -> None:
    """The pool gives its memory back; the client gets a typed error, though it cannot reach the relay."""
    found = served.serve(ledger, ACTOR, remote_grace_s=GRACE_S)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool, ledger.gate("held") as gate:
        pool.wait_ready()
        ref = pool.device().put(np.ones(3))
        late = pool.call("Noting.hold", gate.path, "late")
        gate.wait()
        assert settled(lambda: len(found.sessions) == 1, DEADLINE_S)
        proxy.stalled = {"up", "down"}
        proxy.cut()
        assert settled(lambda: not found.sessions, DEADLINE_S)
        gate.open()
        with pytest.raises(errors.PoolLost, match="could not be reached") as lost:
            late.result()
        assert lost.value.maybe_executed
        with pytest.raises(errors.PoolLost):
            pool.call("Noting.once", "never")
        assert settled(lambda: found.pool.status().devices[0].leases == 0, DEADLINE_S)
        del ref


def test_a_client_that_closes_while_it_is_cut_is_not_waited_for(ledger: Ledger) -> None:
    """It does not wait itself either, and its session ends at the latest when its grace is over."""
    found = served.serve(ledger, ACTOR, remote_grace_s=GRACE_S)
    with found.pool, through(found) as proxy:
        pool = connect(found, proxy)
        pool.wait_ready()
        assert settled(lambda: len(found.sessions) == 1, DEADLINE_S)
        proxy.stalled = {"up", "down"}
        proxy.cut()
        closing = threading.Thread(target=pool.close)
        closing.start()
        closing.join(DEADLINE_S)
        assert not closing.is_alive()
        assert settled(lambda: not found.sessions, DEADLINE_S)
