from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.blas import Reference
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas
from tests.declared import check
from tests.direct import DirectDevice
from tests.fakes.fake_arrays import FakeArray

BLAS: Final = Reference(DirectDevice())


def zeros(*shape: int, dtype: str = "float32") -> FakeArray:
    """Return an array of zeros."""
    return FakeArray.of(np.zeros(shape), dtype)


def test_shapes_that_do_not_fit_are_told_by_name() -> None:
    """The size, and what each operand has."""
    wide, square = zeros(2, 3), zeros(3, 3)
    with pytest.raises(errors.InvalidRequest, match=r"k must be .* it is 3 for a, 2 for b"):
        BLAS.gemm(square, wide)
    with pytest.raises(errors.InvalidRequest, match=r"m must be .* it is 3 for a, 2 for c"):
        BLAS.gemm(square, square, wide)
    with pytest.raises(errors.InvalidRequest, match=r"a has the shape \(3, 3\); it must have \(2, 2\): \(m, m\) where"):
        BLAS.trsm(square, wide, uplo="L")
    with pytest.raises(errors.InvalidRequest, match=r"a has 1 dimension; it must have 2: \(m, k\)"):
        BLAS.gemm(zeros(3), square)
    with pytest.raises(errors.InvalidRequest, match="c must be given: beta multiplies its content and is not 0"):
        BLAS.gemm(square, square, beta=1)
    with pytest.raises(errors.InvalidRequest, match="There must be an element in x"):
        BLAS.iamax(zeros(0))


def test_what_cannot_be_told_by_strides_says_so() -> None:
    """Neither dimension contiguous, rows that overlap, broadcasts, odd strides."""
    square = zeros(6, 6, dtype="float64")
    for odd in (
        square[::2, ::2],
        square[::-2, :3],
        square[:3, 2::-1],
        FakeArray(Layout("float64", (3, 3), (0, 8), 0)),
        FakeArray(Layout("float64", (3, 3), (16, 8), 0)),
    ):
        with pytest.raises(
            errors.InvalidRequest, match=r"a of shape .* needs one of the last two dimensions contiguous"
        ):
            BLAS.gemm(odd, zeros(3, 3, dtype="float64"))
    with pytest.raises(errors.InvalidRequest, match="must be multiples of the 8 bytes of a float64"):
        BLAS.gemm(FakeArray(Layout("float64", (3, 3), (28, 8), 0)), zeros(3, 3, dtype="float64"))
    with pytest.raises(errors.InvalidRequest, match="dimensions before the last two that lie as one"):
        BLAS.gemm_strided_batched(zeros(2, 4, 3, 3)[:, ::3], zeros(2, 2, 3, 3))
    with pytest.raises(errors.InvalidRequest, match="elements share memory"):
        BLAS.gemm_strided_batched(
            zeros(2, 3, 3), zeros(2, 3, 3), FakeArray(Layout("float32", (2, 3, 3), (0, 12, 4), 0))
        )


def test_factors_are_numbers_and_complex_only_for_complex_arrays() -> None:
    """Python's, NumPy's and arrays without dimensions are factors; text is none."""
    x = zeros(2, dtype="complex64")
    for factor in (2j, np.complex64(2j), np.array(2j)):
        assert BLAS.scal(x, alpha=factor).alpha == (0.0, 2.0)  # type: ignore[attr-defined]
    for real in (0.5, np.float32(0.5), np.array(0.5)):
        assert BLAS.scal(x, alpha=real).alpha == 0.5  # type: ignore[attr-defined]
    with pytest.raises(errors.InvalidRequest, match="alpha is complex and the arrays are float32"):
        BLAS.scal(zeros(1), alpha=1 + 0j)
    with pytest.raises(errors.InvalidRequest, match="alpha is 'two'"):
        BLAS.scal(x, alpha="two")  # type: ignore[arg-type]


def test_only_geam_writes_what_it_reads_and_only_in_place() -> None:
    """The result may be a or b, element for element; nothing else may overlap what is written."""
    memory, other = zeros(6, 6), zeros(3, 3)
    check(blas.Geam(memory[:3, :3], other, memory[:3, :3]))
    check(blas.Geam(other, memory[:3, :3], memory[:3, :3]))
    for a in (memory[:3, :3].transpose(), memory[1:4, :3], memory[:3, 1:4]):
        with pytest.raises(errors.BorrowConflict, match="c is written and overlaps a"):
            check(blas.Geam(a, other, memory[:3, :3]))
    with pytest.raises(errors.BorrowConflict, match="c is written and overlaps a"):
        check(blas.Gemm(memory[:3, :3], other, memory[:3, :3]))


def test_blocks_of_one_matrix_do_not_overlap() -> None:
    """Their memory is interleaved, but no element is in both: blocked algorithms work in place."""
    matrix = FakeArray(Layout.contiguous("float64", (9, 9), order="F"))
    diagonal, below, right = matrix[:4, :4], matrix[4:, :4], matrix[:4, 4:]
    check(blas.Trsm(diagonal.transpose(), below, "U", "R"))
    check(blas.Trsm(diagonal, right, "L"))
    check(blas.Gemm(below, right, matrix[4:, 4:]))
    check(blas.Swap(matrix[2], matrix[5]))
    check(blas.Gemv(matrix[:4, :4], matrix[:4, 4], matrix[4:8, 0]))
    check(blas.Ger(matrix[1:, 1:], matrix[1:, 0], matrix[0, 1:]))
    with pytest.raises(errors.BorrowConflict):
        check(blas.Gemv(matrix[:4, :4], matrix[:4, 4], matrix[3:7, 0]))
    with pytest.raises(errors.BorrowConflict):
        check(blas.Trsm(matrix[1:5, :4], below, "L", "R"))


@given(st.data())
def test_blocks_conflict_exactly_where_they_share_an_element(data: st.DataObject) -> None:
    """For blocks of one matrix the check finds what a comparison of all elements finds."""
    matrix = FakeArray(Layout.contiguous("float32", (7, 7), order="F"))
    elements = np.arange(49).reshape(7, 7).T
    blocks: list[Any] = []
    for _ in range(2):
        corners = [sorted(data.draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))) for _ in "rc"]
        blocks.append(tuple(slice(*corner) for corner in corners))
    rows, columns = (min(matrix[blocks[0]].shape[axis], matrix[blocks[1]].shape[axis]) for axis in (0, 1))
    one, other = (matrix[block][:rows, :columns] for block in blocks)
    shared = np.intersect1d(*(elements[block][:rows, :columns] for block in blocks))
    request = blas.Geam(one, FakeArray.of(np.zeros((rows, columns)), "float32"), other)
    if shared.size and one.layout != other.layout:
        with pytest.raises(errors.BorrowConflict):
            check(request)
    else:
        check(request)
