"""A stand-in for the CUDA driver that loads and launches kernels: the real bindings' types, without a GPU.

Each function takes as many arguments as the real one. A launch is kept with the parameters that its pointers lead to.
"""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

from cuda.bindings import driver as real

from tests.fakes.fake_tensor_maps import FakeTensorMaps

OK: Final = real.CUresult.CUDA_SUCCESS


class DriverError(Exception):
    """CuPy's error of the driver."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status: Final = status


class FakeLaunch(NamedTuple):
    """A launch, as the driver gets it."""

    name: str
    config: Any
    parameters: list[bytes]


class FakeKernelDriver:
    """The driver.

    Args:
        kernels: Offset and size of each parameter, by kernel.
        capability: The device's compute capability, times ten.
    """

    def __init__(self, kernels: dict[str, Sequence[tuple[int, int]]], capability: int = 90) -> None:
        self.kernels: Final = kernels
        self.launches: Final[list[FakeLaunch]] = []
        self.loaded: Final[list[int]] = []
        self.set: Final[list[tuple[Any, int]]] = []
        self.load_status = 0
        self.globals: Final[dict[str, tuple[real.CUdeviceptr, int]]] = {}
        """Address and size of each global."""
        self.copies: Final[list[tuple[int, int, int, int]]] = []
        """Target, source, size and stream of each copy."""
        self.maps: Final = FakeTensorMaps()
        self.memory_kinds: Final[dict[int, int]] = {}
        """Kinds of memory by address; 0 for none. Other memory is the device's."""
        self._names: Final = list(kernels)
        device = real.CUdevice_attribute
        self._device: Final = {
            device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: capability // 10,
            device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: capability % 10,
            device.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: 200_000,
            device.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 10,
            device.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: 1,
        }
        function = real.CUfunction_attribute
        self.function: Final = {
            function.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 512,
            function.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: 1000,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or "_" in name:
            return getattr(real, name)
        done: Callable[..., Any] = getattr(type(self), re.sub("([A-Z])", r"_\1", name).lower())
        takes = len(inspect.signature(done).parameters) - 1
        text = (getattr(real, name).__doc__ or "").split("\n")[0]
        depth, wanted = 0, 1 if text[len(name) + 1 : -1] else 0
        for letter in text[len(name) + 1 : -1]:
            depth += letter in "[(" or -(letter in "])")
            wanted += letter == "," and depth == 0
        assert takes == wanted, f"{name} takes {wanted} arguments: {text}"
        return lambda *arguments: done(self, *arguments)

    def cu_ctx_get_device(self) -> Any:
        """See the driver's cuCtxGetDevice."""
        return OK, real.CUdevice(0)

    def cu_driver_get_version(self) -> Any:
        """See the driver's cuDriverGetVersion."""
        return OK, 12080

    def cu_device_get_attribute(self, attribute: Any, _device: Any) -> Any:
        """See the driver's cuDeviceGetAttribute."""
        return OK, self._device[attribute]

    def cu_library_load_data(
        self, code: Any, jit: Any, jit_values: Any, jit_count: int, options: Any, values: Any, count: int
    ) -> Any:
        """See the driver's cuLibraryLoadData."""
        assert bytes(code)
        assert (jit, jit_values, jit_count, options, values, count) == (None, None, 0, None, None, 0)
        if self.load_status:
            return real.CUresult(self.load_status), None
        self.loaded.append(len(self.loaded) + 1)
        return OK, real.CUlibrary(self.loaded[-1])

    def cu_library_unload(self, library: Any) -> Any:
        """See the driver's cuLibraryUnload."""
        self.loaded.remove(int(library))
        return (OK,)

    def cu_library_get_kernel(self, _library: Any, name: bytes) -> Any:
        """See the driver's cuLibraryGetKernel."""
        return OK, real.CUkernel(1 + self._names.index(name.decode()))

    def cu_library_get_global(self, _library: Any, name: bytes) -> Any:
        """See the driver's cuLibraryGetGlobal."""
        if name.decode() not in self.globals:
            return real.CUresult.CUDA_ERROR_NOT_FOUND, None, None
        return OK, *self.globals[name.decode()]

    def cu_memcpy_dto_d_async(self, target: Any, source: Any, nbytes: int, stream: Any) -> Any:
        """See the driver's cuMemcpyDtoDAsync."""
        self.copies.append((int(target), int(source), nbytes, int(stream)))
        return (OK,)

    def cu_kernel_get_param_info(self, kernel: Any, at: int) -> Any:
        """See the driver's cuKernelGetParamInfo."""
        return OK, *self.kernels[self._names[int(kernel) - 1]][at]

    def cu_func_get_attribute(self, attribute: Any, _function: Any) -> Any:
        """See the driver's cuFuncGetAttribute."""
        return OK, self.function[attribute]

    def cu_func_set_attribute(self, function: Any, attribute: Any, value: int) -> Any:
        """See the driver's cuFuncSetAttribute."""
        self.set.append((attribute, value))
        assert int(function)
        return (OK,)

    def cu_kernel_get_function(self, kernel: Any) -> Any:
        """See the driver's cuKernelGetFunction."""
        return OK, real.CUfunction(int(kernel))

    def cu_occupancy_max_active_blocks_per_multiprocessor(self, function: Any, threads: int, shared: int) -> Any:
        """See the driver's cuOccupancyMaxActiveBlocksPerMultiprocessor."""
        assert int(function)
        return OK, 512 // threads if shared < 100_000 else 1

    def cu_get_proc_address(self, symbol: bytes, version: int, flags: int) -> Any:
        """See the driver's cuGetProcAddress."""
        assert (symbol, version, flags) == (b"cuTensorMapEncodeTiled", 12000, 0)
        return OK, self.maps.address, real.CUdriverProcAddressQueryResult(0)

    def cu_pointer_get_attribute(self, attribute: Any, address: int) -> Any:
        """See the driver's cuPointerGetAttribute."""
        assert attribute == real.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        kind = self.memory_kinds.get(address, 2)
        return (OK, kind) if kind else (real.CUresult.CUDA_ERROR_INVALID_VALUE, None)

    def cu_launch_kernel_ex(self, config: Any, function: Any, pointers: int, extra: int) -> Any:
        """See the driver's cuLaunchKernelEx."""
        assert extra == 0
        assert isinstance(function, real.CUfunction)
        name = self._names[int(function) - 1]
        found = []
        for at, (_, size) in enumerate(self.kernels[name]):
            address = ctypes.c_void_p.from_address(pointers + 8 * at).value
            assert address
            found.append(ctypes.string_at(address, size))
        self.launches.append(FakeLaunch(name, config, found))
        return (OK,)


def checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a driver's call, or raise its error, as `cuda_resident.checked` does."""
    status, *values = result
    if status != OK:
        raise DriverError(int(status))
    return tuple(values)


def stand_ins() -> dict[str, ModuleType]:
    """Return the modules that the CUDA actor of kernels imports, which need a GPU."""
    cupy, cuda, driver = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.driver")
    resident = ModuleType("atomr_mp_workers.device.cuda_resident")
    vars(driver)["CUDADriverError"] = DriverError
    runtime = SimpleNamespace(getDevice=lambda: 0)
    vars(cuda).update(driver=driver, runtime=runtime, Device=lambda _number: SimpleNamespace(use=lambda: None))
    vars(cupy)["cuda"] = cuda
    vars(resident)["checked"] = checked
    return {each.__name__: each for each in (cupy, cuda, driver, resident)}
