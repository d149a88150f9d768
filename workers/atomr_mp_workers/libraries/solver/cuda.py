"""Solvers on the CUDA backend, with cuSOLVER, cuBLAS and cuDSS.

They have matrices in column order. A matrix in row order is passed as a transpose if that is as good, and copied
otherwise. Nothing here waits for the device. Pivots that would lead the libraries outside of a matrix are not left to
them.
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
