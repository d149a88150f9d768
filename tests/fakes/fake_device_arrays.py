"""Stands for CuPy's arrays, over NumPy's: they come to NumPy's functions by its protocols, as CuPy's do.

As with CuPy's, nothing turns them into NumPy's on the way, and no function is there that CuPy lacks, nor one that CuPy
refuses in what a graph records: products, which call cuBLAS by a handle of CuPy's, and `get`. Beyond that, nothing
reads a number of theirs on the host, which would wait for the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Self
from unittest import mock

import numpy as np

from tests.fakes.fake_arrays import FakeArray

UFUNCS: Final = frozenset(
    [
        *("absolute", "add", "floor_divide", "bitwise_and", "bitwise_or", "divide", "equal", "exp", "expm1", "greater"),
        *(
            "greater_equal",
            "invert",
            "isnan",
            "less",
            "log",
            "logaddexp",
            "maximum",
            "minimum",
            "multiply",
            "negative",
        ),
        *("power", "right_shift", "sqrt", "subtract", "tanh"),
    ]
)
"""Universal functions of CuPy 14.2 that the product uses."""


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):  # noqa: N801 - CuPy's name; it has no hash either
    """An array on the device.

    Args:
        values: Its elements.
    """

    def __init__(self, values: Any) -> None:
        self._values: Final = np.asarray(values)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None) -> Any:
        assert method == "__call__"
        assert ufunc.__name__ in UFUNCS, f"is it there in CuPy? {ufunc}"
        given = [_bare(each) for each in inputs]
        if out is None:
            return ndarray(ufunc(*given))
        ufunc(*given, out=_bare(out[0]))
        return out[0]

    def __array_function__(self, function: Any, _types: Any, given: Any, named: Any) -> Any:
        return FUNCTIONS[function.__name__](*given, **named)

    def __array__(self, *_given: Any, **_named: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def _read(self) -> Any:
        raise AssertionError("the host reads a number of the device, for which it has to wait")

    __bool__ = __int__ = __float__ = __index__ = __complex__ = item = tolist = _read

    dtype: Any = property(lambda self: self._values.dtype)
    shape: Any = property(lambda self: self._values.shape)
    ndim: Any = property(lambda self: self._values.ndim)
    size: Any = property(lambda self: self._values.size)
    itemsize: Any = property(lambda self: self._values.itemsize)
    strides: Any = property(lambda self: self._values.strides)
    data: Any = property(lambda self: SimpleNamespace(ptr=self._values.ctypes.data))
    T: Any = property(lambda self: ndarray(self._values.T))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self._values[_basic(index)])

    def __setitem__(self, index: Any, values: Any) -> None:
        self._values[_basic(index)] = _bare(values)

    def astype(self, dtype: Any, copy: bool = True) -> Self:  # noqa: FBT001, FBT002 - as CuPy's
        """Return it with other elements."""
        return type(self)(self._values.astype(dtype, copy=copy))

    def view(self, dtype: Any) -> Self:
        """Return the same memory with other elements."""
        return type(self)(self._values.view(dtype))

    def copy(self) -> Self:
        """Return a copy."""
        return type(self)(self._values.copy())

    def reshape(self, *shape: Any) -> Self:
        """Return it in another shape."""
        return type(self)(self._values.reshape(*shape))

    def swapaxes(self, one: int, other: int) -> Self:
        """Return a view."""
        return type(self)(self._values.swapaxes(one, other))

    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Self:  # noqa: FBT001, FBT002
        """Return sums along one or more dimensions."""
        assert axis != ()
        return type(self)(self._values.sum(axis, dtype, out, keepdims=keepdims))

    def max(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Self:  # noqa: FBT001, FBT002 - as CuPy's
        """Return the largest elements."""
        assert axis != ()
        return type(self)(self._values.max(axis, out, keepdims=keepdims))

    def argmax(self, axis: int) -> Self:
        """Return where the first of the largest elements are."""
        return type(self)(self._values.argmax(axis))

    def all(self) -> Self:
        """Return whether all are true, as an array."""
        return type(self)(self._values.all())


def _bare(value: Any) -> Any:
    """Return NumPy's array, or a number; CuPy refuses NumPy's arrays."""
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return value._values if isinstance(value, ndarray) else value


def _basic(index: Any) -> Any:
    """Return an index that makes a view, as all are that nothing has to be waited for."""
    for each in index if isinstance(index, tuple) else (index,):
        assert each is None or each is Ellipsis or isinstance(each, slice | int), index
    return index


def _made(function: Callable[..., Any]) -> Callable[..., ndarray]:
    return lambda *given, **named: ndarray(function(*map(_bare, given), **named))


def _split(values: ndarray, sections: int, axis: int) -> list[ndarray]:
    return [ndarray(each) for each in np.split(_bare(values), sections, axis)]


def _concatenated(arrays: list[ndarray], axis: int = 0) -> ndarray:
    assert len(arrays) <= 8, "of more, CuPy copies the addresses from the host's memory, which no graph can do again"
    return ndarray(np.concatenate([*map(_bare, arrays)], axis))


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _made(getattr(np, name)) for name in ("arange", "empty", "zeros", "ones_like", "zeros_like")},
    **{name: _made(getattr(np, name)) for name in ("moveaxis", "where")},
    "concatenate": _concatenated,
    "split": _split,
}
"""CuPy's, as far as they are used."""


class OnDevice(FakeArray):
    """An array as an actor on a device meets it."""

    @property
    def array(self) -> Any:
        """The array itself, zero-copy."""
        return ndarray(super().array)


def installed(kernels: dict[str, Callable[..., Any]]) -> AbstractContextManager[Any]:
    """Return a context in which `import cupy` finds this.

    Args:
        kernels: Functions that compute what kernels do, by name; the last argument is written, if it is given.
    """

    def kernel(given: str, _made: str, _operation: str, name: str, **_more: str) -> Callable[..., Any]:
        def launch(*arguments: Any) -> Any:
            if len(arguments) == given.count(",") + 1:  # nothing is given to be written
                return ndarray(kernels[name](*arguments))
            _bare(arguments[-1])[...] = kernels[name](*arguments)
            return arguments[-1]

        return launch

    cupy: Any = ModuleType("cupy")
    cupy.ndarray, cupy.empty, cupy.ElementwiseKernel = ndarray, FUNCTIONS["empty"], kernel
    cupy.zeros, cupy.ascontiguousarray = FUNCTIONS["zeros"], _made(np.ascontiguousarray)
    cupy.cuda = SimpleNamespace(alloc_pinned_memory=_Pinned)
    return mock.patch.dict("sys.modules", {"cupy": cupy})


def _Pinned(nbytes: int) -> Any:  # noqa: N802 - it makes an object
    memory = (ctypes.c_char * nbytes)()
    memory.ptr = ctypes.addressof(memory)  # type: ignore[attr-defined]
    return memory
