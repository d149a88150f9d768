"""The CUDA backend: one GPU, its context, and CuPy for arrays."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import cupy
import numpy as np
from cupy.cuda import runtime

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.board import ACTORS_THREADS, DEFAULT_STREAM, stream_bit
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.layout import MAX_BYTES, Layout
from atomr_mp_workers.device.base import ArrayRoom, Event, Resident, Slab, SlabMemory, Stream, Work, WorkerDevice
from atomr_mp_workers.device.cuda_memory import CudaMemory, CudaSlab, OpenedSlab, PinnedHost
from atomr_mp_workers.device.cuda_streams import NOT_READY, READY, CudaEvent, CudaStream, query
from atomr_mp_workers.device.cuda_times import CudaTimes, GpuClock
from atomr_mp_workers.device.faults import STICKY, UNKNOWN, poisoned, translate
from atomr_mp_workers.timeline import WorkTimes

if TYPE_CHECKING:
    from atomr_mp_workers.device.cuda_resident import CudaResident

TO_DEVICE: Final = 1
TO_HOST: Final = 2
ON_DEVICE: Final = 3


def prepare() -> None:
    """Start the driver and load libraries in this process, without making a context or taking memory."""
    runtime.getDeviceCount()
    for module in ("atomr_mp_workers.device.cuda_resident", "cupy.cublas", "cupy.cuda.compiler"):
        importlib.import_module(module)


class CudaDevice(WorkerDevice):
    """The first GPU that this process sees.

    Args:
        completion: Strategy to learn of the end of work, one of `completions.STRATEGIES`.

    Raises:
        SetupFailed: No GPU is available.
    """

    asynchronous = True

    def __init__(self, completion: str = "adaptive") -> None:
        try:
            cupy.cuda.Device(0).use()
            runtime.free(0)  # makes the context
        except runtime.CUDARuntimeError as error:
            raise errors.SetupFailed(f"no context can be made on the GPU: {error}") from error
        self._completion = completion
        self._host: Final = PinnedHost()
        self._streams: list[CudaStream] = []
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        """Holders with pools; a pool itself cannot have weak references."""
        self._holding: Final = threading.Lock()
        """Guards the holders and their pools: any thread may allocate."""
        self._arrays: ArrayRoom | None = None
        """The room for arrays of user code, once it is set."""
        self._threads: Final = threading.local()
        """The stream of an actor's own thread."""
        self._threads_streams: list[CudaStream] = []
        """The streams of all actors' threads."""

    @property
    def host(self) -> WorkerDevice:
        """The host's memory, pinned."""
        return self._host

    # --- memory ----------------------------------------------------------------------------------------------------

    def make_slab(self, nbytes: int) -> Slab:
        """Allocate device memory."""
        try:
            return CudaSlab(nbytes, self.later)
        except runtime.CUDARuntimeError as error:
            explained = self.explain(error)
            if isinstance(explained, errors.OutOfMemory):
                explained.requested_bytes = nbytes
            raise explained or error from error

    def open_slab(self, nbytes: int, handle: bytes, descriptor: int | None) -> SlabMemory:
        """Map another worker's allocation, on this GPU or one that it can reach."""
        if descriptor is not None:
            return self._host.open_slab(nbytes, handle, descriptor)
        try:
            return OpenedSlab(handle, nbytes, self.later)
        except runtime.CUDARuntimeError as error:
            raise self.explain(error) or error from error

    def open_client_slab(self, nbytes: int, descriptor: int) -> SlabMemory:
        """Map a client's memfd, as host memory."""
        return self._host.open_client_slab(nbytes, descriptor)

    def make_resident(self, nbytes: int) -> Resident:
        """Make device memory that a descriptor names."""
        with self._resident(nbytes) as memory:
            return memory.make(nbytes)

    def open_resident(self, nbytes: int, descriptor: int) -> Resident:
        """Map sealed device memory."""
        with self._resident(nbytes) as memory:
            return memory.open(nbytes, descriptor)

    @contextlib.contextmanager
    def _resident(self, nbytes: int) -> Iterator[type[CudaResident]]:
        """Lend the class of resident memory, which needs NVIDIA's own bindings; translate the driver's errors."""
        try:
            from atomr_mp_workers.device.cuda_resident import CudaResident
        except ImportError as error:
            raise errors.Unsupported(
                f"resident memory needs cuda-bindings, which cannot be imported: {error}; {how_to_install('cuda')}"
            ) from error
        try:
            yield CudaResident
        except cupy.cuda.driver.CUDADriverError as error:
            explained = self.explain(error)
            if isinstance(explained, errors.OutOfMemory):
                explained.requested_bytes = nbytes
            raise explained or error from error

    def to_array(self, value: Any) -> tuple[Any, Layout] | None:
        """Return an array on the GPU as a CuPy array: CuPy's own, and any other with CUDA's array interface."""
        if not isinstance(value, cupy.ndarray):
            if not hasattr(value, "__cuda_array_interface__"):
                return None
            value = cupy.from_dlpack(value) if hasattr(value, "__dlpack__") else cupy.asarray(value)
        return value, Layout(dtypes.name_of(value.dtype), value.shape, value.strides, value.data.ptr)

    def number(self, value: Any) -> Any:
        """Return a number as one of CuPy's arrays, which the current stream fills."""
        return cupy.asarray(np.asarray(value))

    @functools.cached_property
    def address_space(self) -> SlabMemory:
        """The address space of the host and the GPUs, which is one."""
        return CudaMemory(0, MAX_BYTES)

    def copy(self, source: Any, target: Any) -> None:
        """Have elements copied by the current stream; non-contiguous arrays go through a contiguous copy."""
        if isinstance(target, np.ndarray):
            if isinstance(source, np.ndarray):
                np.copyto(target, source)
            else:
                source = cupy.ascontiguousarray(source)
                _copy(target.ctypes.data, source.data.ptr, target.nbytes, TO_HOST)
        elif isinstance(source, (np.ndarray, np.generic)):
            source = np.ascontiguousarray(source)
            _copy(target.data.ptr, source.ctypes.data, target.nbytes, TO_DEVICE)
        elif source.flags.c_contiguous and target.flags.c_contiguous:
            _copy(target.data.ptr, source.data.ptr, target.nbytes, ON_DEVICE)
        else:
            target[...] = source

    def await_read(self, source: Any) -> None:
        """Wait for the current stream if it reads the array itself: the driver copies other host memory before.

        Only pinned memory is read so. An array that nobody may write, such as an argument, need not be waited for.
        """
        if isinstance(source, np.ndarray) and source.nbytes and source.flags.writeable:
            pinned = runtime.pointerGetAttributes(source.ctypes.data).type == runtime.memoryTypeHost
            if pinned:
                cupy.cuda.get_current_stream().synchronize()

    def use_memory(self, arrays: ArrayRoom) -> None:
        """Make CuPy allocate in slabs, with a pool of its own for each holder."""

        def allocate(nbytes: int) -> Any:
            holder = arrays.holder()
            return (holder.pool or pool_of(holder)).malloc(nbytes)

        def pool_of(holder: Any) -> Any:
            with self._holding:
                pool = holder.pool
                if pool is None:
                    pool = holder.pool = self._pool_in(arrays, holder)
                    self._holders.add(holder)
            return pool

        self._arrays = arrays
        cupy.cuda.set_allocator(allocate)

    def make_pool(self) -> Any:
        """Return a CuPy pool that no other code allocates in, in memory of this process. Any thread."""
        return cupy.cuda.MemoryPool() if self._arrays is None else self._pool_in(self._arrays, self._arrays.ours)

    @staticmethod
    def _pool_in(arrays: ArrayRoom, holder: Any) -> Any:
        def chunk(nbytes: int) -> Any:
            memory, owner, offset = arrays.take(holder, nbytes)
            assert isinstance(memory, CudaMemory)
            return memory.pointer(owner, offset, nbytes)

        return cupy.cuda.MemoryPool(chunk)

    def cached_bytes(self, holder: Any) -> int:
        """Return the free bytes of CuPy's pool."""
        pool = holder.pool  # the loop may release it meanwhile
        return 0 if pool is None else int(pool.free_bytes())

    def forget(self, holder: Any) -> None:
        """Empty a holder's CuPy pool: a pool that is only dropped never gives its free memory back (CuPy 14.2)."""
        if holder.pool is not None:
            holder.pool.free_all_blocks()
            holder.pool = None

    def free_caches(self) -> None:
        """Let CuPy's pools give back the memory that they keep, once it is out of use."""
        runtime.deviceSynchronize()
        with self._holding:
            holders = list(self._holders)
        for holder in holders:
            pool = holder.pool  # as above
            if pool is not None:
                pool.free_all_blocks()

    # --- work ------------------------------------------------------------------------------------------------------

    def make_event(self) -> Event:
        """Return an event."""
        return CudaEvent()

    def make_stream(
        self,
        name: str,
        *,
        inline_bytes: int,  # noqa: ARG002 - nothing is done by the host
        priority: str = "normal",
    ) -> Stream:
        """Make a CUDA stream."""
        stream = CudaStream(name, self._completion, priority)
        self._streams.append(stream)
        return stream

    def start_timing(self) -> Callable[[], WorkTimes] | None:
        """Return a function that makes the measure of a run, by events on its streams."""
        return functools.partial(CudaTimes, GpuClock())

    def on_thread(self, function: Callable[[], None], times: WorkTimes | None = None) -> None:
        """Run work on the calling thread's own stream, and wait for it with the interpreter's lock released."""
        stream = self._own_stream()
        stream.run(function if times is None else lambda: stream.timed(function, times))

    def thread_context(self) -> contextlib.AbstractContextManager[object]:
        """Make the calling thread's own stream its current one."""
        return self._own_stream().current()

    def thread_work(self) -> Callable[[], object] | None:
        """Return a function that waits for all work on the calling thread's own stream.

        Raises:
            CUDARuntimeError: The stream has failed.
        """
        stream = self._own_stream().stream
        if query(runtime.streamQuery, stream.ptr) == READY:
            return None
        event = CudaEvent()
        event.record(stream)
        return event.wait

    def _own_stream(self) -> CudaStream:
        stream: CudaStream | None = getattr(self._threads, "stream", None)
        if stream is None:
            cupy.cuda.Device(0).use()
            stream = self._threads.stream = CudaStream(threading.current_thread().name, self._completion)
            self._threads_streams.append(stream)
        return stream

    def thread_stream(self) -> Stream | None:
        """Return the stream of an actor's own thread."""
        stream: CudaStream | None = getattr(self._threads, "stream", None)
        return stream

    def poll(self) -> Iterator[Work]:
        """Return the work that has ended, by asking for the oldest of each stream."""
        found = False
        for stream in self._streams:
            for work in stream.ended():
                found = True
                yield work
        if not found:
            self.check()

    def watch(self, wake: Callable[[], object]) -> None:
        """Leave the oldest work of each stream to a thread that waits for it."""
        for stream in self._streams:
            stream.watch(wake)

    def unfinished(self) -> int:
        """Ask all streams, except those on which a graph is captured: asking would end the capture."""
        cupy.cuda.Device(0).use()  # on any thread
        bits = DEFAULT_STREAM * (query(runtime.streamQuery, 0) == NOT_READY)
        for stream in list(self._threads_streams):
            bits |= ACTORS_THREADS * stream.unfinished
        for stream in list(self._streams):
            bits |= stream_bit(stream.number) * stream.unfinished
        return bits

    # --- health ----------------------------------------------------------------------------------------------------

    def status(self) -> int:
        """Ask the context for its status, without waiting; 0 if it is well."""
        status = query(runtime.streamQuery, 0)
        return 0 if status == NOT_READY else status

    def check(self) -> None:
        """Refuse to let results leave a lost context.

        Raises:
            ContextPoisoned: It is lost.
        """
        status = self.status()
        if status in STICKY or status == UNKNOWN:
            raise poisoned(status, "reported when the context was asked")

    def explain(self, error: BaseException) -> errors.AtomrError | None:
        """Return the meaning of an error of CuPy, torch or NVIDIA's own bindings."""
        return translate(error, self.status)


def _copy(target: int, source: int, nbytes: int, kind: int) -> None:
    if nbytes:
        runtime.memcpyAsync(target, source, nbytes, kind, cupy.cuda.get_current_stream().ptr)
