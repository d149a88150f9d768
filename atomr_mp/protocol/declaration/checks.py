"""The check of a request against its declaration: client and worker make the same one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Argument, arrays_of, in_words
from atomr_mp.protocol.declaration.overlap import share_elements
from atomr_mp.protocol.declaration.shapes import ANY, shape_of, sizes_of
from atomr_mp.protocol.declaration.strides import is_apart
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import shown


def check(request: Any) -> None:
    """Check everything that can be checked without the data.

    Raises:
        InvalidRequest: Something does not fit; the message says what and how.
        BorrowConflict: What is written shares elements with another array.
    """
    arrays = list(arrays_of(request))
    for name, argument, operand in sorted(arrays, key=_is_given):  # one that is missing is told first
        _check_there(request, name, argument, operand)
    sizes = sizes_of(request)
    dtypes = dtypes_of(request)
    for name, argument, operand in arrays:
        if operand is not None:
            if not isinstance(argument.shape, str):  # the others have told the sizes
                _check_shape(name, operand, shape_of(request, argument, sizes), argument)
            _check_strides(name, argument, operand)
        elif argument.writes and argument.is_there(request):
            Layout.contiguous(_dtype(request, argument, dtypes), shape_of(request, argument, sizes))
    _check_factors(request, dtypes)
    for rule in type(request).rules:
        if not rule(request, sizes):
            raise errors.InvalidRequest(f"{request.name}: {' '.join((rule.__doc__ or '').split()).rstrip('.')}")
    _check_apart([(name, argument, operand) for name, argument, operand in arrays if operand is not None])


def results(request: Any) -> dict[str, Layout]:
    """Return how the outputs lie that the caller has left out: they are allocated in the worker.

    Raises:
        InvalidRequest: Nothing tells their shape, or their element type.
    """
    wanted = [
        (name, argument)
        for name, argument, operand in arrays_of(request)
        if operand is None and argument.writes and argument.is_there(request)
    ]
    if not wanted:
        return {}
    sizes, dtypes = sizes_of(request), dtypes_of(request)
    return {
        name: Layout.contiguous(_dtype(request, argument, dtypes), shape_of(request, argument, sizes))
        for name, argument in wanted
    }


def dtypes_of(request: Any) -> dict[str, str]:
    """Return the element type that each letter of the declaration stands for.

    Raises:
        InvalidRequest: Arrays with the same letter differ, or the request is not defined for a type.
    """
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, argument, operand in arrays_of(request):
        if operand is None:
            continue
        if not isinstance(argument.dtype, str):
            wanted = argument.dtype(request)
            if operand.dtype != wanted:
                raise errors.InvalidRequest(f"{name} is {operand.dtype}; it must be {wanted}")
            continue
        letter, types = argument.dtype, type(request).types
        if letter == ANY:
            continue
        if found.setdefault(letter, operand.dtype) != operand.dtype:
            raise errors.InvalidRequest(
                f"{first[letter]} is {found[letter]} and {name} is {operand.dtype}; they must be the same"
            )
        first.setdefault(letter, name)
        if letter in types and operand.dtype not in types[letter]:
            raise errors.InvalidRequest(
                f"{request.name} is not defined for {operand.dtype}; {name} may be {', '.join(types[letter])}"
            )
    return found


def _dtype(request: Any, argument: Argument, dtypes: Mapping[str, str]) -> str:
    if not isinstance(argument.dtype, str):
        return argument.dtype(request)
    if argument.dtype not in dtypes:
        raise errors.InvalidRequest(f"{request.name}: nothing that was given tells the element type; give the output")
    return dtypes[argument.dtype]


def _check_shape(name: str, operand: Operand, wanted: tuple[int, ...], argument: Argument) -> None:
    if operand.shape != wanted:
        raise errors.InvalidRequest(
            f"{name} has the shape {operand.shape}; it must have {shown(wanted)}: {argument.in_words}"
        )


def _check_strides(name: str, argument: Argument, operand: Operand) -> None:
    layout = operand.layout
    if any(at % layout.item_bytes for at in (layout.offset, *layout.strides)):
        raise errors.InvalidRequest(
            f"{name} begins at byte {layout.offset} and has strides of {layout.strides} bytes; all must be multiples "
            f"of the {layout.item_bytes} bytes of a {layout.dtype}"
        )
    if needed := argument.lies(layout):
        raise errors.InvalidRequest(
            f"{name} of shape {layout.shape} has strides of {layout.strides} bytes; it needs {needed}: use a copy"
        )
    if argument.writes:
        check_apart(name, layout)


def check_apart(name: str, layout: Layout) -> None:
    """Check that no elements of an array that is written share memory.

    Raises:
        InvalidRequest: Some do.
    """
    if not is_apart(layout):
        raise errors.InvalidRequest(
            f"{name} of shape {layout.shape} is written and has strides of {layout.strides} bytes, with which elements "
            "share memory; write to an array of its own"
        )


def _is_given(array: tuple[str, Argument, Operand | None]) -> bool:
    return array[2] is not None


def _check_there(request: Any, name: str, argument: Argument, operand: Operand | None) -> None:
    """Check that an array is given that would be read, and none that the request does not have."""
    where = argument.where
    if where is not None and operand is not None and not where(request):
        raise errors.InvalidRequest(f"{name} must be left out: it is given {in_words(where)}")
    if operand is not None:
        return
    if isinstance(argument.reads, str) and not is_zero(getattr(request, argument.reads)):
        raise errors.InvalidRequest(f"{name} must be given: {argument.reads} multiplies its content and is not 0")
    if where is not None and argument.reads is True and where(request):
        raise errors.InvalidRequest(f"{name} must be given {in_words(where)}")


def _check_factors(request: Any, dtypes: Mapping[str, str]) -> None:
    """Check that no factor of real arrays is complex, and that an array in place of one has one element."""
    real = not any(dtype.startswith("complex") for dtype in dtypes.values())
    for name in type(request).factors():
        value = getattr(request, name)
        if isinstance(value, Operand) and value.size != 1:
            raise errors.InvalidRequest(
                f"{name} has the shape {value.shape}; an array in place of a factor has one element"
            )
        if real and isinstance(value, tuple):
            raise errors.InvalidRequest(
                f"{name} is complex and the arrays are {' and '.join(sorted(set(dtypes.values())))}; it must be real"
            )


def _check_apart(arrays: list[tuple[str, Argument, Operand]]) -> None:
    """Check that no element of an array that is written is another array's too."""
    for at, (name, argument, operand) in enumerate(arrays):
        for other, theirs, theirs_operand in arrays[:at]:
            if not (argument.writes or theirs.writes) or operand.memory != theirs_operand.memory:
                continue
            same = operand.layout == theirs_operand.layout
            if same and (other in argument.alias or name in theirs.alias):
                continue
            if share_elements(operand.layout, theirs_operand.layout):
                written, read = (name, other) if argument.writes else (other, name)
                raise errors.BorrowConflict(f"{written} is written and overlaps {read}; give them memory of their own")


def is_zero(value: Any) -> bool:
    """Return whether a factor, in the form that messages have, is 0; an array counts as not 0, whatever it holds."""
    return value in {0, (0.0, 0.0)}
