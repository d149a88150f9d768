"""Which option of a union a JSON value is of, by the options' schemas. Pure.

The worker decides. Here only the option is looked for by whose schema the value's parts are converted, so a look at
its uppermost levels has to do: what it costs is bounded by the schema, whatever a client sends.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

REF: Final = "#/$defs/"

LEVELS: Final = 5
"""Levels of a schema that are looked at; a reference and a union are one each."""

LOOKED_AT_CHARS: Final = 4096
"""Characters of a text that are looked at for base64, a multiple of 4."""

KINDS: Final[dict[str, tuple[type, ...]]] = {
    "string": (str, bytes),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
"""Types of values by JSON Schema's kinds; a result has bytes where its JSON has a text."""


def options_of(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the options of a union; empty if a schema is none."""
    found: Sequence[Mapping[str, Any]] = schema.get("anyOf") or schema.get("oneOf") or ()
    return found


def best(options: Sequence[Mapping[str, Any]], value: object, definitions: Mapping[str, Any]) -> int:
    """Return the place of the option that fits a value, and has the most of its names; the first one if none fits."""
    fitting = [at for at, each in enumerate(options) if fits(each, value, definitions)]
    return max(fitting, key=lambda at: _names(options[at], value, definitions), default=0)


def fits(schema: Mapping[str, Any], value: object, definitions: Mapping[str, Any], levels: int = LEVELS) -> bool:
    """Return whether the uppermost levels of a value fit a schema."""
    if levels == 0:
        return True
    levels -= 1
    reference = schema.get("$ref", "")
    if reference.startswith(REF):
        return fits(definitions.get(reference.removeprefix(REF), {}), value, definitions, levels)
    options = options_of(schema)
    if options and not any(fits(each, value, definitions, levels) for each in options):
        return False
    if not all(fits(each, value, definitions, levels) for each in schema.get("allOf", ())):
        return False
    only = [schema["const"]] if "const" in schema else schema.get("enum", [value])
    return value in only and _fits_kind(schema, value, definitions, levels)


def _fits_kind(schema: Mapping[str, Any], value: object, definitions: Mapping[str, Any], levels: int) -> bool:
    if schema.get("format") in {"ndarray", "decimal"}:  # written as numbers and lists, or as numbers and texts
        return not isinstance(value, dict)
    kinds = KINDS.get(schema.get("type", ""))
    if kinds is not None and type(value) not in kinds:
        return False
    if isinstance(value, dict):
        return _fits_object(schema, value, definitions, levels)
    if isinstance(value, list):
        parts = [*schema.get("prefixItems", ())]
        items = schema.get("items")
        parts = parts or ([items] if isinstance(items, dict) else [])
        return all(fits(part, each, definitions, levels) for part, each in zip(parts, value, strict=False))
    return not isinstance(value, str) or schema.get("contentEncoding") != "base64" or _is_base64(value)


def _fits_object(
    schema: Mapping[str, Any], value: Mapping[str, Any], definitions: Mapping[str, Any], levels: int
) -> bool:
    if not set(schema.get("required", ())) <= value.keys():
        return False
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    known = [name for name in properties if name in value]
    if not all(fits(properties[name], value[name], definitions, levels) for name in known):
        return False
    if len(known) == len(value):
        return True
    if isinstance(others, dict):
        first = next(each for name, each in value.items() if name not in properties)
        return fits(others, first, definitions, levels)
    return others is not False


def _names(schema: Mapping[str, Any], value: object, definitions: Mapping[str, Any]) -> int:
    """Return how many of a map's names a schema has."""
    reference = schema.get("$ref", "")
    found = definitions.get(reference.removeprefix(REF), {}) if reference.startswith(REF) else schema
    return len(found.get("properties", {}).keys() & value.keys()) if isinstance(value, dict) else 0


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text[:LOOKED_AT_CHARS], validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
