"""Programs on the CUDA backend: repeated runs are CUDA graphs."""

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
"""Reserve a quarter more than was measured: one piece may be divided in another way."""


class CudaGraph:
    """A graph, and the memory that it writes besides the buffers of its program.

    Args:
        graph: CuPy's graph.
        stream: The stream that it is launched on.
        pool: The pool of memory that libraries have allocated during recording.
        holding: Keeps the other objects that it uses.
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
        self._pool.free_all_blocks()  # free memory of a pool that is only dropped is never given back (CuPy 14.2)


class CudaRecorder:
    """Records CUDA graphs.

    While a thread records, CUDA refuses calls that do not go to the stream, such as cudaMalloc. So libraries allocate
    in a pool that belongs to the graph and is filled in advance; no other code gets that memory.

    Args:
        device: The device.
        stream: The stream of the program.
    """

    def __init__(self, device: CudaDevice, stream: CudaStream) -> None:
        self._device = device
        self._stream = stream

    def measured(self, enqueue: Callable[[], Any]) -> tuple[Any, int]:
        """Call a function; return its result and how many bytes it has allocated."""
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
        """Raise if the capture is invalid: CUDA reports that to any query, and at the end of the capture."""
        if not self._stream.stream.is_capturing():
            raise RuntimeError("the capture has ended")

    def record(self, enqueue: Callable[[], Any], nbytes: int) -> tuple[CudaGraph, Any]:
        """Record a function's work on the stream."""
        pool, stream = self._device.make_pool(), self._stream.stream
        holding = Holding()
        with _emptied_if_it_fails(pool, holding), cupy.cuda.using_allocator(pool.malloc), holding, _uncollected():
            if nbytes:
                pool.malloc(nbytes + nbytes // SLACK)  # given back to the pool at once
            stream.begin_capture(runtime.streamCaptureModeThreadLocal)
            try:
                result = enqueue()
            except BaseException:
                with contextlib.suppress(runtime.CUDARuntimeError):  # the capture may be invalid, and ends all the same
                    stream.end_capture()
                raise
            try:
                graph = stream.end_capture()
            except BaseException:
                result = None  # it may hold memory of the pool
                raise
        return CudaGraph(graph, stream, pool, holding), result


@contextlib.contextmanager
def _emptied_if_it_fails(pool: Any, holding: Holding | None = None) -> Iterator[None]:
    """Empty a pool after an error: free blocks of a pool that is only dropped are never given back (CuPy 14.2).

    Held objects and the frames of the error release their memory in the pool first.

    Args:
        pool: CuPy's.
        holding: Keeps the objects of the graph that could not be recorded.
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
    """Suspend garbage collection: it could free a slab, which CUDA refuses a thread that records."""
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
