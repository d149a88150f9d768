"""Products of matrices with epilogues on the CUDA backend, with cuBLASLt on the memory itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import cupy
from nvmath.bindings import cublasLt

from atomr_mp.protocol.libraries import blas_lt
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES
from atomr_mp_workers.libraries.base import Library, LibraryContext, address, array
from atomr_mp_workers.libraries.blas_lt.kinds import NOT_THERE
from atomr_mp_workers.libraries.blas_lt.plan import MatmulPlan, StreamWorkspace, unsupported
from atomr_mp_workers.libraries.pointers import FactorPointers

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream

RUNS: Final = 5
"""Timed runs of each algorithm: the shortest counts. A first run is not timed."""

FILLING: Final = 0x3B
"""A byte that fills the operands of an algorithm that is timed: a moderate number in every type."""


class CudaBlasLt(Library):
    """Products of device memory.

    Plans are made on one thread; the first of them makes the handle.
    """

    slow = frozenset({"matmul"})

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._handle = 0
        self._works_in = StreamWorkspace(0, 0)
        self._pointers: Final = FactorPointers(lambda _wanted: None)  # a plan says where its factors are

    def prepare_matmul(self, request: blas_lt.Matmul) -> MatmulPlan:
        """Ask for an algorithm.

        Raises:
            Unsupported: There is no algorithm.
        """
        if not self._handle:
            memory = self.fixed_workspace()
            self._works_in = StreamWorkspace(memory.address, memory.nbytes)
            self._handle = cublasLt.create()
        try:
            plan = MatmulPlan(self._handle, request, self._works_in)
        except cublasLt.cuBLASLtError as error:
            if error.status not in NOT_THERE:
                raise
            raise unsupported(request) from error
        return tuned(plan, request, self._works_in.nbytes) if request.autotune else plan

    def matmul(self, request: blas_lt.Matmul, plan: MatmulPlan) -> None:
        """Compute a product and its epilogue."""
        addresses = {name: address(each) for name, _, each in request.arrays() if each is not None}
        if plan.reads_out:
            array(request.out).fill(0)
        with self._pointers.of((plan.factors, request.alpha), (plan.factors, request.beta)) as factors:
            plan.enqueue(addresses, factors, self._works_in, cast("CudaStream", self.stream).stream.ptr)


def tuned(plan: MatmulPlan, request: blas_lt.Matmul, workspace_bytes: int) -> MatmulPlan:
    """Choose the fastest algorithm of a plan, on the current stream, and wait for it.

    If there is no memory for another set of the arrays, the heuristic's first algorithm stays.
    """
    if len(plan) < 2:
        return plan
    layouts = {name: array.layout for name, _, array in request.arrays() if array is not None}
    sizes = {name: each.span[1] - each.offset + 2 * ALIGNED_BYTES for name, each in layouts.items()}
    try:
        memory = {name: cupy.full(nbytes, FILLING, cupy.uint8) for name, nbytes in sizes.items()}
        space = cupy.cuda.alloc(workspace_bytes)  # the library's own is in use meanwhile
    except cupy.cuda.memory.OutOfMemoryError:
        return plan
    addresses = {name: memory[name].data.ptr + each.offset % ALIGNED_BYTES for name, each in layouts.items()}
    stream, workspace = cupy.cuda.get_current_stream(), StreamWorkspace(space.ptr, workspace_bytes)
    told = [(plan.factors, memory.get(name, getattr(request, name))) for name in ("alpha", "beta")]
    times = []
    with FactorPointers(lambda _wanted: None).of(*told) as factors:
        for number in range(len(plan)):
            plan.choose(number)
            times.append(_time(lambda: plan.enqueue(addresses, factors, workspace, stream.ptr)))
    plan.choose(times.index(min(times)))
    return plan


def _time(enqueue: Callable[[], None]) -> float:
    """Return how long a function's work takes on the current stream, in milliseconds."""
    enqueue()
    events = [cupy.cuda.Event() for _ in range(RUNS + 1)]
    events[0].record()
    for event in events[1:]:
        enqueue()
        event.record()
    events[-1].synchronize()
    return min(float(cupy.cuda.get_elapsed_time(*pair)) for pair in itertools.pairwise(events))


Implementation: Final = CudaBlasLt
