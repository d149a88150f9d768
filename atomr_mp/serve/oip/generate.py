"""The extension `generate`: inputs and parameters are fields of a plain JSON object, and so are outputs. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.layout import MAX_DIMENSIONS
from atomr_mp.serve.oip import tensors
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.requests import InferAnswer, InferRequest, ParameterValue
from atomr_mp.serve.oip.signature import TensorInfo
from atomr_mp.serve.oip.tensors import NamedTensor

_TAKEN: Final = frozenset({"id", "parameters"})


def request_of(model: Model, version: str, given: object) -> InferRequest:
    """Return the inference that an object asks for; fields that have no input's name are parameters.

    Args:
        model: The model.
        version: The version in the path; empty for none.
        given: The body's value.

    Raises:
        InvalidRequest: It is no such object.
    """
    if not isinstance(given, dict):
        raise errors.InvalidRequest(f"the body is a JSON object with the inputs of {model.name} by name")
    identity = given.get("id", "")
    more = given.get("parameters", {})
    if not isinstance(identity, str) or not isinstance(more, dict):
        raise errors.InvalidRequest("`id` is a text, and `parameters` an object")
    inputs: list[NamedTensor] = []
    parameters: dict[str, ParameterValue] = {}
    for name, value in [*more.items(), *given.items()]:
        if name in model.inputs and name in given:
            if value is given[name]:
                inputs.append(_input(model, name, value))
        elif name not in _TAKEN:
            if not isinstance(value, bool | int | float | str):
                known = ", ".join(model.inputs)
                raise errors.InvalidRequest(
                    f"{name[:100]!r} is no input of {model.name} (it has: {known}), and a parameter is a number, a "
                    "text, true or false"
                )
            parameters[name] = value
    return InferRequest(model.name, version, identity, parameters, inputs, [])


def _input(model: Model, name: str, value: object) -> NamedTensor:
    elements = value if isinstance(value, list) else [value]
    info = model.inputs[name]
    nested = _lengths(elements)
    if len(nested) == 1:
        return tensors.of_json(name, info.datatype, _shape(info, len(elements)), elements)
    if info.has_rows and (info.shape is None or len(nested) < len(info.shape)):
        nested, elements = (1, *nested), [elements]  # one row
    return tensors.of_json(name, info.datatype, nested, elements)


def _lengths(value: object) -> tuple[int, ...]:
    """Return the lengths of nested lists, by their first elements."""
    found: list[int] = []
    while isinstance(value, list) and len(found) <= MAX_DIMENSIONS:
        found.append(len(value))
        value = value[0] if value else None
    return tuple(found)


def _shape(info: TensorInfo, count: int) -> tuple[int, ...]:
    """Return the shape of so many elements: of one row, as the input is described, its open length as it follows."""
    flat = (1, count) if info.has_rows else (count,)
    if info.shape is None:
        return flat
    shape = (1, *info.shape[1:]) if info.has_rows else info.shape
    known = math.prod(length for length in shape if length != -1)
    return flat if shape.count(-1) > 1 else tuple(count // known if length == -1 else length for length in shape)


def encode(answer: InferAnswer) -> bytes:
    """Return an answer as JSON, with an output of one element as that.

    Raises:
        Unsupported: An output has no form in JSON.
    """
    told: dict[str, Any] = {"id": answer.id} if answer.id else {}
    told |= {"model_name": answer.model, "model_version": answer.version}
    for output in answer.outputs:
        try:
            elements = tensors.as_json(output)
        except ValueError as error:
            raise errors.Unsupported(f"output {output.name!r}: {error}", maybe_executed=True) from error
        told[output.name] = elements[0] if len(elements) == 1 else elements
    return msgspec.json.encode(told)
