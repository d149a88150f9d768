"""Kernels on every backend: sources are compiled elsewhere, code is loaded, and launches are checked."""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from concurrent.futures import Future
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.libraries import kernels, tensor_maps
from atomr_mp_workers.compiling.jobs import CodeKind, CompileJob, LinkInput, LinkJob
from atomr_mp_workers.libraries.base import Library, given
from atomr_mp_workers.libraries.kernels import modules
from atomr_mp_workers.libraries.kernels.images import KernelImage
from atomr_mp_workers.libraries.kernels.modules import LoadedModule
from atomr_mp_workers.libraries.kernels.rights import owner_of
from atomr_mp_workers.libraries.kernels.service import CompileService, ReadCode, by_lowered, service
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import current_request


class KernelLibrary(Library):
    """Compiles, loads and launches kernels of the caller's own. The backend loads and launches."""

    def open(self) -> None:
        """Look for the compiler's libraries, off the loop."""
        self.service  # noqa: B018 - made by being asked for

    @functools.cached_property
    def service(self) -> CompileService:
        """The compiler of this process."""
        return service(self._major())

    @abstractmethod
    def _major(self) -> int:
        """Return the latest major version of CUDA whose code the driver takes."""

    @abstractmethod
    def _architecture(self) -> str:
        """Return the architecture of the device, as NVRTC names it."""

    @abstractmethod
    def _loaded(self, read: ReadCode) -> LoadedModule:
        """Return code as a loaded module.

        Raises:
            InvalidRequest: The device does not take it.
        """

    @abstractmethod
    def _check(self, module: LoadedModule, image: KernelImage, request: kernels.KernelLaunch) -> None:
        """Refuse a launch that the device would refuse, in the caller's words.

        Raises:
            InvalidRequest: A number is too large for this kernel on this device.
            Unsupported: The device has no such launches.
        """

    @abstractmethod
    def _arguments(self, image: KernelImage, request: kernels.KernelLaunch) -> Any:
        """Return the arguments of a checked launch as `_launch` takes them.

        Raises:
            InvalidRequest: The device refuses a tensor map among them.
        """

    @abstractmethod
    def _launch(self, module: LoadedModule, image: KernelImage, request: kernels.KernelLaunch, arguments: Any) -> None:
        """Put a checked launch on the stream."""

    def begin_compile(self, request: kernels.Compile) -> Future[ReadCode]:
        """Have a source compiled; returns at once.

        Raises:
            InvalidRequest: The job is wrong.
            Unsupported: No compiler is installed, or an option is not allowed.
            Overloaded: Too many jobs wait.
        """
        headers = dict(request.headers)
        if len(headers) != len(request.headers):
            raise errors.InvalidRequest("nothing was compiled: two headers have the same name")
        job = CompileJob(
            request.source,
            request.arch or self._architecture(),
            names=request.names,
            options=request.options,
            headers=headers,
        )
        deadline_s, owner = self._deadline_s(request.limit_s), owner_of(request)
        if not request.link:
            return self.service.submit(job, deadline_s, owner)
        parts = tuple(_input(each) for each in request.link)
        return self.service.compile_and_link(job, parts, deadline_s, owner)

    def compile(self, _request: kernels.Compile, read: ReadCode) -> list[Any]:
        """Load what was compiled."""
        return self._answer(read)

    def begin_load(self, request: kernels.Load) -> Future[ReadCode]:
        """Have codes linked, or one made machine code, unless it is, and have it read; returns at once."""
        if request.kind == "cubin" and not (request.title or request.parts):
            if request.options:
                raise errors.InvalidRequest("options are the linker's, and machine code is not linked")
            return self.service.read(request.code, by_lowered(request.shown))
        first = kernels.LinkedCode(request.title or f"code.{request.kind}", request.kind, request.code)
        parts = tuple(_input(each) for each in (first, *request.parts))
        job = LinkJob(parts, request.arch or self._architecture(), request.options)
        return self.service.submit(job, self._deadline_s(request.limit_s), owner_of(request))

    def load(self, request: kernels.Load, read: ReadCode) -> list[Any]:
        """Load the code.

        Raises:
            InvalidRequest: It was linked, and has nothing to use.
        """
        if read.key and not (read.kernels or read.variables):
            raise errors.InvalidRequest(
                f"{request.title or 'the code'}: the linked code has no kernels: a link leaves out those that were "
                "not compiled as relocatable (-rdc=true)"
            )
        return self._answer(read)

    def launch(self, request: kernels.KernelLaunch) -> None:
        """Launch a kernel."""
        try:
            module, image = modules.found(request.kernel)
            _check_bounds(image, request)
            _check_places(image, request)
            self._check(module, image, request)
            arguments = self._arguments(image, request)
        except errors.RequestError:
            keep_out()
            raise
        self._launch(module, image, request, arguments)

    @abstractmethod
    def _copy_out(self, module: LoadedModule, name: str, target: DeviceArray) -> None:
        """Put a copy of a global to an array, of its size and without gaps, on the stream."""

    @abstractmethod
    def _copy_in(self, module: LoadedModule, name: str, source: DeviceArray) -> None:
        """Put a copy of an array, of its size and without gaps, to a global on the stream."""

    def read(self, request: kernels.ReadGlobal) -> DeviceArray:
        """Copy a global to a new buffer."""
        try:
            module = modules.with_global(request)
            target = self.context.store.buffers.allocate(self.context.holder(), request.dtype, request.shape)
            self._copy_out(module, request.variable, target)
        except errors.RequestError:
            keep_out()
            raise
        return target

    def write(self, request: kernels.WriteGlobal) -> None:
        """Copy an array to a global."""
        try:
            module = modules.with_global(request)
            self._copy_in(module, request.variable, given(request.source))
        except errors.RequestError:
            keep_out()
            raise

    def _deadline_s(self, limit_s: float) -> float:
        return time.monotonic() + (limit_s or self.service.limits.wall_s)

    def _answer(self, read: ReadCode) -> list[Any]:
        """Return a buffer that names a module, its digest, its kernels, the compiler's messages, code, and globals."""
        module = self._loaded(read)
        name = self.context.store.buffers.allocate(self.context.holder(), "uint8", (1,))
        name.attached = module
        code = read.code if len(read.code) <= kernels.KEPT_CODE_BYTES else b""
        return [name, module.digest, module.facts(), read.messages, code, module.variable_facts()]


def _input(part: kernels.LinkedCode) -> LinkInput:
    return LinkInput(part.name, CodeKind(part.kind), part.code)


def _check_bounds(image: KernelImage, request: kernels.KernelLaunch) -> None:
    x, y, z = request.block
    if image.threads and x * y * z > image.threads:
        raise errors.InvalidRequest(
            f"block is {request.block}, {x * y * z} threads; {request.kernel.title:.200} was compiled for at most "
            f"{image.threads} (__launch_bounds__)"
        )


def _check_places(image: KernelImage, request: kernels.KernelLaunch) -> None:
    """Check that tensor maps are aligned: offsets count from where the parameters begin, which is not."""
    for at, offset, _, _ in request.mapped():
        if image.base and (image.base + offset) % tensor_maps.ALIGNED_BYTES:
            raise errors.InvalidRequest(
                f"argument {at} of {request.kernel.title:.200} is a tensor map, and its parameter lies at no multiple "
                f"of {tensor_maps.ALIGNED_BYTES} bytes: it must be declared as `const __grid_constant__ CUtensorMap`"
            )


def keep_out() -> None:
    """Say of a single request of this library that it has not run: what it should write is as it was."""
    request = current_request()
    if request is not None and request.method.name in _KEPT_OUT:
        request.kept_out = True


_KEPT_OUT: Final = frozenset(
    f"{kernels.LIBRARY}.{each.name}" for each in (kernels.KernelLaunch, kernels.ReadGlobal, kernels.WriteGlobal)
)
