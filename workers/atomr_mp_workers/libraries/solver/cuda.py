"""Solvers on the CUDA backend, with cuSOLVER, cuBLAS and cuDSS.

They have matrices in column order. A matrix in row order is passed as a transpose if that is as good, and copied
otherwise. Nothing here waits for the device. Sizes of 0 are not left to the libraries, nor are pivots that would lead
them outside of a matrix.
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
