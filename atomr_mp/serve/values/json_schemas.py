"""JSON Schemas as HTTP has them: they allow what a call by JSON takes, and no more. Pure.

A worker describes a method's annotations. JSON and the front end's conversions add rules of their own: whole numbers of
64 bits, bytes as base64, arrays as nested lists. JSON Schema cannot say that lists are equally long, that a number is
written without a point, or how a time without a zone looks; there the server refuses more than the schema does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from atomr_mp.serve.values.conversions import ALPHABETS, LEAST, MOST
from atomr_mp.serve.values.unions import REF

COMPONENTS: Final = "#/components/schemas/"

VALUE: Final = "Value"
"""The component for any value."""

ARRAY: Final = "Array"
"""Begin of the names of the components for arrays; the element type follows."""

RESULT: Final = ".result"
"""End of the names of components for values that come back."""

BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

DECIMAL: Final = r"^[+-]?([0-9]{1,99}(\.[0-9]{0,99})?|\.[0-9]{1,99})([eE][+-]?[0-9]{1,4})?$"

DURATION: Final = (
    r"^[+-]?P(?=[0-9T])([0-9]{1,8}D)?(T(?=[0-9])([0-9]{1,8}H)?([0-9]{1,8}M)?([0-9]{1,8}(\.[0-9]{1,9})?S)?)?$"
)
"""Days, hours, minutes and seconds; years, months and weeks are no durations for msgspec."""

_FLOAT64: Final = 1.7976931348623157e308

TOO_LARGE: Final = {
    "float16": 65520.0,
    "bfloat16": 2.0**128 - 2.0**119,
    "float32": 2.0**128 - 2.0**103,
    "complex64": 2.0**128 - 2.0**103,
}
"""The least number that an element type rounds to infinity; half a step above its largest number."""

MOST_FLOATS: Final = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest finite number of element types that have no infinity, or convert to others at their end."""

ANY_VALUE: Final[dict[str, Any]] = {
    "description": "Any value. A number that is written without point and exponent has at most 64 bits.",
    "anyOf": [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "string"},
        {"type": "integer", "minimum": LEAST, "maximum": MOST},
        {"type": "number", "minimum": -_FLOAT64, "maximum": _FLOAT64},
        {"type": "array", "items": {"$ref": COMPONENTS + VALUE}},
        {"type": "object", "additionalProperties": {"$ref": COMPONENTS + VALUE}},
    ],
}


class MethodSchemas:
    """Makes HTTP's schemas of a method's own, and collects the components that they refer to.

    Args:
        prefix: What the names of the components for the method's definitions begin with.
        definitions: The method's definitions.
        components: The document's schemas by name. Each schema that this one refers to is added.
    """

    def __init__(self, prefix: str, definitions: Mapping[str, Any], components: dict[str, Any]) -> None:
        self._prefix: Final = prefix
        self._definitions: Final = definitions
        self._components: Final = components

    def body(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a call's body: an object by name, or an array by position.

        Args:
            arguments: The worker's schema of an object by name.
        """
        by_name = self._value(arguments, sent=True)
        properties = by_name["properties"]
        by_position: dict[str, Any] = {
            "type": "array",
            "minItems": len(by_name.get("required", ())),  # parameters with a default come last
            "maxItems": len(properties),
            "description": "The arguments by position",
        }
        if properties:
            by_position |= {"prefixItems": list(properties.values()), "items": False}
        return {"anyOf": [by_name, by_position]}

    def result(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a result, in which numbers that are not finite are null."""
        return self._value(schema, sent=False)

    def _value(self, schema: Mapping[str, Any], *, sent: bool) -> dict[str, Any]:
        """Return a schema with HTTP's rules at every depth.

        Args:
            schema: The worker's.
            sent: Whether clients send the value, not the server.
        """
        if not schema:
            return self._any_value() if sent else {}
        if schema.get("format") == "ndarray":
            return self._array(schema, sent=sent)
        found = {key: self._inner(key, each, sent=sent) for key, each in schema.items()}
        if sent:
            if "properties" in found and "additionalProperties" not in found:
                found["additionalProperties"] = self._any_value()
            return _sent(found)
        return {"anyOf": [found, {"type": "null"}]} if found.get("type") == "number" else found

    def _inner(self, key: str, value: Any, *, sent: bool) -> Any:
        """Return the value of a keyword, with HTTP's rules in its schemas."""
        if key == "$ref":
            return self._definition(value, sent=sent)
        if key == "discriminator":
            return value | {
                "mapping": {tag: self._definition(each, sent=sent) for tag, each in value["mapping"].items()}
            }
        if key in _OF_SCHEMAS and isinstance(value, dict):
            return {name: self._value(each, sent=sent) for name, each in value.items()}
        if key in _LISTS_OF_SCHEMAS and isinstance(value, list):
            return [self._value(each, sent=sent) for each in value]
        if key in _SCHEMAS and isinstance(value, dict):
            return self._value(value, sent=sent)
        return value

    def _definition(self, reference: str, *, sent: bool) -> str:
        """Return a reference to the component of a definition. It differs between what is sent and what comes back."""
        own = reference.removeprefix(REF)
        name = f"{self._prefix}.{own}" + ("" if sent else RESULT)
        if name not in self._components:
            self._components[name] = {}  # it may refer to itself
            self._components[name] = self._value(self._definitions.get(own, {}), sent=sent)
        return COMPONENTS + name

    def _any_value(self) -> dict[str, Any]:
        self._components[VALUE] = ANY_VALUE
        return {"$ref": COMPONENTS + VALUE}

    def _array(self, schema: Mapping[str, Any], *, sent: bool) -> dict[str, Any]:
        """Return the schema of an array, whose component refers to itself for each dimension."""
        dtype = str(schema.get("dtype", ""))
        name = ARRAY + (f".{dtype}" if dtype else "") + ("" if sent else RESULT)
        elements = _elements(dtype) if sent else _ELEMENTS_OF_RESULT
        self._components[name] = {
            "description": f"An array of {dtype or 'numbers'}: equally long lists, nested once for each dimension",
            "anyOf": [*elements, {"type": "array", "items": {"$ref": COMPONENTS + name}}],
        }
        return {"$ref": COMPONENTS + name} | {key: each for key, each in schema.items() if key != "type"}


_OF_SCHEMAS: Final = frozenset({"properties", "$defs", "patternProperties"})
_LISTS_OF_SCHEMAS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS: Final = frozenset({"items", "additionalProperties", "propertyNames"})


def _sent(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a sent value with the bounds of its own kind."""
    kind = schema.get("type")
    if kind == "integer":
        least, most = schema.get("minimum", LEAST), schema.get("maximum", MOST)
        return schema | {"minimum": max(least, LEAST), "maximum": min(most, MOST)}
    if kind == "number":
        return {"minimum": -_FLOAT64, "maximum": _FLOAT64} | schema
    letters = ALPHABETS.get(schema.get("contentEncoding") or schema.get("format", ""))
    if letters is not None:
        pattern = BASE64.replace("+/", letters.decode())
        return {key: each for key, each in schema.items() if key not in _OF_BYTES} | {"pattern": pattern}
    if schema.get("format") == "decimal":
        number = {"type": "number", "minimum": -_FLOAT64, "maximum": _FLOAT64}
        return {"anyOf": [schema | {"pattern": DECIMAL}, number]}
    if schema.get("format") == "duration":
        # Without the format, which has other units, and neither signs nor fractions.
        return {"description": "A duration", "type": "string", "pattern": DURATION}
    schema.pop("uniqueItems", None)  # what a set has twice is in it once
    return schema


_OF_BYTES: Final = frozenset({"minLength", "maxLength"})
"""Limits of bytes, which are not those of their text."""


_ELEMENTS_OF_RESULT: Final[list[dict[str, Any]]] = [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]


def _elements(dtype: str) -> list[dict[str, Any]]:
    """Return the schemas of an array's element; true and false stand for 1 and 0, also in an array of numbers."""
    boolean = {"type": "boolean"}
    if dtype == "bool":
        return [boolean, {"enum": [0, 1]}]
    if "int" in dtype:
        bits = int(dtype.partition("int")[2])
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return [{"type": "integer", "minimum": low, "maximum": high}, boolean]
    number = {"type": "number", **_bounds(dtype)}
    if dtype.startswith("complex"):
        real = {"anyOf": [number, boolean]}
        return [{"type": "array", "prefixItems": [real, real], "minItems": 2, "maxItems": 2, "items": False}]
    return [number, boolean]


def _bounds(dtype: str) -> dict[str, float]:
    """Return the bounds of a floating-point type's elements."""
    if (most := TOO_LARGE.get(dtype)) is not None:
        return {"exclusiveMinimum": -most, "exclusiveMaximum": most}
    most = MOST_FLOATS.get(dtype, _FLOAT64)
    return {"minimum": -most, "maximum": most}
