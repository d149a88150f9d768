"""Programs on the CUDA backend: runs that come again are CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import cupy
from cupy.cuda import runtime

from atomr_mp_workers.libraries.holding import Holding
from atomr_mp_workers.libraries.program.base import ProgramLibrary
from atomr_mp_workers.requests.request import Later

if TYPE_CHECKING:
    from atomr_mp_workers.device.cuda import CudaDevice
    from atomr_mp_workers.device.cuda_streams import CudaStream
    from atomr_mp_workers.libraries.program.replay import Recorder


SLACK: Final = 4
"""A quarter more is reserved than was measured: in one piece it may be divided in another way."""


class CudaGraph:
    """A graph, and what it writes to besides the buffers of its program.

    Args:
        graph: CuPy's.
        stream: Where it is launched.
        pool: Has the memory that libraries have allocated while it was recorded.
        holding: What else it uses.
    """

    def __init__(self, graph: Any, stream: Any, pool: Any, holding: Holding) -> None:
        self._graph = graph
        self._stream = stream
        self._pool = pool
        self._holding = holding

    def launch(self) -> None:
        """Put it on its stream."""
        self._graph.launch(self._stream)

    def __del__(self) -> None:
        self._graph = None
        self._holding.held.clear()
        self._pool.free_all_blocks()  # what is free in a pool that is only dropped is never given back (CuPy 14.2)


class CudaRecorder:
    """Records CUDA graphs.

    While a thread records, CUDA refuses it what is not put on the stream, cudaMalloc for one. So libraries allocate in
    a pool that belongs to the graph and has beforehand what they will take; nothing else ever gets that memory.

    Args:
        device: The device.
        stream: The stream of the program.
    """

    def __init__(self, device: CudaDevice, stream: CudaStream) -> None:
        self._device = device
        self._stream = stream

    def measured(self, enqueue: Callable[[], Any]) -> tuple[Any, int]:
        """Do something; return its result and how many bytes it has allocated."""
        pool = self._device.make_pool()
        with _emptied_if_it_fails(pool), cupy.cuda.using_allocator(pool.malloc):
            result = enqueue()
        # What is in use now stays: a workspace, say, that came with a library's handle. But a verdict may hold what
        # each recording allocates too.
        stays = 0 if type(result) is Later else pool.used_bytes()
        nbytes = int(pool.total_bytes() - stays)
        pool.free_all_blocks()
        return result, nbytes

    def check(self) -> None:
        """Raise if the capture is invalid: CUDA tells that to whoever asks, and to the end of the capture."""
        if not self._stream.stream.is_capturing():
            raise RuntimeError("the capture has ended")

    def record(self, enqueue: Callable[[], Any], nbytes: int) -> tuple[CudaGraph, Any]:
        """Record what is put on the stream."""
        pool, stream = self._device.make_pool(), self._stream.stream
        holding = Holding()
        with _emptied_if_it_fails(pool, holding), cupy.cuda.using_allocator(pool.malloc), holding, _uncollected():
            if nbytes:
                pool.malloc(nbytes + nbytes // SLACK)  # given back to the pool at once
            stream.begin_capture(runtime.streamCaptureModeThreadLocal)
            try:
                result = enqueue()
            except BaseException:
                with contextlib.suppress(runtime.CUDARuntimeError):  # the capture may be invalid; it ends all the same
                    stream.end_capture()
                raise
            try:
                graph = stream.end_capture()
            except BaseException:
                result = None  # which may hold memory of the pool
                raise
        return CudaGraph(graph, stream, pool, holding), result


@contextlib.contextmanager
def _emptied_if_it_fails(pool: Any, holding: Holding | None = None) -> Iterator[None]:
    """Empty a pool after an error: free blocks of a pool that is only dropped are never given back (CuPy 14.2).

    First what was held and the frames of the error let go of their memory in the pool.

    Args:
        pool: CuPy's.
        holding: What the graph uses that could not be recorded.
    """
    try:
        yield
    except BaseException as error:
        if holding is not None:
            holding.held.clear()
        causes: BaseException | None = error
        while causes is not None:
            traceback.clear_frames(causes.__traceback__)
            causes = causes.__cause__ or causes.__context__
        pool.free_all_blocks()
        raise


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage: a slab among it would be freed, which CUDA refuses a thread that records."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CudaProgram(ProgramLibrary):
    """Runs programs as CUDA graphs from their second run on."""

    def _recorder(self) -> Recorder:
        return CudaRecorder(cast("CudaDevice", self.context.device), cast("CudaStream", self.stream))


Implementation: Final = CudaProgram
