"""Expected results of sparse requests on every backend: NumPy's dense matrices in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from atomr_mp.protocol.libraries import requests_of, sparse
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from tests import declared
from tests.declared import Expected, factor
from tests.fakes.fake_arrays import FakeArray
from tests.tolerances import assert_close

Array = npt.NDArray[Any]

REQUESTS: Final = {name: each for name, each in requests_of("sparse").items() if not each.answers}
"""Those with outputs; what the others answer is tested through a pool."""

FORMATS: Final[tuple[sparse.Format, ...]] = ("csr", "csc", "coo", "bsr", "blocked_ell")

LENGTHS: Final = (0, 1, 2, 3, 5, 7)


class Named(FakeArray):
    """A ref that names a structure, whose indices are NumPy's arrays."""

    attached: Any = None

    def named(self) -> DeviceArray:
        """Return what it is to an actor of the host."""
        memory: Any = SimpleNamespace(address=self.slab.ctypes.data)
        size = self.slab.nbytes
        block = Block(
            memory, self.slab, token=b"", device=0, buffer=0, slab_number=0, offset=0, nbytes=size, foreign=False
        )
        block.attached = self.attached
        return DeviceArray(block, self.layout)

    def attached_on_gpu(self) -> CheckedStructure:
        """Return the structure with its indices on the GPU."""
        import cupy

        it: CheckedStructure = self.attached
        indptr = None if it.indptr is None else cupy.asarray(it.indptr)
        return CheckedStructure(it.stored, it.shape, it.blocksize, cupy.asarray(it.indices), indptr, it.filled)

    def of_layout(self, layout: Any) -> Any:
        """Return a view that has the same structure attached."""
        view = super().of_layout(layout)
        view.attached = self.attached
        return view


# --- matrices ---------------------------------------------------------------------------------------------------------


@st.composite
def structures(
    draw: st.DrawFn, stored: sparse.Format, shape: tuple[int, int], *, full_diagonal: bool, square: bool = False
) -> CheckedStructure:
    """Draw a structure; its shape grows to a multiple of its blocks, which are square if they have to be."""
    size = draw(st.sampled_from([1, 2, 3])) if stored in sparse.BLOCKED else 1
    (r, c) = (size, draw(st.sampled_from([1, 2]))) if stored == "bsr" and not square else (size, size)
    outer, inner = shape
    mask = np.array(draw(st.lists(st.booleans(), min_size=outer * inner, max_size=outer * inner)), bool)
    mask = mask.reshape(outer, inner) | (np.eye(outer, inner, dtype=bool) & full_diagonal)
    index = draw(st.sampled_from(["int32", "int64"]))
    return of_mask(stored, mask, (r, c), index)


def of_mask(
    stored: sparse.Format, mask: Array, blocksize: tuple[int, int] = (1, 1), index: str = "int32"
) -> CheckedStructure:
    """Return a structure with an element, or a block, wherever a mask is True."""
    shape = mask.shape[0] * blocksize[0], mask.shape[1] * blocksize[1]
    rows = [np.flatnonzero(row) for row in (mask.T if stored == "csc" else mask)]
    counts = [row.size for row in rows]
    indices = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(index)
    if stored == "coo":
        return CheckedStructure(
            stored, shape, blocksize, indices, np.repeat(np.arange(len(rows)), counts).astype(index)
        )
    if stored == "blocked_ell":
        padded = np.full((len(rows), max(counts, default=0)), -1, index)
        for at, row in enumerate(rows):
            padded[at, : row.size] = row
        return CheckedStructure(stored, shape, blocksize, padded, filled=padded.size - sum(counts))
    return CheckedStructure(stored, shape, blocksize, indices, np.cumsum([0, *counts]).astype(index))


def pattern_of(it: CheckedStructure, *, transposed: bool = False) -> sparse.Pattern:
    """Return what a request says of a structure."""
    name = Named.of(np.zeros(1), "uint8")
    name.attached = it
    index: Any = str(it.indices.dtype)
    return sparse.Pattern(name, it.stored, *it.shape, it.count, it.blocksize, index, transposed)


def matrix_of(it: CheckedStructure, dtype: str, *, transposed: bool = False) -> sparse.Matrix:
    """Return a matrix of a structure, whose values are still to be written."""
    pattern = pattern_of(it, transposed=transposed)
    data = FakeArray.of(np.zeros(pattern.data_shape), dtype)
    told: tuple[Any, ...] = (*msgspec.structs.astuple(pattern), data)
    return sparse.Matrix(*told)


def dense(pattern: sparse.Pattern, values: Array) -> Array:
    """Return the dense matrix, element by element."""
    it: CheckedStructure = pattern.structure.attached  # type: ignore[attr-defined]
    made = np.zeros(it.shape, values.dtype)
    for row, column, value in elements(it, values):
        made[row, column] += value
    return made.T if pattern.transposed else made


def elements(it: CheckedStructure, values: Array) -> list[tuple[int, int, Any]]:
    """Return row, column and value of each element."""
    (r, c), indices = it.blocksize, it.indices
    if it.stored == "blocked_ell":
        wide = values
        return [
            (row, int(indices[row // r, at // c]) * c + at % c, wide[row, at])
            for row in range(wide.shape[0])
            for at in range(wide.shape[1])
            if indices[row // r, at // c] >= 0
        ]
    outer = it.indptr if it.stored == "coo" else np.repeat(np.arange(it.indptr.size - 1), np.diff(it.indptr))
    blocks = values.reshape(-1, r, c)
    found = [
        (int(outer[at]) * r + i, int(indices[at]) * c + j, blocks[at, i, j])
        for at in range(it.count)
        for i in range(r)
        for j in range(c)
    ]
    return [(j, i, value) for i, j, value in found] if it.stored == "csc" else found


# --- requests ---------------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest], lengths: tuple[int, ...] = LENGTHS) -> Any:
    """Draw a request: any format that it takes, any structure, transposed where that is served."""
    name = cls.name
    dtype = draw(st.sampled_from(cls.types.get("T", ("float64",))))
    stored = draw(st.sampled_from(sparse.SERVED.get(name, FORMATS)))
    if name == "structure":
        return _to_be_checked(draw(structures(draw(st.sampled_from(FORMATS[:3])), (3, 3), full_diagonal=True)))
    solves = name in {"spsv", "spsm"}
    rows = draw(st.sampled_from(lengths))
    shape = (rows, rows if solves else draw(st.sampled_from(lengths)))
    it = draw(structures(stored, shape, full_diagonal=solves, square=name in {"spmv", "spmm"}))
    transposed = stored not in sparse.BLOCKED and draw(st.booleans())
    matrix = matrix_of(it, dtype, transposed=transposed)
    if name == "spmm" and not _is_served(matrix, dtype):
        it = of_mask("csr", np.ones(shape, bool))
        matrix = matrix_of(it, dtype)
    m, n = matrix.shape
    sizes = {
        "spmv": {"k": n},
        "spmm": {"k": n, "n": draw(st.sampled_from(lengths))},
        "spsv": {"n": n},
        "spsm": {"n": n, "m": draw(st.sampled_from(lengths))},
        "sddmm": {"m": m, "n": n, "k": draw(st.sampled_from(lengths))},
    }.get(name, {})
    fixed: Any = {
        "sddmm": {"c": pattern_of(it, transposed=transposed)},
        "arrays": {"a": pattern_of(it, transposed=transposed)},
        "dense_to_sparse": {},
        "convert": {"a": matrix, "to": "csr", "blocksize": (1, 1), "index": "int64"},
        "spgemm": {each: matrix_of(of_mask("csr", np.ones((3, 3), bool)), dtype) for each in "ab"},
    }.get(name, {"a": matrix})
    return draw(declared.requests(cls, lengths, fixed, sizes, {"T": dtype} if cls.types else {}))


def _to_be_checked(it: CheckedStructure) -> sparse.Structure:
    """Return a request to check a structure."""
    indices, indptr = (FakeArray.of(each, str(each.dtype)) for each in (it.indices, it.indptr))
    return sparse.Structure(indices, indptr, FakeArray.of(np.zeros(it.count), "float64"), it.stored, it.shape)


def _is_served(matrix: sparse.Matrix, dtype: str) -> bool:
    """Return whether cuSPARSE multiplies such a matrix by a dense one."""
    if matrix.format == "blocked_ell":
        return matrix.index == "int32" and dtype in {"float16", "bfloat16", "float64"}
    return dtype not in {"float16", "bfloat16"} or not (matrix.transposed or matrix.format == "csc")


def numbers(request: Any, name: str, values: Array) -> Array:
    """Return values with which a request has an answer: those of triangular systems are not small on the diagonal."""
    if name.endswith("structure"):
        return np.zeros(values.shape)
    if request.name in {"spsv", "spsm"} and name == "a.data":
        it: CheckedStructure = request.a.structure.attached
        for at, (row, column, _) in enumerate(elements(it, values)):
            values[at] = values[at] / 8 if row != column else 2 + abs(values[at])
    return values


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[Any], Any]) -> None:
    """Give a request random numbers, have it done, and check all of its memory, or the matrix that it answers with."""
    if request.answers:
        _assert_answers(request, random, run)
    else:
        declared.assert_agrees(request, random, run, functools.partial(globals()[f"expected_{request.name}"]), numbers)


def _assert_answers(request: Any, random: np.random.Generator, run: Callable[[Any], Any]) -> None:
    for argument, _, operand in request.arrays():
        target: Any = operand
        if argument not in {"indices", "indptr"} and not argument.endswith("structure"):
            values = random.uniform(-2, 2, target.shape) * (random.random(target.shape) < 0.6)
            target.array[...] = values * (1 + 1j) if target.dtype.startswith("complex") else values
    result = run(request)
    if request.name == "arrays":
        it = request.a.structure.attached
        for found, kept in zip(result, (it.indices, it.indptr), strict=True):
            assert (found is None) == (kept is None)
            if kept is not None:
                np.testing.assert_array_equal(_on_host(found.array), kept)
        return
    name: Any
    data: Any
    name, data = (result.structure, result.data) if isinstance(result, sparse.Matrix) else result[:2]
    it = name.attached
    found = CheckedStructure(it.stored, it.shape, it.blocksize, _on_host(it.indices), _on_host(it.indptr), it.filled)
    if request.name == "structure":
        assert data is None
        np.testing.assert_array_equal(found.indices, request.indices.array)
        np.testing.assert_array_equal(found.indptr, request.indptr.array)
        return
    wide = np.complex128 if data.dtype.startswith("complex") else np.float64
    made = dense(pattern_of(found), _on_host(data.array).astype(wide))
    matrices = {
        each: dense(getattr(request, each), getattr(request, each).data.array.astype(wide)) for each in _in(request)
    }
    if request.name == "spgemm":
        expected = factor(request.alpha) * (matrices["a"] @ matrices["b"])
    else:
        expected = matrices["a"] if request.name == "convert" else request.x.array.astype(wide)
    assert_close(made, expected, data.dtype, 8, 64.0)
    assert found.indices.dtype == (getattr(request, "index", None) or request.a.index)


def _in(request: Any) -> list[str]:
    """Return the names of a request's matrices."""
    return [name for name in "ab" if isinstance(getattr(request, name, None), sparse.Matrix)]


def _on_host(values: Any) -> Any:
    return values.get() if hasattr(values, "get") else values


def expected_spmv(request: sparse.Spmv, given: dict[str, Array]) -> Expected:
    """Multiply as dense matrices."""
    return _expected_sum(request, given, given["x"], "y")


def expected_spmm(request: sparse.Spmm, given: dict[str, Array]) -> Expected:
    """Multiply as dense matrices."""
    return _expected_sum(request, given, given["b"], "c")


def _expected_sum(request: Any, given: dict[str, Array], b: Array, out: str) -> Expected:
    alpha, beta = factor(request.alpha), factor(request.beta)
    a = dense(request.a, given["a.data"])
    total: Any = beta * given[out] if beta else 0
    product: Any = alpha * ((a.conj() if request.conj_a else a) @ b) if alpha else 0
    total = np.broadcast_to(total + product, given[out].shape)
    rounded = {out: np.broadcast_to(product, total.shape)} if request.a.stored == "blocked_ell" else {}
    return Expected({out: total}, a.shape[1] + 2, 64.0, rounded=rounded)


def expected_spsv(request: sparse.Spsv, given: dict[str, Array]) -> Expected:
    """Solve as a dense system."""
    alpha = factor(request.alpha)
    a = dense(request.a, given["a.data"])
    a = (np.tril if request.uplo == "L" else np.triu)(a.conj() if request.conj_a else a)
    if request.diag == "U":
        np.fill_diagonal(a, 1)
    made = np.linalg.solve(a, alpha * given["b"]) if alpha else np.zeros(given["b"].shape)
    return Expected({"x": made}, 16 * a.shape[0], 64.0)


expected_spsm = expected_spsv


def expected_sddmm(request: sparse.Sddmm, given: dict[str, Array]) -> Expected:
    """Multiply, and look where c has elements."""
    alpha, beta = factor(request.alpha), factor(request.beta)
    made: Any = beta * given["out"] if beta else np.zeros(given["out"].shape)
    if alpha:
        product = alpha * (given["a"] @ given["b"])
        it: CheckedStructure = request.c.structure.attached  # type: ignore[attr-defined]
        product = product.T if request.c.transposed else product
        made = made + np.array([product[row, column] for row, column, _ in elements(it, given["out"])])
    return Expected({"out": made.astype(given["out"].dtype)}, given["a"].shape[1] + 2, 64.0)


def expected_sparse_to_dense(request: sparse.SparseToDense, given: dict[str, Array]) -> Expected:
    """Write element by element."""
    return Expected({"out": dense(request.a, given["a.data"])})
