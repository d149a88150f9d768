"""The collectives of the host engine, with 1 to 4 ranks, against what NumPy makes of all ranks' arrays together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.worlds.exchange.world import OwnWorld
from tests.ranks import Ranks, forked, joined
from tests.support import DEADLINE_S

FLOATS: Final = ("float64", "float32", "float16", "bfloat16")
INTEGERS: Final = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
COMPLEX: Final = ("complex64", "complex128")
MOVED: Final = (*FLOATS, *INTEGERS, *COMPLEX, "bool", "float8_e4m3fn", "float8_e5m2")
OPERATORS: Final = ("sum", "prod", "min", "max", "avg")
COUNTS: Final = (0, 1, 3, 257, 12_345)
AMONG: Final = 128
"""The reference has a multiple of so many elements."""
LARGE: Final = 1_200_001
"""More than a slot of any type; the last chunk is odd."""

Array = np.ndarray[Any, Any]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's type."""
    return np.dtype(getattr(ml_dtypes, name, name))


def arrays(size: int, shape: int | tuple[int, ...], name: str, seed: int = 0) -> list[Array]:
    """Return an array for each rank."""
    random = np.random.default_rng([seed, size])
    dtype = dtype_of(name)
    if name in INTEGERS:
        info = np.iinfo(dtype)
        return [random.integers(info.min, info.max, shape, dtype, endpoint=True) for _ in range(size)]
    made = [random.standard_normal(shape) for _ in range(size)]
    if name in COMPLEX:
        return [(each + 1j * random.standard_normal(shape)).astype(dtype) for each in made]
    return [(each > 0 if name == "bool" else each).astype(dtype) for each in made]


def reduced(operator: str, given: list[Array], factors: list[Any] | None = None) -> Array:
    """Return what a collective has to make of arrays, bit for bit: in the order of ranks, halves in float32.

    NumPy computes them among others: it has other loops for few, and for a vector's rest.
    """
    shape, count, dtype = given[0].shape, given[0].size, given[0].dtype
    given = [np.concatenate([each.reshape(-1), np.zeros(AMONG - count % AMONG, dtype)]) for each in given]
    computed = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    function: Any = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[operator]
    with np.errstate(all="ignore"):
        each = [array.astype(computed) for array in given]
        if factors:
            each = [array * np.array(factor).astype(computed) for array, factor in zip(each, factors, strict=True)]
        total = function(each[0], each[1]) if len(each) > 1 else each[0]
        for other in each[2:]:
            total = function(total, other)
        if operator == "avg":
            total /= computed.type(len(given))
        return total.astype(dtype)[:count].reshape(shape)


def same(one: Any, other: Any) -> None:
    """Assert that two arrays have the same type, shape and bits."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks of a world; each test is gang calls of the same epoch."""
    with joined(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    """Three ranks."""
    with joined(3) as made:
        yield made


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, *COMPLEX])
def test_reductions_are_those_of_all_ranks_arrays(ranks: Ranks, name: str) -> None:
    """All operators, at all counts, with each kind of reduction, have the right bits on all ranks."""
    n = ranks.size
    operators = [each for each in OPERATORS if is_computed(each, name)]
    cases = [*itertools.product(COUNTS, operators), (LARGE, "sum")]
    data = {count: arrays(n, count, name, count) for count, _ in cases}

    def method(world: OwnWorld) -> list[Any]:
        results = []
        for count, operator in cases:
            x = data[count][world.rank]
            results.append(world.all_reduce(x, operator))
            results.append(world.reduce(x, n - 1, operator))
            results.append(world.reduce_scatter(np.resize(x, (n, count)), operator))
        return results

    found = [iter(each) for each in ranks.call(method)]
    for count, operator in cases:
        whole = reduced(operator, data[count])
        for each in found:
            same(next(each), whole)
        for rank, each in enumerate(found):
            result = next(each)
            if rank < n - 1:
                assert result is None
            else:
                same(result, whole)
        for each in found:
            same(next(each)[0], whole)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, *COMPLEX])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), shift=st.integers(0, 3))
def test_an_element_has_the_same_bits_in_any_place(name: str, seed: int, shift: int) -> None:
    """Not even NaNs differ by the number of elements, their place, `out`, or which collective computes them."""
    operators = [each for each in OPERATORS if is_computed(each, name)]
    factors: list[Any] | None = (
        None if name in INTEGERS else [0.3, -1.7, 2.0] if name in FLOATS else [0.3 - 1j, -1.7, 2j]
    )
    data = [special(each, seed) for each in arrays(3, 3 * 9, name, seed)]
    cases: list[tuple[int, str, list[Any] | None]] = [(count, each, None) for count in range(10) for each in operators]
    cases += [(count, each, factors) for count in range(10) for each in ("sum", "avg") if factors]

    def method(world: OwnWorld) -> list[Any]:
        results = []
        for count, operator, given_factors in cases:
            x = np.empty(3 * count * data[0].itemsize + shift, np.uint8)[shift:].view(data[0].dtype)
            x[...] = data[world.rank][: 3 * count]
            more: dict[str, Any] = {} if given_factors is None else {"factor": given_factors[world.rank]}
            out = np.empty(count + shift, x.dtype)[shift:]
            part = world.reduce_scatter(x, operator, out=out, **more).copy()
            whole = world.all_reduce(x, operator, **more)
            single = world.all_reduce(x[-1:].copy(), operator, **more)
            root = world.reduce(x, 0, operator, **more)
            results.append((part, whole, root, single, world.all_reduce(x, operator, out=x, **more)))
        return results

    with joined(3) as ranks:
        found = ranks.call(method)
    for case, (count, operator, given_factors) in enumerate(cases):
        parts, wholes, roots, singles, overs = zip(*[each[case] for each in found], strict=True)
        expected = reduced(operator, [each[: 3 * count] for each in data], given_factors)
        same(np.concatenate(parts), expected)
        same(roots[0], expected)
        for each in (*wholes, *overs):
            same(each, expected)
        for single in singles:
            same(single, expected[-1:])


def special(array: Array, seed: int) -> Array:
    """Return it with NaNs of several bits, infinities and zeros among its numbers."""
    if array.dtype.name in INTEGERS:
        return array
    random = np.random.default_rng(seed + int(abs(array.view(np.uint8)).sum()))
    numbers = array.view(array.real.dtype)
    for value in (0.0, -0.0, np.inf, np.nan):
        numbers[random.integers(0, 12, numbers.size) == 0] = value
    bits = numbers.view(f"u{numbers.itemsize}")
    nans = np.isnan(numbers)
    bits[nans] ^= random.integers(0, 64, nans.sum()).astype(bits.dtype)
    return array


def is_computed(operator: str, name: str) -> bool:
    """Return whether there is an operator for a type."""
    return (operator != "avg" or name not in INTEGERS) and (operator not in {"min", "max"} or name not in COMPLEX)


@pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
def test_sums_are_near_those_in_double_precision(ranks: Ranks, name: str) -> None:
    """A sum differs from the exact one by rounding only, of a half by one rounding."""
    given = arrays(ranks.size, 999, name)
    exact: Any = np.sum([each.astype(np.complex128) for each in given], 0)
    epsilon = {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-10 if name == "float16" else 2.0**-7}[given[0].real.itemsize]
    largest = np.sum([abs(each.astype(np.complex128)) for each in given], 0)
    for result in ranks.call(lambda world: world.all_reduce(given[world.rank])):
        assert (abs(result.astype(np.complex128) - exact) <= epsilon * largest).all()


@pytest.mark.parametrize("name", MOVED)
def test_arrays_arrive_as_they_were_sent(ranks: Ranks, name: str) -> None:
    """What moves arrays moves all types, at all counts, also of more than a slot."""
    n = ranks.size
    counts = [*COUNTS, LARGE] if name in {"float64", "int8"} else list(COUNTS)
    data = {count: arrays(n, count, name, count) for count in counts}
    parts = {count: arrays(n, (n * 2, count // n), name, count + 1) for count in counts}

    def method(world: OwnWorld) -> list[Any]:
        ahead, behind = (world.rank + 1) % n, (world.rank - 1) % n
        results = []
        for count in counts:
            x = data[count][world.rank]
            results.append(
                [
                    world.all_gather(x),
                    world.broadcast(x, n - 1),
                    world.all_to_all(parts[count][world.rank]),
                    world.sendrecv(x, ahead, behind),
                ]
            )
        return results

    for rank, results in enumerate(ranks.call(method)):
        for count, (gathered, cast, exchanged, received) in zip(counts, results, strict=True):
            same(gathered, np.stack(data[count]))
            same(cast, data[count][n - 1])
            same(exchanged, np.concatenate([each[rank * 2 : rank * 2 + 2] for each in parts[count]]))
            same(received, data[count][(rank - 1) % n])


@pytest.mark.parametrize("row", [(), (3,), (2, 0)])
@pytest.mark.parametrize("most", [0, 5, 40_000])
def test_parts_may_have_different_lengths(ranks: Ranks, row: tuple[int, ...], most: int) -> None:
    """Each rank gets from each other what that has for it, if it is nothing, too."""
    n = ranks.size
    lengths = np.random.default_rng(most).integers(0, most, (n, n), endpoint=True)
    parts = [[arrays(1, (int(lengths[a, b]), *row), "float64", a * n + b)[0] for b in range(n)] for a in range(n)]
    for rank, received in enumerate(ranks.call(lambda world: world.all_to_all_v(parts[world.rank]))):
        for sender, array in enumerate(received):
            same(array, parts[sender][rank])


def test_some_may_send_or_receive_nothing(three: Ranks) -> None:
    """In an exchange a rank may only send, only receive, or neither."""
    given = arrays(3, 300_000, "float32")
    pairs: list[tuple[int | None, int | None]] = [(2, None), (None, None), (None, 0)]
    found = three.call(lambda world: world.sendrecv(given[world.rank], *pairs[world.rank]))
    assert found[:2] == [None, None]
    same(found[2], given[0])


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int16", "complex64"])
@pytest.mark.parametrize("count", [10, LARGE])
def test_a_factor_multiplies_before_the_sum(three: Ranks, name: str, count: int) -> None:
    """Each rank has its own; products of halves are not rounded before the sum."""
    given = arrays(3, count, name)
    factors: list[Any] = [3, -7, 11] if name == "int16" else [0.3, np.float64(-1.7), np.array(2)]
    found = three.call(lambda world: world.all_reduce(given[world.rank], factor=factors[world.rank]))
    for each in found:
        same(each, reduced("sum", given, factors))


def test_results_go_where_the_method_says(three: Ranks) -> None:
    """`out` may be the input itself, lie over it, or have gaps, of large arrays too."""
    for count in (6, LARGE // 6 * 6):
        given = arrays(3, count, "float32", count)
        whole = reduced("sum", given)

        def method(world: OwnWorld, given: list[Array] = given, count: int = count) -> list[Any]:
            x = given[world.rank]
            matrix = np.zeros((1, count), np.float32).view(np.matrix)
            world.all_reduce(x.reshape(1, count), out=matrix)
            unaligned = np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32)
            world.all_reduce(x, out=unaligned)
            in_place, gaps, moved = x.copy(), np.zeros((count, 2), np.float32), np.append(x, x[:1])
            assert world.all_reduce(in_place, out=in_place) is in_place
            world.all_reduce(x, out=gaps[:, 1])
            world.all_reduce(moved[:-1], out=moved[1:])
            part = x.copy()
            world.reduce_scatter(part, out=part[: count // 3])
            room = np.zeros((3, count), np.float32)
            room[1] = x
            world.all_gather(room[1], out=room)
            swapped = x.copy()
            world.all_to_all(swapped, out=swapped)
            passed = x.copy()
            world.sendrecv(passed, (world.rank + 1) % 3, (world.rank - 1) % 3, out=passed)
            cast = x.copy()
            world.broadcast(cast, 1, out=cast)
            assert not gaps[:, 0].any()
            return [
                np.asarray(matrix)[0],
                unaligned,
                in_place,
                gaps[:, 1],
                moved[1:],
                part[: count // 3],
                room,
                swapped,
                passed,
                cast,
            ]

        third = count // 3
        for rank, found in enumerate(three.call(method)):
            own = slice(rank * third, rank * third + third)
            exchanged = np.concatenate([each[own] for each in given])
            expected = [
                whole,
                whole,
                whole,
                whole,
                whole,
                whole[own],
                np.stack(given),
                exchanged,
                given[(rank - 1) % 3],
                given[1],
            ]
            for one, other in zip(found, expected, strict=True):
                same(one, other)


def test_what_comes_again_is_reduced_as_at_first(three: Ranks) -> None:
    """Small arrays of many sizes, types and operators, in turns, in either half of the mailbox."""
    cases = [(count, name, op) for count in range(1, 40) for name in ("float16", "int32") for op in ("sum", "max")]
    cases = cases[:9] * 3 + cases * 2
    data = {(count, name): arrays(3, count, name, count) for count, name, _ in cases}
    for found in three.call(lambda world: [world.all_reduce(data[n, t][world.rank], op) for n, t, op in cases]):
        for result, (count, name, op) in zip(found, cases, strict=True):
            same(result, reduced(op, data[count, name]))


class Ref(Operand):
    """Stands for the array of a ref.

    Args:
        array: The array.
    """

    def __init__(self, array: Array) -> None:
        self.array = array


def test_inputs_may_be_whatever_numpy_takes(three: Ranks) -> None:
    """Numbers, lists, arrays without order, of the other order of bytes, and those of refs."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    inputs: list[Any] = [2.5, [1, 2], base.T, base[::-1, ::2], base.astype(">f4"), Ref(base), np.float32(3), base[:0]]

    def method(world: OwnWorld) -> list[Any]:
        out = np.zeros((4, 6), np.float32)
        ref = Ref(out)
        assert world.all_reduce(base, out=ref) is ref
        return [world.all_reduce(each) for each in inputs] + [out]

    expected = [7.5, [3, 6], *(np.float32(3) * each for each in (base.T, base[::-1, ::2], base, base)), np.float32(9)]
    for found in three.call(method):
        for one, other in zip(found, [*expected, base[:0], base * np.float32(3)], strict=True):
            same(one, np.array(other))


REFUSED: Final[dict[str, Callable[[OwnWorld], Any]]] = {
    "bool": lambda world: world.all_reduce([True]),
    "float8": lambda world: world.all_reduce(np.zeros(2, ml_dtypes.float8_e5m2)),
    "avg of integers": lambda world: world.all_reduce([1], "avg"),
    "order of complex": lambda world: world.all_reduce([1j], "max"),
    "operator": lambda world: world.all_reduce([1.0], "summe"),
    "no operator": lambda world: world.all_reduce([1.0], [1]),  # type: ignore[arg-type]
    "factor": lambda world: world.all_reduce([1.0], "max", factor=2),
    "factor of integers": lambda world: world.all_reduce([1], factor=0.5),
    "large factor": lambda world: world.all_reduce(np.zeros(1, np.int8), factor=300),
    "factors": lambda world: world.all_reduce([1.0], factor=[1.0, 2.0]),
    "text": lambda world: world.all_gather("x"),
    "dates": lambda world: world.all_gather(np.zeros(1, "M8[s]")),
    "objects": lambda world: world.all_gather([object()]),
    "ragged": lambda world: world.all_gather([[1], [1, 2]]),
    "root": lambda world: world.broadcast([1], 3),
    "negative root": lambda world: world.broadcast([1], -1),
    "no root": lambda world: world.reduce([1], True),
    "to": lambda world: world.sendrecv([1], 5, 0),
    "rows": lambda world: world.reduce_scatter([1.0, 2.0]),
    "parts": lambda world: world.all_to_all(np.zeros((4, 3))),
    "no axis": lambda world: world.all_to_all(1.0),
    "number of parts": lambda world: world.all_to_all_v([[1]]),
    "types of parts": lambda world: world.all_to_all_v([[1], [1.0], [1]]),
    "parts without an axis": lambda world: world.all_to_all_v([1, 2, 3]),
    "shape of out": lambda world: world.all_gather([1.0], out=np.zeros(3)),
    "type of out": lambda world: world.all_reduce([1.0], out=np.zeros(1, np.float32)),
    "order of out": lambda world: world.all_reduce([1.0], out=np.zeros(1, ">f8")),
    "masked": lambda world: world.all_reduce(np.ma.masked_array([1, 2], [False, True])),
    "masked parts": lambda world: world.all_to_all_v([np.ma.masked_array([1], [True])] * 3),
    "masked rows": lambda world: world.all_gather([np.ma.masked_array([1], [True])]),
    "masked out": lambda world: world.all_reduce([1.0], out=np.ma.masked_array([0.0], [True])),
    "list for out": lambda world: world.all_reduce([1.0], out=[0.0]),
    "out that is read": lambda world: world.all_reduce([1.0], out=np.frombuffer(bytes(8))),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_refused_before_anybody_waits(three: Ranks, call: Callable[[OwnWorld], Any]) -> None:
    """Each rank raises InvalidRequest; the ranks have not met, and meet after it."""

    def method(world: OwnWorld) -> int:
        with pytest.raises(errors.InvalidRequest):
            call(world)
        return int(world.all_reduce([world.rank])[0])

    assert three.call(method) == [3, 3, 3]


def test_infinities_are_results_and_no_warnings(three: Ranks) -> None:
    """Nothing warns, whatever the numbers are."""
    given = [np.array(each, np.float32) for each in ([np.inf, 3e38, np.nan], [-np.inf, 3e38, 1], [1, 3e38, 1])]
    for operator in ("sum", "max", "avg"):
        for found in three.call(partial(reduce_given, given, operator)):
            same(np.nan_to_num(found, nan=7), np.nan_to_num(reduced(operator, given), nan=7))
    for found in three.call(lambda world: world.all_reduce(np.ones(1, np.float32), factor=1e300)):
        assert found == np.inf
    assert np.geterr()["over"] == "warn"


def reduce_given(given: list[Array], operator: str, world: OwnWorld) -> Any:
    """Reduce this rank's array."""
    return world.all_reduce(given[world.rank], operator)


class Step(NamedTuple):
    """One collective of a random method."""

    kind: str
    name: str
    elements: int
    operator: str
    root: int


STEPS: Final = st.lists(
    st.builds(
        Step,
        st.sampled_from(["all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"]),
        st.sampled_from(["float32", "bfloat16", "int64"]),
        st.sampled_from([0, 1, 7, 4_100, 70_000]),
        st.sampled_from(["sum", "max", "prod"]),
        st.integers(0, 2),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_any_sequence_gives_what_its_collectives_give(steps: list[Step]) -> None:
    """Collectives that follow each other do not disturb each other, within calls or between them."""
    with joined(3) as ranks:
        for _ in range(2):
            for rank, found in enumerate(ranks.call(lambda world: [taken(world, each) for each in steps])):
                for step, result in zip(steps, found, strict=True):
                    expected = modelled(step, rank)
                    assert (result is None) == (expected is None)
                    if expected is not None:
                        same(result, expected)


def data_of(step: Step) -> list[Array]:
    """Return the arrays that ranks give."""
    return arrays(3, (3, step.elements), step.name, step.elements)


def taken(world: OwnWorld, step: Step) -> Any:
    """Call a collective."""
    x = data_of(step)[world.rank]
    match step.kind:
        case "barrier":
            return world.barrier()
        case "all_reduce" | "reduce_scatter":
            return getattr(world, step.kind)(x, step.operator)
        case "reduce":
            return world.reduce(x, step.root, step.operator)
        case "broadcast":
            return world.broadcast(x, step.root)
        case _:
            return getattr(world, step.kind)(x)


def modelled(step: Step, rank: int) -> Array | None:
    """Return the result of a collective, from all ranks' arrays at once."""
    given = data_of(step)
    results = {
        "all_reduce": reduced(step.operator, given),
        "reduce": reduced(step.operator, given) if rank == step.root else None,
        "reduce_scatter": reduced(step.operator, given)[rank : rank + 1],
        "all_gather": np.stack(given),
        "broadcast": given[step.root],
        "all_to_all": np.concatenate([each[rank : rank + 1] for each in given]),
        "barrier": None,
    }
    return results[step.kind]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_processes_get_equal_bits_in_all_runs() -> None:
    """Over processes of their own, all ranks get the same bits, each time."""
    given = {count: arrays(4, count, "float32", count) for count in (33, 700_001)}

    def method(world: OwnWorld, send: Callable[[Any], None]) -> None:
        for _, count in itertools.product(range(3), given):
            send(hash(world.all_reduce(given[count][world.rank]).tobytes()))

    expected = [hash(reduced("sum", given[count]).tobytes()) for _, count in itertools.product(range(3), given)]
    with forked(4, method) as (_, processes):
        for _, pipe in processes:
            for each in expected:
                assert pipe.poll(DEADLINE_S)
                assert pipe.recv() == each
