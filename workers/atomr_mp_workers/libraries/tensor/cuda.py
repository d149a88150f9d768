"""Tensors on the CUDA backend, with cuTENSOR if it is installed, and with CuPy otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import cupy
from nvmath.bindings import cutensor

from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.libraries.tensor.base import Enqueue, TensorLibrary
from atomr_mp_workers.libraries.tensor.cutensor_plan import NOT_THERE, CutensorPlan, serves

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream


class CudaTensor(TensorLibrary):
    """Operations on device memory.

    Plans are made on one thread; the first of them looks for cuTENSOR, which takes a part of a second to load. CuPy
    does requests without a kernel in cuTENSOR, and those that it does not take (no elements, strides that are not
    positive).
    """

    module = cupy
    slow = frozenset(
        {"contraction", "reduction", "permutation", "elementwise_binary", "elementwise_trinary", "einstein_sum"}
    )

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._handle: int | None = None
        """cuTENSOR's handle; 0 if it is not installed, None before the first look."""

    def planned(self, request: Any) -> Enqueue:
        """Return the function that does a request: a plan of cuTENSOR, or functions of CuPy."""
        if self._handle is None:
            self._handle = self._found()
        if self._handle and serves(request):
            try:
                return CutensorPlan(self._handle, request, cast("CudaStream", self.stream).stream.ptr, self.workspace)
            except cutensor.cuTENSORError as error:
                if error.status not in NOT_THERE:
                    raise
        return super().planned(request)

    def _found(self) -> int:
        try:
            handle: int = cutensor.create()
        except (RuntimeError, cutensor.cuTENSORError):  # its library is missing, or unfit for this GPU and driver
            handle = 0
        self.context.served_by("tensor", "cuTENSOR" if handle else "CuPy")
        return handle


Implementation: Final = CudaTensor
