"""Refuses arguments that a function does not take, in words instead of with a bare TypeError. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Final, ParamSpec, TypeVar

from atomr_mp import errors
from atomr_mp.protocol.words import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

ANY_NAME: Final = 0x08
"""The flag of the code of a function that takes any name (`inspect.CO_VARKEYWORDS`)."""

ANY_PLACE: Final = 0x04
"""The same for any number of arguments by position (`inspect.CO_VARARGS`)."""


def checks_names(cls: C) -> C:
    """Have a class's public methods, and its constructor, refuse unknown names."""
    for name, found in list(vars(cls).items()):
        if isinstance(found, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, checked_names(found))
    return cls


def checked_names(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function refuse unknown names, and too many or too few arguments.

    Hot functions take `**unknown` instead, which costs less.
    """
    assert isinstance(function, FunctionType)
    takes_all = function.__code__.co_flags & ANY_NAME and function.__code__.co_flags & ANY_PLACE
    if takes_all or not _names(function):
        return function

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return found(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within the function
            raise _refused(function, args, kwargs, str(error)) from None

    found: Callable[P, T] = function
    return checked


def _refused(
    function: FunctionType, args: Sequence[object], kwargs: Mapping[str, object], said: str
) -> errors.WrongArgument:
    """Return the error for a call whose arguments Python does not take, as it has `said`."""
    code, names = function.__code__, _names(function)
    if not code.co_flags & ANY_NAME and (unknown := kwargs.keys() - set(names)):
        return unknown_names(function.__qualname__, unknown, names)
    by_name = (
        [name for name in names[-code.co_kwonlyargcount :] if name not in kwargs] if code.co_kwonlyargcount else []
    )
    if len(args) > code.co_argcount and by_name:
        example = f"{by_name[0]}={args[code.co_argcount]!r:.100}"
        return errors.WrongArgument(f"{said}; give arguments by name, such as {example}")
    return errors.WrongArgument(f"{said} (it takes {', '.join(names)})")


def _names(function: FunctionType) -> list[str]:
    """Return the names that arguments may be given by."""
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    return [name for name in code.co_varnames[code.co_posonlyargcount : count] if name not in {"self", "cls"}]


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
