"""The common parts of the solvers on CUDA: handles, and errors that depend on the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import cupy
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.libraries import requests_of
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.blas.cuda import CudaBlas
from atomr_mp_workers.libraries.slots import Slots
from atomr_mp_workers.libraries.solver.handle import Handle, Room, WorkSizes
from atomr_mp_workers.requests.request import Later

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream

INFO: Final = np.dtype(np.int32)
PAIR: Final = np.dtype(np.int64)


class SolverRoutines(Library):
    """Base of the solvers on CUDA.

    Handles are made before the first request, and stay until the process ends. Plans are made on another thread, with a
    handle of their own; they let the workspace grow.
    """

    xp: ClassVar = cupy
    slow = frozenset(requests_of("solver"))

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._made: Handle | None = None
        self._sizes: Handle | None = None
        self._slots: Final = Slots()
        self._blas: Final = CudaBlas(context, stream)

    def open(self) -> None:
        """Make cuSOLVER's handle, and cuBLAS' with the stream's fixed workspace: batches and triangles need it."""
        if self._made is None:
            self._make()
        self._blas.open()

    @property
    def _handle(self) -> Handle:
        return self._made or self._make()

    def _make(self) -> Handle:
        self._made = Handle(cast("CudaStream", self.stream).stream.ptr)
        return self._made

    @property
    def _asked(self) -> Handle:
        if self._sizes is None:
            self._sizes = Handle()
        return self._sizes

    def _sized(self, on_device: int, on_host: int = 0) -> WorkSizes:
        """Return a routine's workspace sizes, and make that workspace; part of making a plan."""
        if on_device:
            self.workspace(on_device)
        return WorkSizes(on_device, on_host)

    def _room(self, sizes: WorkSizes) -> Room:
        """Return the workspace of the routine that is put on the stream next."""
        return Room(sizes, self.workspace(max(1, sizes.on_device)))

    def _told(
        self, enqueue: Callable[[int], None], failure: Callable[[int], errors.NumericalError], host: Any
    ) -> Later:
        """Have a routine write its info where the host can read it.

        Args:
            enqueue: Calls the routine with the address for its info.
            failure: Makes an error from a positive info.
            host: Memory that the routine works in until it has ended.
        """
        slot = self._slots.take()
        try:
            enqueue(slot.address)
        except BaseException:
            self._slots.give(slot)
            raise

        def read(_host: Any = host) -> None:
            info = self._slots.read(slot, INFO)
            if info:
                raise _refused(info) if info < 0 else failure(info)

        return Later(read)

    def _judged(self, info: Any, failure: Callable[[int, int], errors.NumericalError], keep: Any = None) -> Later:
        """Copy the first element of info that is not 0 to the host.

        Args:
            info: An array on the device, with an element for each matrix.
            failure: Makes an error from the element's number and value, if the value is positive.
            keep: Objects to keep until the routines have ended.
        """
        flat = info.reshape(-1)
        first = (flat != 0).argmax()
        found = cupy.stack([first, flat.take(first)]).astype(PAIR)
        slot = self._slots.take()
        pair = slot.memory.view(PAIR)
        try:
            # not found.get(): CuPy refuses that while a graph is recorded, CUDA does not (the memory is pinned)
            cupy.cuda.runtime.memcpyAsync(
                slot.address, found.data.ptr, found.nbytes, cupy.cuda.runtime.memcpyDeviceToHost,
                cast("CudaStream", self.stream).stream.ptr,
            )  # fmt: skip
        except BaseException:
            self._slots.give(slot)
            raise

        def read(_keep: Any = keep) -> None:
            number, code = (int(each) for each in pair)
            self._slots.give(slot)
            if code:
                raise _refused(code) if code < 0 else failure(number, code)

        return Later(read)


def kept(host: Any) -> Later | None:
    """Return a `Later` that keeps host memory until a routine that works in it has ended."""
    return Later(lambda _host=host: None) if host.nbytes else None  # type: ignore[misc]


def _refused(info: int) -> errors.LibraryError:
    """Return the error of an argument that the library refuses: a bug of ours."""
    return errors.LibraryError(f"argument {-info} is wrong", library="cusolver", status=info)
