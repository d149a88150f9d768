"""Sparse systems on CUDA, with cuDSS.

cuDSS does not report a singular matrix: it may change a pivot and go on. So a kernel after each solution judges it, by
its residual and by its size: a pivot that was 0 makes x so large that its residual looks small. Only cuDSS itself waits
for the device.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import cupy
import numpy as np
from cuda import pathfinder
from nvmath import CudaDataType
from nvmath.bindings import cudss

from atomr_mp import errors
from atomr_mp.protocol.libraries import solver
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.solver import verdicts
from atomr_mp_workers.libraries.solver.columns import duplicate, empty
from atomr_mp_workers.libraries.solver.kinds import KINDS
from atomr_mp_workers.libraries.solver.routines import SolverRoutines
from atomr_mp_workers.libraries.sparse import structures
from atomr_mp_workers.requests.request import Later

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.libraries.base import LibraryContext
    from atomr_mp_workers.libraries.sparse.structures import CheckedStructure

KEPT: Final = 4
"""Analyses that are kept of a structure, each with its factors."""

LARGE_POWER: Final = 0.7
"""Exponent of 1/epsilon: 7·10⁴ in single precision and 9·10¹⁰ in double. cuDSS takes 10⁻⁵ and 10⁻¹³ instead of a pivot
of 0."""

INDEX: Final = int(CudaDataType.CUDA_R_32I)
GENERAL, FULL = int(cudss.MatrixType.GENERAL), int(cudss.MatrixViewType.FULL)
DEFINITE: Final = {True: int(cudss.MatrixType.HPD), False: int(cudss.MatrixType.SPD)}
"""Types of positive definite matrices, by whether they are complex."""
FROM_ZERO, BY_COLUMNS = int(cudss.IndexBase.ZERO), int(cudss.Layout.COL_MAJOR)
ANALYSIS, FACTORIZATION, SOLVE = (int(cudss.Phase[name]) for name in ("ANALYSIS", "FACTORIZATION", "SOLVE"))

RESIDUAL: Final = cupy.ElementwiseKernel(
    "raw T data, raw int32 indices, raw int32 indptr, raw T x, T b, raw float64 most, int64 n, float64 limit",
    "float64 error",
    """
    long long row = i % n, first = i - row;
    T left = b;
    double scale = abs(b);
    for (int at = indptr[row]; at < indptr[row + 1]; ++at) {
        T value = data[at], factor = x[first + indices[at]];
        left -= value * factor;
        scale += (double)abs(value) * (double)abs(factor);
    }
    double size = abs(left);
    error = size == 0 ? 0 : size / scale;
    if (!(scale <= limit * most[i / n])) error = 1;
    """,
    "atomr_mp_residual",
)
"""|b - a·x| / (|b| + |a|·|x|) for each row of each right-hand side: by how much a and b would have to be others. It is
1 if |b| + |a|·|x| is more than `limit` times the right-hand side's largest element."""


class Analysis:
    """A structure as cuDSS has analysed it, with its factors once there are some.

    cuDSS is not thread-safe, so each analysis has a handle of its own, made on the thread that makes plans. Each has a
    stream of its own too. cuDSS 0.8 still uses the stream of the analysis when it is given another one: it crashes if
    that stream is gone, and returns x in the order of its pivots if nobody waits for it.

    Args:
        request: A request of its kind.
        it: The structure of its matrix, which outlives this.
    """

    def __init__(self, request: solver.Spsolve, it: CheckedStructure) -> None:
        n, nrhs = request.a.shape[0], 1 if request.b.ndim < 2 else request.b.shape[-1]
        kind, is_complex = KINDS[request.b.dtype].data, request.b.dtype.startswith("complex")
        anywhere = cupy.cuda.alloc(max(1, n * nrhs * np.dtype(request.b.dtype).itemsize))
        self._stream: Final = cupy.cuda.Stream(non_blocking=True)
        self._handle: Final[int] = cudss.create()
        cudss.set_stream(self._handle, self._stream.ptr)
        self._config: Final[int] = cudss.config_create()
        self._data: Final[int] = cudss.data_create(self._handle)
        self._matrix: Final[int] = cudss.matrix_create_csr(
            n, n, it.count, it.indptr.data.ptr, 0, it.indices.data.ptr, array(request.a.data).data.ptr, INDEX, INDEX,
            kind, DEFINITE[is_complex] if request.method == "cholesky" else GENERAL, FULL, FROM_ZERO,
        )  # fmt: skip
        self._x, self._b = (cudss.matrix_create_dn(n, nrhs, n, anywhere.ptr, kind, BY_COLUMNS) for _ in "xb")
        self._execute(ANALYSIS)
        self._stream.synchronize()

    def solve(self, values: Any, x: Any, b: Any) -> None:
        """Factor the matrix with these values, and solve for sides in column order, in the current stream's order."""
        current = cupy.cuda.get_current_stream()
        self._stream.wait_event(current.record())
        for matrix, memory in ((self._matrix, values), (self._x, x), (self._b, b)):
            cudss.matrix_set_values(matrix, memory.data.ptr)
        self._execute(FACTORIZATION)
        self._execute(SOLVE)
        current.wait_event(self._stream.record())

    def _execute(self, phase: int) -> None:
        cudss.execute(self._handle, phase, self._config, self._data, self._matrix, self._x, self._b)

    def __del__(self) -> None:
        if not hasattr(self, "_b"):
            return
        for matrix in (self._matrix, self._x, self._b):
            cudss.matrix_destroy(matrix)
        cudss.data_destroy(self._handle, self._data)
        cudss.config_destroy(self._config)
        cudss.destroy(self._handle)


class SparseSolvers(SolverRoutines):
    """Requests with sparse matrices."""

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._looking: Final = threading.Lock()
        self._analysed: Final[WeakKeyDictionary[CheckedStructure, OrderedDict[object, Analysis]]] = WeakKeyDictionary()

    def prepare_spsolve(self, request: solver.Spsolve) -> None:
        """Analyse a structure, unless a program has given only its layout. The analysis is kept with the structure.

        Raises:
            Unsupported: There is no cuDSS here.
        """
        if request.b.size and getattr(request.a.structure, "attached", None) is not None:
            it = structures.found(request.a)
            if it.count:
                self._analysis(request, it)

    def spsolve(self, request: solver.Spsolve, _plan: None) -> Later | None:
        """Solve a·x = b for a sparse matrix."""
        it, b, x = structures.found(request.a), array(request.b), array(request.x)
        if not b.size:
            return None
        if b.ndim < 2:
            b, x = b[:, None], x[:, None]
        if not it.count:  # cuDSS takes no matrix without elements
            return self._judged(cupy.ones(1, bool), lambda _number, _code: verdicts.unsolved(), None)
        analysis, values = self._analysis(request, it), array(request.a.data)
        right, made = duplicate(b), empty(b.shape, b.dtype)
        analysis.solve(values, made, right)
        x[...] = made
        epsilon = float(np.finfo(b.dtype).eps)
        most = abs(right).max(axis=0).astype(np.float64)
        errors_made = RESIDUAL(
            values, it.indices, it.indptr, made.T, right.T, most, b.shape[0], epsilon**-LARGE_POWER
        )  # fmt: skip
        largest = epsilon**0.5
        return self._judged(~(errors_made <= largest), lambda _number, _code: verdicts.unsolved(), analysis)

    def _analysis(self, request: solver.Spsolve, it: CheckedStructure) -> Analysis:
        """Return a structure's analysis, which is made if there is none."""
        key = request.b.dtype, request.b.shape, request.method
        with self._looking:
            kept = self._analysed.setdefault(it, OrderedDict())
            found = kept.get(key)
        if found is not None:
            return found
        try:
            pathfinder.load_nvidia_dynamic_lib("cudss")
        except pathfinder.DynamicLibNotFoundError as error:
            raise errors.Unsupported(
                "solver.spsolve needs cuDSS on CUDA: run `pip install 'atomr-mp[sparse-direct13]'`, or with 12 for an "
                "older driver"
            ) from error
        made = Analysis(request, it)
        with self._looking:
            kept[key] = made
            if len(kept) > KEPT:
                kept.popitem(last=False)
        return made
