"""BLAS for arrays in a device's memory: `device.blas`."""

from __future__ import annotations

from typing import Final

from atomr_mp.libraries.generated.blas import BlasRequests

Reference: Final = BlasRequests
