"""NumPy functions that stand for kernels on the host backend, which has no GPU to launch them on.

An actor's module registers them when it is imported::

    @host_kernel("scale<float>")
    def scale(x, factor, n, *, grid, block):
        x[:n] *= factor

A launch of a kernel of that name calls the function with the kernel's arguments: NumPy's arrays and numbers, and bytes
for structures. Arrays that the launch only reads cannot be written. A tensor map is a `HostTensorMap`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from atomr_mp import errors
from atomr_mp.protocol.keywords import checked_names
from atomr_mp.protocol.libraries.tensor_maps import DataType, Interleave, L2Promotion, OobFill, Swizzle

F = TypeVar("F", bound=Callable[..., Any])


class HostTensorMap(NamedTuple):
    """A tensor map among the arguments of a function that stands for a kernel, see `DeviceKernels.tensor_map`."""

    array: Any
    """The array, as NumPy's."""
    box: tuple[int, ...]
    """Elements of each dimension that a copy moves; dimensions are in the array's order."""
    element_strides: tuple[int, ...]
    data_type: DataType
    interleave: Interleave
    swizzle: Swizzle
    l2_promotion: L2Promotion
    oob_fill: OobFill


@checked_names
def host_kernel(name: str) -> Callable[[F], F]:
    """Register the decorated function under a kernel's name: a name expression, or the name in the code.

    A launch calls it once, in place of all threads, with the launch's arguments and the keywords `grid` and `block`,
    three lengths each. Refs are NumPy's arrays of their shape and strides; those of `out` and `inout` can be
    written, in place. Numbers are NumPy's, of their parameters' sizes: a whole number of Python's is an integer, also
    where the kernel takes a float, whose bits a GPU would read. What it returns is dropped; what it raises ends the
    launch. Names are of the whole process.

    Args:
        name: The name, spelt as where it is compiled.

    Raises:
        InvalidRequest: Another function has that name.
    """

    def register(function: F) -> F:
        with _lock:
            found = _functions.setdefault(name, function)
            if (found.__module__, found.__qualname__) != (function.__module__, function.__qualname__):
                raise errors.InvalidRequest(f"{found.__qualname__} stands for the kernel {name!r} already")
            _functions[name] = function  # or its module was imported again
        return function

    return register


def find(*names: str) -> Callable[..., Any] | None:
    """Return the function that is registered under the first of some names that has one; None if none has."""
    return next((_functions[name] for name in names if name in _functions), None)


_lock: Final = threading.Lock()
_functions: Final[dict[str, Callable[..., Any]]] = {}
