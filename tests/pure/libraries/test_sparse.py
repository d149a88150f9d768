from __future__ import annotations

import functools
import math
import tracemalloc
from typing import Any, Final

import msgspec
import numpy as np
import pytest
import scipy.sparse

from atomr_mp import errors
from atomr_mp.protocol.libraries import sparse
from atomr_mp_workers.device import open_device
from atomr_mp_workers.libraries.sparse import structures
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from tests.actor_libraries import libraries_on
from tests.cases import sparse_cases
from tests.cases.sparse_cases import REQUESTS, Named, matrix_of, of_mask, pattern_of
from tests.declared import check, refused_in_the_worker
from tests.direct import host_actor, run_by
from tests.fakes.fake_arrays import FakeArray

ACTOR: Final = host_actor("sparse")
run: Final = run_by(ACTOR)


# --- structures that are none -----------------------------------------------------------------------------------------


def told(
    to: sparse.Format, indices: Any, indptr: Any, shape: tuple[int, ...], index: str = "int32", **more: Any
) -> Any:
    """Return a request to check a structure."""
    arrays = [None if each is None else FakeArray.of(each, index) for each in (indices, indptr)]
    return sparse.Structure(arrays[0], arrays[1], to=to, shape=shape, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (told("csr", [0, 9], [0, 1, 2], (2, 5)), r"indices\[1\] is not in the range from 0 to 4"),
        (told("csr", [-1, 2], [0, 1, 2], (2, 5)), r"indices\[0\] is not in the range from 0 to 4"),
        (told("csc", [0, 2], [0, 1, 2], (2, 2)), r"indices\[1\] is not in the range from 0 to 1"),
        (told("csr", [3, 1], [0, 2, 2], (2, 5)), r"indices\[1\] must come before its predecessor: sort"),
        (told("csr", [3, 3], [0, 2, 2], (2, 5)), r"indices\[1\] comes twice: add such elements up"),
        (told("csr", [3, 1], [1, 1, 2], (2, 5)), "indptr does not begin with 0"),
        (told("csr", [3, 1], [0, 1, 3], (2, 5)), "indptr does not end with 2, the number of indices"),
        (told("csr", [1, 3], [0, 2**31 - 1, 2], (2, 5)), r"indptr\[2\] is less than the one before"),
        (told("csr", [1, 3], [0, -7, 2], (2, 5)), r"indptr\[1\] is less than the one before"),
        (told("csr", [], [0, 0, 1], (2, 5)), "indptr does not end with 0"),
        (told("coo", [0, 1], [0, 2], (2, 5)), r"row\[1\] is not in the range from 0 to 1"),
        (told("coo", [0, 5], [0, 1], (2, 5)), r"col\[1\] is not in the range from 0 to 4"),
        (told("coo", [0, 0], [1, 0], (2, 5)), r"row\[1\], col\[1\] must come before its predecessor"),
        (told("coo", [2, 2], [1, 1], (2, 5)), r"row\[1\], col\[1\] comes twice"),
        (told("bsr", [0, 2], [0, 1, 2], (4, 4), blocksize=(2, 2)), r"indices\[1\] is not in the range from 0 to 1"),
        (
            told("blocked_ell", [[0, 2]], None, (2, 4), blocksize=(2, 2)),
            r"indices\[1\] is not in the range from 0 to 1",
        ),
        (told("blocked_ell", [[-2, 1]], None, (2, 4), blocksize=(2, 2)), r"indices\[0\] is not in the range"),
        (told("blocked_ell", [[1, 0]], None, (2, 4), blocksize=(2, 2)), r"indices\[1\] must come before"),
        (told("blocked_ell", [[-1, 0]], None, (2, 4), blocksize=(2, 2)), r"indices\[1\] must come before"),
        (told("blocked_ell", [[1, 1]], None, (2, 4), blocksize=(2, 2)), r"indices\[1\] comes twice"),
    ],
)
def test_indices_that_cannot_be_are_refused_when_the_matrix_is_made(request_: Any, message: str) -> None:
    """Out of range, out of order, twice, or with row pointers that lie; whatever they hold, nothing else is read."""
    request_.check()
    with pytest.raises(errors.InvalidRequest, match=message):
        run(request_)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (told("csr", [0], [0, 1, 1], (2,)), "The shape must be two lengths"),
        (
            told("csr", [0], [0, 1], (2, 5)),
            r"indptr \(2,\); csr of \(2, 5\) needs one dimension, and 3 elements of indptr",
        ),
        (told("csr", [[0]], [0, 1, 1], (2, 5)), r"indices has the shape \(1, 1\)"),
        (told("csc", [0], [0, 1, 1], (2, 5)), "6 elements of indptr"),
        (told("coo", [0, 1], [0], (2, 5)), r"col has the shape \(2,\), row \(1,\)"),
        (told("csr", [0], None, (2, 5)), "indptr None"),
        (told("csr", [0], [0, 1, 1], (2, 2**31)), "less than 2³¹ with int32"),
        (told("coo", [0], [0], (2, 2**50), "int64"), "at most 2⁴⁷"),
        (told("bsr", [0], [0, 1], (3, 4), blocksize=(2, 2)), "blocksize must be two lengths that divide the shape"),
        (told("bsr", [0], [0, 1], (2, 4), blocksize=(0, 2)), "blocksize must be"),
        (told("csr", [0], [0, 1, 1], (2, 4), blocksize=(2, 2)), "blocksize must be"),
        (told("blocked_ell", [[0]], None, (2, 4), blocksize=(2, 1)), "blocksize must be"),
        (told("blocked_ell", [[0, 1, 2]], None, (2, 4), blocksize=(2, 2)), r"needs \(1, at most 2\)"),
        (told("csr", [0], [0, 1], (-1, 5)), "shape"),
        (told("csr", [0.0], [0, 1, 1], (2, 5), "float32"), "is not defined for float32; indices may be int32, int64"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused_before_anything_is_sent(request_: Any, message: str) -> None:
    """Lengths, blocks, types of indices, and extents that these cannot tell."""
    with pytest.raises(errors.InvalidRequest, match=message):
        check(request_)
    assert refused_in_the_worker(request_)


def test_random_indices_are_a_structure_or_an_error() -> None:
    """Whatever they are: what is taken is in order and in range, as SciPy sees it."""
    random = np.random.default_rng(8)
    taken = 0
    for _ in range(400):
        indptr = np.sort(random.integers(0, 5, 5)) if random.random() < 0.7 else random.integers(-3, 7, 5)
        indices = random.integers(-1 if random.random() < 0.3 else 0, 4, 4)
        request = told("csr", indices, indptr, (4, 4))
        try:
            name, _, _ = run(request)
        except errors.InvalidRequest:
            continue
        taken += 1
        assert (indptr[0], indptr[-1]) == (0, 4)
        rows = np.repeat(np.arange(4), np.diff(indptr))
        assert (np.diff(rows * 4 + indices) > 0).all()
        assert ((indices >= 0) & (indices < 4)).all()
        assert name.attached.count == 4
    assert taken > 10


# --- matrices that are none -------------------------------------------------------------------------------------------


def product(matrix: Any, dtype: str = "float64") -> sparse.Spmv:
    """Return a product with a vector."""
    m, n = matrix.shape
    return sparse.Spmv(matrix, FakeArray.of(np.zeros(n), dtype), FakeArray.of(np.zeros(m), dtype))


def test_a_matrix_that_lies_is_refused_before_its_structure_is_used() -> None:
    """A request that says another shape, count, format or width than was checked, or names no structure at all."""
    it = of_mask("csr", np.ones((3, 3), bool))
    matrix = matrix_of(it, "float64")
    run(product(matrix))
    for lie in ({"stored": "csc"}, {"index": "int64"}, {"rows": 4}, {"columns": 4}, {"blocksize": (3, 3)}):
        with pytest.raises((errors.InvalidRequest, errors.Unsupported)):
            run(checked(product(msgspec.structs.replace(matrix, **lie))))
    fewer = msgspec.structs.replace(matrix, count=8, data=FakeArray.of(np.zeros(8), "float64"))
    with pytest.raises(errors.InvalidRequest, match="its structure is"):
        run(checked(product(fewer)))
    nothing = msgspec.structs.replace(matrix, structure=Named.of(np.zeros(1), "uint8"))
    with pytest.raises(errors.InvalidRequest, match="names no checked structure"):
        run(checked(product(nothing)))


def checked(request: Any) -> Any:
    """Return a request that passes all that can be checked without the structure."""
    check(request)
    return request


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: product(of("blocked_ell")), "sparse.spmv takes no a in blocked_ell; convert it to csr or csc or"),
        (lambda: product(of("bsr", transposed=True)), "a is a transpose in bsr"),
        (lambda: wide(of("blocked_ell", "complex64")), "blocked_ell with int32 indices and real values"),
        (lambda: wide(of("blocked_ell", index="int64")), "blocked_ell with int32 indices and real values"),
        (lambda: wide(of("csc", "float16")), "takes a of float16 in csr, coo or a blocked format, not transposed"),
        (lambda: wide(of("coo", "bfloat16", transposed=True)), "not transposed"),
        (lambda: sparse.Spgemm(of("coo"), of("coo")), "takes no a in coo"),
        (lambda: sparse.Spgemm(of("csr"), of("csr", index="int64")), "int32 indices only"),
        (lambda: sparse.Spsv(of("bsr"), FakeArray.of(np.zeros(2), "float64"), "L"), "takes no a in bsr"),
    ],
)
def test_what_cusparse_does_not_have_is_told_before_anything_is_sent(make: Any, message: str) -> None:
    """Format, width of indices and element type decide, equally on every backend."""
    request = make()
    with pytest.raises(errors.Unsupported, match=message):
        check(request)
    assert refused_in_the_worker(request)


def of(
    stored: sparse.Format, dtype: str = "float64", index: str = "int32", *, transposed: bool = False
) -> sparse.Matrix:
    """Return a matrix of 2 x 2 elements."""
    return matrix_of(of_mask(stored, np.ones((2, 2), bool), index=index), dtype, transposed=transposed)


def wide(matrix: sparse.Matrix) -> sparse.Spmm:
    """Return a product with a matrix."""
    return sparse.Spmm(matrix, FakeArray.of(np.zeros((2, 3)), matrix.data.dtype))


@pytest.mark.parametrize("stored", ["csr", "csc", "coo"])
@pytest.mark.parametrize("name", ["spsv", "spsm"])
def test_a_zero_on_the_diagonal_is_told_with_its_row(name: str, stored: sparse.Format) -> None:
    """One that is stored, and one that is not; a diagonal of ones is not looked at."""
    mask = np.tri(3, dtype=bool)
    b, x = (FakeArray.of(np.ones((3, 2) if name == "spsm" else 3), "float64") for _ in "bx")
    for gap in (False, True):
        mask[1, 1] = not gap
        matrix = matrix_of(of_mask(stored, mask), "float64")
        it: CheckedStructure = matrix.structure.attached  # type: ignore[attr-defined]
        values: Any = matrix.data
        values.array[...] = [
            0 if row == column == 1 else 1 for row, column, _ in sparse_cases.elements(it, values.array)
        ]
        with pytest.raises(errors.NumericalError, match="diagonal of a is 0 or missing in row 1") as raised:
            run(REQUESTS[name](matrix, b, "L", x))
        assert (raised.value.row, raised.value.undefined) == (1, "x")
        run(REQUESTS[name](matrix, b, "L", x, diag="U"))
        assert math.isclose(x.array.reshape(3, -1)[2, 0], 0.0)


@pytest.mark.parametrize("to", ["csr", "bsr", "blocked_ell"])
def test_a_shape_that_no_memory_has_is_out_of_memory(to: sparse.Format) -> None:
    """A matrix of coordinates may have it; in another format it has an index for each row, or a block."""
    name, _, _ = run(told("coo", [0, 2**40], [0, 5], (2**34, 2**45), "int64"))
    given_ = pattern_of(name.attached)
    data = FakeArray.of(np.ones(2), "float32")
    matrix = sparse.Matrix(name, *msgspec.structs.astuple(given_)[1:], data)  # type: ignore[call-arg]
    with pytest.raises(errors.OutOfMemory):
        run(checked(sparse.Convert(matrix, to, (1, 1))))


@pytest.mark.parametrize("to", ["csr", "csc", "bsr", "blocked_ell"])
def test_a_conversion_takes_memory_for_its_elements_and_its_result(to: sparse.Format) -> None:
    """It takes none for each row besides, which nothing would limit."""
    name, _, _ = run(told("coo", [7], [10**7 - 2], (10**7, 10**7)))
    given_, data = pattern_of(name.attached), FakeArray.of(np.full(1, 3), "float32")
    matrix = sparse.Matrix(name, *msgspec.structs.astuple(given_)[1:], data)  # type: ignore[call-arg]
    tracemalloc.start()
    try:
        structure, _, _ = run(checked(sparse.Convert(matrix, to, (1, 1))))
        _, peak_b = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_b < 2**20
    made: CheckedStructure = structure.attached
    rows, columns, _ = structures.entries(np, made)
    assert (rows.tolist(), columns.tolist()) == ([10**7 - 2], [7])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "complex64"])
@pytest.mark.parametrize("to", ["csr", "csc", "coo", "bsr", "blocked_ell"])
def test_conversions_from_each_format_keep_all_elements(to: sparse.Format, dtype: str) -> None:
    """Also without rows, columns or elements, with empty rows, and of a transpose."""
    random = np.random.default_rng(11)
    for stored in sparse_cases.FORMATS:
        for shape in ((0, 0), (0, 4), (4, 0), (4, 8), (8, 4)):
            mask = random.random(shape) < random.choice([0.0, 0.3, 1.0])
            it = of_mask(stored, mask, (2, 2) if stored in sparse.BLOCKED else (1, 1))
            for transposed in (False, True) if stored not in sparse.BLOCKED else (False,):
                matrix = matrix_of(it, dtype, transposed=transposed)
                values = random.integers(1, 9, matrix.data.shape)
                matrix.data.array[...] = values  # type: ignore[attr-defined]
                blocksize = (2, 2) if to in sparse.BLOCKED else (1, 1)
                name, data, _ = run(checked(sparse.Convert(matrix, to, blocksize)))
                found = sparse_cases.dense(pattern_of(name.attached), data.array.astype("complex128"))
                np.testing.assert_array_equal(found, sparse_cases.dense(matrix, values.astype("complex128")))
                assert data.dtype == dtype


def test_an_actor_makes_matrices_of_its_own_arrays() -> None:
    """They may be SciPy's or NumPy's. Nothing is sent, and results are there at once."""
    here, random = libraries_on(open_device("host", "adaptive"), "host").sparse, np.random.default_rng(7)
    matrix = scipy.sparse.random_array((6, 4), density=0.5, rng=random, format="csr")
    there = here.csr(matrix)
    np.testing.assert_allclose(here.spmv(there, np.ones(4)).array, matrix @ np.ones(4))
    np.testing.assert_allclose(here.spgemm(there.T, there).to_scipy().toarray(), (matrix.T @ matrix).toarray())
    again = here.coo((matrix.data, matrix.tocoo().coords), matrix.shape)
    assert again.to_scipy().format == "coo"
    np.testing.assert_array_equal(here.convert(again, to="csc").to_scipy().toarray(), matrix.toarray())
    with pytest.raises(errors.InvalidRequest, match="comes twice"):
        here.csr((np.ones(2), np.zeros(2, np.int32), np.array([0, 2], np.int32)), (1, 2))


def test_a_structure_keeps_few_plans() -> None:
    """The longest unused ones are dropped."""
    it = of_mask("csr", np.ones((2, 2), bool))
    made = [it.plan(at, functools.partial(list, [at])) for at in range(structures.PLANS_KEPT)]
    assert it.plan(0, list) is made[0]
    it.plan("one more", list)
    assert it.plan(0, list) is made[0]
    assert it.plan(1, list) == []
