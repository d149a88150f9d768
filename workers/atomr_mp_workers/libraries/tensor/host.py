"""Tensors on the host backend, with NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import tensor
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.scaling import times, weighted_sum
from atomr_mp_workers.libraries.tensor.base import Enqueue, TensorLibrary
from atomr_mp_workers.libraries.tensor.engine import ArrayEngine
from atomr_mp_workers.libraries.tensor.operators import reduced


class HostTensor(TensorLibrary):
    """Operations on NumPy's arrays; infinities and NaNs are results, and no warnings."""

    module = np

    def do(self, request: Any, plan: Enqueue) -> None:
        """Do a request by its plan."""
        with np.errstate(all="ignore"):
            plan(request)

    @functools.cached_property
    def _arrays(self) -> ArrayEngine:
        return HostEngine(np)


class HostEngine(ArrayEngine):
    """Requests on NumPy's arrays: a factor of 1 multiplies nothing, and for one of 0 nothing is added."""

    def contraction(self, request: tensor.Contraction) -> None:
        """Compute c ← alpha·Σ op_a(a)·op_b(b) + beta·op_c(c)."""
        self._sum(request, lambda: self._contracted(request))

    def reduction(self, request: tensor.Reduction) -> None:
        """Compute c ← alpha·op_reduce(op_a(a)) + beta·op_c(c)."""
        self._sum(request, lambda: self._reduced(request))

    def _reduced(self, request: tensor.Reduction) -> Any:
        axes = tuple(at for at, mode in enumerate(request.modes_a) if mode not in request.modes_c)
        left = [mode for mode in request.modes_a if mode in request.modes_c]
        values = reduced(np, request.op_reduce, self._applied(request.op_a, request.a), axes)
        return values.transpose([left.index(mode) for mode in request.modes_c])

    def _sum(self, request: tensor.Contraction | tensor.Reduction, values: Callable[[], Any]) -> None:
        old = scalar(request.beta), lambda: self._applied(request.op_c, request.c)
        self._store(request.c, weighted_sum((scalar(request.alpha), values), old))

    def _times(self, factor: Scalar, name: str, operand: Any) -> Any:
        """Return a factor times what an operator makes of an array, which is not read if the factor is 0."""
        return times(scalar(factor), self._applied(name, operand)) if scalar(factor) else 0


Implementation: Final = HostTensor
