"""The sizes of a request, from the shapes of its arrays. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Argument, Sizes, arrays_of
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted

ANY: Final = "_"
"""Names a length that nothing else has to agree with."""


class _Names(NamedTuple):
    """The names of the dimensions of an argument."""

    before: tuple[str, ...]
    star: str
    """Stands for any number of dimensions; "" if there is none."""
    after: tuple[str, ...]


def sizes_of(request: Any) -> dict[str, Any]:
    """Return the length of each dimension that the declaration names.

    Raises:
        InvalidRequest: An array has another number of dimensions, or two arrays differ in a length.
    """
    found: dict[str, Any] = {}
    first: dict[str, str] = {}
    for name, argument, operand in arrays_of(request):
        if operand is None or not isinstance(argument.shape, str):
            continue
        for size, length in _lengths(name, argument, operand):
            if size == ANY:
                continue
            if found.setdefault(size, length) != length:
                raise errors.InvalidRequest(
                    f"{size} must be the same for all arrays that have it; it is {found[size]} for {first[size]}, "
                    f"{length} for {name}"
                )
            first.setdefault(size, name)
    return found


def shape_of(request: Any, argument: Argument, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape that an array must have, or will have if it is allocated.

    Raises:
        InvalidRequest: The request does not tell it.
    """
    if not isinstance(argument.shape, str):
        return argument.shape(request, sizes)
    names = _names(argument.shape)
    shape = [_size(request, sizes, name) for name in names.before]
    if names.star:
        shape += _size(request, sizes, names.star)
    return (*shape, *(_size(request, sizes, name) for name in names.after))


def _size(request: Any, sizes: Sizes, name: str) -> Any:
    if name not in sizes:
        raise errors.InvalidRequest(f"{request.name}: nothing that was given tells {name}; give the output")
    return sizes[name]


def _lengths(name: str, argument: Argument, operand: Operand) -> list[tuple[str, Any]]:
    """Return the lengths of an array's dimensions by name."""
    names, shape = _names(str(argument.shape)), operand.shape
    fixed = len(names.before) + len(names.after)
    if len(shape) < fixed or (len(shape) > fixed and not names.star):
        least = "at least " if names.star else ""
        raise errors.InvalidRequest(
            f"{name} has {counted(len(shape), 'dimension')}; it must have {least}{fixed}: {argument.in_words}"
        )
    begin, end = len(names.before), len(shape) - len(names.after)
    found: list[tuple[str, Any]] = [*zip(names.before, shape, strict=False)]
    if names.star:
        found.append((names.star, shape[begin:end]))
    return [*found, *zip(names.after, shape[end:], strict=True)]


@functools.cache
def _names(shape: str) -> _Names:
    words = shape.split()
    stars = [at for at, word in enumerate(words) if word.startswith("*")]
    if not stars:
        return _Names(tuple(words), "", ())
    (at,) = stars
    return _Names(tuple(words[:at]), words[at][1:], tuple(words[at + 1 :]))


class ByParameter(NamedTuple):
    """A formula for each value of a parameter."""

    parameter: str
    formulas: Mapping[str, str]


def evaluated(formula: str | ByParameter, request: Any, sizes: Sizes) -> int:
    """Return the number that a formula has for a request, rounded towards 0.

    Args:
        formula: Terms such as "2 m n k - 2/3 k³". A name is that of a size; of all lengths of a star multiplied; of an
            array, for its number of elements; of a number in the request, as "a.nnz"; or "short" or "long", for the
            shorter and the longer of m and n.
        request: The request.
        sizes: Its sizes.
    """
    if isinstance(formula, ByParameter):
        formula = formula.formulas[getattr(request, formula.parameter)]
    return int(
        sum(factor * math.prod(_number(name, request, sizes) for name in names) for factor, names in _terms(formula))
    )


def names_in(formula: str) -> set[str]:
    """Return the names in a formula."""
    return {name for _, names in _terms(formula) for name in names}


def _number(name: str, request: Any, sizes: Sizes) -> int:
    found: Any = sizes.get(name)
    if name in {"short", "long"}:
        found = (min if name == "short" else max)(sizes["m"], sizes["n"])
    elif found is None:
        argument = next((argument for each, argument, _ in arrays_of(request) if each == name), None)
        found = attrgetter(name)(request) if argument is None else shape_of(request, argument, sizes)
    return math.prod(found) if isinstance(found, tuple) else int(found)


@functools.cache
def _terms(formula: str) -> list[tuple[Fraction, list[str]]]:
    """Return the terms of a formula, each a factor and names; a name with a power comes as often as that says."""
    found: list[tuple[Fraction, list[str]]] = [(Fraction(1), [])]
    for word in formula.split():
        factor, names = found[-1]
        if word in {"+", "-"}:
            found.append((Fraction(f"{word}1"), []))
        elif word[0].isdecimal():
            found[-1] = factor * Fraction(word), names
        else:
            name = word.rstrip("²³")
            names += [name] * {"": 1, "²": 2, "³": 3}[word[len(name) :]]
    return found
