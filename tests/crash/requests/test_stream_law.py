"""The law of streams: what arrived is delivered, in order, once; then the end, or the error. Under all faults at once.

Readers of every kind, in this machine's processes and by `tcp://`, in threads and in event loops, read numbers while
workers and the relay are killed or stopped, and connections are cut at any byte. Each part is compared with the one
that has to come. `ATOMR_MP_TEST_ROUNDS` makes it a matter of hours, and `ATOMR_MP_TEST_SEED` another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from tests import remote as served
from tests.actors.counting import Count
from tests.crash.remote.test_remote_lost import connect, through
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.tcp_proxy import Proxy, faults

ACTORS_READ: Final = f"{ACTORS}/counting.py:Counting", f"{ACTORS}/counting.py:CountingLoop"
ROUNDS: Final = int(os.environ.get("ATOMR_MP_TEST_ROUNDS", "1"))
SEED: Final = int(os.environ.get("ATOMR_MP_TEST_SEED", "25"))
ROUND_S: Final = 3.0
MOST: Final = 150
"""Parts of a stream, at most."""

ONCE: Final = ("Counting.plain",)
AGAIN: Final = ("Counting.again", "CountingLoop.again")
RESUMED: Final = ("Counting.start", "Counting.sent", "Counting.together", "CountingLoop.start", "CountingLoop.sent")
METHODS: Final = ONCE + AGAIN + RESUMED

LOST: Final = (errors.WorkerLost, errors.ConnectionLost)
"""Errors that a stream may end with if it does not go on elsewhere."""


class Reading:
    """One stream, and what has come of it.

    Args:
        chance: For what is random.
        counts: Takes what is counted.
    """

    def __init__(self, chance: random.Random, counts: Counter[str]) -> None:
        self.method: Final = chance.choice(METHODS)
        self.upto: Final = chance.randint(0, MOST)
        self.options: Final[dict[str, Any]] = {
            "ahead": chance.choice([1, 3, 16, 64]),
            "ahead_bytes": chance.choice([4, 16 * 2**20]),
            "first_s": 4 * DEADLINE_S,
            "between_s": 4 * DEADLINE_S,
        }
        self.leaves_at: Final = chance.randint(0, MOST) if chance.random() < 0.1 else self.upto + 1
        self.slow_at: Final = chance.randint(0, MOST)
        self.read = 0
        self._counts = counts

    def open(self, pool: atomr_mp.Pool) -> atomr_mp.ReplyStream:
        """Open it."""
        argument = Count(self.upto) if self.method == "Counting.together" else self.upto
        return pool.stream(self.method, argument, **self.options)

    def take(self, part: int) -> bool:
        """Compare a part; return whether the reader leaves."""
        assert part == self.read, f"part {part} of {self.method} where {self.read} would come"
        assert part < self.upto
        self.read += 1
        self._counts["parts"] += 1
        return self.read == self.leaves_at

    def end(self, stream: atomr_mp.ReplyStream, result: Any) -> None:
        """Compare what it has ended with."""
        assert stream.parts == self.read == self.upto, f"{self.method} ended at {self.read} of {self.upto}"
        assert result == (None if self.method.startswith("CountingLoop") else self.upto)
        self._counts[f"{self.method} ended"] += 1

    def fail(self, error: errors.AtomrError) -> None:
        """Compare the error that it has ended with, which is one of those that a stream of its kind may have."""
        assert error.parts == self.read, f"{error!r} of {self.method} tells of {error.parts} parts, {self.read} came"
        assert isinstance(error, LOST), f"{self.method} ended with {error!r}"
        assert self.method not in RESUMED, f"{self.method} did not go on: {error!r}"
        assert not (self.method in AGAIN and self.read == 0), f"{self.method} did not begin again: {error!r}"
        self._counts[f"{self.method} lost ({error.code})"] += 1


def read_in_thread(pool: atomr_mp.Pool, reading: Reading) -> None:
    """Read a stream in this thread."""
    try:
        with reading.open(pool) as stream:
            for part in stream:
                if reading.take(part):
                    return
                if reading.read == reading.slow_at:
                    time.sleep(0.1)  # a reader that is slow for once
            reading.end(stream, stream.result())
    except errors.AtomrError as error:
        reading.fail(error)


async def read_in_loop(pool: atomr_mp.Pool, reading: Reading) -> None:
    """Read a stream in this event loop."""
    try:
        async with reading.open(pool) as stream:
            async for part in stream:
                if reading.take(part):
                    return
                if reading.read == reading.slow_at:
                    await asyncio.sleep(0.1)  # a reader that is slow for once
            reading.end(stream, await stream)
    except errors.AtomrError as error:
        reading.fail(error)


class Readers:
    """Threads that read streams of some pools until they are stopped.

    Args:
        pools: By name.
        counts: Takes what is counted.
        seed: Of their choices.
    """

    def __init__(self, pools: dict[str, atomr_mp.Pool], counts: Counter[str], seed: int) -> None:
        self._counts = counts
        self._over = threading.Event()
        self._wrong: list[BaseException] = []
        chance = random.Random(seed)
        self._threads = [
            threading.Thread(target=self._run, args=(use, pool, chance.random()), name=f"{name}-{use.__name__}")
            for name, pool in pools.items()
            for use in (self._in_loop, *[self._in_thread] * 3)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_well(self) -> bool:
        """Whether nothing was wrong until now."""
        return not self._wrong

    def stop(self) -> None:
        """Let each end with what it reads; raise what was wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join(8 * DEADLINE_S)
            assert not thread.is_alive(), f"{thread.name} waits for ever"
        for wrong in self._wrong:
            raise wrong

    def _run(self, use: Callable[[atomr_mp.Pool, random.Random], None], pool: atomr_mp.Pool, seed: float) -> None:
        chance = random.Random(seed)
        try:
            while not self._over.is_set() and self.is_well:
                use(pool, chance)
        except BaseException as error:  # noqa: BLE001 - raised to the test
            self._wrong.append(error)

    def _in_thread(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        read_in_thread(pool, Reading(chance, self._counts))

    def _in_loop(self, pool: atomr_mp.Pool, chance: random.Random) -> None:
        async def use() -> None:
            await asyncio.gather(*(read_in_loop(pool, Reading(chance, self._counts)) for _ in range(6)))

        asyncio.run(use())


class Faults:
    """What is done to a pool.

    Args:
        found: The pool.
        proxy: What its remote client comes through.
        chance: For what is random.
        counts: Takes what is counted.
    """

    def __init__(self, found: served.Served, proxy: Proxy, chance: random.Random, counts: Counter[str]) -> None:
        self._found = found
        self._proxy = proxy
        self._chance = chance
        self._counts = counts

    def strike(self) -> None:
        """Do one thing."""
        match self._chance.choice(["network", "network", "network", "worker", "relay", "relay", "stop"]):
            case "network":
                self._proxy.heal()
                self._chance.choice(faults(self._proxy, self._chance))()
                self._counts["faults of the network"] += 1
            case "worker":
                device = self._chance.choice(self._found.pool.devices)
                with contextlib.suppress(ProcessLookupError, errors.DeviceUnavailable):  # it has ended already
                    os.kill(device.pid, signal.SIGKILL)
                    self._counts["workers killed"] += 1
            case what:
                remote = self._found.pool.status().remote
                if remote is None or not remote.listening:
                    return
                if what == "relay":
                    os.kill(remote.pid, signal.SIGKILL)
                    self._counts["relays killed"] += 1
                else:
                    self._stop(remote.pid)

    def _stop(self, pid: int) -> None:
        """Stop the relay for a time, sometimes longer than both ends take a silence for a cut."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._chance.choice([0.05, 0.3, 2.0]))  # that is the fault
            os.kill(pid, signal.SIGCONT)
            self._counts["relays stopped"] += 1


@pytest.mark.timeout(120 + ROUNDS * 60)
def test_what_arrived_is_delivered_in_order_once_then_the_end(ledger: Ledger) -> None:
    """Whatever is killed, stopped or cut; and afterwards nothing is open, held or kept."""
    chance, counts = random.Random(SEED), Counter[str]()
    found = served.serve(
        ledger, *ACTORS_READ, gpus=2, max_restarts=10**6, within_s=1.0, backoff_initial_s=0.0, max_replays=100
    )
    with found.pool, through(found) as proxy, connect(found, proxy) as remote:
        remote.wait_ready()
        for number in range(ROUNDS):
            readers = Readers({"local": found.pool, "remote": remote}, counts, SEED + number)
            try:
                struck = Faults(found, proxy, chance, counts)
                until_s = time.monotonic() + ROUND_S
                while time.monotonic() < until_s and readers.is_well:
                    time.sleep(chance.uniform(0.02, 0.4))  # faults come at any time
                    struck.strike()
            finally:
                proxy.heal()
                readers.stop()
            _expect_rest(found, remote)
    logging.getLogger(__name__).info("%s", dict(sorted(counts.items())))
    assert counts["parts"] > 0
    assert sum(count for name, count in counts.items() if name.endswith("ended")) > 0


def _expect_rest(found: served.Served, remote: atomr_mp.Pool) -> None:
    """See that every method streams, and then that nothing is open, held or kept."""
    served.listening(found.pool)
    for pool in (found.pool, remote):
        pool.wait_ready(DEADLINE_S)
        for method in METHODS:
            argument = Count(5) if method == "Counting.together" else 5
            assert list(pool.stream(method, argument)) == list(range(5))

    def rests() -> bool:
        status = found.pool.status()
        return not remote._client.unanswered and not any(
            worker.queue_depth or worker.leases for worker in status.devices
        )

    assert settled(rests, DEADLINE_S), found.pool.status()
