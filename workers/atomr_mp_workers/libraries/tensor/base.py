"""Requests on tensors on every backend; making the plan decides which library does them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import tensor
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.tensor.einsum import EinsumSteps, Step
from atomr_mp_workers.libraries.tensor.engine import ArrayEngine

Enqueue = Callable[[Any], None]
"""Does a request like the one that it was made for."""


class Placed(Operand):
    """An array that no ref names: a temporary, or a view.

    Args:
        array: NumPy's or CuPy's.
        layout: Its layout, except the offset.
    """

    def __init__(self, array: Any, layout: Layout) -> None:
        self.array = array
        self.layout = layout

    @property
    def address(self) -> int:
        """Address of the element of index zero, on CUDA."""
        address: int = self.array.data.ptr
        return address


class EinsumPlan(NamedTuple):
    """The steps of a sum of products, each with its function."""

    views: list[Layout]
    steps: list[tuple[Step, Enqueue]]


class TensorLibrary(Library):
    """Operations on tensors of one module."""

    module: Any
    """NumPy or CuPy."""

    def planned(self, request: Any) -> Enqueue:
        """Return the function that does a request: here, of the module."""
        found: Enqueue = getattr(self._arrays, request.name)
        return found

    def do(self, request: LibraryRequest, plan: Enqueue) -> None:
        """Do a request by its plan."""
        plan(request)

    def _prepare(self, request: Any) -> Enqueue:
        return self.planned(request)

    def _run(self, request: LibraryRequest, plan: Enqueue) -> None:
        self.do(request, plan)

    prepare_contraction = prepare_reduction = prepare_permutation = _prepare
    prepare_elementwise_binary = prepare_elementwise_trinary = _prepare
    contraction = reduction = permutation = elementwise_binary = elementwise_trinary = _run

    def prepare_einstein_sum(self, request: tensor.EinsteinSum) -> EinsumPlan:
        """Return the steps, each with its function."""
        found = EinsumSteps(request)
        return EinsumPlan(found.views, [(step, self.planned(step.request)) for step in found.steps])

    def einstein_sum(self, request: tensor.EinsteinSum, plan: EinsumPlan) -> None:
        """Do the steps; the last one writes the output."""
        strided = self.module.lib.stride_tricks.as_strided
        operands: list[Any] = [
            operand
            if operand.layout[1:3] == view[1:3]
            else Placed(strided(array(operand), view.shape, view.strides), view)
            for operand, view in zip(request.operands, plan.views, strict=True)
        ]
        for number, (step, enqueue) in enumerate(plan.steps, start=1):
            target = request.out if number == len(plan.steps) else self._temporary(step.target)
            operands.append(target)
            names = ("a", "b")[: len(step.inputs)]
            changes = {name: operands[at] for name, at in zip(names, step.inputs, strict=True)}
            changes["b" if step.request.name == "permutation" else "c"] = target
            self.do(msgspec.structs.replace(step.request, **changes), enqueue)

    def _temporary(self, layout: Layout) -> Placed:
        return Placed(self.module.empty(layout.shape, dtypes.to_numpy(layout.dtype)), layout)

    @functools.cached_property
    def _arrays(self) -> ArrayEngine:
        return ArrayEngine(self.module)
