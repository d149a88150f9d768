"""The way to make a method's arguments from JSON, by its JSON Schema: arrays from lists, bytes from base64. Pure.

The worker checks arguments, since it knows the annotations themselves. Here only values without a JSON form are
converted, and numbers that JSON lets its writers spell otherwise: 5.0 is a whole number, and JavaScript writes 1e20
as 100000000000000000000.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.crossing import JsonArguments
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.words import counted
from atomr_mp.serve.values.conversions import Convert, OddNumbers, Rules, RulesOfNumbers, RulesOfResult, converter_of
from atomr_mp.serve.values.slots import MAX_REF_DEPTH, FieldSlot, raw_parameter, slot_of
from atomr_mp.serve.values.unions import REF, options_of


class ArgumentPlan(NamedTuple):
    """The way to make a method's arguments from JSON."""

    method: str
    """ "Actor.method"."""
    info: MethodInfo
    """The method's description, from which the plan was made."""
    converts: dict[OddNumbers, dict[str, Convert]]
    """Conversions by parameter, for the numbers that there may be; parameters that need none are left out."""
    array: str
    """The parameter that a raw array becomes, empty if there is none."""
    slots: Mapping[str, FieldSlot]
    """How parameters take files and fields of forms."""
    raw: str
    """The parameter that a raw body becomes, empty if there is none."""
    result: Mapping[str, Any]
    """The result's schema."""
    has_odd_numbers: bool
    """Whether any argument may have odd numbers."""
    as_json: Convert | None = None
    """Returns a result as its JSON has it, where that differs from its form in Python; None if it does not."""

    def arguments(
        self,
        given: object,
        numbers: OddNumbers = OddNumbers(),  # noqa: B008 - a value
    ) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
        """Return arguments by position and by name.

        Args:
            given: The JSON value: an object by name, or an array by position.
            numbers: The numbers that it may have.

        Raises:
            InvalidRequest: The value is neither, or has a part that cannot be converted.
        """
        converts = self.converts[numbers]
        if type(given) is dict:
            named = JsonArguments(given)
            if converts:
                for name, value in given.items():
                    named[name] = self._converted(converts.get(name), name, value)
            return (), named
        if type(given) is list:
            if not converts:
                return tuple(given), None
            names = self.info.parameters
            by_place = zip(names, given, strict=False)
            found = [self._converted(converts.get(name), name, value) for name, value in by_place]
            # Surplus arguments stay as they are: the worker tells how many there may be.
            return (*found, *given[len(found) :]), None
        raise errors.InvalidRequest(
            f"the arguments of {self.method} are a JSON object, by name, or an array, by position"
        )

    def converted(self, name: str, value: object) -> object:
        """Return the argument for a parameter's JSON value.

        Raises:
            InvalidRequest: The value cannot be converted.
        """
        return self._converted(self.converts[OddNumbers()].get(name), name, value)

    def _converted(self, convert: Convert | None, name: str, value: object) -> object:
        if convert is None:
            return value
        try:
            return convert(value)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise errors.InvalidRequest(f"argument {name} of {self.method}: {error}") from error


def plan_of(method: str, info: MethodInfo) -> ArgumentPlan:
    """Return how a method's arguments are made from JSON."""
    schema = decoded(info)
    definitions = schema.get("$defs", {})
    properties = schema.get("arguments", {}).get("properties", {})
    converts: dict[OddNumbers, dict[str, Convert]] = {}
    for numbers in itertools.starmap(OddNumbers, itertools.product((False, True), repeat=2)):
        rules = Rules(definitions, numbers, {})
        found = {name: converter_of(each, rules) for name, each in properties.items()}
        converts[numbers] = {name: convert for name, convert in found.items() if convert is not None}
    required = schema.get("arguments", {}).get("required", info.parameters)
    alone = required or info.parameters[:1]
    array = ""
    if len(alone) == 1 and (not properties or _admits_array(properties.get(alone[0], {}))):
        array = alone[0]
    slots = {name: slot_of(each, definitions) for name, each in properties.items()}
    result = schema.get("result", {})
    as_json = converter_of(result, RulesOfResult(definitions, OddNumbers(), {}))
    of_numbers = RulesOfNumbers(definitions, OddNumbers(), {})
    odd = any(converter_of(each, of_numbers) is not None for each in properties.values())
    return ArgumentPlan(method, info, converts, array, slots, raw_parameter(slots), result, odd, as_json)


def decoded(info: MethodInfo) -> dict[str, Any]:
    """Return a method's schema; empty if it has none."""
    return decode(info.schema)


def decode(text: str) -> dict[str, Any]:
    """Return a schema; empty if it is none."""
    try:
        schema: dict[str, Any] = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return schema


def needs_one_array(plan: ArgumentPlan) -> str:
    """Return the parameter that a raw array becomes.

    Raises:
        InvalidRequest: The method does not take exactly one array and nothing else.
    """
    if plan.array:
        return plan.array
    raise errors.InvalidRequest(
        f"{plan.method} does not take one array and nothing else: it has "
        f"{counted(len(plan.info.parameters), 'parameter')} ({', '.join(plan.info.parameters) or 'none'}); send JSON"
    )


def _admits_array(schema: Mapping[str, Any]) -> bool:
    """Return whether an array may be right: the schema names one, or names nothing."""
    options = schema.get("anyOf", [schema])
    return any(option.get("format") == "ndarray" or not option for option in options)


_EXAMPLES: Final[dict[str, Any]] = {
    "string": "text",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "null": None,
}


def example(info: MethodInfo) -> str:
    """Return arguments that a method may take, as JSON: the required ones, by name."""
    schema = decoded(info)
    arguments = schema.get("arguments", {})
    needed = arguments.get("required", info.parameters)
    properties = arguments.get("properties", {})
    definitions = schema.get("$defs", {})
    by_name = {name: _example(properties.get(name, {}), definitions, MAX_REF_DEPTH) for name in needed}
    return msgspec.json.encode(by_name).decode().replace("'", " ")


def unsuited(info: MethodInfo) -> int:
    """Return how little a method suits as an example: whether it needs large arguments, and whether it streams."""
    arguments = decoded(info).get("arguments", {})
    plain = all(
        arguments.get("properties", {}).get(name, {}).get("type") in {"string", "integer", "number", "boolean"}
        for name in arguments.get("required", info.parameters)
    )
    return (not plain) + info.streams


def _example(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    if schema.get("format") == "ndarray":
        return [1.0, 2.0]
    options = options_of(schema)
    if options:
        return _example(options[0], definitions, depth)
    if "$ref" in schema and depth:
        return _example(definitions.get(schema["$ref"].removeprefix(REF), {}), definitions, depth - 1)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: _example(properties.get(name, {}), definitions, depth) for name in schema.get("required", ())}
    return _EXAMPLES.get(schema.get("type", "string"), "text")
