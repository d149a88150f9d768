"""Children that an actor's code forks, and that come back from it: the worker alone goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp_workers.own_process import FORKED_STATUS
from tests.support import ACTORS, DEADLINE_S, Ledger, parts_of

FORKING = f"{ACTORS}/forking.py:Forking"
CALLS = ("loop", "thread", "awaits", "task", "batch", "key", "argument")
STREAMS = ("stream", "async_stream", "steps")


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool, whose worker lives through all of it."""
    with Ledger() as ledger, ledger.start(FORKING, drain_timeout_s=2.0) as started:
        yield started


@pytest.mark.parametrize("how", ["return", "raise", "exit"])
@pytest.mark.parametrize("where", [*CALLS, *STREAMS])
def test_a_forked_child_ends_when_it_comes_back(pool: atomr_mp.Pool, where: str, how: str) -> None:
    """Before it answers, encodes, or runs anything else; the worker gives the one answer, and keeps its state."""
    pid, before = pool.call("Forking.count").result(DEADLINE_S)
    assert pid == pool.devices[0].pid
    if where in STREAMS:
        assert parts_of(pool.stream(f"Forking.{where}", how, deadline_s=DEADLINE_S)) == ([1], None)
    else:
        argument = {"how": how} if where == "argument" else how
        assert pool.call(f"Forking.{where}", argument, deadline_s=DEADLINE_S).result(DEADLINE_S) == 1
    assert pool.call("Forking.ended", deadline_s=DEADLINE_S).result(DEADLINE_S) == [FORKED_STATUS]
    counted = [pool.call("Forking.count", deadline_s=DEADLINE_S).result(DEADLINE_S) for _ in range(5)]
    assert counted == [[pid, before + 1 + at] for at in range(5)]


@pytest.mark.parametrize("standby", ["none", "warm"])
@pytest.mark.parametrize("where", ["import", "init", "setup"])
def test_a_child_forked_before_the_worker_is_ready_ends_too(ledger: Ledger, where: str, standby: str) -> None:
    """While the actor is imported, made and set up, in a worker of its own or one that is forked."""
    (ledger.path / f"fork-{where}").touch()
    with ledger.start(FORKING, standby=standby) as pool:
        pid, _ = pool.call("Forking.count").result(DEADLINE_S)
        if standby == "none":
            assert pool.call("Forking.ended", deadline_s=DEADLINE_S).result(DEADLINE_S) == [FORKED_STATUS]
        assert {pool.call("Forking.count").result(DEADLINE_S)[0] for _ in range(10)} == {pid}
