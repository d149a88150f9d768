"""Solvers on the CUDA backend, with cuSOLVER, cuBLAS and cuDSS.

Both have matrices in column order. What lies in row order is told as a transpose where that is as good, and copied
where it is not. Nothing here waits for the device. Sizes of 0 are not left to the libraries, nor are pivots that they
would follow outside of a matrix.
"""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.solver.direct import SparseSolvers
from atomr_mp_workers.libraries.solver.factors import FactorSolvers
from atomr_mp_workers.libraries.solver.orthogonal import OrthogonalSolvers
from atomr_mp_workers.libraries.solver.spectral import SpectralSolvers


class CudaSolver(FactorSolvers, OrthogonalSolvers, SpectralSolvers, SparseSolvers):
    """Solvers of device memory."""


Implementation: Final = CudaSolver
