"""Collectives on GPUs by themselves, without a pool: against NumPy, at random, with differing ranks, and in graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp_workers.worlds.cuda import layout as places
from tests.gpu.world_ranks import Ranks
from tests.support import gpu_count, settled

pytestmark = pytest.mark.gpu

TYPES: Final = ("int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128")
SIZES: Final = (1, 7, 4097, 100_003, 3_000_001)
OPERATORS: Final = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}
RANDOM_ROUNDS: Final = 20_000

HELPERS: Final = """
def parts(dtype, shape):
    given = np.random.default_rng(int(np.prod(shape)))
    return [given.integers(0, 5, shape).astype(dtype) for _ in range(size)]

def run(name, dtype, shape, *arguments, in_place=False):
    x = cp.asarray(parts(dtype, shape)[rank])
    y = getattr(collectives, name)(x, *arguments, x if in_place else None)
    collectives.settle()
    return None if y is None else y.get()

def attempt(name, *arguments):
    try:
        getattr(collectives, name)(*arguments)
        collectives.settle()
        return "fine"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        meeting.end()
        meeting.begin(1)

count_differences = cp.ElementwiseKernel(
    "float32 base, float32 shift, int32 kind, int32 ranks, float32 found", "raw uint64 wrong", '''
    float expected = base + (shift + (kind == 1 ? ranks - 1 : 0));
    for (int rank = 1; kind == 0 && rank < ranks; rank++) expected += base + (shift + rank);
    if (found != expected) atomicAdd((unsigned long long*)&wrong[0], 1ull);''', "count_differences")

def counted(count):
    ones, wrong = cp.ones(count, "float32"), cp.zeros(1, "uint64")
    count_differences(ones, 0, 0, size, ones, wrong)
    return int(wrong[0])

def random_rounds(rounds, seed):
    given = np.random.default_rng(seed)
    sizes = [1, 3, 200, 1000, 4096, 8192, 20_000, 300_000]
    counts = given.choice(sizes, rounds, p=[.2, .1, .2, .2, .1, .1, .08, .02]).tolist()
    base, wrong = cp.arange(300_000, dtype="float32"), cp.zeros(1, "uint64")
    shifts, kinds = given.integers(0, 100, rounds).tolist(), given.integers(0, 4, rounds).tolist()
    for count, shift, kind in zip(counts, shifts, kinds):
        plain = base[:count]
        x = plain + np.float32(shift + rank)
        if kind == 3:
            for each, y in enumerate(collectives.all_gather(x, None)):
                count_differences(plain, shift + each, kind, size, y, wrong)
            continue
        y = collectives.all_reduce(x, ("sum", "max", "min")[kind], None, x if count % 2 else None)
        count_differences(plain, shift, kind, size, y, wrong)
    collectives.settle()
    return int(wrong[0])

def capture(count, times):
    global x, graph
    x = cp.zeros(count, "float32")
    stream.begin_capture(cp.cuda.runtime.streamCaptureModeThreadLocal)
    for _ in range(times):
        collectives.all_reduce(x, "sum", None, x)
    graph = stream.end_capture()

def replay():
    x[...] = 1
    graph.launch(stream)
    stream.synchronize()
    return float(x[0]), float(x[-1])
"""


@pytest.fixture(scope="module", params=["apart", "together"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two ranks, each on a GPU of its own or both on one."""
    count = gpu_count()
    if request.param == "apart" and count < 2:
        pytest.skip("needs 2 GPUs")
    with Ranks([0, 1] if request.param == "apart" else [0, 0], count) as made:
        made.each(HELPERS)
        yield made


def parts(dtype: str, shape: Any, size: int) -> list[Any]:
    """Return the arrays that the ranks make."""
    given = np.random.default_rng(int(np.prod(shape)))
    return [given.integers(0, 5, shape).astype(dtype) for _ in range(size)]


def reduced(arrays: list[Any], operator: str = "sum") -> Any:
    """Return arrays reduced in the order of ranks; halves in float32."""
    dtype = arrays[0].dtype
    total, *others = [each.astype("float32") if dtype == np.float16 else each for each in arrays]
    for each in others:
        total = OPERATORS[operator](total, each)
    return (total / len(arrays) if operator == "avg" else total).astype(dtype)


def same(found: list[Any], expected: list[Any]) -> None:
    """Assert that the ranks have these arrays, bit by bit."""
    for got, each in zip(found, expected, strict=True):
        if each is None:
            assert got is None
        else:
            assert got.dtype == each.dtype
            np.testing.assert_array_equal(got, each)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", SIZES)
def test_sums_and_others(ranks: Ranks, dtype: str, count: int) -> None:
    """Of sizes that are sent as lines, read at once, and flow; new and in place."""
    for operator in OPERATORS:
        if (operator == "avg" and "int" in dtype) or (operator in {"min", "max"} and "complex" in dtype):
            continue
        arrays = parts(dtype, count, 2)
        for in_place in (False, True):
            code = f"run('all_reduce', {dtype!r}, {count}, {operator!r}, None, in_place={in_place})"
            same(ranks.each(code), [reduced(arrays, operator)] * 2)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float64", "complex128"])
@pytest.mark.parametrize("count", [1, 3, 5000, 700_001])
def test_moves(ranks: Ranks, dtype: str, count: int) -> None:
    """Each collective that moves rows, with rows that begin at any byte."""
    shape = (2, count)
    arrays, given = parts(dtype, shape, 2), f"{dtype!r}, {shape}"
    same(ranks.each(f"run('all_gather', {given})"), [np.stack(arrays)] * 2)
    same(ranks.each(f"run('broadcast', {given}, 1)"), [arrays[1]] * 2)
    same(ranks.each(f"run('all_to_all', {given})"), [np.stack([each[rank] for each in arrays]) for rank in range(2)])
    scattered = [reduced([each[rank : rank + 1] for each in arrays]) for rank in range(2)]
    same(ranks.each(f"run('reduce_scatter', {given}, 'sum', None)"), scattered)
    same(ranks.each(f"run('reduce', {given}, 1, 'sum', None)"), [None, reduced(arrays)])
    same(ranks.each(f"run('sendrecv', {given}, 1 - rank, 1 - rank)"), arrays[::-1])
    factors = [each.astype("float32" if dtype == "float16" else dtype) * (rank + 2) for rank, each in enumerate(arrays)]
    same(ranks.each(f"run('all_reduce', {given}, 'sum', rank + 2)"), [reduced(factors).astype(dtype)] * 2)


def test_random_rounds(ranks: Ranks) -> None:
    """Of all sizes, one behind the other without a wait. What counts the wrong ones is tried on five."""
    assert ranks.each("counted(5)") == [5, 5]
    assert ranks.each(f"random_rounds({RANDOM_ROUNDS if ranks.apart else 200}, 7)") == [0, 0]


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("'all_reduce', cp.ones(4), 'sum', None, None", "'all_reduce', cp.ones(5), 'sum', None, None", "of 5 float64"),
        ("'barrier'", "'all_gather', cp.ones(2_000_000), None", "calls barrier, rank 1 all_gather"),
        (
            "'all_reduce', cp.ones(9), 'max', None, None",
            "'all_reduce', cp.ones(9), 'sum', None, None",
            "all_reduce(max)",
        ),
        ("'sendrecv', cp.ones(3), 1, None, None", "'sendrecv', cp.ones(3), None, None, None", "receives nothing"),
        ("'refuse'", "'all_reduce', cp.ones(3), 'sum', None, None", "its part was refused"),
    ],
)
def test_ranks_that_differ_find_it_on_all_sides(ranks: Ranks, one: str, other: str, text: str) -> None:
    """With both sides in words; the next collective is right."""
    for process, code in zip(ranks.all, (one, other), strict=True):
        process.send(f"attempt({code})")
    both = [process.get() for process in ranks.all]
    for found in both:
        assert found.startswith("WorldMismatch")
        assert text in found
    same(ranks.each("run('all_reduce', 'float32', 1000, 'sum', None)"), [reduced(parts("float32", 1000, 2))] * 2)


@pytest.mark.parametrize("count", [4, 5000, 3_000_000])
def test_where_ranks_differ_nothing_is_written(ranks: Ranks, count: int) -> None:
    """Into arrays of each kind, in order or with gaps."""
    for given in (f"cp.full({count}, 7.0)", f"cp.full((2 * {count}), 7.0)[::2]", f"np.full({count}, 7.0)"):
        ranks.each(f"globals().update(out={given})")
        code = f"attempt('all_reduce', {given[:2]}.ones({count} + rank), 'sum', None, None if rank else out)"
        assert all(found.startswith("WorldMismatch") for found in ranks.each(code))
        assert ranks.all[0].do("bool((out == 7.0).all())")
    same(ranks.each("run('all_reduce', 'float32', 1000, 'sum', None)"), [reduced(parts("float32", 1000, 2))] * 2)


def test_a_graph_is_bound_to_no_epoch(ranks: Ranks) -> None:
    """It was captured before any, and replays in all."""
    ranks.each("capture(4096, 3)")
    assert ranks.each("replay()") == [(8.0, 8.0)] * 2
    ranks.join()
    assert ranks.each("replay()") == [(8.0, 8.0)] * 2


def test_a_stored_stop_word_ends_waits(ranks: Ranks) -> None:
    """Of a collective that the other rank does not come to, however many are queued behind it."""
    ranks.all[0].send("attempt('all_reduce', cp.ones(4), 'sum', None, None)")
    assert settled(lambda: bool(ranks.all[0].page[places.WAITING])), "it waits"
    ranks.all[0].page[0] = ranks.epoch
    assert ranks.all[0].get().startswith("CollectiveAborted")
    ranks.join()
    same(ranks.each("run('all_reduce', 'float32', 1000, 'sum', None)"), [reduced(parts("float32", 1000, 2))] * 2)
