"""A world loses members, clients and epochs amid batches: each request is answered once and truthfully."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S
from tests.worlds import pools_that_recover, ready_world

WORLDLY = f"{ACTORS}/worldly.py:Worldly"
LOST = errors.CollectiveAborted | errors.WorkerLost


pool = pools_that_recover(WORLDLY)


@pytest.fixture
def world(pool: atomr_mp.Pool) -> Any:
    """The world, ready."""
    found = ready_world(pool)
    found.call("Worldly.forget", deadline_s=DEADLINE_S).result(DEADLINE_S)
    return found


def counts_of(world: Any, rank: int) -> Counter[int]:
    """Return how often a rank, whose process has stayed, has run each request."""
    batches = world.call("Worldly.batched", each=True, deadline_s=DEADLINE_S).result(DEADLINE_S)[rank]
    return Counter(number for batch in batches for number in batch)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("method", ["together", "together_once"])
def test_a_member_that_is_killed_amid_a_batch(
    pool: atomr_mp.Pool, world: Any, tmp_path: Path, rank: int, method: str
) -> None:
    """Idempotent requests are answered; others end typed if they have run, and run once if they have not."""
    stays = (rank + 1) % 3
    pid = pool.devices[stays].pid
    way = f"kills {rank} {tmp_path / 'once'}"
    replies = [world.call(f"Worldly.{method}", n, way if n == 20 else "", deadline_s=DEADLINE_S) for n in range(40)]
    outcomes = [reply.exception(DEADLINE_S) for reply in replies]
    assert pool.devices[stays].pid == pid
    counts = counts_of(world, stays)
    for n, (reply, error) in enumerate(zip(replies, outcomes, strict=True)):
        if error is None:
            assert reply.result() == 6 * n
            assert counts[n] >= 1
        else:
            assert method == "together_once"
            assert isinstance(error, LOST)
            assert error.maybe_executed or not counts[n]
        assert method == "together" or counts[n] <= 1
    assert (outcomes[20] is None) == (method == "together")


@pytest.mark.parametrize("rank", [0, 2])
def test_a_member_that_hangs_amid_a_batch(pool: atomr_mp.Pool, world: Any, tmp_path: Path, rank: int) -> None:
    """It is replaced, and those that wait for it have more patience."""
    before = [device.pid for device in pool.devices]
    way = f"hangs {rank} {tmp_path / 'once'}"
    replies = [world.call("Worldly.together", n, way if n == 3 else "", deadline_s=DEADLINE_S) for n in range(20)]
    assert [reply.result(DEADLINE_S) for reply in replies] == [6 * n for n in range(20)]
    after = [device.pid for device in pool.devices]
    assert [at for at in range(3) if after[at] != before[at]] == [rank]


def test_members_that_are_replaced_as_planned_cost_no_request(pool: atomr_mp.Pool, world: Any) -> None:
    """A restart, and a reload: batches that were published run, all others go to the next epoch."""
    number, replies = 0, []
    for order in (lambda: pool.restart(1), lambda: pool.restart(0), lambda: pool.reload(DEADLINE_S)):
        epoch = world.epoch
        order()
        until_s = time.monotonic() + DEADLINE_S
        while world.epoch == epoch or world.state != "ready":
            assert time.monotonic() < until_s
            for _ in range(10):
                replies.append((number, world.call("Worldly.together_once", number, "", deadline_s=DEADLINE_S)))
                number += 1
            replies[-1][1].result(DEADLINE_S)
    assert [reply.result(DEADLINE_S) for _, reply in replies] == [6 * n for n, _ in replies]


CLIENT = """
import os, signal, sys
import atomr_mp
from atomr_mp.client.lanes.gangs import Gangs

def put(self, gang, parts):  # sends the parts of all ranks but 0, as if it ended between two of them
    name = parts[0].gang
    gang.parts, gang.outstanding, gang.epoch = parts, len(parts), name.epoch
    for part in parts[1:]:
        self._sender.put(self._links[part.device], part)
        self._sender.flush(self._links[part.device])

with atomr_mp.connect(run_dir=sys.argv[1]) as pool:
    world = pool.world("tp")
    world.wait_ready()
    whole = [world.call("Worldly.together_once", n, "") for n in range(1000, 1020)]
    Gangs._put = put
    for n in range(2000, 2020):
        world.call("Worldly.together_once", n, "")
    print("sent", flush=True)
    sys.stdin.read()
"""


def test_a_client_that_is_killed_with_half_of_its_parts_sent(pool: atomr_mp.Pool, world: Any) -> None:
    """What has come to some only runs nowhere; another client's batches do not wait for it."""
    command = [sys.executable, "-c", CLIENT, str(pool.run_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"sent\n"
            replies = [world.call("Worldly.together", n, "", deadline_s=DEADLINE_S) for n in range(20)]
            client.kill()
            replies += [world.call("Worldly.together", n, "", deadline_s=DEADLINE_S) for n in range(20, 40)]
            assert [reply.result(DEADLINE_S) for reply in replies] == [6 * n for n in range(40)]
        finally:
            client.kill()
    batches = world.call("Worldly.batched", each=True, deadline_s=DEADLINE_S).result(DEADLINE_S)
    assert batches[0] == batches[1] == batches[2]
    counts = Counter(number for batch in batches[0] for number in batch)
    assert not any(counts[n] for n in range(2000, 2020))
    assert not any(counts[n] > 1 for n in range(1000, 1020))


def test_random_kills_under_load(pool: atomr_mp.Pool, world: Any) -> None:
    """Each idempotent request is answered rightly, each other one once or typed."""
    chosen, until_s, number = random.Random(5), time.monotonic() + 6, 0
    while time.monotonic() < until_s:
        calls = [(n, chosen.choice(["together", "together_once", "by_key"])) for n in range(number, number + 30)]
        number += 30
        replies = [world.call(f"Worldly.{method}", n, "", deadline_s=DEADLINE_S) for n, method in calls]
        victim = pool.devices[chosen.randrange(3)].pid
        if victim and chosen.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # without a standby it may be dead still
                os.kill(victim, signal.SIGKILL)
        for (n, method), reply in zip(calls, replies, strict=True):
            error = reply.exception(DEADLINE_S)
            assert error is None or (method != "together" and isinstance(error, LOST)), error
            assert error is not None or reply.result() == 6 * n
    assert number
