"""Declarations of the arrays of a request. Pure.

An argument is written as the annotation of a field:

    a: Annotated[Operand, reads("m k", lies=matrix)]
    c: Annotated[Operand | None, writes("m n", lies=matrix, factor="beta")] = None

A field may also be a list of arrays, or a struct whose fields are declared in the same way; and a factor may be an
array, see `factors`.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from atomr_mp.protocol.declaration.strides import Rule, anywhere
from atomr_mp.protocol.refs import Operand

S = TypeVar("S", bound=msgspec.Struct)

Sizes = Mapping[str, Any]
"""Lengths of dimensions by name; a tuple of lengths for a name with a star."""

ShapeFunction = Callable[[Any, Sizes], tuple[int, ...]]
"""Returns a shape from the request and the sizes that shapes in words have given; its docstring is the shape in words.
Raises `InvalidRequest` where the parameters give none."""

DtypeFunction = Callable[[Any], str]
"""Returns an element type from the request."""

Condition = Callable[[Any], bool]
"""Returns whether a request has an array, from its parameters; its docstring says when."""


class Argument(NamedTuple):
    """The declaration of one array of a request."""

    shape: str | ShapeFunction
    """Names of lengths, one for each dimension: "m k". "*batch" stands for any number of dimensions, "_" for a length
    that nothing else has to agree with."""
    writes: bool
    reads: bool | str
    """Whether the content is read; or the parameter that multiplies it, and leaves it unread where it is 0."""
    dtype: str | DtypeFunction = "T"
    """The letter of an element type, see `LibraryRequest.types`; "_" for one that nothing else has to agree with."""
    lies: Rule = anywhere
    """The strides that it may have."""
    alias: tuple[str, ...] = ()
    """Arguments whose elements it may be, each the same."""
    triangle: str = ""
    """The parameter ("L", "U") that names the triangle that is touched; the other one is not."""
    where: Condition | None = None
    """Whether the request has the array, where that depends on its parameters; it is left out otherwise."""

    @property
    def in_words(self) -> str:
        """The shape, as messages and documentation show it."""
        return f"({', '.join(self.shape.split())})" if isinstance(self.shape, str) else in_words(self.shape)

    def is_there(self, request: Any) -> bool:
        """Return whether a request has the array."""
        return self.where is None or self.where(request)


def in_words(function: Callable[..., Any]) -> str:
    """Return the docstring of a function of a declaration as a part of a sentence."""
    words = " ".join((function.__doc__ or "").split()).rstrip(".")
    return words[:1].lower() + words[1:]


def reads(
    shape: str | ShapeFunction,
    *,
    dtype: str | DtypeFunction = "T",
    lies: Rule = anywhere,
    factor: str = "",
    triangle: str = "",
    where: Condition | None = None,
) -> msgspec.Meta:
    """Declare an array that is read; not if the parameter `factor` is 0."""
    return _meta(Argument(shape, False, factor or True, dtype, lies, triangle=triangle, where=where))


def writes(
    shape: str | ShapeFunction,
    *,
    dtype: str | DtypeFunction = "T",
    lies: Rule = anywhere,
    factor: str = "",
    alias: tuple[str, ...] = (),
    triangle: str = "",
    where: Condition | None = None,
) -> msgspec.Meta:
    """Declare an output. Its content is read if `factor` names a parameter and that is not 0."""
    return _meta(Argument(shape, True, factor or False, dtype, lies, alias, triangle, where))


def updates(
    shape: str | ShapeFunction,
    *,
    dtype: str | DtypeFunction = "T",
    lies: Rule = anywhere,
    triangle: str = "",
    where: Condition | None = None,
) -> msgspec.Meta:
    """Declare an array that is read and written."""
    return _meta(Argument(shape, writes=True, reads=True, dtype=dtype, lies=lies, triangle=triangle, where=where))


def _meta(argument: Argument) -> msgspec.Meta:
    return msgspec.Meta(extra={ARGUMENT: argument})


ARGUMENT: Final = "argument"

NUMBERS: Final = (int, float, tuple)
"""Types of factors that are no arrays."""


class Declared(NamedTuple):
    """The fields of a struct, by what they hold."""

    arrays: Mapping[str, Argument]
    """An array, or None."""
    lists: Mapping[str, Argument]
    """A list of arrays."""
    structs: Mapping[str, type[msgspec.Struct]]
    """A struct of arrays."""
    parameters: Mapping[str, Any]
    """Other values, with their types; factors are among them."""
    factors: Mapping[str, Argument]
    """Factors: a number, or an array in place of it."""


@functools.cache
def declared(cls: type[msgspec.Struct]) -> Declared:
    """Return the declarations of a struct's fields, in order."""
    found = Declared({}, {}, {}, {}, {})
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in cls.__struct_fields__:
        hint = hints[name]
        declared_as = _argument(hint)
        if declared_as is not None and isinstance(hint, type):
            found.factors[name], found.parameters[name] = declared_as, hint  # type: ignore[index]
        elif declared_as is not None:
            (found.lists if _is_list(hint) else found.arrays)[name] = declared_as  # type: ignore[index]
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found.structs[name] = hint  # type: ignore[index]
        else:
            found.parameters[name] = hint  # type: ignore[index]
    return found


def arrays_of(struct: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Argument, Operand | None]]:
    """Return the arrays of a request: a name for messages, the argument, and the array, None if it was left out."""
    fields = declared(type(struct))
    for name, argument in fields.arrays.items():
        yield prefix + name, argument, getattr(struct, name)
    for name, argument in fields.lists.items():
        for at, operand in enumerate(getattr(struct, name)):
            yield f"{prefix}{name}[{at}]", argument, operand
    for name, argument in fields.factors.items():
        if isinstance(operand := getattr(struct, name), Operand):
            yield prefix + name, argument, operand
    for name in fields.structs:
        yield from arrays_of(getattr(struct, name), f"{prefix}{name}.")


def with_arrays(struct: S, found: Callable[[Operand], Operand]) -> S:
    """Return a request with each of its arrays replaced by another."""
    fields = declared(type(struct))
    changes: dict[str, Any] = {}
    for name in fields.arrays:
        operand = getattr(struct, name)
        if operand is not None:
            changes[name] = found(operand)
    for name in fields.lists:
        changes[name] = [found(operand) for operand in getattr(struct, name)]
    for name in fields.factors:
        if not isinstance(value := getattr(struct, name), NUMBERS):
            changes[name] = found(value)
    for name in fields.structs:
        changes[name] = with_arrays(getattr(struct, name), found)
    return msgspec.structs.replace(struct, **changes)


def parameters_of(struct: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the parameters of a request, with those of the structs in it; of an array in place of a factor its class.

    Where that lies is told with the arrays, and an operand in a key would keep its memory.
    """
    fields = declared(type(struct))
    for name in fields.parameters:
        value = getattr(struct, name)
        yield prefix + name, Operand if isinstance(value, Operand) else value
    for name in fields.structs:
        yield from parameters_of(getattr(struct, name), f"{prefix}{name}.")


def _argument(hint: Any) -> Argument | None:
    """Return the argument that a type is annotated with, also inside a union; or that of a factor."""
    own = getattr(hint, ARGUMENT, None)
    if isinstance(own, Argument):
        return own
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra and ARGUMENT in meta.extra:
            found: Argument = meta.extra[ARGUMENT]
            return found
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        parts = [_argument(part) for part in typing.get_args(hint)]
        return next((part for part in parts if part is not None), None)
    return None


def _is_list(hint: Any) -> bool:
    return typing.get_origin(typing.get_args(hint)[0]) is list
