"""Contract of pools that coroutines start and join: their event loop goes on meanwhile."""

from __future__ import annotations

import asyncio

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, PROBE, Gate, Ledger, settled

STARTING = f"{ACTORS}/starting.py:Starting"


def begin(ledger: Ledger, actor: str = PROBE, name: str = "run") -> atomr_mp.Pool:
    """Start a pool of one device, from a coroutine."""
    return ledger.start(actor, run_dir=name)


def test_a_loop_goes_on_while_a_pool_starts_and_closes(ledger: Ledger) -> None:
    """While an actor's `setup` waits for a coroutine of the same loop, and a request too, when the pool closes."""

    async def use() -> None:
        with ledger.gate("start") as gate, ledger.gate("end") as end:
            opening = asyncio.create_task(_opened_when_waited_for(gate))
            async with begin(ledger, STARTING) as pool:
                await opening
                assert await pool.call("Starting.echo", 1) == [1, None]
                async with atomr_mp.connect(run_dir=pool.run_dir) as other:
                    assert await other.call("Starting.echo", 2) == [2, None]
            async with begin(ledger, name="other") as pool:
                pool.call("Probe.hold_on_thread", end.path)
                opening = asyncio.create_task(_opened_when_waited_for(end))
            await opening  # which the close has waited for
        with pytest.raises(errors.PoolLost):
            pool.call("Probe.echo", 1)

    asyncio.run(use())


async def _opened_when_waited_for(gate: Gate) -> None:
    await asyncio.to_thread(gate.wait)
    gate.open()


def test_a_pool_may_be_awaited_or_just_used(ledger: Ledger) -> None:
    """`await` gives the pool; without it, the first use starts it, and what is never used never starts."""

    async def use() -> None:
        async with await begin(ledger) as pool:
            assert await pool.call("Probe.echo", 1) == 1
            (await atomr_mp.connect(run_dir=pool.run_dir)).close()
        with begin(ledger) as pool:
            assert await pool.call("Probe.echo", 2) == 2
        pool = begin(ledger)
        assert "has not begun" in repr(pool)
        assert len(pool.devices) == 1
        assert "ready" in repr(pool)
        pool.close()
        never = begin(ledger)
        never.close()
        with pytest.raises(errors.PoolLost, match="before it began"):
            never.call("Probe.echo", 1)

    asyncio.run(use())


def test_a_start_that_is_given_up_leaves_nothing(ledger: Ledger) -> None:
    """A cancelled coroutine's pool is closed, though its actor's `setup` has not ended."""

    async def enter(actor: str) -> None:
        async with begin(ledger, actor):
            raise AssertionError("it never becomes ready")

    async def use() -> None:
        with ledger.gate("start") as gate:
            entering = asyncio.create_task(enter(STARTING))
            await asyncio.to_thread(gate.wait)
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
            assert await asyncio.to_thread(settled, lambda: not ledger.processes())

    asyncio.run(use())


def test_what_a_start_fails_with_comes_out_where_it_is_entered(ledger: Ledger) -> None:
    """As it would out of `start` itself; the same for `connect`."""

    async def use() -> None:
        with pytest.raises(errors.ActorLoadFailed):
            async with begin(ledger, f"{ACTORS}/probe.py:Missing"):
                pass
        with pytest.raises(errors.PoolUnreachable):
            async with atomr_mp.connect(run_dir=ledger.run_dir("none")):
                pass
        with pytest.raises(errors.PoolUnreachable):
            await atomr_mp.connect(run_dir=ledger.run_dir("none"))

    asyncio.run(asyncio.wait_for(use(), DEADLINE_S))
