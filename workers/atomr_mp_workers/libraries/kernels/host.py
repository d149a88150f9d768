"""Kernels on the host backend: compiled and checked as anywhere, and done by NumPy functions that stand for them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.exceptions import describe, full_name_of, traceback_of
from atomr_mp.protocol.libraries import kernels
from atomr_mp_workers import host_kernels
from atomr_mp_workers.compiling.toolkits import MAJORS
from atomr_mp_workers.host_kernels import HostTensorMap
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.kernels.base import KernelLibrary
from atomr_mp_workers.libraries.kernels.host_globals import globals_in_place
from atomr_mp_workers.libraries.kernels.images import KernelImage
from atomr_mp_workers.libraries.kernels.modules import LoadedModule
from atomr_mp_workers.libraries.kernels.service import ReadCode
from atomr_mp_workers.memory.arrays import DeviceArray

ARCHITECTURE: Final = "sm_80"
"""What sources are compiled for that name no architecture: no GPU is there to run the code."""


class HostKernels(KernelLibrary):
    """Kernels without a GPU."""

    def _architecture(self) -> str:
        return ARCHITECTURE

    def _major(self) -> int:
        return MAJORS[0]

    def _loaded(self, read: ReadCode) -> LoadedModule:
        return LoadedModule(read.digest, read.kernels, read.shown, {}, {}, None, read.variables)

    def _check(self, module: LoadedModule, image: KernelImage, request: kernels.KernelLaunch) -> None:  # noqa: ARG002
        names = _names(module, image)
        if host_kernels.find(*names) is None:
            raise errors.Unsupported(
                f"the host backend has no GPU for the kernel {names[0]!r:.200}: an actor may register a NumPy function "
                "in its place with atomr_mp_workers.host_kernel"
            )

    def _copy_out(self, module: LoadedModule, name: str, target: DeviceArray) -> None:
        with globals_in_place(module, _variables(module)):
            variable = _variable(module, name).reshape(-1).view(np.uint8)
            target.array[...] = variable.view(target.array.dtype).reshape(target.shape)

    def _copy_in(self, module: LoadedModule, name: str, source: DeviceArray) -> None:
        with globals_in_place(module, _variables(module)):
            variable = _variable(module, name)
            variable[...] = source.array.reshape(-1).view(np.uint8).view(variable.dtype).reshape(variable.shape)

    def _arguments(self, image: KernelImage, request: kernels.KernelLaunch) -> list[Any]:
        arrays: list[Any] = [array(each) for each in request.given]
        for at in range(len(request.inputs)):
            arrays[at] = arrays[at].view()
            arrays[at].flags.writeable = False
        arguments = []
        for (offset, size), (kind, at) in zip(image.parameters, request.kinds, strict=True):
            if kind == kernels.ADDRESS:
                arguments.append(arrays[at])
            elif kind == kernels.TENSOR_MAP:
                array_at, *form = msgspec.structs.astuple(request.maps[at])
                arguments.append(HostTensorMap(arrays[array_at], *form))
            elif kind == kernels.OPAQUE:
                arguments.append(request.values[offset : offset + size])
            else:
                arguments.append(np.frombuffer(request.values, dtypes.to_numpy(kind), 1, offset)[0])
        return arguments

    def _launch(
        self, module: LoadedModule, image: KernelImage, request: kernels.KernelLaunch, arguments: list[Any]
    ) -> None:
        function = host_kernels.find(*_names(module, image))
        assert function is not None
        try:
            with globals_in_place(module, _variables(module)):
                returned = function(*arguments, grid=request.grid, block=request.block)
            if host_kernels.is_begun_only(returned):
                getattr(returned, "close", lambda: None)()  # else Python warns of it, later and elsewhere
                raise TypeError(f"it has returned a {type(returned).__name__}, which no launch runs")
        except (errors.AtomrError, MemoryError):
            raise
        except Exception as error:
            hint = ": `out` or `inout` names what a kernel writes" if "read-only" in str(error)[:1000] else ""
            raise errors.ActorFailed(
                f"the function that stands for the kernel {request.kernel.title:.200} raised {describe(error)}{hint}",
                exception=full_name_of(error),
                traceback_text=traceback_of(error),
            ) from error


def _variables(module: LoadedModule) -> list[Any]:
    """Return the NumPy arrays that stand for a module's globals, of those that have one that can be written."""
    found = (_found(module, name) for name in module.variables)
    return [each for each in found if each is not None and each.flags.writeable]


def _found(module: LoadedModule, name: str) -> Any:
    """Return the NumPy array that stands for a global: of its name, where the functions for the module's kernels are.

    None if there is none, or it has another size.
    """
    names = *_shown(module, name), name
    for image in module.kernels.values():
        function = host_kernels.find(*_names(module, image))
        places = {} if function is None else function.__globals__
        found = next((places[each] for each in names if each in places), None)
        if isinstance(found, np.ndarray) and found.flags.c_contiguous and found.nbytes == module.variables[name]:
            return found
    return None


def _shown(module: LoadedModule, name: str) -> list[str]:
    """Return the caller's names of a global."""
    return [each.lstrip("& ") for each in module.names_of(name)]


def _variable(module: LoadedModule, name: str) -> Any:
    """Return the NumPy array that stands for a global.

    Raises:
        Unsupported: There is none.
    """
    found = _found(module, name)
    if found is not None:
        return found
    shown = _shown(module, name)[0]
    raise errors.Unsupported(
        f"the host backend has no GPU for the global {shown!r:.200}: the Python module of the functions that stand for "
        f"this code's kernels may have a NumPy array of this name, row-major and of {module.variables[name]} bytes"
    )


def _names(module: LoadedModule, image: KernelImage) -> tuple[str, ...]:
    """Return the names under which a function may stand for a kernel."""
    return *module.names_of(image.name), image.name


Implementation: Final = HostKernels
