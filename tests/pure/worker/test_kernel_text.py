"""The kernels of collectives on GPUs, run on the host with threads whose turns are drawn (`tests.emulation`)."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from atomr_mp_workers.worlds.cuda import layout as places
from tests import emulation
from tests.emulation import DTYPES, Fault, Launch, Ranks

SEEDS: Final = int(os.environ.get("KERNEL_SEEDS", "25"))
LENGTH: Final = 6
"""Collectives of a program."""

NOWHERE: Final = 0xFFFF
SUM, PROD, MIN, MAX, AVG = range(5)
MOVES: Final = ("all_gather", "broadcast", "all_to_all", "sendrecv", "barrier")
SENTINEL: Final = 0x5A

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler: g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels, compiled for the host."""
    return emulation.compile_kernels(tmp_path_factory.mktemp("kernels"))


class Step(NamedTuple):
    """One collective on all ranks."""

    launches: list[Launch]
    results: list[Any]
    """The memory that each rank's result goes to, with bytes behind it."""
    expected: list[bytes | None]
    """By rank; None where nothing is written."""
    keep: list[Any]
    """The inputs."""


def placed(content: Any, chance: random.Random) -> Any:
    """Return the bytes of an array, at an address that is aligned for GPUs, or for its elements only."""
    nbytes, item = content.nbytes, content.itemsize
    room = emulation.aligned(nbytes + 64)
    at = chance.choice([0, 0, item, 3 * item])
    room[at : at + nbytes] = content.view(np.uint8).reshape(-1)
    return room[at : at + nbytes]


def result(nbytes: int, item: int, chance: random.Random) -> Any:
    """Return memory for a result and 32 bytes more, none of which is to change."""
    room = emulation.aligned(nbytes + 96)
    room[:] = SENTINEL
    at = chance.choice([0, 0, item])
    return room[at : at + nbytes + 32]


def numbers(name: str, count: int, chance: random.Random) -> Any:
    """Return elements, in the type that has them on the host."""
    made = np.random.default_rng(chance.getrandbits(32))
    match name:
        case "float32":
            return made.normal(size=count).astype(np.float32)
        case "float16":
            return made.normal(size=count).astype(np.float16)
        case "bfloat16":
            return (made.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        case _:
            return made.integers(-100, 100, count).astype(name)


def up(name: str, array: Any) -> Any:
    """Return elements as they are computed."""
    if name == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if name == "float16" else array


def down(name: str, array: Any) -> Any:
    """Return results as they are stored."""
    if name == "bfloat16":
        bits = array.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return array.astype(np.float16) if name == "float16" else array


def reduced(name: str, arrays: Sequence[Any], operator: int) -> Any:
    """Return arrays reduced in the order of the ranks."""
    functions: dict[int, Callable[[Any, Any], Any]] = {PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}
    total = up(name, arrays[0])
    with np.errstate(over="ignore"):
        for each in arrays[1:]:
            total = functions.get(operator, np.add)(total, up(name, each))
        if operator == AVG:
            total = total / np.float32(len(arrays))
    return down(name, total)


def reduction(size: int, chance: random.Random) -> Step:
    """Make an all_reduce, a reduce or a reduce_scatter."""
    name = chance.choice(DTYPES)
    operator = chance.choice([SUM, PROD, MIN, MAX, *([AVG] if "float" in name else [])])
    rows = chance.choice([1, 1, size])
    small = rows == 1 and chance.random() < 0.4
    count = chance.choice([1, 3, 17, 250, 255, 1000, *([] if small else [2100, 4099])])
    arrays = [numbers(name, rows * count, chance) for _ in range(size)]
    item = arrays[0].itemsize
    width = count * item
    inputs = [placed(each, chance) for each in arrays]
    outputs = [result(width, item, chance) for _ in range(size)]
    total = reduced(name, arrays, operator).reshape(rows, count)
    flows = -(-width // 16) * 16 * rows > emulation.HALF_BYTES
    kernel = emulation.PUSH if small else emulation.FLOW_PULL if flows else emulation.PULL
    wanting = [chance.random() < 0.8 for _ in range(size)]
    blocks = chance.choice([1, 2, 3])
    launches = [
        Launch(
            kernel,
            (count, kernel),
            DTYPES.index(name),
            blocks,
            inputs[rank].ctypes.data,
            width,
            rows,
            outputs[rank].ctypes.data,
            count,
            operator,
            places.GIVES | places.WANTS * wanting[rank],
        )
        for rank in range(size)
    ]
    expected = [total[rank if rows > 1 else 0].tobytes() if wanting[rank] else None for rank in range(size)]
    return Step(launches, outputs, expected, inputs)


def movement(size: int, chance: random.Random) -> Step:
    """Make an all_gather, a broadcast, an all_to_all, a sendrecv or a barrier."""
    kind = chance.choice(MOVES)
    width = 0 if kind == "barrier" else chance.choice([1, 16, 30, 999, 1600, 4100, 9001])
    rows = size if kind == "all_to_all" else 1
    arrays = [numbers("int8", rows * width, chance) for _ in range(size)]
    inputs = [placed(each, chance) for each in arrays]
    times = size if kind in {"all_gather", "all_to_all"} else 1
    outputs = [result(times * width, 1, chance) for _ in range(size)]
    flows = -(-width // 16) * 16 * rows > emulation.HALF_BYTES
    kernel, blocks = (emulation.FLOW_MOVE if flows else emulation.MOVE), chance.choice([1, 2, 3])
    root, shift = chance.randrange(size), chance.randrange(1, size)
    launches, expected = [], []
    for rank in range(size):
        how, from_, pair, wanted = places.GIVES | places.WANTS, -1, 0, b"".join(each.tobytes() for each in arrays)
        if kind == "broadcast":
            how, from_, wanted = places.WANTS | places.GIVES * (rank == root), root, arrays[root].tobytes()
        elif kind == "all_to_all":
            wanted = b"".join(each.reshape(size, width)[rank].tobytes() for each in arrays)
        elif kind == "sendrecv":
            source = (rank - shift) % size
            how |= places.PAIRED
            from_, pair, wanted = source, (rank + shift) % size | source << 16, arrays[source].tobytes()
        elif kind == "barrier":
            how, from_, wanted = 0, 0, b""
        launches.append(
            Launch(
                kernel,
                (
                    width,
                    100 + MOVES.index(kind) | pair << 32,
                ),
                0,
                blocks,
                inputs[rank].ctypes.data,
                width,
                rows,
                outputs[rank].ctypes.data,
                how=how,
                from_=from_,
            )
        )
        expected.append(wanted if how & places.WANTS else None)
    return Step(launches, outputs, expected, inputs)


def program(size: int, chance: random.Random) -> list[Step]:
    """Make some collectives, one behind the other."""
    return [chance.choice([reduction, movement])(size, chance) for _ in range(LENGTH)]


def launches_of(steps: Sequence[Step]) -> list[tuple[int, Launch]]:
    """Return the launches of all ranks."""
    return [(rank, each) for step in steps for rank, each in enumerate(step.launches)]


def is_whole(step: Step, rank: int) -> bool:
    """Return whether a rank's result is right, and nothing behind it has changed."""
    wanted = step.expected[rank]
    got: bytes = step.results[rank].tobytes()
    return got == (wanted if wanted is not None else got[:-32]) + bytes([SENTINEL]) * 32


def is_untouched(step: Step, rank: int) -> bool:
    """Return whether nothing of a rank's result was written."""
    return bool((step.results[rank] == SENTINEL).all())


@pytest.mark.parametrize("size", [2, 3, 4])
def test_whatever_the_turns_results_are_those_of_numpy(library: ctypes.CDLL, size: int) -> None:
    """All types, sizes, ways and numbers of blocks, one behind the other, in equal bits."""
    for seed in range(SEEDS):
        chance = random.Random(seed * 10 + size)
        ranks, steps = Ranks(library, size), program(size, chance)
        assert ranks.run(launches_of(steps), seed) > 0, f"seed {seed}: they wait for each other"
        for number, step in enumerate(steps):
            for rank in range(size):
                assert is_whole(step, rank), f"seed {seed}: step {number} on rank {rank}: {step.launches[rank]}"
        assert [ranks.sequence(rank) for rank in range(size)] == [LENGTH] * size
        assert [ranks.code(rank) for rank in range(size)] == [0] * size


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_differ_find_it_and_write_nothing(library: ctypes.CDLL, size: int) -> None:
    """All of them, in that collective; what is behind it does not begin, and after they have begun anew all is well."""
    for seed in range(SEEDS):
        chance = random.Random(seed)
        ranks, steps = Ranks(library, size), program(size, chance)
        odd, other = chance.randrange(size), chance.randrange(LENGTH)
        one = steps[other].launches[odd]
        steps[other].launches[odd] = one._replace(signature=(one.signature[0] + 1, one.signature[1]))
        assert ranks.run(launches_of(steps), seed) > 0, f"seed {seed}: they wait for each other"
        for rank in range(size):
            assert all(is_whole(step, rank) for step in steps[:other])
            assert all(is_untouched(step, rank) for step in steps[other:]), f"seed {seed}: rank {rank} has written"
            assert ranks.code(rank) == places.MISMATCH
            assert int(ranks.pages[rank][places.SEQUENCE]) == other + 1
            assert (int(ranks.pages[rank][places.RANK]) == odd) == (rank != odd)
        again = program(size, chance)
        assert ranks.run(launches_of(again), seed, mend=other + 1) > 0
        assert all(is_whole(step, rank) for step in again for rank in range(size))


def test_pairs_that_do_not_meet_are_found_by_all(library: ctypes.CDLL) -> None:
    """Each rank sends to the next, but one expects nothing."""
    size = 3
    for seed in range(SEEDS):
        chance = random.Random(seed)
        content = [placed(numbers("int8", 2000, chance), chance) for _ in range(size)]
        results, launches = [result(2000, 1, chance) for _ in range(size)], []
        blocks = chance.choice([1, 2])
        for rank in range(size):
            source = (rank - 1) % size if rank else NOWHERE
            launches.append(
                Launch(
                    emulation.MOVE,
                    (2000, 9 | (rank + 1) % size << 32 | source << 48),
                    blocks=blocks,
                    x=content[rank].ctypes.data,
                    width=2000,
                    y=results[rank].ctypes.data,
                    how=places.GIVES | places.PAIRED | places.WANTS * (source != NOWHERE),
                    from_=0 if source == NOWHERE else source,
                )
            )
        ranks = Ranks(library, size)
        assert ranks.run(list(enumerate(launches)), seed) > 0
        assert [ranks.code(rank) for rank in range(size)] == [places.PAIRS] * size
        assert all((each == SENTINEL).all() for each in results), f"seed {seed}: something was written"


@pytest.mark.parametrize("how", ["stopped", "late"])
def test_a_rank_that_dies_leaves_nobody_waiting(library: ctypes.CDLL, how: str) -> None:
    """The others end by the stop word, or by the kernels' own bound; what had ended before is right."""
    size = 3
    for seed in range(SEEDS):
        chance = random.Random(seed)
        ranks = Ranks(library, size, 2**62 if how == "stopped" else 2_000_000)
        steps, dead = program(size, chance), chance.randrange(size)
        at = chance.randrange(1, 60_000)
        fault = Fault(at, 1 << dead, at + chance.randrange(5_000) if how == "stopped" else 0)
        assert ranks.run(launches_of(steps), seed, fault) > 0, f"seed {seed}: a rank waits for ever"
        for rank in range(size):
            if rank == dead:
                continue
            done = ranks.sequence(rank)
            assert done == LENGTH or ranks.code(rank) == (places.STOPPED if how == "stopped" else places.LATE)
            assert all(is_whole(step, rank) for step in steps[:done])


def test_what_a_replaced_process_still_writes_reaches_nobody(library: ctypes.CDLL) -> None:
    """It goes on, with the numbers of the collectives of the next epoch, whose parts it cannot touch."""
    size = 2
    for seed in range(SEEDS):
        chance = random.Random(seed)
        ranks = Ranks(library, size)
        dead = chance.randrange(size)
        assert ranks.run(launches_of(program(size, chance)), seed) > 0
        former = ranks.replace(dead)
        steps, late = program(size, chance), program(size, chance)
        launches = [*launches_of(steps), *((former, step.launches[dead]) for step in late)]
        assert ranks.run(launches, seed) > 0, f"seed {seed}: they wait for each other"
        assert all(is_whole(step, rank) for step in steps for rank in range(size)), f"seed {seed}"
        assert all(is_untouched(step, dead) for step in late)


def test_a_process_alone_computes_with_its_own_data_as_that_of_all(library: ctypes.CDLL) -> None:
    """Before it joins an epoch: what it captures or compares then does not wait."""
    for seed in range(SEEDS):
        chance = random.Random(seed)
        size = chance.choice([2, 3])
        ranks, steps = Ranks(library, size), program(size, chance)
        rank = chance.randrange(size)
        ranks.rehearse(rank)
        all_give = [step.launches[rank]._replace(how=step.launches[rank].how | places.GIVES) for step in steps]
        assert ranks.run([(rank, each) for each in all_give], seed) > 0
        assert (ranks.code(rank), ranks.sequence(rank)) == (0, LENGTH)
