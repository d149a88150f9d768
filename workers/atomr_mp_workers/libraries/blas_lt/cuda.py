"""Products of matrices with epilogues on the CUDA backend, with cuBLASLt on the memory itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from nvmath.bindings import cublasLt

from atomr_mp.protocol.libraries import blas_lt
from atomr_mp_workers.libraries.base import Library, LibraryContext, address, array
from atomr_mp_workers.libraries.blas_lt.autotune import tuned
from atomr_mp_workers.libraries.blas_lt.kinds import NOT_THERE
from atomr_mp_workers.libraries.blas_lt.plan import MatmulPlan, StreamWorkspace, unsupported
from atomr_mp_workers.libraries.pointers import FactorPointers

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream


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


Implementation: Final = CudaBlasLt
