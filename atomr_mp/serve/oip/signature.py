"""The tensors that a method takes and gives, from its schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from atomr_mp.serve.oip.datatypes import BYTES, DATATYPES
from atomr_mp.serve.values.slots import MAX_REF_DEPTH
from atomr_mp.serve.values.unions import REF, options_of

OUTPUT: Final = "output"
"""Name of the only output of a method that returns no mapping."""


class TensorKind(Enum):
    """What a tensor is in Python."""

    ARRAY = "array"
    SCALAR = "scalar"
    """A number or a truth value; the tensor has one element."""
    TEXT = "text"
    """A `str`; the tensor has one element."""
    BINARY = "binary"
    """A `bytes`; the tensor has one element."""
    LIST = "list"
    """A list of numbers or truth values."""
    TEXTS = "texts"
    BINARIES = "binaries"


class TensorInfo(NamedTuple):
    """What is known of an input or an output."""

    name: str
    datatype: str
    """One of the protocol's names."""
    shape: tuple[int, ...] | None
    """Lengths, -1 for any, that of the batch among them; None if not even their number is known."""
    form: TensorKind
    is_optional: bool = False
    has_rows: bool = False
    """Whether the first length is that of the batch."""

    @property
    def told_shape(self) -> list[int]:
        """The shape that metadata tells; one of unknown lengths has one of them, beside that of the batch."""
        return [-1] * (1 + self.has_rows) if self.shape is None else list(self.shape)


_TELLING: Final = frozenset({"type", "format", "anyOf", "oneOf", "allOf", "enum", "const", "$ref", "contentEncoding"})
"""What makes a schema say anything of a value."""

_NUMBERS: Final = {"integer": "INT64", "number": "FP64", "boolean": "BOOL"}


class OpenTo(Enum):
    """What a parameter may be whose annotation names no tensor."""

    NOTHING = "nothing"
    """It is something else."""
    ARRAYS = "arrays"
    ANYTHING = "anything"


class NoTensor(NamedTuple):
    """A parameter whose annotation names no tensor."""

    why: str
    open_to: OpenTo


class NoTensorError(Exception):
    """A parameter is no tensor; the text says why.

    Args:
        why: The text.
        open_to: What it may be if somebody says so.
    """

    def __init__(self, why: str, open_to: OpenTo = OpenTo.NOTHING) -> None:
        super().__init__(why)
        self.open_to: Final = open_to


def info_of(name: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> TensorInfo:
    """Return the tensor that a parameter or a result is.

    Raises:
        NoTensorError: It is no tensor.
    """
    schema, may_be_none = _plain(schema, definitions, MAX_REF_DEPTH)
    form, datatype = _form(name, schema, definitions)
    shape = {TensorKind.ARRAY: None, TensorKind.LIST: (-1,), TensorKind.TEXTS: (-1,), TensorKind.BINARIES: (-1,)}.get(
        form, (1,)
    )
    return TensorInfo(name, datatype, shape, form, may_be_none or "default" in schema)


def _form(name: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[TensorKind, str]:
    match schema:
        case {"format": "ndarray", "dtype": str(dtype)} if dtype in DATATYPES:
            return TensorKind.ARRAY, DATATYPES[dtype]
        case {"format": "ndarray", "dtype": str(dtype)}:
            raise NoTensorError(f"{name} has elements of {dtype}, which the protocol does not have")
        case {"format": "ndarray"}:
            why = f"{name} is an array whose annotation names no element type, as NDArray[np.float32]"
            raise NoTensorError(why, OpenTo.ARRAYS)
        case {"contentEncoding": "base64"}:
            return TensorKind.BINARY, BYTES
        case {"type": "string"} if "format" not in schema:
            return TensorKind.TEXT, BYTES
        case {"type": str(kind)} if kind in _NUMBERS:
            return TensorKind.SCALAR, _NUMBERS[kind]
        case {"type": "array", "items": dict(items)} if "prefixItems" not in schema:
            form, datatype = _form(name, _plain(items, definitions, MAX_REF_DEPTH)[0], definitions)
            several = {
                TensorKind.SCALAR: TensorKind.LIST,
                TensorKind.TEXT: TensorKind.TEXTS,
                TensorKind.BINARY: TensorKind.BINARIES,
            }.get(form)
            if several is not None:
                return several, datatype
    open_to = OpenTo.NOTHING if _TELLING & schema.keys() else OpenTo.ANYTHING
    raise NoTensorError(f"{name} is neither an array nor a number, a text, bytes or a list of these", open_to)


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> tuple[Mapping[str, Any], bool]:
    """Return a schema behind references and without None, and whether it may be None."""
    reference = schema.get("$ref", "")
    if reference.startswith(REF) and depth:
        return _plain(definitions.get(reference.removeprefix(REF), {}), definitions, depth - 1)
    options = options_of(schema)
    if not options:
        return schema, False
    others = [each for each in options if each.get("type") != "null"]
    if len(others) != 1 or not depth:
        return {}, len(others) < len(options)
    found, may_be_none = _plain(others[0], definitions, depth - 1)
    more = {"default": schema["default"]} if "default" in schema else {}
    return {**found, **more}, may_be_none or len(others) < len(options)


def inputs_of(schema: Mapping[str, Any]) -> tuple[dict[str, TensorInfo], dict[str, NoTensor]]:
    """Return a method's inputs by name, and the parameters that are none."""
    arguments, definitions = schema.get("arguments", {}), schema.get("$defs", {})
    required = arguments.get("required", ())
    found: dict[str, TensorInfo] = {}
    others: dict[str, NoTensor] = {}
    for name, each in arguments.get("properties", {}).items():
        try:
            info = info_of(name, each, definitions)
        except NoTensorError as error:
            others[name] = NoTensor(str(error), error.open_to)
        else:
            found[name] = info._replace(is_optional=name not in required)
    return found, others


def kind_of(name: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON type of a parameter; empty if its annotation leaves it open, "other" if there is no one type."""
    given = schema.get("arguments", {}).get("properties", {}).get(name, {})
    found, _ = _plain(given, schema.get("$defs", {}), MAX_REF_DEPTH)
    kind = found.get("type", "other" if _TELLING & found.keys() else "")
    return kind if isinstance(kind, str) else "other"


def outputs_of(schema: Mapping[str, Any]) -> dict[str, TensorInfo] | None:
    """Return a method's outputs by name; None if its annotation does not tell them."""
    definitions = schema.get("$defs", {})
    result, _ = _plain(schema.get("result", {}), definitions, MAX_REF_DEPTH)
    properties = result.get("properties")
    try:
        if result.get("type") == "object" and properties:
            return {name: info_of(name, each, definitions) for name, each in properties.items()}
        return {OUTPUT: info_of(OUTPUT, result, definitions)}
    except NoTensorError:
        return None
