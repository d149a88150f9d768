"""Arrays that collectives on GPUs take and give: CuPy's, torch's, and NumPy's, which are copied to the GPU and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.dtypes import ITEM_BYTES, name_of
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.worlds.exchange import elements

_WORDS: Final = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
"""Stand for types that are not CuPy's own: only bits are moved."""


class Given:
    """An array that a method gives, row-major, on the GPU.

    Args:
        x: A ref's array, CuPy's, torch's, or what NumPy takes for one, which is copied.

    Raises:
        InvalidRequest: It is no array of an element type that crosses the wire.
    """

    __slots__ = ("address", "array", "host", "name", "nbytes", "shape", "size", "stream", "torch")

    def __init__(self, x: Any) -> None:
        self.torch: Final = _torch_of(x)
        """torch, if the array is one of its tensors."""
        self.stream: Final = current_stream(self.torch)
        """The stream that the calling thread works on."""
        found = on_device(x, self.torch, "a collective")
        self.host: np.dtype[Any] | None = None
        """The element type of an array in the host's memory."""
        if found is None:
            given, self.name = elements.given(x)
            self.host = given.dtype
            with self.stream:
                found = cupy.asarray(_plain(given))
        else:
            self.name = type_of(x, found, self.torch)
            """The element type's name."""
        if self.name not in ITEM_BYTES:
            raise errors.InvalidRequest(
                f"a collective takes no elements of {self.name}; there are: {', '.join(sorted(ITEM_BYTES))}"
            )
        if not found.flags.c_contiguous:
            with self.stream:
                found = cupy.ascontiguousarray(_plain(found)).view(found.dtype)
        self.array: Final = found
        """Keeps the memory."""
        self.shape: Final[tuple[int, ...]] = found.shape
        self.size: Final = int(found.size)
        self.nbytes: Final = int(found.nbytes)
        self.address: Final = int(found.data.ptr)

    def copy(self) -> Given:
        """Return a copy."""
        with self.stream:
            copied = _plain(self.array).copy().view(self.array.dtype)
        made = Given.__new__(Given)
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        made.array, made.address = copied, int(copied.data.ptr)  # type: ignore[misc]
        return made

    def overlaps(self, other: Any) -> bool:
        """Return whether it has bytes in common with another array on the GPU."""
        begin, end = _span(other)
        return bool(self.nbytes and self.address < end and begin < self.address + self.nbytes)


class Result:
    """Where a collective's result goes: a new array, or the one that a method gives.

    Args:
        out: What the method gives, None for a new array.
        shape: Shape of the result.
        like: An array with its element type; the new array is of its kind.

    Raises:
        InvalidRequest: What is given has another shape or type.
    """

    __slots__ = ("_host", "_out", "_room", "address", "array")

    def __init__(self, out: Any, shape: tuple[int, ...], like: Given) -> None:
        self._out = out
        self._room: Any = None
        """What is given, on the GPU."""
        self._host: Any = None
        """What is given, or its element type, in the host's memory."""
        torch = _torch_of(out)
        array = None if out is None else on_device(out, torch, "`out`")
        if array is not None:
            self._room = array
            name = type_of(out, array, torch)
            if array.shape != shape:
                raise errors.InvalidRequest(f"`out` has shape {array.shape}, and the result {shape}")
            if name != like.name:
                raise errors.InvalidRequest(f"`out` has elements of {name}, and the result of {like.name}")
            if isinstance(out, Operand) and not getattr(out, "writable", True):
                raise errors.InvalidRequest(
                    "`out` is read-only, as the arrays are that a method gets as arguments: give a copy, or leave "
                    "`out` out"
                )
        elif out is not None:
            if like.host is None:
                raise errors.InvalidRequest(f"`out` is in the host's memory ({type(out).__name__}), and x on the GPU")
            self._host = elements.checked_out(out, shape, like.host)
        elif like.host is not None:
            self._host = like.host
        elif like.torch is not None:
            self._out = like.torch.empty(shape, dtype=getattr(like.torch, like.name), device="cuda")
            array = on_device(self._out, like.torch, "`out`")
        if array is None or not array.flags.c_contiguous:
            with like.stream:
                array = cupy.empty(shape, like.array.dtype)
                self._fill(array, like.stream)
        self.array: Final = array
        """The elements to be written, in order."""
        self.address: Final = int(array.data.ptr)

    def _fill(self, array: Any, stream: Any) -> None:
        """Copy what is given: where ranks differ nothing is written, and `done` copies this back."""
        if self._room is not None:
            _plain(array)[...] = _plain(self._room)
        elif isinstance(self._host, np.ndarray):
            given = np.ascontiguousarray(self._host).reshape(array.shape)
            array.set(given.view(array.dtype), stream=stream)

    def apart(self, x: Given, *, same_places: bool) -> Given:
        """Return an input that stays as it is while the result is written: itself, or a copy.

        Args:
            x: The input.
            same_places: Whether an element of the result is written only after that of the input in its place was read.
        """
        if self._room is None or not x.overlaps(self.array):
            return x
        return x if same_places and x.address == self.address else x.copy()

    def done(self, stream: Any, settle: Callable[[], object]) -> Any:
        """Return the result, whose elements are written on a stream: a new array, or what the method gave.

        Args:
            stream: The stream.
            settle: Raises the error of a collective that has failed; called where the result is waited for.
        """
        if self._host is not None:
            found = self.array.get(stream=stream)  # waits
            settle()
            if isinstance(self._host, np.dtype):
                return found.view(self._host)
            self._host[...] = found.view(self._host.dtype)
            return self._out
        if self._room is not None and self._room is not self.array and self.array.size:
            with stream:
                _plain(self._room)[...] = _plain(self.array)
        return self.array if self._out is None else self._out


def given_parts(parts: Any, size: int) -> list[Given]:
    """Return the arrays of an `all_to_all_v`, one for each rank.

    Raises:
        InvalidRequest: They are not as many as ranks, or do not go together.
    """
    if not isinstance(parts, list | tuple) or len(parts) != size:
        raise errors.InvalidRequest(f"all_to_all_v takes an array for each of the {size} ranks, in a list")
    given = [Given(each) for each in parts]
    first = given[0]
    if any(not each.shape or each.shape[1:] != first.shape[1:] or each.name != first.name for each in given):
        raise errors.InvalidRequest(
            "the arrays of all_to_all_v have one type, and the same lengths but for the first axis"
        )
    return given


def on_device(x: Any, torch: Any, what: str) -> Any:
    """Return an array as CuPy's, over the same memory; None if it is not on the GPU.

    Raises:
        InvalidRequest: It is a tensor elsewhere, or one whose memory cannot be had.
    """
    if isinstance(x, cupy.ndarray):
        return x
    if isinstance(x, Operand):
        return getattr(x, "array", None)
    try:
        if torch is not None:
            if not x.is_cuda:
                raise errors.InvalidRequest(f"{what} takes torch's tensors on the GPU, not on {x.device}")
            if x.dtype.itemsize == 1 and x.dtype.is_floating_point:
                x = x.view(torch.uint8)
            return cupy.from_dlpack(x)
        return cupy.asarray(x) if hasattr(x, "__cuda_array_interface__") else None
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise errors.InvalidRequest(f"{what} takes arrays, not this {type(x).__name__}: {error}") from error


def type_of(x: Any, array: Any, torch: Any) -> str:
    """Return the name of the element type of an array on the GPU, as its kind names it."""
    if torch is not None:
        return str(x.dtype).removeprefix("torch.")
    return str(x.dtype) if isinstance(x, Operand) else name_of(array.dtype)


def current_stream(torch: Any) -> Any:
    """Return the stream on which the calling thread works, by CuPy or by torch."""
    stream = cupy.cuda.get_current_stream()
    if torch is not None:
        pointer = torch.cuda.current_stream().cuda_stream
        if pointer != stream.ptr:
            return cupy.cuda.ExternalStream(pointer)
    return stream


def _torch_of(x: Any) -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


def _plain(array: Any) -> Any:
    """Return an array with elements that CuPy has for its own: bits in the place of others."""
    return array.view(_WORDS[array.dtype.itemsize]) if array.dtype.kind == "V" else array


def _span(array: Any) -> tuple[int, int]:
    """Return the addresses at which an array begins and ends, its gaps included."""
    begin = end = int(array.data.ptr)
    for length, stride in zip(array.shape, array.strides, strict=True):
        if not length:
            return begin, begin
        reach = (length - 1) * stride
        begin, end = (begin + reach, end) if reach < 0 else (begin, end + reach)
    return begin, end + array.dtype.itemsize
