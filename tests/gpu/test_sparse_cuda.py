from __future__ import annotations

import functools
import threading
from typing import Any, Final

import msgspec
import numpy as np
import pytest
import scipy.sparse

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries import requests_of, sparse
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from atomr_mp_workers.requests.request import Next
from tests.cases.sparse_cases import elements, matrix_of, of_mask, pattern_of
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.pure.libraries.test_sparse import told
from tests.support import Ledger
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "sparse")

REQUESTS: Final = requests_of("sparse")


def large(stored: sparse.Format, dtype: str, index: str = "int32") -> tuple[Any, Any]:
    """Return a matrix of some thousand rows with its values, and the same in double precision as SciPy's."""
    random = np.random.default_rng(9)
    mask = random.random((1500, 1100)) < 0.01
    mask[7], mask[:, 5] = False, True
    it = of_mask(stored, mask, {"bsr": (2, 2), "blocked_ell": (2, 2)}.get(stored, (1, 1)), index)
    matrix = matrix_of(it, dtype)
    values: Any = matrix.data
    drawn = random.uniform(-1, 1, values.shape) + (1j * random.uniform(-1, 1, values.shape) if "x" in dtype else 0)
    values.array[...] = drawn
    wide = values.array.astype(np.complex128 if "x" in dtype else np.float64)
    found = elements(it, wide)
    rows, columns, numbers = (np.array(each) for each in zip(*found, strict=True))
    return matrix, scipy.sparse.csr_array((numbers, (rows, columns)), it.shape)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("stored", ["csr", "csc", "coo", "bsr", "blocked_ell"])
def test_large_matrices_take_other_kernels_and_give_the_same(stored: sparse.Format, dtype: str) -> None:
    """Vectors, one column, and many; with indices of both widths; what is served."""
    random = np.random.default_rng(2)
    for index in ("int32", "int64"):
        matrix, exact = large(stored, dtype, index)
        for n in (0, 1, 40):
            shape = (exact.shape[1], n) if n else (exact.shape[1],)
            b = FakeArray.of(random.uniform(-1, 1, shape), dtype)
            request: Any = sparse.Spmm(matrix, b) if n else sparse.Spmv(matrix, b)
            out = FakeArray.of(np.full((exact.shape[0], n) if n else (exact.shape[0],), np.nan), dtype)
            try:
                request.check()
                run(msgspec.structs.replace(request, **{"c" if n else "y": out}))
            except errors.Unsupported:
                continue
            assert_close(out.array, exact @ b.array.astype(exact.dtype), dtype, 1100)


def test_a_large_triangle_is_solved() -> None:
    """In every format, from both sides, again with other values."""
    random = np.random.default_rng(3)
    mask = (random.random((2000, 2000)) < 0.005) | np.eye(2000, dtype=bool)
    for stored in ("csr", "csc", "coo"):
        it = of_mask(stored, mask)
        matrix = matrix_of(it, "float64")
        values: Any = matrix.data
        found = elements(it, values.array)
        rows, columns = np.array([each[:2] for each in found]).T
        for _ in range(2):
            values.array[...] = np.where(rows == columns, 3.0, random.uniform(-0.1, 0.1, rows.size))
            exact = scipy.sparse.csr_array((values.array, (rows, columns)), (2000, 2000))
            halves: dict[sparse.Triangle, Any] = {"L": scipy.sparse.tril(exact), "U": scipy.sparse.triu(exact)}
            for uplo, half in halves.items():
                b = FakeArray.of(random.uniform(-1, 1, (2000, 7)), "float64")
                x = FakeArray.of(np.full((2000, 7), np.nan), "float64")
                run(sparse.Spsm(matrix, b, uplo, x))
                assert_close(half @ x.array, b.array, "float64", 2000)
                y = FakeArray.of(np.full(2000, np.nan), "float64")
                run(sparse.Spsv(matrix, b[:, 3], uplo, y))
                assert_close(half @ y.array, b.array[:, 3], "float64", 2000)


@pytest.mark.parametrize("way", ["usual", "frugal"])
def test_a_large_product_of_sparse_matrices_is_right(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its indices are in order, whatever cuSPARSE leaves; also by the way that is tried where memory is short."""
    from atomr_mp_workers.libraries.sparse import products

    function, short, tried = products._function, next(iter(products.SHORT)), []

    def called(name: str) -> Any:
        def call(*told: Any) -> int:
            tried.append((name, told[9]))
            return short if way == "frugal" and told[9] == products.DEFAULT else int(function(name)(*told))

        return call

    monkeypatch.setattr(products, "_function", called)
    matrix, exact = large("csr", "float64")
    turned = msgspec.structs.replace(matrix, transposed=True)
    name, data, _ = run(sparse.Spgemm(matrix, turned))
    it: CheckedStructure = name.attached
    found = scipy.sparse.csr_array((data.array.get(), it.indices.get(), it.indptr.get()), it.shape)
    assert found.has_canonical_format
    expected = (exact @ exact.T).tocsr()
    assert_close(found.toarray(), expected.toarray(), "float64", 1100)
    assert (("estimateMemory", products.FRUGAL) in tried) == (way == "frugal")


def test_others_go_on_while_sparse_matrices_are_multiplied() -> None:
    """Requests that need none of them are answered before it, though cuSPARSE waits for the device meanwhile."""
    random, rows, per_row = np.random.default_rng(4), 400_000, 24
    indices = random.integers(0, rows // per_row, (rows, per_row)) * per_row + np.arange(per_row)
    indices.sort(axis=1)
    indptr = np.arange(0, rows * per_row + 1, per_row)
    it = np.ones(indices.size, np.float32), indices.reshape(-1).astype(np.int32), indptr.astype(np.int32)
    with Ledger() as ledger, ledger.start(backend="cuda") as pool:
        device = pool.device()
        a, x = device.sparse.csr(it, (rows, rows)), device.put(np.eye(64, dtype=np.float32))
        overtaken = []
        for _ in range(20):  # what is loaded at first use is loaded by the second
            product = device.sparse.spgemm(a, a)
            made = device.blas.gemm(x, x).result()
            overtaken.append(not product.done)
            np.testing.assert_array_equal(made.numpy(), np.eye(64))
            product.result()
            if overtaken.count(True) == 2:
                break
        assert overtaken.count(True) == 2


def test_hundreds_of_bad_structures_cost_no_context() -> None:
    """Out of range, out of order, twice, with pointers that lie, in every format: an error each; then all is well."""
    random = np.random.default_rng(10)
    refused = 0
    for turn in range(400):
        to: sparse.Format = ("csr", "csc", "coo", "bsr", "blocked_ell")[turn % 5]
        index = ("int32", "int64")[turn // 5 % 2]
        wild = 2**31 - 1 if index == "int32" else 2**62
        count = 40
        indices = random.integers(-2, 12, count) if turn % 3 else random.integers(-wild, wild, count)
        indptr = random.integers(-3, 45, {"coo": count, "bsr": 6}.get(to, 11))
        if turn % 2 and to not in {"coo", "blocked_ell"}:
            indptr = np.sort(random.integers(0, count, indptr.size))
            indptr[0], indptr[-1] = 0, count
        if turn % 4 == 3:
            indptr[random.integers(0, indptr.size)] = wild
        more: dict[str, Any] = {"blocksize": (2, 2)} if to in {"bsr", "blocked_ell"} else {}
        if to == "blocked_ell":
            indices = indices.reshape(5, -1)[:, :5]
        request = told(to, indices, None if to == "blocked_ell" else indptr, (10, 10), index, **more)
        request.check()
        try:
            run(request)
        except errors.InvalidRequest:
            refused += 1
    assert refused > 390
    on_device.synchronize()
    matrix, exact = large("csr", "float32")
    x, y = FakeArray.of(np.ones(exact.shape[1]), "float32"), FakeArray.of(np.zeros(exact.shape[0]), "float32")
    run(sparse.Spmv(matrix, x, y))
    assert_close(y.array, exact @ np.ones(exact.shape[1]), "float32", 1100)


def waiting() -> list[Any]:
    """Return a request of each kind that returns while the device is held up, on matrices of one structure."""
    it = of_mask("csr", np.tri(40, dtype=bool))
    matrix, turned = matrix_of(it, "float64"), matrix_of(of_mask("csc", np.tri(40, dtype=bool)), "float64")
    for each in (matrix, turned):
        values: Any = each.data
        values.array[...] = 1
    x, y = (FakeArray.of(np.ones(40), "float64") for _ in "xy")
    b, c = (FakeArray.of(np.ones((40, 3)), "float64") for _ in "bc")
    return [
        told("csr", np.arange(40), np.arange(41), (40, 40)),
        sparse.Spmv(matrix, x, y),
        sparse.Spmv(turned, x, y),
        sparse.Spmm(matrix, b, c),
        sparse.Spsv(matrix, x, "L", y),
        sparse.Spsm(matrix, b, "L", c),
        sparse.Spgemm(matrix, turned),
        sparse.Sddmm(b, c.transpose(), pattern_of(it), FakeArray.of(np.zeros(it.count), "float64")),
        sparse.Convert(matrix, "csc"),
        sparse.Convert(matrix, "bsr", (2, 2)),
        sparse.DenseToSparse(b),
        sparse.SparseToDense(matrix, FakeArray.of(np.zeros((40, 40)), "float64")),
    ]


@pytest.mark.parametrize("request_", waiting(), ids=lambda each: each.name)
def test_nothing_waits_for_the_device(request_: Any) -> None:
    """Requests return while the stream is held up, also requests with more to come."""
    import cupy

    arrays: dict[int, Any] = {each.number: each for _, _, each in request_.arrays() if each is not None}
    there = {number: on_device.device().make_slab(array.slab.nbytes) for number, array in arrays.items()}
    for number, array in arrays.items():
        on_device.over(there[number]).set(array.slab)
    placed = {number: on_device.placed(there[number], array) for number, array in arrays.items()}
    request = with_arrays(request_, lambda each: placed[each.number].of_layout(each.layout))  # type: ignore[attr-defined]
    stream = on_device.library("sparse").stream.stream
    page = cupy.cuda.alloc_pinned_memory(4)
    go = np.frombuffer(page, np.int32, 1)
    release = threading.Timer(10, lambda: go.fill(1))  # what waits for the device is to fail, not to hang
    hold = cupy.RawKernel('extern "C" __global__ void hold(volatile int* go) { while (!*go) {} }', "hold")
    go[0] = 1
    with stream:
        hold((1,), (1,), (np.uintp(page.ptr),))
        warm = on_device.started("sparse", request)  # what is loaded or prepared at first use is
        while isinstance(warm, Next):
            stream.synchronize()
            warm = warm.enqueue()
    on_device.synchronize()
    go[0] = 0
    release.start()
    with stream:
        try:
            hold((1,), (1,), (np.uintp(page.ptr),))
            on_device.started("sparse", request)
            assert not stream.done
        finally:
            go[0] = 1
            release.cancel()
    stream.synchronize()


def test_a_zero_on_the_diagonal_costs_no_context() -> None:
    """It is reported with its row; a gap is not given to cuSPARSE at all."""
    mask = np.tri(500, dtype=bool)
    for gap in (False, True):
        mask[77, 77] = not gap
        it = of_mask("csr", mask)
        matrix = matrix_of(it, "float32")
        values: Any = matrix.data
        values.array[...] = [0 if row == column == 77 else 1 for row, column, _ in elements(it, values.array)]
        b, x = (FakeArray.of(np.ones(500), "float32") for _ in "bx")
        with pytest.raises(errors.NumericalError, match="in row 77"):
            run(sparse.Spsv(matrix, b, "L", x))
        run(sparse.Spsv(matrix, b, "L", x, diag="U"))
        assert x.array[0] == 1
