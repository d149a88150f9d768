"""The arguments of a kernel as the bytes that the device takes, checked against the kernel's own parameters. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries.kernels import ADDRESS, OPAQUE, POINTER_BYTES, KernelOf
from atomr_mp.protocol.words import counted


class Packed(NamedTuple):
    """The arguments of a launch, see `kernels.KernelLaunch`."""

    inputs: list[Any]
    outputs: list[Any]
    changed: list[Any]
    values: bytes
    kinds: tuple[tuple[str, int], ...]


def pack(
    kernel: KernelOf,
    arguments: Sequence[Any],
    out: Sequence[Any],
    inout: Sequence[Any],
    is_array: Callable[[object], bool],
) -> Packed:
    """Return a launch's arguments.

    Args:
        kernel: The kernel.
        arguments: In the order of its parameters.
        out: Arrays among them that it writes as a whole.
        inout: Arrays among them that it reads and writes.
        is_array: Returns whether an argument is an array.

    Raises:
        InvalidRequest: An argument does not fit its parameter.
    """
    name, parameters = kernel.title, kernel.parameters
    if len(arguments) != len(parameters):
        raise errors.InvalidRequest(
            f"{name} has {counted(len(parameters), 'parameter')}; {counted(len(arguments), 'argument')} given"
        )
    arrays = {id(each): each for each in arguments if is_array(each)}
    for words, named in (("out", out), ("inout", inout)):
        for each in named:
            if id(each) not in arrays:
                raise errors.InvalidRequest(f"{words} of {name} names what is none of the arrays among its arguments")
    outputs = {id(each): each for each in out}
    changed = {id(each): each for each in inout}
    if both := outputs.keys() & changed.keys():
        at = next(at for at, each in enumerate(arguments) if id(each) in both)
        raise errors.InvalidRequest(f"argument {at} of {name} is named in out and in inout: it is one of them")
    inputs = {key: each for key, each in arrays.items() if key not in outputs and key not in changed}
    places = {key: at for at, key in enumerate([*inputs, *outputs, *changed])}
    values = bytearray(kernel.block_bytes)
    kinds: list[tuple[str, int]] = []
    for at, (value, (offset, size)) in enumerate(zip(arguments, parameters, strict=True)):
        if id(value) in places:
            if size != POINTER_BYTES:
                raise _misfit(name, at, "an array, whose address has 8 bytes", size)
            kinds.append((ADDRESS, places[id(value)]))
            continue
        kind, packed = _packed(name, at, value, size)
        if len(packed) != size:
            raise _misfit(name, at, f"{_words(value, kind)} of {counted(len(packed), 'byte')}", size)
        values[offset : offset + size] = packed
        kinds.append((kind, -1))
    return Packed([*inputs.values()], [*outputs.values()], [*changed.values()], bytes(values), tuple(kinds))


def _packed(name: str, at: int, value: Any, size: int) -> tuple[str, bytes]:
    """Return an argument's kind and bytes.

    Raises:
        InvalidRequest: No kernel takes it.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return OPAQUE, bytes(value)
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        if getattr(value, "shape", ()):
            raise errors.InvalidRequest(
                f"argument {at} of {name} is an array of this process: `Device.put` makes a ref of it, which a kernel "
                "takes"
            )
        return dtypes.name_of(value.dtype), value.astype(value.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, bool):
        return ("bool", struct.pack("<?", value)) if size == 1 else (f"int{8 * size}", _whole(name, at, value, size)[1])
    if isinstance(value, int):
        return _whole(name, at, value, size)
    if isinstance(value, float) and size in _FLOATS:
        kind, form = _FLOATS[size]
        try:
            return kind, struct.pack(form, value)
        except OverflowError as error:
            raise errors.InvalidRequest(f"argument {at} of {name} is {value!r}, too large for a {kind}") from error
    if isinstance(value, complex) and size in _COMPLEX:
        kind, form = _COMPLEX[size]
        return kind, struct.pack(form, value.real, value.imag)
    if isinstance(value, float | complex):
        raise errors.InvalidRequest(
            f"argument {at} of {name} is {value!r}, and its parameter has {counted(size, 'byte')}, as no number of "
            "this kind has: give a NumPy number, or bytes"
        )
    raise errors.InvalidRequest(
        f"argument {at} of {name} is of type {type(value).__name__}; a kernel takes refs, numbers and bytes"
    )


def _whole(name: str, at: int, value: int, size: int) -> tuple[str, bytes]:
    """Return a whole number as an integer of a size: an unsigned one if it is too large for a signed one."""
    if size not in _WHOLE:
        raise errors.InvalidRequest(
            f"argument {at} of {name} is {value!r}, and its parameter has {counted(size, 'byte')}, as no whole number "
            "has: give bytes"
        )
    signed = value < 2 ** (8 * size - 1)
    try:
        packed = int(value).to_bytes(size, "little", signed=signed)
    except OverflowError as error:
        raise errors.InvalidRequest(
            f"argument {at} of {name} is a whole number of {value.bit_length()} bits, and its parameter has "
            f"{counted(size, 'byte')}: it does not fit"
        ) from error
    return f"{'' if signed else 'u'}int{8 * size}", packed


def _words(value: Any, kind: str) -> str:
    return "bytes" if kind == OPAQUE else f"{value!r:.60}, a {kind}"


def _misfit(name: str, at: int, what: str, size: int) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"argument {at} of {name} is {what}; its parameter has {counted(size, 'byte')}")


_FLOATS: Final = {4: ("float32", "<f"), 8: ("float64", "<d")}
_COMPLEX: Final = {8: ("complex64", "<ff"), 16: ("complex128", "<dd")}
_WHOLE: Final = frozenset({1, 2, 4, 8})
