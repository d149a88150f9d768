"""What an actor or a caller does with its memory changes nothing that was sent before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import atomr_mp
from atomr_mp import checks
from atomr_mp.protocol.values import INLINE_BYTES, SHARED_BYTES
from tests.actors.scribbling import expected
from tests.in_turn import in_turn
from tests.support import ACTORS, DEADLINE_S, Ledger, client_of

SCRIBBLER = f"{ACTORS}/scribbling.py:Scribbler"
METHODS = ("on_loop", "on_thread", "rows", "in_list", "awaited")
STREAMS = ("parts", "awaited_parts")

WIDTH = 4
LENGTHS = (25, INLINE_BYTES // WIDTH + 1, 16384 // WIDTH, 65448 // WIDTH, SHARED_BYTES // WIDTH)
"""Numbers in a result: in the body of a message, in frames that come whole or in pieces, and in shared memory."""

CALLS = 60


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests."""
    with Ledger() as ledger, ledger.start(SCRIBBLER, f"{ACTORS}/probe.py:Probe") as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool."""
    with client_of(shared[1]) as own:
        yield own


def check(found: npt.NDArray[Any], seed: int, length: int) -> None:
    """Check that a result is the right one, and is the caller's to write to."""
    np.testing.assert_array_equal(found, expected(seed, length), strict=True)
    assert found.flags.writeable
    found[...] = 0  # another caller's result is not to change by it


def test_workers_check_what_tests_check(pool: atomr_mp.Pool) -> None:
    """They have inherited that, through the supervisor; so nothing here is seen less closely there."""
    assert pool.call("Scribbler.checks").result(DEADLINE_S) is checks.ON


@in_turn("length", LENGTHS)
@pytest.mark.parametrize("method", METHODS)
def test_each_call_gets_its_own_result(pool: atomr_mp.Pool, method: str, length: int) -> None:
    """Many are under way, and each overwrites the memory of those before it."""
    replies = [pool.call(f"Scribbler.{method}", (seed, length), wait=True) for seed in range(CALLS)]
    for seed, reply in enumerate(replies):
        check(reply.result(DEADLINE_S), seed, length)


@in_turn("length", LENGTHS)
def test_arrays_inside_of_other_values_are_copied_too(pool: atomr_mp.Pool, length: int) -> None:
    """Maps, lists, and views with gaps."""
    replies = [pool.call("Scribbler.nested", (seed, length), wait=True) for seed in range(CALLS)]
    for seed, reply in enumerate(replies):
        first, others = reply.result(DEADLINE_S)["both"]
        check(first, seed, length)
        np.testing.assert_array_equal(others["strided"], expected(seed, 2 * length)[::2], strict=True)


@in_turn("length", LENGTHS)
@pytest.mark.parametrize("method", METHODS)
def test_each_awaited_call_gets_its_own_result(pool: atomr_mp.Pool, method: str, length: int) -> None:
    """As in threads."""

    async def use() -> list[npt.NDArray[Any]]:
        calls = [pool.call(f"Scribbler.{method}", (seed, length)) for seed in range(CALLS)]
        return await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S)

    for seed, found in enumerate(asyncio.run(use())):
        check(found, seed, length)


@in_turn("length", LENGTHS)
@pytest.mark.parametrize("method", METHODS)
def test_each_item_of_a_map_gets_its_own_result(pool: atomr_mp.Pool, method: str, length: int) -> None:
    """Items of batched methods travel many in one call."""
    items = [(seed, length) for seed in range(CALLS)]
    for seed, found in enumerate(pool.map(f"Scribbler.{method}", items)):
        check(found, seed, length)


@in_turn("length", LENGTHS)
@pytest.mark.parametrize("method", STREAMS)
def test_each_part_is_what_was_yielded(pool: atomr_mp.Pool, method: str, length: int) -> None:
    """Whether its reader has room at once, or grants it later."""
    for ahead in (1, 8):
        with pool.stream(f"Scribbler.{method}", 3, length, 20, ahead=ahead) as stream:
            for number, part in enumerate(stream):
                check(part, 3 + number, length)
            assert number == 19


@in_turn("length", LENGTHS)
def test_each_part_of_each_stream_is_what_a_step_sent(pool: atomr_mp.Pool, length: int) -> None:
    """Steps go on while the parts of some streams are held, since their readers have no room."""

    async def read(seed: int, ahead: int) -> None:
        async with pool.stream("Scribbler.steps", [seed, length, 12], ahead=ahead) as stream:
            number = 0
            async for part in stream:
                check(part, seed + number, length)
                number += 1
            assert number == 12
            check(stream.result(), seed + number, length)

    async def use() -> None:
        streams = (read(1000 * number, ahead) for number, ahead in enumerate((1, 2, 8, 8)))
        await asyncio.wait_for(asyncio.gather(*streams), DEADLINE_S)

    asyncio.run(use())


@in_turn("length", LENGTHS)
def test_a_call_takes_its_arguments_with_it(pool: atomr_mp.Pool, length: int) -> None:
    """A caller may write to them as soon as it has called, though the call still waits for room."""
    array = np.empty(length, np.uint32)
    replies = []
    for seed in range(CALLS):
        array[:] = expected(seed, length)
        replies.append(pool.call("Probe.echo", array, wait=True))
    array[:] = 0
    for seed, reply in enumerate(replies):
        check(reply.result(DEADLINE_S), seed, length)
