"""What the requests of all libraries have in common. Pure."""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.refs import Operand

Read = Annotated[Operand, msgspec.Meta(extra={"writes": False})]
"""Type of a field whose array is read."""

Write = Annotated[Operand, msgspec.Meta(extra={"writes": True})]
"""Type of a field whose array is written; it may be read too."""

Scalar = int | float | tuple[float, float]
"""A real or (real part, imaginary part): msgpack has no complex numbers."""


KNOWN: Final = 1024
"""Requests that each side remembers as well-formed: the same ones come again and again."""


class LibraryRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the requests of all libraries: an array on the wire; new fields come last, with a default."""

    name: ClassVar[str]
    """"gemm" for what is called as `device.blas.gemm`."""
    dtypes: ClassVar[tuple[str, ...]] = ()
    """Element types it is defined for; empty if it does not depend on them."""

    def borrows(self) -> Mapping[str, bool]:
        """Return the fields that hold arrays, and whether each is written."""
        return operands(type(self))

    def check(self) -> None:
        """Check everything that can be checked without the data; both sides do, before any library sees it.

        Raises:
            InvalidRequest: Something does not fit; the message says what and how.
        """


@functools.cache
def operands(request: type[LibraryRequest]) -> Mapping[str, bool]:
    """Return the fields that hold arrays, and whether the request writes them."""
    hints = typing.get_type_hints(request, include_extras=True)
    return {
        name: meta.extra["writes"]
        for name in request.__struct_fields__
        for meta in _metas(hints[name])
        if meta.extra and "writes" in meta.extra
    }


def scalar(value: Scalar) -> complex:
    """Return the number that a scalar stands for."""
    return complex(*value) if isinstance(value, tuple) else value


def to_scalar(value: Any) -> Scalar:
    """Return a number as messages hold it; whole numbers stay exact.

    Raises:
        InvalidRequest: It is no number.
    """
    try:
        if isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c":
            number = complex(value)
            return number.real, number.imag
        return operator.index(value) if hasattr(value, "__index__") else float(value)
    except (TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"{value!r} is no number") from error


def check_dtypes(request: LibraryRequest, **arrays: Operand) -> str:
    """Return the element type that all arrays have.

    Raises:
        InvalidRequest: They differ, or the request is not defined for it.
    """
    (first, array), *others = arrays.items()
    for other, each in others:
        if each.dtype != array.dtype:
            raise errors.InvalidRequest(f"{first} is {array.dtype} and {other} is {each.dtype}; they must be the same")
    if array.dtype not in request.dtypes:
        raise errors.InvalidRequest(
            f"{request.name} is not defined for {array.dtype}; it takes {', '.join(request.dtypes)}"
        )
    return array.dtype


def _metas(hint: object) -> list[msgspec.Meta]:
    """Return the annotations of a type, also where None is admitted too."""
    found = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return found + [meta for part in typing.get_args(hint) for meta in _metas(part) if part is not hint]


REAL: Final = ("float32", "float64")
HALF: Final = ("float16", "bfloat16")
COMPLEX: Final = ("complex64", "complex128")
