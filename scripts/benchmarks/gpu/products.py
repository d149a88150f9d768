"""Products of matrices and tensors, and Cholesky factors, by request, beside the same calls in one process.

    PYTHONPATH=scripts:. python -m benchmarks.gpu.products > gpu-products.json

Needs a GPU and the extra of its CUDA version; takes a minute. The direct call is that of the library's actor, with
the same plan on memory of this process: fifty calls, then a wait. By request ten are kept in flight; of programs of ten
steps two are. Each round measures all ways in turn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import atomr_mp
from atomr_mp.protocol import dtypes, token
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blas_lt, solver, tensor
from atomr_mp.protocol.libraries.base import LibraryRequest
from benchmarks.gpu.shares import measured
from benchmarks.standalone.in_flight import kept_in_flight

ROUNDS: Final = 7
TOGETHER: Final = 10
"""Requests in flight, and steps of the program."""
CALLS: Final = 50
"""In a round."""
PROGRAMS: Final = 2
"""Runs of a program in flight."""
SIZE: Final = 8192
BATCH: Final = 32
SIDE: Final = 2048

Operands = dict[str, tuple[tuple[int, ...], str, bool]]
"""Shape, element type, and whether it lies transposed, by name."""


class Case:
    """A product.

    Args:
        library: Its library.
        request: Makes a request of operands by name.
        operands: How they lie.
        identity: They are identity matrices, which are factored in place again and again.
    """

    def __init__(
        self, library: str, request: Callable[..., LibraryRequest], operands: Operands, *, identity: bool = False
    ) -> None:
        self.library: Final = library
        self.request: Final = request
        self.operands: Final = operands
        self.identity: Final = identity


def cases() -> dict[str, Case]:
    """Return the measured products."""
    square = (SIZE, SIZE)

    def product(a: Any, b: Any, out: Any) -> LibraryRequest:
        return blas_lt.Matmul(a, b, out)

    def contraction(a: Any, b: Any, out: Any) -> LibraryRequest:
        return tensor.Contraction(a, b, "bik", "kbj", "ibj", out)

    factored: Operands = {"a": (square, "float64", False)}
    return {
        f"potrf_{SIZE}_float64": Case("solver", solver.Potrf, factored, identity=True),
        f"matmul_{SIZE}_bfloat16": Case(
            "blas_lt",
            product,
            {"a": (square, "bfloat16", False), "b": (square, "bfloat16", True), "out": (square, "bfloat16", False)},
        ),
        f"matmul_{SIZE}_float8": Case(
            "blas_lt",
            product,
            {
                "a": (square, "float8_e4m3fn", False),
                "b": (square, "float8_e4m3fn", True),
                "out": (square, "bfloat16", False),
            },
        ),
        f"contraction_{BATCH}x{SIDE}_bfloat16": Case(
            "tensor",
            contraction,
            {
                "a": ((BATCH, SIDE, SIDE), "bfloat16", False),
                "b": ((SIDE, BATCH, SIDE), "bfloat16", False),
                "out": ((SIDE, BATCH, SIDE), "bfloat16", False),
            },
        ),
    }


def direct(case: Case) -> Callable[[], None]:
    """Return a function that does the calls of a round in this process, and waits."""
    import cupy

    from atomr_mp_workers.device.cuda import CudaDevice
    from atomr_mp_workers.device.streams import StreamAllocator
    from atomr_mp_workers.libraries import implementation
    from atomr_mp_workers.libraries.base import LibraryContext
    from atomr_mp_workers.libraries.tensor.base import Placed
    from atomr_mp_workers.memory.store import Store
    from atomr_mp_workers.requests.off_loop.in_progress import InProgress
    from atomr_mp_workers.requests.request import Later

    arrays: dict[str, Any] = {}
    for name, (shape, dtype, transposed) in case.operands.items():
        memory = cupy.full(int(np.prod(shape)) * dtypes.item_bytes(dtype), 0x30, cupy.uint8)
        layout = Layout.contiguous(dtype, shape)
        arrays[name] = Placed(memory, layout.transposed(None) if transposed else layout)
        if case.identity:
            memory.view(dtype).reshape(shape)[...] = cupy.eye(shape[0], dtype=dtype)
        if dtype != "float8_e4m3fn" and not transposed:
            arrays[name].array = memory.view(dtypes.to_numpy(dtype)).reshape(shape)  # for CuPy's own kernels
    device = CudaDevice()
    store = Store(device, token.pack(bytes(16), 0, 1), 2**34, InProgress())
    streams = StreamAllocator("single", lambda name, _priority: device.make_stream(name, inline_bytes=0))
    context = LibraryContext("cuda", device, store, streams, lambda: store.buffers.ours, lambda: None)
    cls = implementation(case.library, "cuda")
    assert cls is not None
    library: Any = cls(context, streams.acquire("direct"))
    request = case.request(**arrays)
    plan = getattr(library, f"prepare_{request.name}")(request)
    call, stream = getattr(library, request.name), library.stream.stream

    def calls() -> None:
        with stream:
            results = [call(request, plan) for _ in range(CALLS)]
        stream.synchronize()
        for result in results:
            if isinstance(result, Later):
                result.read()

    return calls


def by_request(case: Case, device: Any) -> dict[str, Callable[[], None]]:
    """Return functions that do the requests of a round: ten in flight, one at a time, and as programs."""
    refs = {}
    for name, (shape, dtype, transposed) in case.operands.items():
        content = np.eye(shape[0]) if case.identity else np.full(shape, 0.25)
        ref = device.put(content.astype(dtypes.to_numpy(dtype)))
        refs[name] = ref.T if transposed else ref
    request = case.request(**refs)
    parameters = {
        field: getattr(request, field) for field in ("modes_a", "modes_b", "modes_c") if hasattr(request, field)
    }
    arrays = [*refs.values()]

    def submit(of: Any) -> Any:
        return getattr(getattr(of, case.library), request.name)(*arrays, **parameters)

    with device.program() as program:
        for _ in range(TOGETHER):
            submit(program)

    return {
        "ten_in_flight": lambda: kept_in_flight(lambda: submit(device), CALLS, TOGETHER),
        "one_at_a_time": lambda: kept_in_flight(lambda: submit(device), CALLS, 1),
        "program": lambda: kept_in_flight(program.run, CALLS // TOGETHER, PROGRAMS),
    }


def main() -> None:
    """Measure, and print JSON."""
    report: dict[str, Any] = {}
    with atomr_mp.start(gpus=1, backend="cuda") as pool:
        device = pool.device(0)
        for name, case in cases().items():
            try:
                ways = {"direct": direct(case), **by_request(case, device)}
                report[name] = measured(ways, "direct", CALLS, ROUNDS)
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                report[name] = {"error": f"{type(error).__name__}: {error}"}
        report["engines"] = {each.library: each.engine for each in pool.status().devices[0].plans if each.engine}
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
