"""What an operand of a ref may be, and the words in which all else is refused."""

from __future__ import annotations

import functools
import sys
from typing import Any

from atomr_mp import errors
from atomr_mp.client.callers import calling_loop
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest, scalar, to_scalar


def refuse_in_loop(what: str, *requests: str) -> None:
    """Refuse an operator or a method that would block a running event loop.

    Args:
        what: The operator or method, for the error's message.
        requests: Requests that can be awaited in its place, "library.name"; none where there are none.

    Raises:
        GpuRefInEventLoop: An event loop runs in this thread.
    """
    if calling_loop() is None:
        return
    instead = " or ".join(f"`await device.{each}(…)`" for each in requests) or "`await asyncio.to_thread(ref.item)`"
    raise errors.GpuRefInEventLoop(f"{what} of a ref waits for the device, which would block the event loop: {instead}")


@functools.cache
def request_of(library: str, name: str) -> type[LibraryRequest]:
    """Return a declared request; its library's are imported when the first is asked for."""
    return requests_of(library)[name]


def is_number(value: object) -> bool:
    """Return whether a value is a number of Python's or NumPy's, or an array of NumPy's without dimensions."""
    return isinstance(value, int | float | complex) or is_of_numpy(value)


def is_of_numpy(value: Any) -> bool:
    """Return whether a value is a number of NumPy's, or an array of NumPy's without dimensions."""
    return hasattr(value, "__array_interface__") and value.ndim == 0


def is_any(value: object) -> bool:
    """Return whether a value is `unittest.mock.ANY`, which is equal to all by its own comparison."""
    mock = sys.modules.get("unittest.mock")
    return mock is not None and value is mock.ANY


def number_as(dtype: str, value: Any, symbol: str) -> Scalar:
    """Return a number as a request has it that makes an operand of an element type.

    Raises:
        InvalidRequest: The number would have to be rounded to a whole or a real one, is too large, or has another type.
    """
    own = getattr(value, "dtype", None)
    if own is not None and dtypes.name_of(own) != dtype:
        raise errors.InvalidRequest(
            f"{symbol} of {dtype} and NumPy's {dtypes.name_of(own)}: nothing is promoted; `.item()` makes a number of "
            "Python's, which takes the ref's type"
        )
    if own is None and _kind(value) > _kind_of(dtype):
        raise errors.InvalidRequest(f"{symbol} of {dtype} and {value!r}: nothing is promoted; `ref.astype(…)` converts")
    return held(dtype, value, whole_truth=True)


def held(dtype: str, value: Any, *, whole_truth: bool = False) -> Scalar:
    """Return a number as a request has it that elements of a type hold.

    Args:
        dtype: The element type.
        value: A number of Python's or NumPy's.
        whole_truth: Whether truth values hold 0 and 1 only; NumPy fills such arrays with True for all else.

    Raises:
        InvalidRequest: They cannot hold it, or it is no number.
    """
    number = dtypes.sendable(dtype, to_scalar(value))
    dtypes.check_holds(dtype, scalar(number))
    if whole_truth and dtype == "bool" and number not in {0, 1}:
        raise errors.InvalidRequest(f"an array of bool cannot hold {value!r}: it holds True and False")
    return number


def assigned(dtype: str, value: Any) -> Scalar:
    """Return a number as a request has it that is assigned to elements of a type.

    Raises:
        InvalidRequest: They cannot hold it, or it is a number of NumPy's of another type.
    """
    own = getattr(value, "dtype", None)
    if own is not None and dtypes.name_of(own) != dtype:
        raise errors.InvalidRequest(
            f"ref[…] = x with a ref of {dtype} and NumPy's {dtypes.name_of(own)}: convert x first; `.item()` makes a "
            "number of Python's, which takes the ref's type"
        )
    return held(dtype, value, whole_truth=True)


def _kind(number: complex) -> int:
    return 1 if isinstance(number, int) else 2 if isinstance(number, float) else 3


def _kind_of(dtype: str) -> int:
    return 1 if "int" in dtype or dtype == "bool" else 3 if dtype.startswith("complex") else 2


def no_operand(symbol: str, value: object) -> str:
    """Return the message of an error: a value is no operand."""
    instead = "`device.put(array)` makes a ref, `ref.numpy()` an array"
    if value is None:
        instead = "ask `ref is None`"
    elif hasattr(value, "result"):
        instead = "`reply.result()` waits for what a request returns"
    return f"{symbol} of a ref takes refs and numbers, not {shown(value)}: {instead}"


def no_function(function: Any) -> str:
    """Return the message of an error: a function of NumPy's was given a ref."""
    name = getattr(function, "__name__", "function")
    return (
        f"NumPy's {name} computes in this process, and a ref's elements are on the device: use an operator, or a "
        "request of a library; or give it a copy, `ref.numpy()`"
    )


def shown(value: object) -> str:
    """Return an operand as messages show it: plain numbers and None as they are, others by their type."""
    return repr(value) if value is None or type(value) in {bool, int, float, complex} else f"a {type(value).__name__}"
