"""Products of matrices with epilogues, in a device's memory: `device.blas_lt`."""

from __future__ import annotations

from typing import Final

from atomr_mp.libraries.generated.blas_lt import BlasLtRequests

Reference: Final = BlasLtRequests
