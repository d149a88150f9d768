"""Gang calls of remote clients while connections are cut, and relays and members die: one outcome each, and a true one.

All ranks have run the same calls, in the same order, and none twice that must not.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any, Final, Self

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests import remote as served
from tests.crash.remote.test_relay_killed import kill_relay
from tests.crash.remote.test_remote_lost import connect, through
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import on_host

WORLDLY: Final = f"{ACTORS}/worldly.py:Worldly"
SIZE: Final = 2
SUM: Final = sum(range(1, SIZE + 1))
CUTS: Final = 12
KILLS: Final = 5
LONG: Final = 50_000
"""So many elements lie in shared memory."""

pytestmark = on_host


def serve(ledger: Ledger, **more: Any) -> served.Served:
    """Start a pool with a world behind a relay."""
    worlds = {"tp": {"devices": list(range(SIZE)), "actors": ["Worldly"], "begin_timeout_s": 2.0}}
    settings: dict[str, Any] = {"standby": "hot", "max_restarts": 1000, "backoff_initial_s": 0.0, **more}
    return served.serve(ledger, WORLDLY, gpus=SIZE, worlds=worlds, **settings)


class Load:
    """Gang calls from a thread and from an event loop, until it is stopped."""

    def __init__(self, pool: atomr_mp.Pool) -> None:
        self._pool = pool
        self._world = pool.world("tp")
        self._numbers = itertools.count()
        self._over = False
        self.calls = 0
        self.failed: list[BaseException] = []
        self.answered: set[int] = set()
        self.lost: dict[int, errors.RequestError] = {}
        self._threads = [
            threading.Thread(target=self._do, args=(each,)) for each in (self._notes, self._adds, self._loop)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over = True
        for thread in self._threads:
            thread.join(2 * DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def go_on(self, calls: int) -> None:
        """Wait until so many further calls have an outcome."""
        enough = self.calls + calls
        assert settled(lambda: self.calls >= enough or bool(self.failed), 2 * DEADLINE_S)
        assert self.failed == []

    def check(self, logs: list[list[int]]) -> None:
        """Compare the notes of the ranks with each other, and with the outcomes of the calls."""
        # The end of an epoch may find a call begun on some ranks only.
        unsure = {number for number, error in self.lost.items() if error.maybe_executed}
        everywhere = set.intersection(*map(set, logs))
        orders = [[number for number in log if number in everywhere] for log in logs]
        assert all(order == orders[0] for order in orders)
        for log in logs:
            assert len(set(log)) == len(log)
            assert set(log) - everywhere <= unsure
            assert self.answered <= set(log)
            assert not (set(self.lost) - unsure) & set(log)

    def _do(self, use: Callable[[], None]) -> None:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - the main thread fails by it
            self.failed.append(error)

    def _notes(self) -> None:
        """Have numbers noted, each once at most; some meet."""
        flying: list[tuple[int, Any]] = []
        while flying or not self._over:
            if not self._over:
                number = next(self._numbers)
                reply = self._world.call("Worldly.note", number, number % 3 == 0, deadline_s=DEADLINE_S, wait=True)
                flying.append((number, reply))
            if self._over or len(flying) > 8:
                number, reply = flying.pop(0)
                try:
                    assert reply.result(DEADLINE_S) == number
                    self.answered.add(number)
                except (errors.ConnectionLost, errors.CollectiveAborted, errors.WorkerLost) as error:
                    self.lost[number] = error
                self.calls += 1

    def _adds(self) -> None:
        """Send arrays that lie in shared memory, and read such."""
        number = 0.0
        while not self._over:
            number += 1
            x = np.full(LONG, number)
            reply = self._world.call("Worldly.add", x, each=number % 2 == 0, deadline_s=DEADLINE_S)
            for found in np.asarray(reply.result(DEADLINE_S)).reshape(-1, LONG):
                np.testing.assert_array_equal(found, SUM * x)
            self.calls += 1

    def _loop(self) -> None:
        async def one(factor: float) -> None:
            number = 0.0
            while not self._over:
                number += factor
                x = np.full(LONG if factor > 1 else 3, number)
                found = await self._pool.world("tp").call("Worldly.add", x, deadline_s=DEADLINE_S)
                np.testing.assert_array_equal(found, SUM * x)
                self.calls += 1

        async def use() -> None:
            await asyncio.gather(one(1.0), one(0.5), one(2.0))

        asyncio.run(use())


def noted(pool: atomr_mp.Pool) -> list[list[int]]:
    """Return what each rank has noted."""
    found: list[list[int]] = pool.world("tp").call("Worldly.noted", each=True, deadline_s=DEADLINE_S).result(DEADLINE_S)
    return found


def test_cuts_are_not_noticed(ledger: Ledger) -> None:
    """Of all connections or of one, after any byte: every call is answered, and the world keeps its epoch."""
    chance = random.Random(5)
    found = serve(ledger)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.world("tp").wait_ready(DEADLINE_S)
        epoch = found.pool.world("tp").epoch
        with Load(pool) as load:
            for _ in range(CUTS):
                match chance.choice(["all", "one", "after", "half"]):
                    case "all":
                        proxy.cut()
                    case "one":
                        proxy.cut_one(chance)
                    case "after":
                        proxy.cut_after = chance.randrange(1, 100_000)
                    case _:
                        proxy.half_close(chance.choice(["up", "down"]))
                load.go_on(10)
        assert load.failed == []
        assert load.lost == {}
        load.check(noted(pool))
        assert found.pool.world("tp").epoch == epoch
        assert settled(lambda: all(each.leases == 0 for each in found.pool.status().devices), DEADLINE_S)


def test_relays_die_amid_gang_calls(ledger: Ledger) -> None:
    """What may run twice is answered; all else is answered, or says whether it may have run."""
    found = serve(ledger)
    with found.pool, found.connect(max_replays=100) as pool:
        pool.world("tp").wait_ready(DEADLINE_S)
        pids = [device.pid for device in found.pool.devices]
        with Load(pool) as load:
            for _ in range(KILLS):
                load.go_on(20)
                kill_relay(found)
            load.go_on(20)
        assert load.failed == []
        assert pool.lost is None
        load.check(noted(found.pool))
        load.check(noted(pool))
        assert [device.pid for device in found.pool.devices] == pids, "no member was lost with a relay"
        assert settled(lambda: all(each.leases == 0 for each in found.pool.status().devices), DEADLINE_S)


@pytest.mark.parametrize("first", ["relay", "member"])
def test_a_relay_and_a_member_die_together(ledger: Ledger, first: str) -> None:
    """The client hears of the world's next epoch when it is back, and no call waits for ever."""
    found = serve(ledger)
    with found.pool, found.connect(max_replays=100) as pool:
        pool.world("tp").wait_ready(DEADLINE_S)
        with Load(pool) as load:
            for kill in range(KILLS):
                load.go_on(20)
                victims = [found.pid, found.pool.devices[kill % SIZE].pid]
                for pid in victims if first == "relay" else reversed(victims):
                    os.kill(pid or 0, signal.SIGKILL)
                assert settled(functools.partial(_is_another, found, victims[0]), DEADLINE_S)
                found.pool.wait_ready(DEADLINE_S)
            load.go_on(20)
        assert load.failed == []
        assert pool.lost is None
        assert pool.world("tp").epoch == found.pool.world("tp").epoch


def _is_another(found: served.Served, pid: int | None) -> bool:
    return found.pid not in {0, pid}


CALLER: Final = """
import sys, atomr_mp, numpy as np
with atomr_mp.connect(sys.argv[1], keys=sys.argv[2]) as pool:
    world = pool.world("tp")
    world.wait_ready(30)
    for number in range(10**9):
        replies = [world.call("Worldly.add", np.full(50_000, number), deadline_s=30) for _ in range(4)]
        if number == 3:
            print("calling", flush=True)
        for reply in replies:
            reply.result()
"""


def test_a_remote_client_that_is_killed_holds_nobody_up(ledger: Ledger) -> None:
    """Its parts that have come to some ranks only run nowhere, and its memory comes back."""
    found = serve(ledger, remote_grace_s=0.5)
    with found.pool:
        world = found.pool.world("tp")
        for _ in range(KILLS):
            with served.client_process(found, CALLER, "calling") as client:
                client.kill()
                client.wait(DEADLINE_S)
                for number in range(10):
                    assert world.call("Worldly.add", float(number), deadline_s=DEADLINE_S).result() == SUM * number
        assert settled(lambda: not found.sessions, DEADLINE_S)
        assert settled(lambda: all(each.leases == 0 for each in found.pool.status().devices), DEADLINE_S)


def test_an_epoch_that_forms_while_the_client_is_away_is_known_when_it_is_back(ledger: Ledger) -> None:
    """Of a cut client, and its calls have one outcome; no call is sent to an epoch that is over."""
    found = serve(ledger)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        world = pool.world("tp")
        world.wait_ready(DEADLINE_S)
        epoch = found.pool.world("tp").epoch
        proxy.stalled = {"up", "down"}
        proxy.cut()
        reply = world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S)
        os.kill(found.pool.devices[1].pid or 0, signal.SIGKILL)
        assert settled(lambda: found.pool.world("tp").epoch > epoch, DEADLINE_S)
        found.pool.world("tp").wait_ready(DEADLINE_S)
        proxy.heal()
        assert reply.result(DEADLINE_S) == SUM
        assert world.epoch == found.pool.world("tp").epoch


def test_a_world_that_a_client_has_made_outlives_the_relay(ledger: Ledger) -> None:
    """As the session and its refs do."""
    found = serve(ledger)
    with found.pool, found.connect() as remote, remote.world([0, 1]) as world:
        refs = [remote.device(device).put(np.arange(5.0)) for device in world.devices]
        before = world.epoch
        kill_relay(found)
        assert all(ref.numpy().shape == (5,) for ref in refs), "both devices are connected again"
        world.wait_ready(DEADLINE_S)
        sums = world.all_reduce(refs, deadline_s=DEADLINE_S).result(DEADLINE_S)
        np.testing.assert_array_equal(sums[1].numpy(), 2 * np.arange(5.0))
        assert world.epoch >= before
