"""Sparse products and conjugate gradients by request, beside the same in one process.

    PYTHONPATH=scripts:. python -m benchmarks.gpu.sparse > gpu-sparse.json

Needs a GPU, the extra of its CUDA version, and SciPy; takes about 40 s. The product of a matrix of 10^7 elements with a
dense one is compared with cuSPARSE's call as the library's actor makes it, and with CuPy's, fifty and then a wait. By
request ten are kept in flight; of programs of ten steps two are. 1,000 steps of conjugate gradients on a 7-point
stencil with 10^6 unknowns are compared with the same in CuPy. Each round measures all ways in turn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import scipy.sparse

import atomr_mp
from benchmarks.gpu.shares import measured
from benchmarks.standalone.in_flight import Waited, kept_in_flight

ROUNDS: Final = 5
TOGETHER: Final = 10
"""Requests in flight, and steps of the program."""
CALLS: Final = 50
"""In a round."""
PROGRAMS: Final = 2
"""Runs of a program in flight."""
ROWS: Final = 1_000_000
PER_ROW: Final = 10
COLUMNS: Final = 32
SIDE: Final = 100
STEPS: Final = 1000
RUNS: Final = 20
"""Programs of as many steps each that do them, with the residual read after each."""


# --- products ---------------------------------------------------------------------------------------------------------


def products(device: atomr_mp.Device) -> dict[str, Callable[[], None]]:
    """Return functions that do ten products each way: 10^7 elements in float32, in rows of ten, times 32 columns."""
    random = np.random.default_rng(1)
    columns = np.sort(random.integers(0, ROWS // PER_ROW, (ROWS, PER_ROW)), axis=1) * PER_ROW + np.arange(PER_ROW)
    indices, indptr = columns.astype(np.int32).reshape(-1), np.arange(0, ROWS * PER_ROW + 1, PER_ROW, dtype=np.int32)
    data = random.uniform(-1, 1, indices.size).astype(np.float32)
    dense = random.uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32)
    a = device.sparse.csr((data, indices, indptr), (ROWS, ROWS))
    b, c = device.put(dense), device.empty(dense.shape)
    with device.program() as program:
        for _ in range(TOGETHER):
            program.sparse.spmm(a, b, c)

    def product() -> Waited:
        reply: Waited = device.sparse.spmm(a, b, c)
        return reply

    ways = {
        "ten_in_flight": lambda: kept_in_flight(product, CALLS, TOGETHER),
        "one_at_a_time": lambda: kept_in_flight(product, CALLS, 1),
        "program": lambda: kept_in_flight(program.run, CALLS // TOGETHER, PROGRAMS),
    }
    expected = scipy.sparse.csr_array((data[: 1000 * PER_ROW], indices[: 1000 * PER_ROW], indptr[:1001]), (1000, ROWS))
    product().result()
    np.testing.assert_allclose(c.numpy()[:1000], expected @ dense, atol=1e-4)
    return direct_products(data, indices, indptr, dense) | ways


def direct_products(data: Any, indices: Any, indptr: Any, dense: Any) -> dict[str, Callable[[], None]]:
    """Return functions that do ten calls here and wait: cuSPARSE's, prepared as by the actor, and CuPy's."""
    import cupy
    from cupyx.scipy import sparse as cupyx_sparse
    from nvmath import CudaDataType
    from nvmath.bindings import cusparse

    float32, index = int(CudaDataType.CUDA_R_32F), int(cusparse.IndexType.INDEX_32I)
    row, plain = int(cusparse.Order.ROW), int(cusparse.Operation.NON_TRANSPOSE)
    arrays = [cupy.asarray(each) for each in (data, indices, indptr, dense)]
    values, columns, rows, b = arrays
    c, stream = cupy.empty_like(b), cupy.cuda.Stream(non_blocking=True)
    handle = cusparse.create()
    cusparse.set_stream(handle, stream.ptr)
    matrix = cusparse.create_csr(
        ROWS, ROWS, values.size, rows.data.ptr, columns.data.ptr, values.data.ptr, index, index, 0, float32
    )
    told_b, told_c = (cusparse.create_dn_mat(ROWS, COLUMNS, COLUMNS, each.data.ptr, float32, row) for each in (b, c))
    one, zero = np.array(1, np.float32), np.array(0, np.float32)
    call = (
        handle, plain, plain, one.ctypes.data, matrix, told_b, zero.ctypes.data, told_c, float32,
        int(cusparse.SpMMAlg.DEFAULT),
    )  # fmt: skip
    work = cupy.empty(max(16, cusparse.sp_mm_buffer_size(*call)), cupy.uint8)
    cupy.cuda.Device().synchronize()
    cusparse.sp_mm_preprocess(*call, work.data.ptr)
    of_cupy = cupyx_sparse.csr_matrix((values, columns, rows), shape=(ROWS, ROWS))

    def direct() -> None:
        for _ in range(CALLS):
            cusparse.sp_mm(*call, work.data.ptr)
        stream.synchronize()

    def cupys() -> None:
        with stream:
            for _ in range(CALLS):
                _ = of_cupy @ b
        stream.synchronize()

    direct.keep = (one, zero, arrays)  # type: ignore[attr-defined]
    return {"direct": direct, "cupy": cupys}


# --- conjugate gradients ----------------------------------------------------------------------------------------------


def stencil() -> Any:
    """Return the 7-point stencil on 100³ points, with a small term that is another one at each."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE))
    one = scipy.sparse.eye_array(SIDE)
    terms = ((line, one, one), (one, line, one), (one, one, line))
    laplacian = sum(scipy.sparse.kron(scipy.sparse.kron(x, y), z) for x, y, z in terms)
    return (laplacian + scipy.sparse.diags_array(np.random.default_rng(1).uniform(0, 1e-4, SIDE**3))).tocsr()


def gradients(device: atomr_mp.Device, matrix: Any) -> dict[str, Callable[[], float]]:
    """Return functions that do 1,000 steps from the start, and return the norm of the residual."""
    b = np.random.default_rng(2).normal(size=matrix.shape[0])
    return {"cupy": in_cupy(matrix, b), "programs": by_program(device, matrix, b)}


def by_program(device: atomr_mp.Device, matrix: Any, b: Any) -> Callable[[], float]:
    """Return the steps as programs, as docs/libraries/sparse.md has them."""
    a, inverse, b_there = device.sparse.csr(matrix), device.put(1 / matrix.diagonal()), device.put(b)
    x, r, p, p_next = (device.empty(b.shape, "float64") for _ in range(4))
    rz, rz_next = (device.empty((), "float64") for _ in range(2))

    def begin() -> None:
        device.memory.fill(x, 0)
        device.memory.copy(b_there, r)
        device.elementwise.multiply(inverse, r, p)
        device.blas.inner(r, p, rz)

    with device.program() as program:
        blas, elementwise, q = program.blas, program.elementwise, program.empty(b.shape, "float64")
        now, after, old, new = p, p_next, rz, rz_next
        for _ in range(STEPS // RUNS):
            program.sparse.spmv(a, now, q)
            step = elementwise.divide(old, blas.inner(now, q))
            blas.axpy(now, x, alpha=step)
            blas.axpy(q, r, alpha=elementwise.negative(step))
            elementwise.multiply(inverse, r, after)
            blas.inner(r, after, new)
            blas.axpy(now, after, alpha=elementwise.divide(new, old))
            now, after, old, new = after, now, new, old
        program.returns(blas.inner(r, r))

    def solve() -> float:
        begin()
        for _ in range(RUNS):
            residual = program.run().result().numpy()
        return float(residual**0.5)

    return solve


def in_cupy(matrix: Any, b: Any) -> Callable[[], float]:
    """Return the steps in CuPy, in this process, with the residual read as often."""
    import cupy
    from cupyx.scipy import sparse as cupyx_sparse

    a, inverse, b_there = cupyx_sparse.csr_matrix(matrix), cupy.asarray(1 / matrix.diagonal()), cupy.asarray(b)

    def solve() -> float:
        x, r = cupy.zeros_like(b_there), b_there.copy()
        p = inverse * r
        rz = r @ p
        for at in range(STEPS):
            q = a @ p
            step = rz / (p @ q)
            x += step * p
            r -= step * q
            z = inverse * r
            rz_next = r @ z
            p = z + rz_next / rz * p
            rz = rz_next
            if (at + 1) % (STEPS // RUNS) == 0:
                residual = float(r @ r)
        return float(residual**0.5)

    return solve


def main() -> None:
    """Measure, and print JSON."""
    report: dict[str, Any] = {}
    with atomr_mp.start(gpus=1, backend="cuda") as pool:
        device = pool.device(0)
        report["spmm_1e7_float32"] = measured(products(device), "direct", CALLS, ROUNDS)
        ways = gradients(device, stencil())
        report["residuals"] = {name: way() for name, way in ways.items()}
        report["conjugate_gradients_1e6"] = measured(ways, "cupy", STEPS, ROUNDS)
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
