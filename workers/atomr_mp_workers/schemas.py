"""A method's arguments and result as JSON Schema, for callers that are not written in Python. Pure."""

from __future__ import annotations

import collections.abc
import sys
import typing
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp.protocol.foreign import tensor_class
from atomr_mp_workers.annotations import Array, TensorArgument, adapter_of, result_adapter
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.pydantic_schemas import schema_by_pydantic

MAX_SCHEMA_CHARS: Final = 8192
"""Most characters of a schema; a longer one is left out, since the schemas of all actors travel in one message."""

REF: Final = "#/$defs/{name}"

ARRAY: Final[dict[str, Any]] = {"type": "array", "format": "ndarray"}

OPENAI_FORMS: Final = ("embeddings", "chat", "completions")

NOT_CHECKED: Final[dict[str, Any]] = {}
"""The schema that every value fits."""


class Described(NamedTuple):
    """A parameter, as far as a schema shows it."""

    name: str
    annotation: Any
    """The annotation that callers see: an item's, for a batched method."""
    decoded_as: Any
    """The type that msgspec decodes its argument to."""
    required: bool


def schema_of(parameters: Sequence[Described], result: Any, openai: str = "") -> str:
    """Return a JSON object as text, with `arguments`, `result`, `$defs`, and `openai` if the method has such a form.

    It has only the form, if any, where the schema would be huge or has no JSON form.

    `arguments` is the schema of an object with the arguments by name; one whose annotation cannot be shown fits every
    value there. A NumPy array is `{"type": "array", "format": "ndarray"}`, with its element type as `dtype` where the
    annotation names one.

    Args:
        parameters: The method's parameters, in order.
        result: The annotation of a caller's result; `Any` if there is none.
        openai: One of `OPENAI_FORMS`, or empty.
    """
    form = {"openai": openai} if openai else {}
    without = msgspec.json.encode(form).decode() if form else ""
    definitions: dict[str, Any] = {}
    properties: dict[str, dict[str, Any]] = {}
    for each in parameters:
        try:
            properties[each.name] = _schema(each.annotation, each.decoded_as, definitions)
        except BaseException:  # noqa: BLE001 - an annotation's class may have code of its own; the method works all the same
            properties[each.name] = NOT_CHECKED
    try:
        returned = _of_result(result, definitions)
    except BaseException:  # noqa: BLE001 - results are not checked, so their annotation may be anything
        returned = NOT_CHECKED
    arguments = {
        "type": "object",
        "properties": properties,
        "required": [each.name for each in parameters if each.required],
        "additionalProperties": False,
    }
    try:
        whole = {"arguments": arguments, "result": returned, "$defs": definitions} | form
        text = msgspec.json.encode(whole).decode()
    except (TypeError, ValueError, RecursionError):  # a default or an example without a JSON form
        return without
    return text if len(text) <= MAX_SCHEMA_CHARS else without


def item_of(result: Any) -> Any:
    """Return the annotation of one result of a batched method, from that of its list; `Any` if unknown."""
    if typing.get_origin(result) in {list, collections.abc.Sequence}:
        return typing.get_args(result)[0]
    return Any


def part_of(result: Any) -> Any:
    """Return the annotation of one part of a generator, from its return annotation; `Any` if unknown."""
    given = typing.get_args(result)
    return given[0] if typing.get_origin(result) in _OF_PARTS and given else Any


_OF_PARTS: Final = frozenset(
    {
        collections.abc.AsyncGenerator,
        collections.abc.AsyncIterable,
        collections.abc.AsyncIterator,
        collections.abc.Generator,
        collections.abc.Iterable,
        collections.abc.Iterator,
    }
)


def _schema(
    annotation: Any, decoded_as: Any, definitions: dict[str, Any], *, of_result: bool = False
) -> dict[str, Any]:
    array = _array_schema(annotation)
    if array is not None:
        return array

    def of_other(kind: type) -> dict[str, Any]:
        """Return the schema of a class that msgspec does not know, inside a list, map or struct."""
        adapter = adapter_of(kind)
        if adapter is not None:
            return _of_pydantic(adapter, definitions, of_result=of_result)
        # Of any other class the name: msgspec takes an empty schema for none, and then has one of nothing.
        return _array_schema(kind) or ({"type": "number"} if kind is complex else {"title": kind.__name__})

    (schema,), more = msgspec.json.schema_components([decoded_as], schema_hook=of_other, ref_template=REF)
    names = {each: _free_name(each, definition, definitions) for each, definition in more.items()}
    definitions.update({names[each]: _renamed(definition, names) for each, definition in more.items()})
    found: dict[str, Any] = _renamed(schema, names)
    _name_elements(annotation, found)
    return found


def _name_elements(annotation: Any, schema: dict[str, Any]) -> None:
    """Put the element types of arrays in unions and lists into a schema; msgspec shows no more than their class."""
    array = _array_schema(annotation)
    if array is not None:
        if schema.get("format") == "ndarray":
            schema.update(array)
        return
    arguments = typing.get_args(annotation)
    for option in schema.get("anyOf", ()):
        for each in arguments:  # a union has one array at most
            _name_elements(each, option)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict) and arguments:
            _name_elements(arguments[-1], inner)


def _of_result(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    adapter = result_adapter(annotation)
    if adapter is None and typing.is_typeddict(annotation):  # msgspec forgets the element types of arrays in it
        fields = typing.get_type_hints(annotation, include_extras=False)
        found = {name: _schema(each, each, definitions, of_result=True) for name, each in fields.items()}
        return {"type": "object", "properties": found, "required": sorted(annotation.__required_keys__)}
    if adapter is None:
        return _schema(annotation, annotation, definitions, of_result=True)
    return _of_pydantic(adapter, definitions, of_result=True)


def _of_pydantic(adapter: Any, definitions: dict[str, Any], *, of_result: bool) -> dict[str, Any]:
    """Return the schema of what pydantic validates, or makes of a result; add its definitions."""
    found = schema_by_pydantic(adapter, _array_schema, of_result=of_result)
    more = found.pop("$defs", {})
    names = {each: _free_name(each, definition, definitions) for each, definition in more.items()}
    definitions.update({names[each]: _renamed(definition, names) for each, definition in more.items()})
    return _renamed(found, names)  # type: ignore[no-any-return]


def _free_name(name: str, definition: Any, definitions: dict[str, Any]) -> str:
    """Return a name for a definition that no other one has: two classes may have the same."""
    free, number = name, 1
    while definitions.get(free, definition) != definition:
        number += 1
        free = f"{name}{number}"
    return free


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    """Return a schema whose references have other names."""
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    renamed = {each: _renamed(value, names) for each, value in schema.items()}
    if isinstance(reference, str):
        renamed["$ref"] = REF.format(name=names.get(at := reference.removeprefix(REF.format(name="")), at))
    return renamed


def _array_schema(annotation: Any) -> dict[str, Any] | None:
    """Return the schema of an annotation that is an array, such as `NDArray[np.float32]`; None for any other."""
    if annotation is DeviceArray:
        return ARRAY | {"description": "A ref to device memory"}
    if annotation is Array or annotation is TensorArgument or (annotation is not None and annotation is tensor_class()):
        return dict(ARRAY)
    numpy = sys.modules.get("numpy")
    # From Python 3.12 on, NDArray is an alias; its value counts.
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation) or annotation
    behind = getattr(origin, "__value__", None)
    if numpy is None or (typing.get_origin(behind) or origin) is not numpy.ndarray:
        return None
    element = arguments[-1] if arguments else None  # np.dtype[np.float32], or np.float32 in the alias
    element = (typing.get_args(element) or (element,))[0]
    if element in numpy.sctypeDict.values():
        return ARRAY | {"dtype": numpy.dtype(element).name}
    return dict(ARRAY)
