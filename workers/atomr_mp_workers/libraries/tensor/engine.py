"""Requests on tensors by the functions of NumPy, or by CuPy's of the same names: for one that cuTENSOR does not serve.

A contraction is a product of matrices, or of a batch of them, between two changes of the order of dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import tensor
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.tensor.operators import applied, combined, reduced


class ArrayEngine:
    """Does requests on arrays of a module.

    Args:
        module: NumPy or CuPy.
    """

    def __init__(self, module: Any) -> None:
        self._of: Final = module

    def contraction(self, request: tensor.Contraction) -> None:
        """Compute c ← alpha·Σ op_a(a)·op_b(b) + beta·op_c(c)."""
        product = 0 if not scalar(request.alpha) else scalar(request.alpha) * self._contracted(request)
        self._store(request.c, product + self._times(request.beta, request.op_c, request.c))

    def reduction(self, request: tensor.Reduction) -> None:
        """Compute c ← alpha·op_reduce(op_a(a)) + beta·op_c(c)."""
        old = self._times(request.beta, request.op_c, request.c)
        if scalar(request.alpha):
            axes = tuple(at for at, mode in enumerate(request.modes_a) if mode not in request.modes_c)
            left = [mode for mode in request.modes_a if mode in request.modes_c]
            values = reduced(self._of, request.op_reduce, self._applied(request.op_a, request.a), axes)
            old = scalar(request.alpha) * _ordered(values, left, request.modes_c) + old
        self._store(request.c, old)

    def permutation(self, request: tensor.Permutation) -> None:
        """Compute b ← alpha·op_a(a), with the dimensions in another order."""
        values = self._times(request.alpha, request.op_a, request.a)
        self._store(
            request.b, values if not scalar(request.alpha) else _ordered(values, request.modes_a, request.modes_b)
        )

    def elementwise_binary(self, request: tensor.ElementwiseBinary) -> None:
        """Compute d ← op_ac(alpha·op_a(a), gamma·op_c(c))."""
        first = self._spread(request.alpha, request.op_a, request.a, request.modes_a, request.modes_c)
        second = self._spread(request.gamma, request.op_c, request.c, request.modes_c, request.modes_c)
        self._store(request.d, combined(self._of, request.op_ac, first, second))

    def elementwise_trinary(self, request: tensor.ElementwiseTrinary) -> None:
        """Compute d ← op_abc(op_ab(alpha·op_a(a), beta·op_b(b)), gamma·op_c(c))."""
        first = self._spread(request.alpha, request.op_a, request.a, request.modes_a, request.modes_c)
        second = self._spread(request.beta, request.op_b, request.b, request.modes_b, request.modes_c)
        third = self._spread(request.gamma, request.op_c, request.c, request.modes_c, request.modes_c)
        inner = combined(self._of, request.op_ab, first, second)
        self._store(request.d, combined(self._of, request.op_abc, inner, third))

    def _contracted(self, request: tensor.Contraction) -> Any:
        """Return the sum of products, as a product of matrices."""
        lengths = tensor.extents(request, ("a", "b"))
        modes_a, modes_b, modes_c = request.modes_a, request.modes_b, request.modes_c
        both = [mode for mode in modes_a if mode in modes_b]
        batch, summed = [m for m in both if m in modes_c], [m for m in both if m not in modes_c]
        rows, columns = [m for m in modes_a if m not in both], [m for m in modes_b if m not in both]
        sizes = [math.prod(lengths[mode] for mode in modes) for modes in (batch, rows, summed, columns)]
        left = _ordered(self._applied(request.op_a, request.a), modes_a, [*batch, *rows, *summed])
        right = _ordered(self._applied(request.op_b, request.b), modes_b, [*batch, *summed, *columns])
        shape = [lengths[mode] for mode in (*batch, *rows, *columns)]
        if not all(sizes):
            product = self._of.zeros(shape, left.dtype)
        else:
            m, n = left.reshape(sizes[0], sizes[1], sizes[2]), right.reshape(sizes[0], sizes[2], sizes[3])
            product = self._of.matmul(m, n).reshape(shape)
        return _ordered(product, [*batch, *rows, *columns], modes_c)

    def _applied(self, name: str, operand: Any) -> Any:
        """Return an array in the type that is computed with, with an operator applied."""
        return applied(self._of, name, array(operand).astype(self._wide(operand), copy=False))

    def _wide(self, operand: Any) -> Any:
        """Return the type that is computed with: float32 for half precision, else the array's own."""
        dtype = array(operand).dtype
        return self._of.float32 if dtype.itemsize == 2 else dtype

    def _times(self, factor: Scalar, name: str, operand: Any) -> Any:
        """Return a factor times what an operator makes of an array, which is not read if the factor is 0."""
        return scalar(factor) * self._applied(name, operand) if scalar(factor) else 0

    def _spread(self, factor: Scalar, name: str, operand: Any, modes: str, target: str) -> Any:
        """Return that with a dimension for each mode of the target."""
        if not scalar(factor):
            return self._of.zeros((), self._wide(operand))
        values = _ordered(self._times(factor, name, operand), modes, [mode for mode in target if mode in modes])
        return values[tuple(slice(None) if mode in modes else None for mode in target)]

    def _store(self, operand: Any, values: Any) -> None:
        target = array(operand)
        target[...] = values.astype(target.dtype, copy=False) if hasattr(values, "astype") else values


def _ordered(values: Any, modes: Sequence[str], target: Sequence[str]) -> Any:
    """Return an array with its dimensions in the order of other modes."""
    return values.transpose([list(modes).index(mode) for mode in target])
