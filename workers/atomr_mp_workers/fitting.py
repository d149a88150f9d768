"""Tells whether any value that arrives could fit a type, so that an annotation which nothing fits is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from msgspec import inspect

from atomr_mp.protocol import foreign
from atomr_mp_workers.memory.arrays import DeviceArray


def ndarray() -> Any:
    """Return the class of NumPy's arrays, which are named only where NumPy has been imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.ndarray


def check(hint: Any, converter: Callable[[type], object]) -> set[type]:
    """Return the classes in a type that msgspec does not know.

    Args:
        hint: The type.
        converter: Returns the function that makes instances of a class, None if they have to arrive as they are.

    Raises:
        TypeError: The type is not msgspec's, or no value fits it.
    """
    found: dict[int, inspect.Type] = {}
    _collect(_info(hint), found)
    kinds = {each.cls for each in found.values() if isinstance(each, inspect.CustomType)}
    for kind in kinds:
        if converter(kind) is None:
            check_kind(kind)
    for each in found.values():
        hashed = each.key_type if isinstance(each, inspect.DictType) else getattr(each, "item_type", None)
        if isinstance(each, inspect.DictType | inspect.SetType | inspect.FrozenSetType) and not _hashable(hashed):
            raise TypeError("keys of maps and members of sets are hashed, which lists, maps, sets and arrays cannot be")
        if isinstance(each, inspect.ExtType):
            raise TypeError("msgpack's extension types do not cross")
    # What has an end: a value of no parts, then of such values, and so on.
    possible: set[int] = set()
    while True:
        more = {key for key, each in found.items() if key not in possible and _possible(each, possible)}
        if not more:
            break
        possible |= more
    if len(possible) < len(found):
        raise TypeError("no value of it has an end: it always contains another one; allow None there, or a list")
    return kinds


def _info(hint: Any) -> inspect.Type:
    """Return msgspec's description of a type."""
    try:
        return inspect.type_info(hint)
    except TypeError as error:
        if "unions containing a custom type" not in str(error):
            raise
        raise TypeError(
            "in a union of types, an array or another class stands alone, or with None; annotate it as Any, and let "
            "the method look at what it gets"
        ) from error


def _parts(info: Any) -> list[inspect.Type]:
    """Return the types that a type is made of."""
    if isinstance(info, inspect.DictType):
        return [info.key_type, info.value_type]
    if isinstance(info, inspect.UnionType):
        return list(info.types)
    if isinstance(info, inspect.TupleType):
        return list(info.item_types)
    if hasattr(info, "fields"):
        return [each.type for each in info.fields]
    one = getattr(info, "item_type", None) or getattr(info, "type", None)
    return [] if one is None else [one]


def _collect(info: inspect.Type, found: dict[int, inspect.Type]) -> None:
    if id(info) not in found:
        found[id(info)] = info
        for each in _parts(info):
            _collect(each, found)


def _possible(info: Any, possible: set[int]) -> bool:
    """Return whether a type has a value, if those in `possible` have."""
    if isinstance(info, inspect.UnionType):
        return any(id(each) in possible for each in info.types)
    if isinstance(info, inspect.DictType) or (hasattr(info, "item_type") and not info.min_length):
        return not getattr(info, "min_length", 0) or all(id(each) in possible for each in _parts(info))
    if hasattr(info, "fields"):
        return all(id(each.type) in possible for each in info.fields if each.required)
    return all(id(each) in possible for each in _parts(info))


def _hashable(info: Any) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(_hashable, info.types))
    if isinstance(info, inspect.CustomType):
        return info.cls is not ndarray() and getattr(info.cls, "__hash__", None) is not None
    if isinstance(info, inspect.TupleType):
        return all(map(_hashable, info.item_types))
    mutable = inspect.ListType | inspect.DictType | inspect.SetType | inspect.TypedDictType | inspect.ByteArrayType
    if isinstance(info, mutable):
        return False
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        return getattr(info.cls, "__hash__", None) is not None
    return True


def check_kind(kind: Any) -> None:
    """Check that some value that arrives is an instance of a class.

    Raises:
        TypeError: There is none.
    """
    array = ndarray()
    arriving: list[object] = [None, True, 1, 1.0, "", b"", [], {}, object.__new__(DeviceArray)]
    arriving += [] if array is None else [array(0)]
    try:
        fits = any(isinstance(each, kind) for each in arriving)
    except Exception:  # noqa: BLE001 - a protocol that cannot be asked, or a class with code of its own
        fits = False
    if not fits:
        name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else repr(kind)
        said = foreign.instead(kind) if isinstance(kind, type) else foreign.instead(object)
        raise TypeError(f"no argument can be a {name}: callers send {said}, so annotate it as that")
