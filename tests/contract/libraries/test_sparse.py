"""Sparse matrices through a pool; the numbers of products are proved without processes, in `tests/pure`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import scipy.sparse

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.libraries.sparse import Format
from tests.support import Ledger, settled, wait_generation
from tests.tolerances import assert_close

FORMATS: Final[tuple[Format, ...]] = ("csr", "csc", "coo", "bsr", "blocked_ell")


def random_matrix(m: int = 6, n: int = 8, dtype: str = "float64") -> Any:
    """Return a matrix of SciPy's with duplicates and indices that are not sorted; the same in every run."""
    random = np.random.default_rng(m * n)
    row, col = random.integers(0, m, 30), random.integers(0, n, 30)
    values = random.uniform(-1, 1, 30) + (1j * random.uniform(-1, 1, 30) if dtype.startswith("complex") else 0)
    return scipy.sparse.coo_array((values.astype(dtype), (row, col)), shape=(m, n))


def blocks(to: str) -> dict[str, Any]:
    """Return the blocksize for formats that have one."""
    return {"blocksize": (2, 2)} if to in {"bsr", "blocked_ell"} else {}


def made(device: atomr_mp.Device, to: str, matrix: Any) -> Any:
    """Return a matrix in a format."""
    sizes: dict[str, dict[str, Any]] = {"bsr": {"blocksize": (2, 2)}, "blocked_ell": {"blocksize": 2}}
    more = sizes.get(to, {})
    return getattr(device.sparse, to)(matrix, **more)


@pytest.mark.parametrize("to", FORMATS)
def test_a_matrix_goes_there_and_comes_back_in_every_format(device: atomr_mp.Device, to: Format) -> None:
    """Made of SciPy's, converted from each other format, written out densely, transposed."""
    matrix = random_matrix()
    exact = matrix.toarray()
    there = made(device, to, matrix)
    assert (there.format, there.shape, there.dtype) == (to, (6, 8), "float64")
    np.testing.assert_array_equal(there.to_scipy().toarray(), exact)
    np.testing.assert_array_equal(device.sparse.sparse_to_dense(there).result().numpy(), exact)
    for other in FORMATS:
        converted = device.sparse.convert(made(device, other, matrix), to=to, **blocks(to)).result()
        np.testing.assert_array_equal(converted.to_scipy().toarray(), exact)
    if not blocks(to):
        np.testing.assert_array_equal(there.T.to_scipy().toarray(), exact.T)
        np.testing.assert_array_equal(device.sparse.sparse_to_dense(there.T).result().numpy(), exact.T)
        turned = device.sparse.convert(there.T, to="csr", index="int64").result()
        assert (turned.index, turned.format) == ("int64", "csr")
        np.testing.assert_array_equal(turned.to_scipy().toarray(), exact.T)
        dense = device.sparse.dense_to_sparse(device.put(exact), to=to).result()
        assert dense.nnz == np.count_nonzero(exact)
        np.testing.assert_array_equal(dense.to_scipy().toarray(), exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex128"])
def test_element_types_are_kept(device: atomr_mp.Device, dtype: str) -> None:
    """Half precision too, which SciPy has not: its values are put by themselves."""
    wide = "complex128" if dtype.startswith("complex") else "float32"
    matrix = random_matrix(dtype=wide).tocsr()
    values = device.elementwise.cast(device.put(matrix.data), dtype=dtype).result() if wide != dtype else matrix.data
    there = device.sparse.csr((values, matrix.indices, matrix.indptr), matrix.shape)
    assert there.dtype == dtype
    x = device.elementwise.cast(device.put(np.arange(8.0).astype(wide)), dtype=dtype).result()
    y = device.sparse.spmv(there, x, alpha=0.5).result()
    assert y.dtype == dtype
    expected = 0.5 * (matrix @ np.arange(8.0))
    found = np.asarray(y.numpy()).astype(wide)
    np.testing.assert_allclose(found, expected, rtol=0.05 if dtype.endswith("16") else 1e-6, atol=0.05)
    dense = device.sparse.sparse_to_dense(device.sparse.convert(there, to="coo").result()).result()
    again = device.sparse.dense_to_sparse(dense, to="csc").result()
    np.testing.assert_array_equal(
        np.asarray(device.sparse.sparse_to_dense(again).result().numpy()), np.asarray(dense.numpy())
    )


def test_a_matrix_stands_for_its_structure_and_a_length_for_a_square(device: atomr_mp.Device) -> None:
    """Wrong lengths are named as such, and what SciPy has no matrices of is refused before it is asked."""
    matrix = device.sparse.csr(scipy.sparse.csr_array(np.eye(4)))
    indices, indptr = device.sparse.arrays(matrix).result()
    assert (list(indices.numpy()), list(indptr.numpy())) == ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    blocks = device.sparse.convert(matrix, to="bsr", blocksize=2).result()
    assert blocks.blocksize == (2, 2)
    assert np.array_equal(blocks.to_scipy().toarray(), np.eye(4))
    for wrong in (-2, 0, (2, 2, 2), ()):
        with pytest.raises(errors.InvalidRequest, match="blocksize"):
            device.sparse.convert(matrix, to="bsr", blocksize=wrong)
    place = np.arange(2, dtype=np.int32)
    half = device.sparse.coo((np.ones(2, np.float16), (place, place)), (2, 2))
    with pytest.raises(errors.Unsupported, match="float16"):
        half.to_scipy()


def test_refs_that_are_not_in_order_are_sorted_with_their_values(device: atomr_mp.Device) -> None:
    """In a copy: the caller's stay as they are; those in order are not copied at all."""
    data, row, col = device.put(np.array([1.0, 2.0, 3.0])), np.array([1, 0, 1]), np.array([2, 1, 0])
    there = device.sparse.coo((data, (row, col)), (2, 3))
    np.testing.assert_array_equal(there.to_scipy().toarray(), [[0, 2, 0], [3, 0, 1]])
    np.testing.assert_array_equal(data.numpy(), [1, 2, 3])
    for to, arrays in (("csr", ([2, 1, 0], [0, 2, 3])), ("csc", ([1, 0], [0, 2, 2, 2]))):
        values = data[: len(arrays[0])]
        shuffled = getattr(device.sparse, to)((values, *(np.array(each, np.int32) for each in arrays)), (2, 3))
        assert shuffled.data.memory != data.memory
    with pytest.raises(errors.InvalidRequest, match="comes twice"):
        device.sparse.coo((data, (np.array([1, 0, 1]), np.array([0, 0, 0]))), (2, 3))
    kept = device.sparse.csr((data, np.array([0, 1, 2]), np.array([0, 1, 3])), (2, 3))
    assert kept.data is data
    with pytest.raises(errors.InvalidRequest, match="the structure needs"):
        kept.with_data(data[:2])


def test_the_values_are_the_caller_s_and_the_structure_nobody_s(device: atomr_mp.Device) -> None:
    """Values that are written count in the next request; indices that are written after they were checked do not."""
    indices, indptr = device.put(np.array([0, 2])), device.put(np.array([0, 1, 2]))
    data, x = device.put(np.array([1.0, 2.0])), device.put(np.array([1.0, 10.0, 100.0]))
    matrix = device.sparse.csr((data, indices, indptr), (2, 3))
    device.memory.fill(indices, 2**40).result()
    device.memory.fill(indptr, -(2**40)).result()
    device.memory.fill(matrix.structure, 255).result()
    np.testing.assert_array_equal(device.sparse.spmv(matrix, x).result().numpy(), [1, 200])
    device.memory.fill(data, 3.0).result()
    np.testing.assert_array_equal(device.sparse.spmv(matrix, x).result().numpy(), [3, 300])
    other = matrix.with_data(device.put(np.array([-1.0, -2.0])))
    np.testing.assert_array_equal(device.sparse.spmv(other, x).result().numpy(), [-1, -200])


def test_the_product_of_sparse_matrices_is_one(device: atomr_mp.Device) -> None:
    """In both formats, transposed, empty, and with a factor."""
    a, b = random_matrix(6, 8), random_matrix(8, 5)
    for to in ("csr", "csc"):
        there, other = (made(device, to, each) for each in (a, b))
        found = device.sparse.spgemm(there, other, alpha=2.0).result()
        assert found.format == to
        assert_close(found.to_scipy().toarray(), 2 * (a @ b).toarray(), "float64", 8)
        assert_close(
            device.sparse.spgemm(other.T, there.T).result().to_scipy().toarray(), (a @ b).T.toarray(), "float64", 8
        )
        assert device.sparse.spgemm(there, other, alpha=0).result().nnz == 0
        assert_close(
            device.sparse.spgemm(there, there.T).result().to_scipy().toarray(), (a @ a.T).toarray(), "float64", 8
        )
        nothing = made(device, to, scipy.sparse.csr_array((8, 0)))
        assert device.sparse.spgemm(there, nothing).result().shape == (6, 0)


def test_a_sampled_product_has_the_values_of_a_matrix(device: atomr_mp.Device) -> None:
    """With the structure of another, whose values it may take the place of."""
    random = np.random.default_rng(4)
    a, b = random.uniform(-1, 1, (6, 3)), random.uniform(-1, 1, (3, 8))
    where = made(device, "csr", random_matrix())
    values = device.sparse.sddmm(device.put(a), device.put(b), where).result()
    mask = random_matrix().toarray() != 0
    assert_close(where.with_data(values).to_scipy().toarray(), (a @ b) * mask, "float64", 3)


def test_a_triangular_system_is_solved_and_a_singular_one_told(device: atomr_mp.Device) -> None:
    """With a vector and with columns; the error says where, and what is undefined."""
    triangle = scipy.sparse.tril(random_matrix(6, 6) / 8 + scipy.sparse.eye_array(6), format="csr")
    there, b = device.sparse.csr(triangle), np.arange(12.0).reshape(6, 2)
    x = device.sparse.spsm(there, device.put(b), uplo="L").result().numpy()
    assert_close(triangle @ x, b, "float64", 6, 12)
    y = device.sparse.spsv(there.T, device.put(b[:, 1]), uplo="U").result().numpy()
    assert_close(triangle.T @ y, b[:, 1], "float64", 6, 12)
    device.memory.fill(there.data, 0).result()
    out = device.zeros(6, "float64")
    with pytest.raises(
        errors.NumericalError, match=r"sparse\.spsv: the diagonal of a is 0 or missing in row 0"
    ) as told:
        device.sparse.spsv(there, device.put(b[:, 0]), uplo="L", x=out).result()
    assert (told.value.library, told.value.row, told.value.undefined) == ("sparse", 0, "x")
    with pytest.raises(errors.GpuRefUndefined):
        out.numpy()


def test_a_program_takes_matrices_and_its_own_values(device: atomr_mp.Device) -> None:
    """What is checked once is a constant; what only the data decide is no step."""
    matrix = random_matrix()
    there, dense = device.sparse.csr(matrix), np.random.default_rng(5).uniform(-1, 1, (8, 2))
    with device.program() as p:
        x, values = p.input("x", (8, 2), "float64"), p.input("values", (there.nnz,), "float64")
        product = p.sparse.spmm(there, x)
        p.sparse.spmv(there.with_data(values).T, product[:, 0], p.sparse.spmv(there.T, product[:, 1]), beta=1)
        p.returns(product, p.sparse.sparse_to_dense(there.with_data(values)))
        refusals: list[Callable[[], Any]] = [
            lambda: p.sparse.spgemm(there, there.T),
            lambda: p.sparse.convert(there, to="coo"),
            lambda: p.sparse.dense_to_sparse(x),
            lambda: p.sparse.csr(matrix),
        ]
        for refused in refusals:
            with pytest.raises(errors.InvalidRequest, match=r"which no step can|made by a device"):
                refused()
    for scale in (1.0, 2.0):
        given = scale * there.data.numpy()
        found, written = p.run(x=dense, values=given).result()
        assert_close(found.numpy(), matrix @ dense, "float64", 8)
        assert_close(written.numpy(), scale * matrix.toarray(), "float64")


def test_memory_of_a_structure_comes_back(device: atomr_mp.Device) -> None:
    """With the last matrix that has it; and that of one that is refused."""
    gc.collect()
    device.put(np.zeros(1)).free()
    before = device.statistics()["used_bytes"]
    n = 40_000
    there = device.sparse.csr(scipy.sparse.eye_array(n, format="csr"))
    view = there.T
    del there
    gc.collect()
    assert device.statistics()["used_bytes"] > before + 4 * n
    del view
    with pytest.raises(errors.InvalidRequest, match="comes twice"):
        device.sparse.csr((np.ones(n), np.zeros(n, np.int32), np.array([0, n], np.int32)), (1, n))
    gc.collect()
    device.put(np.zeros(1)).free()
    assert device.statistics()["used_bytes"] == before


def test_a_matrix_is_made_in_an_event_loop_too(device: atomr_mp.Device) -> None:
    """It blocks there, as `put` does; products are awaited."""

    async def multiplied() -> Any:
        there = device.sparse.csr(random_matrix())
        product = await device.sparse.spmv(there, device.put(np.ones(8)))
        gram = await device.sparse.spgemm(there, there.T)
        return product.numpy(), gram.to_scipy()

    product, gram = asyncio.run(multiplied())
    assert_close(product, random_matrix() @ np.ones(8), "float64", 8)
    assert_close(gram.toarray(), (random_matrix() @ random_matrix().T).toarray(), "float64", 8)


def test_a_session_s_end_frees_its_structures(ledger: Ledger, backend: str) -> None:
    """Those of matrices that its client still has."""
    with ledger.start(backend=backend) as pool:
        device = pool.device()
        device.put(np.zeros(1)).free()
        before = device.statistics()["used_bytes"]
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            kept = other.device().sparse.csr(scipy.sparse.eye_array(40_000, format="csr"))
            assert device.statistics()["used_bytes"] > before + 160_000
        assert settled(lambda: device.statistics()["used_bytes"] == before)
        assert kept.nnz == 40_000


def test_a_kill_during_the_first_use_costs_what_was_on_it(ledger: Ledger, backend: str) -> None:
    """The library is being loaded, or the structure checked: then the request is lost, and the next one is served."""
    with ledger.start(backend=backend, max_restarts=1000, backoff_initial_s=0.0) as pool:
        device = pool.device()
        for generation in (1, 2):
            indices, indptr = (device.put(np.arange(each, dtype=np.int32)) for each in (1000, 1001))
            replies = [device.sparse.structure(indices, indptr, shape=(1000, 1000)) for _ in range(5)]
            os.kill(wait_generation(pool, generation).pid, signal.SIGKILL)
            for reply in replies:
                assert isinstance(reply.exception(), errors.WorkerLost | errors.GpuRefStale | None)
            wait_generation(pool, generation + 1)
        there = device.sparse.csr(random_matrix())
        x = device.put(np.ones(8))
        assert_close(device.sparse.spmv(there, x).result().numpy(), random_matrix() @ np.ones(8), "float64", 8)


def test_a_matrix_is_stale_with_its_worker_and_shared_with_nobody(ledger: Ledger, backend: str) -> None:
    """Like a ref: requests with it are refused after a restart; another client has no lease of it."""
    with ledger.start(backend=backend, max_restarts=1000, backoff_initial_s=0.0) as pool:
        device = pool.device()
        there, x = device.sparse.csr(random_matrix()), np.ones(8)
        with atomr_mp.connect(run_dir=pool.run_dir) as other, pytest.raises(errors.GpuRefReleased):
            other.device().sparse.spmv(there, other.device().put(x)).result()
        os.kill(wait_generation(pool, 1).pid, signal.SIGKILL)
        wait_generation(pool, 2)
        with pytest.raises(errors.GpuRefStale):
            device.sparse.spmv(there, device.put(x)).result()
        again = device.sparse.csr(random_matrix())
        assert_close(device.sparse.spmv(again, device.put(x)).result().numpy(), random_matrix() @ x, "float64", 8)
