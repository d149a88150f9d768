"""The kernels of collectives, compiled for this process's GPU and loaded: nothing is loaded amid an epoch."""

from __future__ import annotations

import functools
from typing import Any, Final

import cupy
from cuda.bindings import driver

from atomr_mp_workers.device.cuda_resident import checked
from atomr_mp_workers.worlds.cuda.source import SOURCE

TYPES: Final = {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "Half",
    "bfloat16": "Brain",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex64",
    "complex128": "Complex128",
}
"""Types of elements that are computed, as the kernels name them."""

HALVES: Final = ("float16", "bfloat16")
"""Types that are computed in float32. Where a factor goes with them, their products are not rounded before the sum."""

OPTIONS: Final = ("--std=c++17", "--fmad=false", "--split-compile=0")


class Kernels:
    """The kernels, by what they compute; each is the driver's handle of a function that is loaded.

    Raises:
        CompileException: They cannot be compiled.
        CUDADriverError: They cannot be loaded.
    """

    def __init__(self) -> None:
        pairs = [(name, name) for name in TYPES] + [("float32", name) for name in HALVES]
        products = [(name, name) for name in TYPES if name not in HALVES] + [(name, "float32") for name in HALVES]
        self._module: Final = cupy.RawModule(
            code=SOURCE,
            options=OPTIONS,
            name_expressions=[
                *(_named("push", *pair) for pair in pairs if pair[0] != "complex128"),
                *(_named(kernel, *pair) for kernel in ("pull", "flow_pull") for pair in pairs),
                *(_named("scale", *pair) for pair in products),
            ],
        )
        self.begin: Final = self._function("begin")
        self.move: Final = self._function("move"), self._function("flow_move")
        """For few bytes, and for many."""
        self.push: Final = {pair: self._function(_named("push", *pair)) for pair in pairs if pair[0] != "complex128"}
        """By the type in the mailbox and that of the result; each line has eight bytes, so none for complex128."""
        self.pull: Final = {
            pair: tuple(self._function(_named(kernel, *pair)) for kernel in ("pull", "flow_pull")) for pair in pairs
        }
        """For few bytes, and for many."""
        self.scale: Final = {pair: self._function(_named("scale", *pair)) for pair in products}
        """By the type of the elements and that of their products."""

    def _function(self, name: str) -> Any:
        function = driver.CUfunction(self._module.get_function(name).kernel.ptr)
        # Asking for an attribute has the function loaded now, where modules are loaded lazily (CUDA's default).
        checked(driver.cuFuncGetAttribute(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
        return function


@functools.cache
def kernels() -> Kernels:
    """Return the kernels of this process."""
    return Kernels()


def _named(kernel: str, first: str, second: str) -> str:
    return f"{kernel}<{TYPES[first]}, {TYPES[second]}>"
