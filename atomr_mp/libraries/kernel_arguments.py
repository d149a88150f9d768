"""The arguments of a kernel as the bytes that the device takes, checked against the kernel's own parameters. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.tensor_maps import TensorMap
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries.kernels import ADDRESS, OPAQUE, POINTER_BYTES, TENSOR_MAP, KernelOf, check_argument
from atomr_mp.protocol.libraries.tensor_maps import TensorMapOf
from atomr_mp.protocol.words import counted, shown


class Packed(NamedTuple):
    """The arguments of a launch, see `kernels.KernelLaunch`."""

    inputs: list[Any]
    out: list[Any]
    inout: list[Any]
    values: bytes
    kinds: tuple[tuple[str, int], ...]
    maps: tuple[TensorMapOf, ...]


def pack(
    kernel: KernelOf,
    arguments: Sequence[Any],
    out: Sequence[Any],
    inout: Sequence[Any],
    is_array: Callable[[object], bool],
    key_of: Callable[[Any], object],
) -> Packed:
    """Return a launch's arguments.

    Args:
        kernel: The kernel.
        arguments: In the order of its parameters.
        out: Arrays among them that it writes as a whole, or tensor maps of such.
        inout: Arrays among them that it reads and writes, or tensor maps of such.
        is_array: Returns whether an argument is an array.
        key_of: Returns a key that equal views of one memory share.

    Raises:
        InvalidRequest: An argument does not fit its parameter.
    """
    name, parameters = kernel.title, kernel.parameters
    if len(arguments) != len(parameters):
        raise errors.InvalidRequest(
            f"{name} has {counted(len(parameters), 'parameter')}; {counted(len(arguments), 'argument')} given"
        )
    for at, value in enumerate(arguments):
        if isinstance(value, TensorMap) and not (is_array(value.array) and isinstance(value.form, TensorMapOf)):
            raise errors.InvalidRequest(f"argument {at} of {name} is no tensor map as `tensor_map` makes of a ref")
    given = [*map(_array, arguments)]
    firsts = _firsts(given, [*map(_array, (*out, *inout))], is_array, key_of)
    inputs, outputs, changed = _arrays(
        name, [firsts.get(id(each), each) for each in given], out, inout, is_array, firsts
    )
    places = {key: at for at, key in enumerate([*inputs, *outputs, *changed])}
    places |= {key: places[id(first)] for key, first in firsts.items() if id(first) in places}
    values = bytearray(kernel.block_bytes)
    kinds: list[tuple[str, int]] = []
    maps: list[TensorMapOf] = []
    for at, (value, (offset, size)) in enumerate(zip(arguments, parameters, strict=True)):
        if id(value) in places:
            if size != POINTER_BYTES:
                raise _misfit(name, at, "an array, whose address has 8 bytes", size)
            kinds.append((ADDRESS, places[id(value)]))
            continue
        if isinstance(value, TensorMap):
            check_argument(name, at, (offset, size), TENSOR_MAP)
            kinds.append((TENSOR_MAP, len(maps)))
            maps.append(msgspec.structs.replace(value.form, array=places[id(value.array)]))
            continue
        kind, packed = _packed(name, at, value, size)
        if len(packed) != size:
            raise _misfit(name, at, f"{_words(value, kind)} of {counted(len(packed), 'byte')}", size)
        values[offset : offset + size] = packed
        kinds.append((kind, -1))
    arrays = [*inputs.values()], [*outputs.values()], [*changed.values()]
    return Packed(*arrays, bytes(values), tuple(kinds), tuple(maps))


def _array(argument: Any) -> Any:
    """Return the array of a tensor map, and anything else as it is."""
    return argument.array if isinstance(argument, TensorMap) else argument


def _firsts(
    arguments: Sequence[Any],
    named: Sequence[Any],
    is_array: Callable[[object], bool],
    key_of: Callable[[Any], object],
) -> dict[int, Any]:
    """Return the first of equal views, by the id of each array; nothing if all that is named is among the arguments."""
    if {*map(id, named)} <= {*map(id, arguments)}:
        return {}
    found: dict[object, Any] = {}
    return {id(each): found.setdefault(key_of(each), each) for each in (*arguments, *named) if is_array(each)}


def _arrays(
    name: str,
    arguments: Sequence[Any],
    out: Sequence[Any],
    inout: Sequence[Any],
    is_array: Callable[[object], bool],
    firsts: Mapping[int, Any],
) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any]]:
    """Return the arrays that are read, that are written as a whole, and that are read and written, by their ids.

    Raises:
        InvalidRequest: One is written that is no argument, or that is named twice.
    """
    arrays = {id(each): each for each in arguments if is_array(each)}
    outputs, changed = (
        {id(each): each for each in (firsts.get(id(array), array) for array in map(_array, named))}
        for named in (out, inout)
    )
    for words, named in (("out", outputs), ("inout", changed)):
        if not named.keys() <= arrays.keys():
            raise errors.InvalidRequest(
                f"{words} of {name} names what is none of the arrays among its arguments, nor an equal view"
            )
    if both := outputs.keys() & changed.keys():
        at = next(at for at, each in enumerate(arguments) if id(each) in both)
        raise errors.InvalidRequest(f"argument {at} of {name} is named in out and in inout: it is one of them")
    inputs = {key: each for key, each in arrays.items() if key not in outputs and key not in changed}
    return inputs, outputs, changed


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
            raise errors.InvalidRequest(f"argument {at} of {name} is {shown(value)}, too large for a {kind}") from error
    if isinstance(value, complex) and size in _COMPLEX:
        kind, form = _COMPLEX[size]
        return kind, struct.pack(form, value.real, value.imag)
    if isinstance(value, float | complex):
        raise errors.InvalidRequest(
            f"argument {at} of {name} is {shown(value)}, and its parameter has {counted(size, 'byte')}, as no number "
            "of this kind has: give a NumPy number, or bytes"
        )
    raise errors.InvalidRequest(
        f"argument {at} of {name} is of type {type(value).__name__}; a kernel takes refs, numbers, bytes and "
        "tensor maps"
    )


def _whole(name: str, at: int, value: int, size: int) -> tuple[str, bytes]:
    """Return a whole number as an integer of a size: an unsigned one if it is too large for a signed one."""
    if size not in _WHOLE:
        raise errors.InvalidRequest(
            f"argument {at} of {name} is {shown(value)}, and its parameter has {counted(size, 'byte')}, as no whole "
            "number has: give bytes"
        )
    signed = value < 2 ** (8 * size - 1)
    try:
        packed = int(value).to_bytes(size, "little", signed=signed)
    except OverflowError as error:
        raise errors.InvalidRequest(
            f"argument {at} of {name} is {shown(value)}, and its parameter has {counted(size, 'byte')}, which hold "
            f"whole numbers from {-(2 ** (8 * size - 1))} to {2 ** (8 * size) - 1}"
        ) from error
    return f"{'' if signed else 'u'}int{8 * size}", packed


def _words(value: Any, kind: str) -> str:
    return "bytes" if kind == OPAQUE else f"{value!r:.60}, a {kind}"


def _misfit(name: str, at: int, what: str, size: int) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"argument {at} of {name} is {what}; its parameter has {counted(size, 'byte')}")


_FLOATS: Final = {4: ("float32", "<f"), 8: ("float64", "<d")}
_COMPLEX: Final = {8: ("complex64", "<ff"), 16: ("complex128", "<dd")}
_WHOLE: Final = frozenset({1, 2, 4, 8})
