"""Conversions of JSON values by their JSON Schema, and of results before they are written as JSON. Pure.

Bytes are base64 in JSON, and arrays nested lists, at any depth. A result has conversions for what is a text in its
schema, and bytes in Python.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from atomr_mp.serve.values import arrays, unions
from atomr_mp.serve.values.unions import REF

MAX_UNION_DEPTH: Final = 16
"""Deepest nesting of unions and definitions whose kinds are looked for."""

Convert = Callable[[Any], Any]
"""Returns the argument for a JSON value; raises ValueError if the value does not fit."""

LEAST: Final = -(2**63)
MOST: Final = 2**64 - 1
"""The whole numbers that calls take, as msgpack does."""


class OddNumbers(NamedTuple):
    """The numbers that some arguments may have, and JSON's writers spell otherwise than their parameters."""

    pointed: bool = True
    """With a point or an exponent."""
    long: bool = True
    """In more digits than a whole number of 64 bits may have."""


NO_ODD_NUMBERS: Final = OddNumbers(pointed=False, long=False)


def converter_of(schema: Mapping[str, Any], rules: Rules) -> Convert | None:
    """Return the conversion of a JSON value by its schema; None if the value stays as it is."""
    reference = schema.get("$ref", "")
    if reference.startswith(REF):
        return _by_reference(reference.removeprefix(REF), rules)
    if options := unions.options_of(schema):
        return _any_of([(each, converter_of(each, rules)) for each in options], rules.definitions)
    make = {"array": _array, "object": _object}.get(schema.get("type", ""))
    if make is not None and schema.get("format") != "ndarray":
        return make(schema, rules)
    return rules.leaf(schema)


def _by_reference(name: str, rules: Rules) -> Convert | None:
    """Return the conversion by a definition, which is made once: it may refer to itself, and several times."""
    if name not in rules.known:
        rules.known[name] = None
        definition = rules.definitions.get(name, {})
        if _has_leaf(definition, rules):
            rules.known[name] = lambda value: made(value)  # noqa: PLW0108 - it is made below
            made = converter_of(definition, rules) or _as_it_is
            rules.known[name] = made
    return rules.known[name]


def _as_it_is(value: object) -> object:
    return value


def _has_leaf(schema: Mapping[str, Any], rules: Rules) -> bool:
    """Return whether any part of a schema has a conversion, wherever it refers to."""
    seen: set[str] = set()
    left = [schema]
    while left:
        each = left.pop()
        name = each.get("$ref", "").removeprefix(REF)
        if name and name not in seen:
            seen.add(name)
            left.append(rules.definitions.get(name, {}))
        if rules.leaf(each) is not None:
            return True
        left += [*unions.options_of(each), *each.get("prefixItems", ()), *each.get("properties", {}).values()]
        left += [found for key in _PARTS if isinstance(found := each.get(key), dict)]
    return False


_PARTS: Final = ("items", "additionalProperties", "propertyNames")


class Rules(NamedTuple):
    """What the conversions of a schema's parts have in common."""

    definitions: Mapping[str, Any]
    numbers: OddNumbers
    known: dict[str, Convert | None]
    """Conversions by definition, as far as they are made."""

    def leaf(self, schema: Mapping[str, Any]) -> Convert | None:
        """Return the conversion of a value that is neither a list nor a map."""
        if schema.get("contentEncoding") == "base64":
            return _bytes
        if (altchars := ALPHABETS.get(schema.get("format", ""))) is not None:
            return functools.partial(_checked, altchars)
        if schema.get("format") == "ndarray":
            return arrays.converter(schema.get("dtype"))
        return self.number(schema)

    def number(self, schema: Mapping[str, Any]) -> Convert | None:
        """Return the conversion of a number, None if there is none."""
        kind = "decimal" if schema.get("format") == "decimal" else schema.get("type", "")
        if self.numbers.pointed and kind == "integer":
            return _integer
        return {"number": _number, "decimal": _decimal}.get(kind) if self.numbers.long else None


class RulesOfNumbers(Rules):
    """The rules of the numbers alone."""

    __slots__ = ()

    def leaf(self, schema: Mapping[str, Any]) -> Convert | None:
        """Return the conversion of a number."""
        if "contentEncoding" in schema or schema.get("format") in {"ndarray", *ALPHABETS}:
            return None
        return self.number(schema)


class RulesOfResult(Rules):
    """What the conversions of a result's parts have in common, before it is written as JSON."""

    __slots__ = ()

    def leaf(self, schema: Mapping[str, Any]) -> Convert | None:
        """Return the conversion of bytes that are a text in base64 already."""
        is_text = schema.get("format") in ALPHABETS and "contentEncoding" not in schema
        return _text if is_text else None


ALPHABETS: Final = {"base64": b"+/", "base64url": b"-_"}
"""The last letters of texts by their format. pydantic decodes them itself: `Base64Bytes` and `Base64UrlBytes`."""


def _checked(altchars: bytes, value: object) -> object:
    """Return a text in base64 as it is; pydantic would pass over letters that are none of base64's."""
    if isinstance(value, str):
        _decoded(value, altchars)
    return value


def _text(value: object) -> object:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _integer(value: object) -> object:
    return int(value) if type(value) is float and value.is_integer() else value


def _number(value: object) -> object:
    return float(value) if type(value) is int and not LEAST <= value <= MOST else value


def _decimal(value: object) -> object:
    return str(value) if type(value) is int and not LEAST <= value <= MOST else value


_CONVERTED: Final[dict[Convert | None, type]] = {_integer: float, _number: int}
"""The only type that a conversion of numbers changes."""


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    return _decoded(value, ALPHABETS["base64"])


def _decoded(text: str, altchars: bytes) -> bytes:
    try:
        return base64.b64decode(text, altchars, validate=True)
    except binascii.Error as error:
        raise ValueError(f"bytes are given as base64: {error}") from error


def _array(schema: Mapping[str, Any], rules: Rules) -> Convert | None:
    first = [converter_of(each, rules) for each in schema.get("prefixItems", ())]
    items = schema.get("items")
    rest = converter_of(items, rules) if isinstance(items, dict) else None
    if rest is None and not any(first):
        return None
    only = None if first else _CONVERTED.get(rest)  # most long lists of numbers are passed over quickly

    def convert(value: object) -> object:
        if type(value) is not list or (only is not None and only not in map(type, value)):
            return value
        by_place = [*first, *[rest] * (len(value) - len(first))]
        return [item if each is None else each(item) for each, item in zip(by_place, value, strict=False)]

    return convert


def _object(schema: Mapping[str, Any], rules: Rules) -> Convert | None:
    key = converter_of(schema.get("propertyNames", {}), rules)
    named = {name: converter_of(each, rules) for name, each in schema.get("properties", {}).items()}
    others = schema.get("additionalProperties")
    rest = converter_of(others, rules) if isinstance(others, dict) else None
    if rest is None and key is None and not any(named.values()):
        return None

    def convert(value: object) -> object:
        if type(value) is not dict:
            return value
        found = {}
        for name, item in value.items():
            each = named.get(name, rest)
            found[name if key is None else key(name)] = item if each is None else each(item)
        return found

    return convert


def _any_of(options: list[tuple[Mapping[str, Any], Convert | None]], definitions: Mapping[str, Any]) -> Convert | None:
    """Return a conversion by the option that has values of the JSON value's kind; by the one that fits, of several.

    If none has, an option for whole numbers takes one that is written with a point, and an array's takes a number.
    """
    if all(convert is None for _, convert in options):
        return None
    by_type: dict[type, list[tuple[Mapping[str, Any], Convert | None]]] = {}
    for option in options:
        for kind in dict.fromkeys(_kinds_of(option[0], definitions)):
            by_type.setdefault(kind, []).append(option)
    others = [each for schema, each in options if each is _integer or schema.get("format") == "ndarray"]

    def convert(value: object) -> object:
        several = by_type.get(type(value), ())
        if several:
            at = unions.best([schema for schema, _ in several], value, definitions) if len(several) > 1 else 0
            each = several[at][1]
            return value if each is None else each(value)
        if others and isinstance(value, int | float) and others[0] is not None:
            return others[0](value)
        return value

    return convert


def _kinds_of(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = MAX_UNION_DEPTH
) -> tuple[type, ...]:
    """Return the types of values that a schema has."""
    reference = schema.get("$ref", "")
    if reference.startswith(REF):
        inner = definitions.get(reference.removeprefix(REF), {})
        return _kinds_of(inner, definitions, depth - 1) if depth else ()
    if options := unions.options_of(schema):
        return tuple(kind for each in options for kind in _kinds_of(each, definitions, depth - 1)) if depth else ()
    return unions.KINDS.get(schema.get("type", ""), ())
