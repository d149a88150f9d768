"""Refuses arguments by names that a function does not have, in words instead of with a bare TypeError. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Final, ParamSpec, TypeVar

from atomr_mp import errors
from atomr_mp.protocol.words import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

ANY_NAME: Final = 0x08
"""The flag of the code of a function that takes any name (`inspect.CO_VARKEYWORDS`)."""


def checks_names(cls: C) -> C:
    """Have a class's public methods, and its constructor, refuse unknown names."""
    for name, found in list(vars(cls).items()):
        if isinstance(found, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, checked_names(found))
    return cls


def checked_names(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function refuse unknown names. Hot functions take `**unknown` instead, which costs less."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    names = [name for name in code.co_varnames[code.co_posonlyargcount : count] if name not in {"self", "cls"}]
    if code.co_flags & ANY_NAME or not names:
        return function
    known = frozenset(names)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs and not kwargs.keys() <= known:
            raise unknown_names(function.__qualname__, (name for name in kwargs if name not in known), names)
        return found(*args, **kwargs)

    found: Callable[P, T] = function
    return checked


def unknown_names(function: str, unknown: Iterable[str], known: Iterable[str], hint: str = "") -> errors.WrongArgument:
    """Return the error for names that a function does not have.

    Args:
        function: Its name.
        unknown: The names.
        known: The names that it has.
        hint: What to do, if that is known better than by the names.
    """
    wrong, right = sorted(unknown), list(known)
    shown = function.removesuffix(".__init__")
    hint = hint or did_you_mean(wrong[0], right)
    return errors.WrongArgument(f"{shown} has no argument {', '.join(wrong)}{hint} (it takes {', '.join(right)})")
