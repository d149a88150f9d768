"""Modules that are loaded in this process: what a client's buffer stands for (`Block.attached`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.libraries.kernels import KernelOf, ReadGlobal, WriteGlobal
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted
from atomr_mp_workers.libraries.base import given
from atomr_mp_workers.libraries.kernels.images import KernelImage


class LoadedModule:
    """A loaded module. It is unloaded with its last reference: a client's ref, a launch that runs, or a graph.

    Args:
        digest: SHA-256 of its machine code.
        kernels: Its kernels by their names in the code.
        shown: The callers' names of some of them and of globals, by those in the code.
        handles: What the backend launches, by the names in the code.
        streams: The streams that it was launched on, by their addresses; the backend fills it in.
        unload: Gives back what the backend has for it.
        variables: Sizes of its globals.
        addresses: Where the backend has them.
    """

    def __init__(
        self,
        digest: bytes,
        kernels: Mapping[str, KernelImage],
        shown: Mapping[str, tuple[str, ...]],
        handles: Mapping[str, Any],
        streams: dict[int, Any],
        unload: Callable[[], None] | None,
        variables: Mapping[str, int] = MappingProxyType({}),
        addresses: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.digest: Final = digest
        self.kernels: Final = kernels
        self.shown: Final = shown
        self.handles: Final = handles
        self.streams: Final = streams
        self.variables: Final = variables
        self.addresses: Final = addresses
        self._unload: Final = unload

    def __del__(self) -> None:
        if self._unload is not None:
            self._unload()

    def facts(self) -> list[tuple[str, str, tuple[tuple[int, int], ...]]]:
        """Return the facts of each kernel, as `Facts`; several of one that has several names."""
        return [(shown, name, each.parameters) for name, each in self.kernels.items() for shown in self.names_of(name)]

    def variable_facts(self) -> list[tuple[str, str, int]]:
        """Return the facts of each global, as `GlobalFacts`; an expression such as "&n::x" names what it points to."""
        return [
            (shown, name, nbytes)
            for name, nbytes in self.variables.items()
            for shown in dict.fromkeys(each.lstrip("& ") for each in self.names_of(name))
        ]

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return the callers' names of a kernel or a global; its name in the code if they have none."""
        return self.shown.get(name) or (name,)


def with_global(request: ReadGlobal | WriteGlobal) -> LoadedModule:
    """Return the module that a request names, after checking that it has the global, of that size.

    Raises:
        InvalidRequest: It has not.
    """
    module = _module(request.module, request.code)
    has = module.variables.get(request.variable)
    if has is None:
        raise errors.InvalidRequest(f"the module has no global {request.variable!r:.200}")
    if has != request.nbytes:
        raise errors.InvalidRequest(
            f"the global {request.variable:.200} has {counted(has, 'byte')}, not {request.nbytes}"
        )
    return module


def _module(naming: Operand, code: bytes) -> LoadedModule:
    module = given(naming).attached
    if not isinstance(module, LoadedModule) or module.digest != code:
        raise errors.InvalidRequest(
            "a global's module is not loaded: make it with device.kernels.compile or device.kernels.load"
        )
    return module


def found(kernel: KernelOf) -> tuple[LoadedModule, KernelImage]:
    """Return the module that a request names, and its kernel, after checking them against the request.

    Raises:
        InvalidRequest: It is another module, or the kernel is not in it as the request says.
    """
    naming = given(kernel.module)
    module = naming.attached
    if not isinstance(module, LoadedModule) and naming.block.foreign:
        raise errors.GpuRefWrongDevice(
            f"the kernel {kernel.title:.200} is of device {naming.block.device}, and is launched on another: compile "
            "or load it there too",
            device=naming.block.device,
        )
    if not isinstance(module, LoadedModule):
        raise errors.InvalidRequest(
            "a kernel names no loaded module: make it with device.kernels.compile or device.kernels.load"
        )
    image = module.kernels.get(kernel.name)
    if image is None or module.digest != kernel.code:
        raise errors.InvalidRequest(f"the module has no kernel {kernel.title!r:.200} of this code")
    if image.parameters != kernel.parameters:
        raise errors.InvalidRequest(
            f"{kernel.title:.200} is said to have the parameters {kernel.parameters}; it has {image.parameters}"
        )
    return module, image
