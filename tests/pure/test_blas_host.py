from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.libraries.blas import Blas
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import requests_of
from atomr_mp.protocol.libraries.base import COMPLEX, HALF, LibraryRequest
from atomr_mp_workers.libraries.blas import host
from tests.blas_cases import DirectDevice, assert_agrees, op
from tests.fake_arrays import FakeArray
from tests.pure.test_blas_checks import REQUESTS, requests
from tests.tolerances import assert_close

Array = npt.NDArray[Any]

NOTHING: Final[Any] = None
HOST: Final = host.HostBlas(NOTHING, NOTHING)


def run(request: LibraryRequest) -> Any:
    """Have the code under test do a request."""
    return getattr(HOST, request.name)(request)


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_those_of_dense_matrices(name: str) -> None:
    """Whatever sizes, order, increments and gaps; nothing else is written, and nothing read that is not to be."""

    @given(requests(name), st.integers(0, 2**32 - 1))
    @settings(max_examples=300, deadline=None)
    def agrees(request: LibraryRequest, seed: int) -> None:
        assert_agrees(request, np.random.default_rng(seed), run)

    agrees()


def test_half_precision_is_rounded_once() -> None:
    """Terms that each would be lost in the sum are not: the sum is float32."""
    for dtype in HALF:
        ones = FakeArray.of(np.ones((1, 1024)), dtype)
        small = FakeArray.of(np.full((1024, 1), 2.0**-10), dtype)
        total = FakeArray.of([[1.0]], dtype)
        BLAS.gemm(ones, small, total, beta=1.0)
        assert total.array == 2.0
        BLAS.axpy(FakeArray.of([3.0], dtype), vector := FakeArray.of([1.0], dtype), alpha=1 / 3)
        assert vector.array == 2.0


def test_nrm2_does_not_overflow() -> None:
    """The squares would."""
    assert answer(BLAS.nrm2(FakeArray.of([3e300, 4e300], "float64"))) == pytest.approx(5e300)
    assert answer(BLAS.nrm2(FakeArray.of([3e-30, 4e-30], "float32"))) == pytest.approx(5e-30)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("gap", [0, 5])
def test_gemm_copies_no_matrix(order: str, gap: int) -> None:
    """BLAS works on the memory itself, whatever the order, the ops and the leading dimension."""
    a, b, c = (FakeArray.of(np.ones((600 + gap, 600 + gap)), "float32", order)[:600, :600] for _ in "abc")
    for trans in ("N", "T"):
        tracemalloc.start()
        try:
            BLAS.gemm(a, b, c, trans_a=trans)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < a.nbytes / 10
        assert (c.array == 600).all()


BLAS: Final = Blas(DirectDevice(run))


def answer(reply: Reply) -> Any:
    """Return what a direct device has answered with."""
    return reply


def variants(values: Array, dtype: str) -> dict[str, FakeArray]:
    """Return arrays that all hold the same matrix, or stack of matrices, and lie differently."""
    rows, columns = values.shape[-2:]
    *axes, row, column = range(values.ndim)
    more = np.zeros((*values.shape[:-2], rows + 3, 2 + columns))
    sliced = (..., slice(1, rows + 1), slice(2, None))
    found = {
        "C": FakeArray.of(values, dtype),
        "transposed": FakeArray.of(values.swapaxes(-1, -2), dtype).transpose(*axes, column, row),
        "sliced": FakeArray.of(more, dtype)[sliced],
        "sliced, transposed": FakeArray.of(more.swapaxes(-1, -2), dtype).transpose(*axes, column, row)[sliced],
    }
    for array in found.values():
        array.array[...] = values
    return found


KINDS: Final = ("C", "transposed", "sliced", "sliced, transposed")
kinds: Final = st.sampled_from(KINDS)
ops: Final = st.sampled_from(["N", "T", "C"])
lengths: Final = st.sampled_from([0, 1, 2, 5])
element_types: Final = st.sampled_from(["float32", "complex128"])


def drawn(data: st.DataObject, dtype: str, *shape: int) -> tuple[FakeArray, Array]:
    """Draw an array and how it lies; return it and its numbers."""
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = random.integers(-4, 5, shape) * 0.5 + (1j * random.integers(-4, 5, shape) if dtype in COMPLEX else 0)
    return variants(values, dtype)[data.draw(kinds)], values


def ends(call: Callable[[], Reply]) -> bool:
    """Return whether a request is done, not refused for a "C" that cannot be expressed."""
    try:
        call()
    except errors.InvalidRequest as error:
        if "cannot be expressed beside" not in str(error):
            raise
        return False
    return True


@given(st.data(), element_types, ops, ops, lengths, lengths, lengths, st.sampled_from([(), (3,)]))
@settings(deadline=None)
def test_gemm_of_refs_is_numpys(
    data: st.DataObject, dtype: str, trans_a: Any, trans_b: Any, m: int, n: int, k: int, batch: tuple[int, ...]
) -> None:
    """Row-major, column-major, sliced and transposed operands mix freely."""
    a, dense_a = drawn(data, dtype, *batch, *((m, k) if trans_a == "N" else (k, m)))
    b, dense_b = drawn(data, dtype, *((k, n) if trans_b == "N" else (n, k)))
    c, dense_c = drawn(data, dtype, *batch, m, n)
    call = BLAS.gemm_strided_batched if batch else BLAS.gemm
    if ends(lambda: call(a, b, c, trans_a=trans_a, trans_b=trans_b, alpha=2, beta=np.float32(0.5))):
        assert_close(c.array, 2 * op(trans_a, dense_a) @ op(trans_b, dense_b) + 0.5 * dense_c, dtype, k + 1, 32.0)
    else:
        assert dtype in COMPLEX
        assert "C" in {trans_a, trans_b}


@given(st.data(), element_types, ops, lengths, lengths)
@settings(deadline=None)
def test_matrix_and_vectors_of_refs_are_numpys(data: st.DataObject, dtype: str, trans: Any, m: int, n: int) -> None:
    """Vectors may be rows, columns and reversed."""
    a, dense_a = drawn(data, dtype, m, n)
    rows, columns = op(trans, dense_a).shape
    x, y = (FakeArray.of(np.arange(3.0 * length).reshape(length, 3), dtype)[::-1, 1] for length in (columns, rows))
    expected = 2.5 * op(trans, dense_a) @ x.array - y.array
    BLAS.gemv(a, x, y, trans=trans, alpha=2.5, beta=-1)
    assert_close(y.array, expected, dtype, columns + 1, 64.0)
    if trans == "N":
        BLAS.ger(a, y, x, alpha=0.5, conjugate=True)
        assert_close(a.array, 0.5 * np.outer(y.array, x.array.conj()) + dense_a, dtype, 2, 500.0)


@given(st.data(), element_types, ops, ops, lengths, lengths)
@settings(deadline=None)
def test_geam_of_refs_is_numpys(data: st.DataObject, dtype: str, trans_a: Any, trans_b: Any, m: int, n: int) -> None:
    """That includes transposing while it copies."""
    a, dense_a = drawn(data, dtype, *((m, n) if trans_a == "N" else (n, m)))
    b, dense_b = drawn(data, dtype, *((m, n) if trans_b == "N" else (n, m)))
    c, _ = drawn(data, dtype, m, n)
    if ends(lambda: BLAS.geam(a, b, c, alpha=-1.5, trans_a=trans_a, trans_b=trans_b)):
        assert_close(c.array, op(trans_b, dense_b) - 1.5 * op(trans_a, dense_a), dtype, 2, 8.0)


@given(st.data(), element_types, st.sampled_from("NT"), st.sampled_from("LU"), lengths, lengths)
@settings(deadline=None)
def test_syrk_of_refs_is_numpys(data: st.DataObject, dtype: str, trans: Any, uplo: Any, n: int, k: int) -> None:
    """The named triangle is that of the array as it is seen, whatever its order."""
    a, dense_a = drawn(data, dtype, *((n, k) if trans == "N" else (k, n)))
    c, dense_c = drawn(data, dtype, n, n)
    BLAS.syrk(a, c, uplo=uplo, trans=trans, beta=2)
    factor = op(trans, dense_a)
    here = np.tri(n, dtype=bool) if uplo == "L" else np.tri(n, dtype=bool).T
    assert_close(c.array, np.where(here, factor @ factor.T + 2 * dense_c, dense_c), dtype, k + 1, 16.0)


@given(st.data(), element_types, ops, st.sampled_from("LU"), st.sampled_from("LR"), lengths, lengths)
@settings(deadline=None)
def test_trsm_of_refs_solves(data: st.DataObject, dtype: str, trans: Any, uplo: Any, side: Any, m: int, n: int) -> None:
    """Multiplying back gives what was there."""
    size = m if side == "L" else n
    a, dense_a = drawn(data, dtype, size, size)
    b, dense_b = drawn(data, dtype, m, n)
    dense_a = dense_a * 0.2 + 2 * np.eye(size)
    a.array[...] = dense_a
    if ends(lambda: BLAS.trsm(a, b, uplo=uplo, side=side, trans=trans, alpha=0.5)):
        half = op(trans, np.tril(dense_a) if uplo == "L" else np.triu(dense_a))
        back = half @ b.array if side == "L" else b.array @ half
        assert_close(back, 0.5 * dense_b, dtype, size + 1, 16.0)


@given(st.integers(0, 5), st.sampled_from([1, 2, -1, -3]), st.sampled_from([1, 3, -1, -2]), element_types)
def test_vectors_of_refs_are_numpys(n: int, step_x: int, step_y: int, dtype: str) -> None:
    """Slices with any step, in any direction."""
    numbers_x, numbers_y = np.arange(1.0, 16), np.arange(-7.0, 8)
    if dtype in COMPLEX:
        numbers_x, numbers_y = numbers_x * (1 - 2j), numbers_y * 1j + 3
    x = FakeArray.of(numbers_x, dtype)[::step_x][:n]
    y = FakeArray.of(numbers_y, dtype)[::step_y][:n]
    n = min(x.size, y.size)
    x, y = x[:n], y[:n]
    dense_x, dense_y = x.array.copy(), y.array.copy()
    assert answer(BLAS.dot(x, y)) == pytest.approx(np.sum(dense_x * dense_y))
    assert answer(BLAS.dot(x, y, conjugate=True)) == pytest.approx(np.sum(dense_x.conj() * dense_y))
    assert answer(BLAS.nrm2(x)) == pytest.approx(np.sqrt(np.sum(np.abs(dense_x) ** 2)), rel=1e-6)
    assert answer(BLAS.asum(y)) == pytest.approx(np.sum(np.abs(dense_y.real) + np.abs(dense_y.imag)))
    BLAS.axpy(x, y, alpha=-2)
    np.testing.assert_array_equal(y.array, dense_y - 2 * dense_x)
    BLAS.swap(x, y)
    np.testing.assert_array_equal(y.array, dense_x)
    BLAS.scal(y, alpha=3)
    np.testing.assert_array_equal(y.array, 3 * dense_x)
    BLAS.copy(x, y)
    np.testing.assert_array_equal(y.array, dense_y - 2 * dense_x)
    BLAS.rot(x, y, c=0, s=1)
    np.testing.assert_array_equal(y.array, -(dense_y - 2 * dense_x))


def test_indices_count_from_1_and_only_forwards() -> None:
    """BLAS gives a negative increment no meaning where the order of elements counts."""
    x = FakeArray.of([2, -7, 0, 7, 0], "float64")
    assert answer(BLAS.iamax(x)) == 2
    assert answer(BLAS.iamin(x)) == 3
    assert answer(BLAS.iamax(x[::3])) == 2
    assert answer(BLAS.iamax(x[:0])) == 0
    with pytest.raises(errors.InvalidRequest, match="incx is -1"):
        BLAS.iamax(x[::-1])


def test_complex_factors_are_for_complex_arrays() -> None:
    """Python's, NumPy's and arrays without dimensions are factors; text is none."""
    x = FakeArray.of([1j, 2], "complex64")
    for factor in (2j, np.complex64(2j), np.array(2j)):
        x.array[...] = [1j, 2]
        BLAS.scal(x, alpha=factor)
        np.testing.assert_array_equal(x.array, [-2, 4j])
    half = dtypes.to_numpy("bfloat16").type(0.5)
    for real in (0.5, np.float32(0.5), np.array(0.5), half):
        x.array[...] = [1j, 2]
        BLAS.scal(x, alpha=real)
        np.testing.assert_array_equal(x.array, [0.5j, 1])
    with pytest.raises(errors.InvalidRequest, match="alpha is complex"):
        BLAS.scal(FakeArray.of([1.0], "float32"), alpha=1 + 0j)
    with pytest.raises(errors.InvalidRequest, match="alpha is 'two'"):
        BLAS.scal(x, alpha="two")  # type: ignore[arg-type]


def test_flat_memory_takes_all_sizes() -> None:
    """Then shapes and strides do not count; some only are refused."""
    a, b, c = (FakeArray.of(np.arange(6.0), "float64") for _ in "abc")
    BLAS.gemm(a, b, c, m=2, n=np.int64(2), k=3, lda=2, ldb=3, ldc=2)
    np.testing.assert_array_equal(c.array[:4].reshape(2, 2).T, [[10, 28], [13, 40]])
    BLAS.gemm(a, b, c, m=2, n=2, k=3, lda=3, ldb=2, ldc=2, order="row")
    np.testing.assert_array_equal(c.array[:4].reshape(2, 2), [[10, 13], [28, 40]])
    BLAS.axpy(a, c, n=2, incx=3, incy=-5)
    assert (c.array[5], c.array[0]) == (5, 13)
    with pytest.raises(errors.InvalidRequest, match="k, ldc must be given too"):
        BLAS.gemm(a, b, c, m=2, n=2, lda=3, ldb=2)
    with pytest.raises(errors.InvalidRequest, match="m, n, k, lda, ldb, ldc must be given too"):
        BLAS.gemm(a, b, c, order="row")


def test_what_cannot_be_told_by_strides_says_so() -> None:
    """Neither dimension contiguous, rows that overlap, broadcasts, odd strides, other dimensions."""
    square = FakeArray.of(np.ones((6, 6)), "float64")
    c = FakeArray.of(np.ones((3, 3)), "float64")
    vector = FakeArray.of(np.ones(3), "float64")
    for odd in (
        square[::2, ::2],
        square[::-2, :3],
        square[:3, 2::-1],
        FakeArray(Layout("float64", (3, 3), (0, 8), 0)),
        FakeArray(Layout("float64", (3, 3), (16, 8), 0)),
        FakeArray(Layout("float64", (3, 3), (28, 8), 0)),
    ):
        with pytest.raises(errors.InvalidRequest, match="one dimension must be contiguous"):
            BLAS.gemm(odd, c, FakeArray.of(np.ones((3, 3)), "float64"))
    with pytest.raises(errors.InvalidRequest, match="a has 1 dimension; it must have 2"):
        BLAS.gemm(vector, c, c)
    with pytest.raises(errors.InvalidRequest, match="x has 2 dimensions; it must have 1"):
        BLAS.nrm2(square)
    with pytest.raises(errors.InvalidRequest, match="multiple of the 8 of an element"):
        BLAS.nrm2(FakeArray(Layout("float64", (3,), (12,), 0)))
    with pytest.raises(errors.InvalidRequest, match="incx is 0"):
        BLAS.nrm2(FakeArray(Layout("float64", (3,), (0,), 0)))
    with pytest.raises(errors.InvalidRequest, match="c has 2 dimensions; it must have 3"):
        BLAS.gemm_strided_batched(square, square, square)


def test_shapes_that_do_not_fit_are_told_by_name() -> None:
    """The size, and what each operand has."""
    wide, square = FakeArray.of(np.ones((2, 3)), "float32"), FakeArray.of(np.ones((3, 3)), "float32")
    with pytest.raises(errors.InvalidRequest, match=r"k must be .* it is 3 for a, 2 for b"):
        BLAS.gemm(square, wide, FakeArray.of(np.ones((3, 3)), "float32"))
    with pytest.raises(errors.InvalidRequest, match=r"m must be .* it is 3 for a, 2 for c"):
        BLAS.gemm(square, FakeArray.of(np.ones((3, 3)), "float32"), wide)
    with pytest.raises(errors.InvalidRequest, match=r"size of a must be .* 3 for rows, 3 for columns, 2 for b"):
        BLAS.trsm(square, wide, uplo="L")
    with pytest.raises(errors.InvalidRequest, match=r"n must be .* 2 for a, 3 for c"):
        BLAS.syrk(wide, square, uplo="L")


def test_a_conjugate_without_transpose_cannot_be_expressed() -> None:
    """The error says so, and what to do; where there is a choice of order, the one that works is taken."""
    rows = FakeArray.of(np.full((2, 2), 1j), "complex64")
    columns = rows.transpose()
    c = FakeArray.of(np.zeros((2, 2)), "complex64", order="F")
    BLAS.gemm(columns, columns, c, trans_a="C")
    np.testing.assert_array_equal(c.array, np.full((2, 2), 2))
    with pytest.raises(errors.InvalidRequest, match=r"op 'C' of a cannot be expressed beside c, .* column-major"):
        BLAS.gemm(rows, columns, c, trans_a="C")
    vector = FakeArray.of(np.zeros((1, 2)), "complex64")
    for a in (rows[:, :1], FakeArray.of(np.full((2, 2), 1j), "complex64", order="F")[:, :1]):
        for b in (rows, columns):
            BLAS.gemm(a, b, vector, trans_a="C")
            np.testing.assert_array_equal(vector.array, np.full((1, 2), 2))
    with pytest.raises(errors.InvalidRequest, match="trans_a is 'X'"):
        BLAS.gemm(columns, columns, c, trans_a="X")  # type: ignore[arg-type]


def test_the_reference_has_every_request() -> None:
    """A method for each, which takes all its fields by name; so has the actor."""
    for name, cls in requests_of("blas").items():
        parameters = inspect.signature(getattr(Blas, name)).parameters
        assert set(parameters) - {"self", "deadline_s"} == set(cls.__struct_fields__)
        assert callable(getattr(host.Implementation, name))
