"""Workers that are replaced although they are well: callers do not notice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import atomr_mp
from atomr_mp.process.files.events import read_events
from atomr_mp.supervisor.care.recycler import LOOK_S
from tests.support import Ledger, settled, wait_generation

CALLS = 250
IN_FLIGHT = 5


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """Return a pool's events of a kind."""
    return [event for event in read_events(run_dir / "events.jsonl") if event["event"] == name]


class Caller(threading.Thread):
    """A client of its own that makes calls, a few at a time."""

    def __init__(self, run_dir: Path, name: str, device: int | None = None) -> None:
        super().__init__()
        self._run_dir = run_dir
        self._tag = name
        self._device = device
        self.failed: list[BaseException] = []
        self.answers: list[str] = []
        self.enough = threading.Event()

    def run(self) -> None:
        """Call."""
        with atomr_mp.connect(run_dir=self._run_dir) as pool:
            pool.wait_ready()
            number = 0
            while number < CALLS or not self.enough.is_set():
                tags = [f"{self._tag}-{each}" for each in range(number, number + IN_FLIGHT)]
                number += IN_FLIGHT
                replies = [pool.call("Probe.note", tag, device=self._device) for tag in tags]
                for reply in replies:
                    error = reply.exception()
                    if error is None:
                        self.answers.append(reply.result())
                    else:
                        self.failed.append(error)


def test_a_recycle_by_requests_is_not_noticed(ledger: Ledger) -> None:
    """At least 500 calls of two clients, to a worker that is replaced meanwhile: each is answered, and ran once."""
    with ledger.start(gpus=1, max_requests=50) as pool:
        callers = [Caller(pool.run_dir, name) for name in ("one", "two")]
        for caller in callers:
            caller.start()
        try:
            wait_generation(pool, 3)
        finally:
            for caller in callers:
                caller.enough.set()
                caller.join()
        assert [caller.failed for caller in callers] == [[], []]
        answers = [answer for caller in callers for answer in caller.answers]
        assert len(answers) >= 2 * CALLS
        assert Counter(ledger.runs()) == Counter(answers)
        assert pool.devices[0].restarts == 0
        told = events(pool.run_dir, "recycle")
        assert told
        assert "(max_requests 50)" in told[0]["text"]
        assert not events(pool.run_dir, "end")


def test_a_buffer_that_a_client_holds_delays_a_recycle(ledger: Ledger) -> None:
    """The ref is good until it is given back; then the worker goes."""
    with ledger.start(gpus=1, max_requests=5) as pool:
        wait_generation(pool, 1)
        ref = pool.device().full((10,), 7, "int32")
        generation = ref.generation
        assert settled(lambda: pool.status().devices[0].leases == 1)
        for _ in range(10):
            assert pool.call("Probe.echo", 1).result() == 1
        time.sleep(4 * LOOK_S)  # nothing has to happen, and no event can tell that
        assert pool.devices[0].generation == generation
        assert ref.numpy().tolist() == [7] * 10
        ref.free()
        pool.call("Probe.echo", 1).result()  # which takes what was given back along
        wait_generation(pool, generation + 1)


def test_a_standby_takes_a_recycled_worker_s_place(ledger: Ledger) -> None:
    """The next one is not recycled before another stands behind it, and each has its own age."""
    with ledger.start(gpus=1, standby="hot", max_age_s=2.0) as pool:
        wait_generation(pool, 3)
        run_dir = pool.run_dir
    kinds = [
        event["event"]
        for event in read_events(run_dir / "events.jsonl")
        if event["event"] in {"ready", "recycle", "promoted", "standby_ready"}
    ]
    assert kinds[:7] == ["ready", "standby_ready", "recycle", "promoted", "standby_ready", "recycle", "promoted"]
    # By generation: the stop ends the third, and maybe a standby, in whatever order.
    ages = {event["generation"]: float(event.get("age_s") or 0) for event in events(run_dir, "planned_end")}
    assert all(ages[generation] >= 1.6 for generation in (1, 2))
    assert all(0 <= event["away_s"] < event["took_s"] for event in events(run_dir, "promoted"))


def test_devices_are_recycled_one_after_the_other(ledger: Ledger) -> None:
    """At no time are two away."""
    with ledger.start(gpus=2, max_age_s=1.0) as pool:
        for device in range(2):
            wait_generation(pool, 3, device)
        run_dir = pool.run_dir
    away: set[int] = set()
    for event in read_events(run_dir / "events.jsonl"):
        if event["event"] == "pool_stop":
            break
        if event["event"] == "recycle":
            away.add(int(event["device"] or 0))
            assert len(away) == 1
        elif event["event"] == "ready":
            away.discard(int(event["device"] or 0))
