"""Dense solvers for arrays in a device's memory: `device.solver`."""

from __future__ import annotations

from typing import Final

from atomr_mp.libraries.generated.solver import SolverRequests

Reference: Final = SolverRequests
