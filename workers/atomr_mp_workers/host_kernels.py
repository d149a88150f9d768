"""NumPy functions that stand for kernels on the host backend, which has no GPU to launch them on.

An actor's module registers them when it is imported::

    @host_kernel("scale<float>")
    def scale(x, factor, n, *, grid, block):
        x[:n] *= factor

A launch of a kernel of that name calls the function with the kernel's arguments: NumPy's arrays and numbers, and bytes
for structures. Arrays that the launch only reads cannot be written. A tensor map is a `HostTensorMap`.
"""

from __future__ import annotations

import functools
import inspect
import re
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
        name: The name, spelt as where it is compiled, but for blanks.

    Raises:
        InvalidRequest: Another function has that name; or the name is no text; or what is decorated is no function
            that is done when it returns, as `async def` and generator functions are not.
    """
    if type(name) is not str:
        raise errors.InvalidRequest(f"{_HOW}, and the name is a text; this is of type {type(name).__name__}")
    spelt = _without_blanks(name)

    def register(function: F) -> F:
        _check_function(name, function)
        with _lock:
            found = _functions.setdefault(spelt, function)
            if (found.__module__, found.__qualname__) != (function.__module__, function.__qualname__):
                raise errors.InvalidRequest(
                    f"{_shown(function)} cannot stand for the kernel {name!r}, since {_shown(found)} does already: "
                    "names are of the whole process"
                )
            _functions[spelt] = function  # or its module was imported again
        return function

    return register


def find(*names: str) -> Callable[..., Any] | None:
    """Return the function that is registered under the first of some names that has one; None if none has."""
    return next((_functions[spelt] for spelt in map(_without_blanks, names) if spelt in _functions), None)


def is_begun_only(returned: object) -> bool:
    """Return whether a function has returned what is still to be run: a coroutine or a generator."""
    return inspect.iscoroutine(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)


def _check_function(name: str, function: Any) -> None:
    """Check that a function can stand for a kernel.

    Raises:
        InvalidRequest: It cannot.
    """
    if not callable(function) or inspect.isclass(function) or not hasattr(function, "__qualname__"):
        raise errors.InvalidRequest(f"{function!r:.100} stands for the kernel {name!r}, and is no function: {_HOW}")
    called = inspect.unwrap(function)
    asynchronous = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
    if asynchronous or inspect.isgeneratorfunction(called):
        kind = "an `async def`" if asynchronous else "a generator function"
        raise errors.InvalidRequest(
            f"{_shown(function)}, which stands for the kernel {name!r}, is {kind}: a launch only calls it, so "
            "nothing would be done; write a plain function"
        )


def _shown(function: Any) -> str:
    return f"{function.__qualname__} of {function.__module__}"


@functools.lru_cache(1024)
def _without_blanks(name: str) -> str:
    """Return a name expression without the blanks that mean nothing, as compilers read it."""
    return _NO_WORDS.sub(r"\1", " ".join(name.split()))


_HOW: Final = '@host_kernel("name") decorates a plain function'
_NO_WORDS: Final = re.compile(r" ?([^\w ]) ?")

_lock: Final = threading.Lock()
_functions: Final[dict[str, Callable[..., Any]]] = {}
