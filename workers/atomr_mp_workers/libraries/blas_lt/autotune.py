"""Autotuning: time the algorithms that the heuristic proposes, on memory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import cupy

from atomr_mp.protocol.libraries import blas_lt
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES
from atomr_mp_workers.libraries.blas_lt.plan import MatmulPlan, StreamWorkspace
from atomr_mp_workers.libraries.pointers import FactorPointers

RUNS: Final = 5
"""Timed runs of each algorithm: the shortest counts. A first run is not timed."""

FILLING: Final = 0x3B
"""A byte that fills the operands: a moderate number in every type."""


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
