"""Collectives by NCCL, over a library that stands for it: each against NumPy, and what is refused before it is put."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from tests.nccl_ranks import NcclWorld

TYPES: Final = (
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
OPERATORS: Final = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}
HALVES: Final = ("float16", "bfloat16")

HELPERS: Final = """
import ml_dtypes
def parts(dtype, shape):
    given = np.random.default_rng(int(np.prod(shape)))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return [given.integers(0, 5, shape).astype(kind) for _ in range(size)]

def run(name, dtype, shape, *arguments, how="device", in_place=False, **more):
    x = parts(dtype, shape)[rank]
    x = cp.asarray(x) if how == "device" else x
    out = {"out": x} if in_place else {}
    result = getattr(world, name)(x, *arguments, **out, **more)
    assert result is x or not in_place
    return result
"""


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NcclWorld]:
    """Yield a world of so many ranks that have joined an epoch."""
    with NcclWorld(request.param, stand_in=tmp_path_factory.mktemp("nccl")) as made:
        made.each(HELPERS)
        made.join()
        yield made


def parts(dtype: str, shape: Any, size: int) -> list[Any]:
    """Return the arrays that the ranks make."""
    given = np.random.default_rng(int(np.prod(shape)))
    kind: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return [given.integers(0, 5, shape).astype(kind) for _ in range(size)]


def reduced(arrays: list[Any], operator: str = "sum") -> Any:
    """Return arrays reduced in the order of ranks; halves in float32."""
    dtype = arrays[0].dtype
    total, *others = [each.astype("float32") if dtype.name in HALVES else each for each in arrays]
    for each in others:
        total = OPERATORS[operator](total, each)
    return (total / len(arrays) if operator == "avg" else total).astype(dtype)


def same(found: list[Any], expected: list[Any]) -> None:
    """Assert that the ranks have these arrays, bit by bit; a quotient of complex numbers may differ in the last."""
    for got, each in zip(found, expected, strict=True):
        if each is None:
            assert got is None
            continue
        assert not isinstance(got, str), got
        assert (got.dtype, got.shape) == (each.dtype, each.shape)
        if each.dtype.kind == "c":
            np.testing.assert_allclose(got, each, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, each)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("how", ["device", "host"])
def test_reductions(ranks: NcclWorld, dtype: str, how: str) -> None:
    """Of all types and operators, new and in place, of few elements, none, and without dimensions."""
    for operator in OPERATORS:
        if (operator == "avg" and "int" in dtype) or (operator in {"min", "max"} and "complex" in dtype):
            continue
        for shape in ((7,), (0,), (), (3, 5)):
            expected = reduced(parts(dtype, shape, ranks.size), operator)
            for in_place in (False, True):
                if in_place and how == "host" and not shape:
                    continue
                code = f"run('all_reduce', {dtype!r}, {shape}, {operator!r}, how={how!r}, in_place={in_place})"
                same(ranks.call(code), [expected] * ranks.size)


@pytest.mark.parametrize("dtype", ["int16", "uint64", "bfloat16", "float64", "complex64"])
def test_factors(ranks: NcclWorld, dtype: str) -> None:
    """Each rank has its own; halves are rounded once, behind the sum."""
    arrays = [
        each.astype("float32" if dtype in HALVES else each.dtype) * np.array(rank + 2).astype(each.dtype)
        for rank, each in enumerate(parts(dtype, 9, ranks.size))
    ]
    expected = reduced(arrays).astype(parts(dtype, 9, 1)[0].dtype)
    same(ranks.call(f"run('all_reduce', {dtype!r}, 9, 'sum', factor=rank + 2)"), [expected] * ranks.size)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64", "complex128", "bool"])
@pytest.mark.parametrize("how", ["device", "host"])
def test_moves(ranks: NcclWorld, dtype: str, how: str) -> None:
    """Each collective that moves rows."""
    size, shape = ranks.size, (ranks.size * 2, 3)
    arrays, given = parts(dtype, shape, size), f"{dtype!r}, {shape}"
    more = f"how={how!r}"
    same(ranks.call(f"run('all_gather', {given}, {more})"), [np.stack(arrays)] * size)
    same(ranks.call(f"run('broadcast', {given}, size - 1, {more}, in_place=True)"), [arrays[-1]] * size)
    rows = [[each.reshape(size, 2, 3)[rank] for each in arrays] for rank in range(size)]
    same(ranks.call(f"run('all_to_all', {given}, {more})"), [np.concatenate(each) for each in rows])
    same(ranks.call(f"run('all_to_all', {given}, {more}, in_place=True)"), [np.concatenate(each) for each in rows])
    if dtype != "bool":
        same(ranks.call(f"run('reduce_scatter', {given}, 'sum', {more})"), [reduced(each) for each in rows])
        expected = [None] * (size - 1) + [reduced(arrays)]
        same(ranks.call(f"run('reduce', {given}, size - 1, 'sum', {more})"), expected)
    ring = f"run('sendrecv', {given}, (rank + 1) % size, (rank - 1) % size, {more}, in_place=True)"
    same(ranks.call(ring), [arrays[rank - 1] for rank in range(size)])
    chain = f"run('sendrecv', {given}, rank + 1 if rank + 1 < size else None, rank - 1 if rank else None, {more})"
    same(ranks.call(chain), [None, *arrays[:-1]])


def test_parts_of_any_length(ranks: NcclWorld) -> None:
    """None, and those without bytes in a row, included."""
    for width in (2, 0):
        code = f"world.all_to_all_v([cp.full((rank + 2 * each, {width}), 10.0 * rank + each) for each in range(size)])"
        for rank, found in enumerate(ranks.call(code)):
            for sender, got in enumerate(found):
                np.testing.assert_array_equal(got, np.full((sender + 2 * rank, width), 10.0 * sender + rank))


def test_barriers_and_an_array_with_gaps(ranks: NcclWorld) -> None:
    """The result is copied to its places."""
    assert ranks.call("world.barrier()") == [None] * ranks.size
    ranks.each("place = cp.zeros((4, 2))")
    ranks.call("world.all_reduce(cp.ones(4), out=place[:, 0])")
    same(ranks.each("place.get()"), [np.stack([np.full(4, float(ranks.size)), np.zeros(4)], 1)] * ranks.size)


DIFFERS: Final = (
    ("world.all_reduce(cp.ones(4))", "world.all_reduce(cp.ones(5))", "of 4 float64, rank 1 of 5 float64"),
    ("world.barrier()", "world.all_gather(cp.ones(4))", "rank 0 calls barrier, rank 1 all_gather"),
    ("world.all_reduce(cp.ones(4))", "world.all_reduce(cp.ones(4), 'max')", "all_reduce(max)"),
    ("world.sendrecv(cp.ones(3), 1, None)", "world.sendrecv(cp.ones(3), None, None)", "receives nothing"),
    ("world.all_to_all_v([cp.ones(1)] * size)", "world.all_to_all_v([cp.ones((1, 2))] * size)", "2 elements a row"),
    ("world.refuse()", "world.all_reduce(cp.ones(3))", "its part was refused"),
)


@pytest.mark.parametrize(("one", "other", "text"), DIFFERS)
def test_where_ranks_differ_nothing_is_put(ranks: NcclWorld, one: str, other: str, text: str) -> None:
    """All ranks raise it, and the epoch goes on."""
    if ranks.size == 1:
        return
    before = ranks.each("len(nccl.enqueued)")
    for each, code in zip(ranks.all, (one, other, *[one] * ranks.size), strict=False):
        each.call(code)
    for each in ranks.all:
        found = each.get()
        assert found.startswith("WorldMismatch"), found
        assert text in found or each is ranks.all[-1]
    assert ranks.each("len(nccl.enqueued)") == before
    same(ranks.call("world.all_reduce(cp.ones(4))"), [np.full(4, float(ranks.size))] * ranks.size)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("world.all_reduce(cp.ones(3, 'bool'))", "InvalidRequest: sum of bool is not computed"),
        ("world.all_reduce(cp.ones(3), 'mean')", "InvalidRequest: there is no operator 'mean'"),
        ("world.broadcast(cp.ones(3), 9)", "InvalidRequest: `root` is 9"),
        ("(setattr(cp.cuda.get_current_stream(), 'captures', True), world.all_reduce(cp.ones(3)))", "Unsupported: "),
    ],
)
def test_what_is_refused_meets_nobody(ranks: NcclWorld, code: str, text: str) -> None:
    """As on the other engines; and what a CUDA graph would hold."""
    assert all(each.startswith(text) for each in ranks.call(code))
    ranks.each("setattr(member._thread.meet.__self__.stream, 'captures', False)")
    same(ranks.call("world.all_reduce(cp.ones(4))"), [np.full(4, float(ranks.size))] * ranks.size)


def test_a_rehearsal_needs_nobody(tmp_path: Path) -> None:
    """This rank's data stands for that of all."""
    with NcclWorld(2, stand_in=tmp_path) as ranks:
        ranks.each(HELPERS)
        one = ranks.all[1]
        for dtype in TYPES:
            own = parts(dtype, (4,), 2)[1]
            same([one.do(f"rehearse(\"run('all_reduce', '{dtype}', (4,))\")")], [reduced([own, own])])
        own = parts("float32", (4,), 2)[1]
        same([one.do("rehearse(\"run('reduce_scatter', 'float32', (4,))\")")], [reduced([own, own])[2:]])
        same([one.do("rehearse(\"run('all_gather', 'float32', (4,))\")")], [np.stack([own, own])])
        same([one.do("rehearse(\"run('all_to_all', 'float32', (4,))\")")], [np.concatenate([own[2:], own[2:]])])
        same([one.do("rehearse(\"run('sendrecv', 'float32', (4,), 0, 0)\")")], [own])
        assert one.do("rehearse('world.barrier()')") is None
        found = one.do("rehearse('world.all_to_all_v([cp.ones(1), cp.zeros(2)])')")
        assert [each.tolist() for each in found] == [[0, 0], [0, 0]]
        assert one.do("nccl.enqueued") == []
