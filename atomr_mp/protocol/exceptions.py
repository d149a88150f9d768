"""Describes exceptions that other people's code has raised. Pure.

Whatever such a class defines may itself raise: `__str__`, `__class__`, `__cause__`, `__notes__`, `__setattr__`, and by
its metaclass even `__name__`. So nothing here asks an exception's own attributes: facts are read by the descriptors of
`BaseException` and `type`, and a text that cannot be made is left out. Functions here never raise.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, TypeGuard, TypeVar

from atomr_mp import errors

T = TypeVar("T")

NO_TEXT: Final = "(its text cannot be made)"
"""Stands for the text of an exception whose `__str__` raises."""

TEXT_CHARS: Final = 8192
"""Most characters of the text of one exception, without the sign that something is left out."""

TRACEBACK_CHARS: Final = 49152
"""Most characters of a traceback. It travels whole: an error's text on a wire may be longer."""

_LEFT_OUT: Final = "  [... lines are left out ...]\n"


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether a value is of a kind by its type alone; `isinstance` would ask its `__class__`, too."""
    return issubclass(type(value), kind)


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class."""
    return _text(_fact(type.__dict__["__name__"], type(error))) or "exception"


def full_name_of(error: BaseException) -> str:
    """Return the qualified name of an exception's class."""
    kind = type(error)
    module = _text(_fact(type.__dict__["__module__"], kind)) or "?"
    return f"{module}.{_text(_fact(type.__dict__['__qualname__'], kind)) or name_of(error)}"


def type_name(value: object) -> str:
    """Return the name of a value's type, with its module unless Python itself has it."""
    kind = type(value)
    module = _text(_fact(type.__dict__["__module__"], kind))
    name = _text(_fact(type.__dict__["__qualname__"], kind)) or "value"
    return name if module in {"", "builtins"} else f"{module}.{name}"


def describe(error: BaseException) -> str:
    """Return an exception's class and text; of a text longer than `TEXT_CHARS` both ends."""
    try:
        text = f"{error}"
    except BaseException:  # noqa: BLE001 - raised by the exception's own __str__
        text = NO_TEXT
    return f"{name_of(error)}: {_ends_of(text, TEXT_CHARS)}"


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback as text, with those of its causes; at least its frames and its description.

    It has at most `TRACEBACK_CHARS` characters. A long text of an exception is cut, and its frames are kept.
    """
    try:
        parts = traceback.format_exception(error)
    except BaseException:  # noqa: BLE001 - raised by what the exception, or one of its causes, defines
        parts = [*_frames_of(error), f"{describe(error)}\n"]
    cut = [_ends_of(part, TEXT_CHARS) for part in parts]
    if sum(map(len, cut)) <= TRACEBACK_CHARS:
        return "".join(cut)
    # The first and the last of very many frames or notes are kept.
    half = TRACEBACK_CHARS // 2 - len(_LEFT_OUT)
    head = _fitting(cut, half)
    tail = _fitting(cut[: len(head) - 1 : -1], half)[::-1]
    return "".join([*head, _LEFT_OUT, *tail])


def _fitting(parts: list[str], most: int) -> list[str]:
    """Return the first parts that have together no more than so many characters."""
    return [part for part, total in zip(parts, accumulate(map(len, parts)), strict=True) if total <= most]


def _ends_of(text: str, most: int) -> str:
    """Return a text, or the beginning and the end of one that has more characters."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    half = most // 2
    return f"{text[:half]} [... {left_out} characters are left out ...] {text[-half:]}"


def missing_module(error: BaseException) -> str | None:
    """Return the module that an import has not found, if the exception names it."""
    return _text(_fact(ImportError.__dict__["name"], error)) or None if is_a(error, ImportError) else None


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that an exception was raised from, or while they were handled."""
    for descriptor in (_CAUSE, _CONTEXT):
        found = _fact(descriptor, error)
        if found is not None:
            yield found


def context_of(error: BaseException) -> BaseException | None:
    """Return the exception that was handled, or passed a `finally`, when another one was raised; None for none."""
    found: BaseException | None = _fact(_CONTEXT, error)
    return found


def forget_frames(error: BaseException) -> None:
    """Take the traceback from an exception, and from all that it was raised from or is a group of.

    The frames there have a request's arguments. A frame that refers to the exception, such as one with a list of
    failed items or a task that was awaited, would keep them until a collection, which an idle worker does not have; an
    exception that an actor raises again and again would keep the arguments of all its requests.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        _TRACEBACK.__set__(each, None)
        waiting += causes_of(each)
        if is_a(each, BaseExceptionGroup):
            waiting += _fact(_MEMBERS, each) or ()


def trusted(error: errors.AtomrError) -> errors.AtomrError:
    """Return an error of ours that other people's code has raised, with nothing that this code has defined.

    Code may derive a class from one of ours, or change an error's facts: such an error becomes one of the nearest class
    of ours with the facts that have the right types.
    """
    try:
        facts = errors.facts_of(type(error))
        if facts is not None and all(type(getattr(error, name)) is kind for name, kind in facts.items()):
            return error
        code, message, fields = errors.to_wire(error)
        return errors.from_wire(f"{code}", f"{message}", dict(fields))
    except BaseException:  # noqa: BLE001 - raised by what a derived class defines
        return errors.ActorFailed(
            f"an actor raised a {name_of(error)} that cannot be sent", exception=full_name_of(error)
        )


def _frames_of(error: BaseException) -> list[str]:
    try:
        return traceback.format_tb(_fact(_TRACEBACK, error))
    except BaseException:  # noqa: BLE001 - of a module whose loader cannot show its source
        return []


def _fact(descriptor: Any, of: object) -> Any:
    """Return the value of a descriptor of Python itself for an object; None if the object has none."""
    try:
        return descriptor.__get__(of)
    except AttributeError:
        return None


def _text(value: object) -> str:
    return value if type(value) is str else ""


_TRACEBACK: Final[Any] = BaseException.__dict__["__traceback__"]
_CAUSE: Final[Any] = BaseException.__dict__["__cause__"]
_CONTEXT: Final[Any] = BaseException.__dict__["__context__"]
_MEMBERS: Final[Any] = BaseExceptionGroup.__dict__["exceptions"]
