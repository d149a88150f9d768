"""Tells which values cross between processes, and how to send the others. Pure.

msgspec would turn a date, a UUID or a decimal into text, and an enum into its value: what arrives is something else,
and nobody is told. Such values are refused here before msgspec sees them.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import foreign
from atomr_mp.protocol.flow.limits import MAX_DEPTH
from atomr_mp.protocol.libraries.base import LibraryRequest


class JsonArguments(dict[str, Any]):
    """Arguments by name that were read from JSON, with bytes and arrays in place of some values: all of them cross."""


def check(value: object, around: int | None = None) -> None:
    """Check that a value arrives as the one that was sent, or as the documentation says.

    Goes level by level, so that long lists of small lists cost one pass each. For values that have been encoded: those
    have an end.

    Args:
        value: The value.
        around: How many lists around values it is, which may be nested up to `MAX_DEPTH`; None if there is no limit.

    Raises:
        InvalidRequest: It would arrive as something else, and the message says how to send it; or it is nested deeper.
    """
    kind = type(value)
    # A library's request checks its own fields.
    if kind in SCALARS or kind is JsonArguments or isinstance(value, LibraryRequest):
        return
    flat = kind is tuple or kind is list
    level: Sequence[object] = value if flat else (value,)  # type: ignore[assignment]
    left = sys.maxsize if around is None else MAX_DEPTH + around - flat
    while not SCALARS.issuperset(map(type, level)):
        inner, maps = _parts(level)
        if inner or maps:
            left -= 1
            if left < 0:
                raise errors.InvalidRequest(f"the values are nested deeper than {MAX_DEPTH}")
        if maps:
            _check_keys(maps)
            inner += [each.values() for each in maps]
        level = list(itertools.chain.from_iterable(inner))


def _parts(level: Sequence[object]) -> tuple[list[Iterable[object]], list[dict[object, object]]]:
    """Return the parts of a level's values, and the maps among them."""
    inner: list[Iterable[object]] = []
    maps: list[dict[object, object]] = []
    for each in level:
        kind = type(each)
        if kind is list or kind is tuple:
            inner.append(each)  # type: ignore[arg-type]
        elif kind is dict:
            maps.append(each)  # type: ignore[arg-type]
        elif kind not in SCALARS and kind.__module__ != "numpy":
            parts = _inside(each)
            if type(parts) is dict:
                maps.append(parts)
            elif parts is not None:
                inner.append(parts)
    return inner, maps


SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Types of values that cross as they are, and of keys."""

_TEXT: Final = frozenset({str})

_ADVICE: Final = (
    ("datetime", "datetime", "isoformat(), which a parameter annotated as datetime takes, or timestamp()"),
    ("datetime", "date", "isoformat(), which a parameter annotated as date takes"),
    ("datetime", "time", "isoformat(), which a parameter annotated as time takes"),
    ("datetime", "timedelta", "total_seconds(), which a parameter annotated as float takes"),
    ("uuid", "UUID", "str() of it, which a parameter annotated as UUID takes"),
    ("decimal", "Decimal", "str() of it, which a parameter annotated as Decimal takes"),
    ("enum", "Enum", "its value, which a parameter annotated as that enum takes"),
)
"""Module and name of classes whose instances msgspec would change, and what to send instead; subclasses first."""


def _check_keys(maps: Iterable[dict[object, object]]) -> None:
    if _TEXT.issuperset(map(type, itertools.chain.from_iterable(maps))):
        return
    for key in itertools.chain.from_iterable(maps):
        parts = key if isinstance(key, tuple) else (key,)
        if not all(map(_is_scalar, parts)):
            raise errors.InvalidRequest(
                f"a map with a {_name(key)} as a key cannot be sent: the key would arrive as something else; use str, "
                "bytes, int, float, bool, None or flat tuples of these as keys, or send a list of pairs"
            )


def _is_scalar(value: object) -> bool:
    """Return whether a key arrives as a scalar that equals it: of NumPy's types too, and of subclasses."""
    if type(value) in SCALARS:
        return True
    if isinstance(value, str | bytes | int | float):
        return isinstance(value, int | str) or not isinstance(value, enum.Enum)
    return type(value).__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") in _NUMBERS


_NUMBERS: Final = frozenset("biuf")
"""Kinds of NumPy's scalars that are numbers; its arrays are no keys."""


def _inside(value: Any) -> Iterable[object] | None:
    """Return the parts of a value that is no plain list or map; None if it has none.

    Raises:
        InvalidRequest: Its class is one of `_ADVICE`, or it is a piece of a message.
    """
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.astuple(value)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else getattr(value, "__attrs_attrs__", None)
    if fields is not None:
        return [getattr(value, field.name, None) for field in fields]
    if foreign.is_model(value):
        dumped = foreign.dump(value)
        return dumped if isinstance(dumped, dict) else (dumped,)
    if not (isinstance(value, enum.Enum) and isinstance(value, int | str)):  # an IntEnum's member is its value too
        _check_kind(value)
    return None


def _check_kind(value: object) -> None:
    if isinstance(value, msgspec.Raw | msgspec.msgpack.Ext):
        raise errors.InvalidRequest(
            f"a {_name(value)} cannot be sent: its bytes need not be a value that the other end can read; send the "
            "value, or bytes"
        )
    for module, name, advice in _ADVICE:
        # Whoever holds an instance has imported the module.
        changed = getattr(sys.modules.get(module), name, None)
        if changed is not None and isinstance(value, changed):
            raise errors.InvalidRequest(f"a {_name(value)} cannot be sent: it would arrive changed; send {advice}")


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
