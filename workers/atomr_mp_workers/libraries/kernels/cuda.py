"""Kernels on the CUDA backend: loaded and launched by the driver, on the library's stream."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import cupy
from cuda.bindings import driver
from cupy.cuda import driver as cupy_driver

from atomr_mp import errors
from atomr_mp.protocol.libraries import kernels, tensor_maps
from atomr_mp_workers.device.cuda_resident import checked
from atomr_mp_workers.libraries.holding import hold
from atomr_mp_workers.libraries.kernels import map_encoder
from atomr_mp_workers.libraries.kernels.base import KernelLibrary
from atomr_mp_workers.libraries.kernels.images import KernelImage
from atomr_mp_workers.libraries.kernels.map_encoder import MapEncoder
from atomr_mp_workers.libraries.kernels.modules import LoadedModule
from atomr_mp_workers.libraries.kernels.service import ReadCode

if TYPE_CHECKING:
    from atomr_mp_workers.device.cuda_streams import CudaStream
    from atomr_mp_workers.memory.arrays import DeviceArray

_FUNCTION: Final = driver.CUfunction_attribute
_DEVICE: Final = driver.CUdevice_attribute
_LAUNCH: Final = driver.CUlaunchAttributeID

STATIC_SHARED_BYTES: Final = 48 * 2**10
"""Shared memory of a block that needs no leave."""

CLUSTERS_SINCE: Final = 90
"""Compute capability, times ten."""


class LaunchLimits(NamedTuple):
    """LaunchLimits of this process's device."""

    capability: int
    """Times ten."""
    shared_bytes: int
    """Shared memory of a block, what the kernel declares included."""
    multiprocessors: int
    cooperative: bool


class LoadedKernel:
    """A kernel that the driver has loaded, and what limits its launches.

    Args:
        kernel: The driver's handle, of no context.

    Raises:
        CUDADriverError: It cannot be loaded.
    """

    def __init__(self, kernel: Any) -> None:
        (self.function,) = checked(driver.cuKernelGetFunction(kernel))
        """The driver's handle in the context of this process."""
        # Asking has the kernel loaded now, where code is loaded lazily (CUDA's default): no graph may do that.
        self.threads: Final = self._asked(_FUNCTION.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self.static_bytes: Final = self._asked(_FUNCTION.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self._allowed_bytes = STATIC_SHARED_BYTES - self.static_bytes

    def _asked(self, attribute: Any) -> int:
        (value,) = checked(driver.cuFuncGetAttribute(attribute, self.function))
        return int(value)

    def allow(self, nbytes: int) -> None:
        """Allow launches with so many bytes of shared memory beside its own."""
        if nbytes > self._allowed_bytes:
            attribute = _FUNCTION.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(self.function, attribute, nbytes))
            self._allowed_bytes = nbytes

    def blocks_at_a_time(self, threads: int, shared: int) -> int:
        """Return how many blocks a multiprocessor takes at a time."""
        (blocks,) = checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, shared))
        return int(blocks)


class CudaKernels(KernelLibrary):
    """Kernels on the GPU."""

    def _architecture(self) -> str:
        return f"sm_{self._limits.capability}"

    def _major(self) -> int:
        (version,) = checked(driver.cuDriverGetVersion())
        return int(version) // 1000

    @functools.cached_property
    def _device(self) -> Any:
        (device,) = checked(driver.cuCtxGetDevice())
        return device

    @functools.cached_property
    def _limits(self) -> LaunchLimits:
        def asked(attribute: Any) -> int:
            (value,) = checked(driver.cuDeviceGetAttribute(attribute, self._device))
            return int(value)

        major = asked(_DEVICE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        return LaunchLimits(
            10 * major + asked(_DEVICE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            asked(_DEVICE.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            asked(_DEVICE.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            bool(asked(_DEVICE.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)),
        )

    def _loaded(self, read: ReadCode) -> LoadedModule:
        cache = self.service.cache if read.key else None
        with contextlib.nullcontext() if cache is None else cache.loading(read.key):
            try:
                (library,) = checked(driver.cuLibraryLoadData(read.code, None, None, 0, None, None, 0))
            except cupy_driver.CUDADriverError as error:
                if cache is not None:
                    cache.set_aside(read.key)
                raise _refused(error) from error
            try:
                handles = self._handles(library, read.kernels)
                addresses = self._addresses(library, read.variables)
            except BaseException as error:
                driver.cuLibraryUnload(library)
                if isinstance(error, cupy_driver.CUDADriverError):
                    raise _refused(error) from error
                raise
        streams: dict[int, Any] = {}
        _unloader.start()
        unload = functools.partial(_unloader.unload, library, streams, cupy.cuda.runtime.getDevice())
        variables = {name: read.variables[name] for name in addresses}
        return LoadedModule(read.digest, read.kernels, read.shown, handles, streams, unload, variables, addresses)

    def _handles(self, library: Any, images: Mapping[str, KernelImage]) -> dict[str, LoadedKernel]:
        """Return the kernels of loaded code.

        Raises:
            InvalidRequest: The driver tells other parameters than the code.
            CUDADriverError: A kernel cannot be loaded.
        """
        handles = {}
        for name, image in images.items():
            (kernel,) = checked(driver.cuLibraryGetKernel(library, name.encode()))
            # So many bytes the driver reads of each. Offsets are the code's own affair: a launch gives addresses.
            told = tuple(
                int(checked(driver.cuKernelGetParamInfo(kernel, at))[1]) for at in range(len(image.parameters))
            )
            sizes = tuple(size for _, size in image.parameters)
            if told != sizes:
                raise errors.InvalidRequest(
                    f"the driver says that {name} has parameters of {told} bytes; the code says {sizes}"
                )
            handles[name] = LoadedKernel(kernel)
        return handles

    def _addresses(self, library: Any, variables: Mapping[str, int]) -> dict[str, int]:
        """Return the addresses of loaded code's globals, of those that the driver gives out.

        Raises:
            InvalidRequest: The driver tells another size than the code.
            CUDADriverError: One cannot be loaded.
        """
        addresses = {}
        for name, nbytes in variables.items():
            result = driver.cuLibraryGetGlobal(library, name.encode())
            if int(result[0]) == _NOT_FOUND:
                continue
            address, told = checked(result)
            if int(told) != nbytes:
                raise errors.InvalidRequest(
                    f"the driver says that the global {name} has {int(told)} bytes; the code says {nbytes}"
                )
            addresses[name] = int(address)
        return addresses

    def _copy_out(self, module: LoadedModule, name: str, target: DeviceArray) -> None:
        self._copy(module, target.address, module.addresses[name], target.nbytes)

    def _copy_in(self, module: LoadedModule, name: str, source: DeviceArray) -> None:
        self._copy(module, module.addresses[name], source.address, source.nbytes)

    def _copy(self, module: LoadedModule, target: int, source: int, nbytes: int) -> None:
        """Copy between a module's global and an array, on the stream."""
        stream = cast("CudaStream", self.stream).stream
        module.streams[stream.ptr] = stream
        hold(module)
        checked(driver.cuMemcpyDtoDAsync(target, source, nbytes, driver.CUstream(stream.ptr)))

    @functools.cached_property
    def _map_encoder(self) -> MapEncoder:
        return MapEncoder(driver, checked)

    def _arguments(self, image: KernelImage, request: kernels.KernelLaunch) -> Any:  # noqa: ARG002
        block = ctypes.create_string_buffer(request.values, max(len(request.values), 1))
        for offset, array in request.addressed():
            struct.pack_into("<Q", block, offset, array.address)
        for at, offset, form, array in request.mapped():
            try:
                struct.pack_into(f"{tensor_maps.BYTES}s", block, offset, self._map_encoder.encoded(array, form))
            except errors.RequestError as error:
                error.message = f"argument {at} of {request.kernel.title:.200}, a tensor map: {error.message}"
                raise
        return block

    def _launch(self, module: LoadedModule, image: KernelImage, request: kernels.KernelLaunch, arguments: Any) -> None:
        handle: LoadedKernel = module.handles[image.name]
        handle.allow(request.shared)
        base = ctypes.addressof(arguments)
        # One entry more than there are parameters: an array of none has no address.
        pointers = (ctypes.c_void_p * (len(image.parameters) + 1))(*(base + offset for offset, _ in image.parameters))
        stream = cast("CudaStream", self.stream).stream
        module.streams[stream.ptr] = stream
        hold(module)
        checked(driver.cuLaunchKernelEx(_config(request, stream.ptr), handle.function, ctypes.addressof(pointers), 0))

    def _check(self, module: LoadedModule, image: KernelImage, request: kernels.KernelLaunch) -> None:
        handle: LoadedKernel = module.handles[image.name]
        title, limits = f"{request.kernel.title:.200}", self._limits
        x, y, z = request.block
        threads = x * y * z
        if threads > handle.threads:
            raise errors.InvalidRequest(
                f"block is {request.block}, {threads} threads; {title} can have at most {handle.threads} here, since "
                "it was compiled so, or needs many registers"
            )
        if handle.static_bytes + request.shared > limits.shared_bytes:
            raise errors.InvalidRequest(
                f"shared is {request.shared} bytes, and {title} has {handle.static_bytes} of its own; a block of this "
                f"device has {limits.shared_bytes}"
            )
        if request.cluster != (1, 1, 1) and limits.capability < CLUSTERS_SINCE:
            raise errors.Unsupported(
                f"cluster is {request.cluster}; this device, of compute capability {limits.capability / 10}, has none"
            )
        if request.maps and limits.capability < map_encoder.SINCE:
            raise errors.Unsupported(
                f"an argument of {title} is a tensor map; this device, of compute capability "
                f"{limits.capability / 10}, has none"
            )
        if request.cooperative:
            if not limits.cooperative:
                raise errors.Unsupported("this device has no cooperative launches")
            handle.allow(request.shared)
            most = handle.blocks_at_a_time(threads, request.shared) * limits.multiprocessors
            gx, gy, gz = request.grid
            if gx * gy * gz > most:
                raise errors.InvalidRequest(
                    f"grid is {request.grid}, {gx * gy * gz} blocks; of {title} with such blocks {most} run at a time "
                    "here, and a cooperative launch runs all at a time"
                )


def _config(request: kernels.KernelLaunch, stream: int) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = request.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = request.block
    config.sharedMemBytes = request.shared
    config.hStream = driver.CUstream(stream)
    attributes = []
    if request.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = _LAUNCH.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimensions = attribute.value.clusterDim
        dimensions.x, dimensions.y, dimensions.z = request.cluster
        attributes.append(attribute)
    if request.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = _LAUNCH.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _refused(error: Any) -> BaseException:
    """Return the error for code that the driver does not take; that of a lost context as it is."""
    if error.status in _OF_THE_CODE:
        return errors.InvalidRequest(
            f"the driver does not load the code: {error}; it may be of another architecture, damaged, or need more "
            "memory than the device has"
        )
    found: BaseException = error
    return found


_NOT_FOUND: Final = 500
"""CUDA_ERROR_NOT_FOUND."""

_OF_THE_CODE: Final = frozenset({1, 98, 200, 209, 218, 222, 223, 300, 301, 302, 303, 500})
"""Statuses that speak against the code: invalid values and images, no code for this GPU, PTX that is wrong or too new,
missing symbols, and functions that are not there."""


class Unloader:
    """Unloads code on a thread of its own, once the streams that it was launched on have done what they had then.

    An actor may drop a module amid its launches, and a module may go while a graph is recorded.
    """

    def __init__(self) -> None:
        self._queue: Final[SimpleQueue[tuple[Any, dict[int, Any], int]]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Start the thread, unless that was done. Any thread."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="unloading", daemon=True).start()

    def unload(self, library: Any, streams: dict[int, Any], device: int) -> None:
        """Unload code. Any thread, also amid a collection or at the end of the process: nothing is waited for.

        Args:
            library: The driver's handle.
            streams: The streams that it was launched on, by their addresses.
            device: CUDA's number of the device.
        """
        self._queue.put((library, streams, device))

    def _run(self) -> None:
        while True:
            library, streams, device = self._queue.get()
            with contextlib.suppress(Exception):  # the context is lost, which ends the process
                cupy.cuda.Device(device).use()
                for stream in streams.values():
                    stream.synchronize()
                driver.cuLibraryUnload(library)
            del library, streams


_unloader: Final = Unloader()


Implementation: Final = CudaKernels
