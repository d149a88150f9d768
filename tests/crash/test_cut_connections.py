"""Data connections that end while their worker lives: the client makes another, and only what was on them is lost."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, open_descriptors, settled

CUTTING = f"{ACTORS}/cutting.py:Cutting"
HOW = ["shut", "write"]


@pytest.mark.parametrize("how", HOW)
def test_a_lost_connection_is_made_again(ledger: Ledger, how: str) -> None:
    """Its call ends typed, long before its deadline; who had nothing on theirs hears of nothing."""
    with ledger.start(CUTTING) as pool, atomr_mp.connect(run_dir=pool.run_dir) as bystander:
        pid = pool.call("Cutting.pid").result()
        assert bystander.call("Cutting.pid").result() == pid
        for _ in range(3):
            with pytest.raises(errors.ConnectionLost, match=r"Cutting\.cut came; its worker lives") as lost:
                pool.call("Cutting.cut", how, deadline_s=10 * DEADLINE_S).result(DEADLINE_S)
            assert lost.value.maybe_executed
            assert (lost.value.device, lost.value.generation) == (0, pool.devices[0].generation)
            assert pool.call("Cutting.pid").result(DEADLINE_S) == pid
            with contextlib.suppress(errors.ConnectionLost):  # it may be sent before anybody has looked
                assert bystander.call("Cutting.pid").result(DEADLINE_S) == pid
            assert bystander.call("Cutting.pid").result(DEADLINE_S) == pid


@pytest.mark.parametrize("how", HOW)
def test_what_may_run_twice_is_sent_again(ledger: Ledger, how: str) -> None:
    """On the new connection, which counts as a replay."""
    with ledger.start(CUTTING) as pool:
        assert pool.call("Cutting.cut_once", how).result(DEADLINE_S) == 2
    with (
        ledger.start(CUTTING, run_dir="none", max_replays=0) as pool,
        pytest.raises(errors.ConnectionLost),
    ):
        pool.call("Cutting.cut_once", how).result(DEADLINE_S)


@pytest.mark.parametrize("how", HOW)
def test_it_is_so_in_event_loops_and_for_callbacks(ledger: Ledger, how: str) -> None:
    """Each loop has a connection of its own; nobody has to wait for the loss to be seen."""

    async def use() -> None:
        pid = await pool.call("Cutting.pid")
        replies = [pool.call("Cutting.cut_once", how), pool.call("Cutting.pid")]
        async with asyncio.timeout(DEADLINE_S):
            assert await replies[0] == 2
            with contextlib.suppress(errors.ConnectionLost):  # unless its answer came before
                assert await replies[1] == pid
            assert await pool.call("Cutting.pid") == pid

    with ledger.start(CUTTING) as pool:
        asyncio.run(use())


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process accept nothing."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = open_descriptors(pid)
    free = next(number for number in range(before[0]) if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_worker_without_descriptors_is_unreachable_for_a_while(ledger: Ledger) -> None:
    """Who comes meanwhile is told, long before the deadline; who came before goes on; then all is as before."""
    with ledger.start(CUTTING) as pool:
        pid = pool.call("Cutting.pid").result()
        with no_descriptors(pid):
            with atomr_mp.connect(run_dir=pool.run_dir) as late:
                with pytest.raises(errors.DeviceUnavailable, match="cannot be reached by this client") as refused:
                    late.call("Cutting.pid", device=0, deadline_s=10 * DEADLINE_S).result(DEADLINE_S)
                assert not refused.value.maybe_executed
                with pytest.raises(errors.DeviceUnavailable, match="cannot be reached by this client"):
                    late.call("Cutting.pid")
            assert pool.call("Cutting.pid").result() == pid
        with atomr_mp.connect(run_dir=pool.run_dir) as later:
            assert later.call("Cutting.pid").result(DEADLINE_S) == pid


def test_a_device_that_could_not_be_reached_is_called_again(ledger: Ledger) -> None:
    """The attempts go on, though nobody waits."""
    with ledger.start(CUTTING) as pool:
        pid = pool.call("Cutting.pid").result()
        with atomr_mp.connect(run_dir=pool.run_dir) as late:
            with no_descriptors(pid), pytest.raises(errors.DeviceUnavailable):
                late.call("Cutting.pid").result(DEADLINE_S)

            def reached() -> bool:
                try:
                    return bool(late.call("Cutting.pid").result(DEADLINE_S) == pid)
                except errors.DeviceUnavailable:
                    return False

            assert settled(reached)
