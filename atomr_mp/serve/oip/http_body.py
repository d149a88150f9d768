"""Bodies of HTTP: JSON, and behind it the raw data of tensors, in the order in which the JSON names them. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.serve.oip import datatypes, tensors
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.requests import (
    AskedOutput,
    InferAnswer,
    InferRequest,
    Parameters,
    SharedInput,
    check_reserved,
    extent_of,
    told_extent,
)
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.values.bodies import from_json
from atomr_mp.serve.values.results import MOST_ELEMENTS

MOST_TENSORS: Final = 256
"""Most inputs, or outputs, that a request names."""

MOST_PARAMETERS: Final = 256
"""Most parameters of a request or of one of its tensors."""


def decode(name: str, version: str, body: bytes, json_bytes: int, most_containers: int) -> InferRequest:
    """Return the inference that a body asks for.

    Args:
        name: The model's name in the path.
        version: The version in the path; empty for none.
        body: The body.
        json_bytes: How many bytes of it are JSON; raw data follows.
        most_containers: Most lists and objects in the JSON.

    Raises:
        Problem: 400 or 413; the JSON is none, or too large.
        InvalidRequest: The body is no request.
    """
    given = read(body[:json_bytes], most_containers)
    if not isinstance(given, dict):
        raise errors.InvalidRequest("the body is a JSON object with `inputs`")
    parameters = _parameters("the request", given.get("parameters"))
    check_reserved(parameters)
    inputs = given.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise errors.InvalidRequest("`inputs` is a list of at least one tensor")
    reader = _RawData(memoryview(body)[json_bytes:])
    if len(inputs) > MOST_TENSORS:
        raise errors.InvalidRequest(f"`inputs` has {len(inputs)} tensors; the most are {MOST_TENSORS}")
    found = [_input(each, reader) for each in inputs]
    reader.check_end()
    _flag("the request", parameters, "binary_data_output")
    outputs = given.get("outputs")
    if outputs is None:
        outputs = []
    if not isinstance(outputs, list) or len(outputs) > MOST_TENSORS:
        raise errors.InvalidRequest(f"`outputs` is a list of the outputs that are wanted, at most {MOST_TENSORS}")
    asked = list(map(_asked, outputs))
    read_inputs = [each for each in found if isinstance(each, NamedTensor)]
    shared = [each for each in found if isinstance(each, SharedInput)]
    return InferRequest(name, version, _id(given.get("id")), parameters, read_inputs, asked, shared)


def read(text: bytes, most_containers: int) -> Any:
    """Return the value of a JSON text, which may have NaN, Infinity and -Infinity, as Triton's clients write them.

    Raises:
        Problem: 400 or 413; it is no JSON, or too large.
        InvalidRequest: It is nested too deeply.
    """
    is_plain = b"NaN" not in text and b"Infinity" not in text
    return from_json(text, most_containers, msgspec.json.decode if is_plain else json.loads)


def of_raw(model: Model, version: str, body: bytes) -> InferRequest:
    """Return the request of a body that is the data of a model's only input; its shape follows from its length.

    BYTES are one element, which is the body as it is.

    Raises:
        InvalidRequest: The model has several inputs, or no shape follows.
    """
    if len(model.inputs) != 1:
        raise errors.InvalidRequest(
            f"a body without JSON is the only input of a model, and {model.name} has {len(model.inputs)}"
        )
    (info,) = model.inputs.values()
    shape = list(info.told_shape)
    if model.setting.max_batch_size:
        shape[0] = 1
    if info.datatype == datatypes.BYTES:
        if any(length != 1 for length in shape) or len(body) >= 2**32:
            raise errors.InvalidRequest(f"input {info.name!r} is not one element of BYTES, so it needs JSON")
        body = datatypes.pack([body])
        count = 1
    else:
        count = len(body) // tensors.element_bytes(info.datatype)
    known = 1
    for length in shape:
        known *= 1 if length < 0 else length
    if shape.count(-1) > 1:
        raise errors.InvalidRequest(f"input {info.name!r} has more than one open length, so its shape does not follow")
    if -1 in shape:
        shape[shape.index(-1)] = count // known if known else 0
    tensor = tensors.of_raw(info.name, info.datatype, tuple(shape), memoryview(body))
    return InferRequest(model.name, version, "", {"binary_data_output": True}, [tensor], [])


def is_binary(request: InferRequest, name: str) -> bool:
    """Return whether an answer has an output as raw data; a request that names its outputs says so of each."""
    if request.outputs:
        return any(each.is_binary or each.extent is not None for each in request.outputs if each.name == name)
    return bool(request.parameters.get("binary_data_output", False))


def check_outputs(model: Model, request: InferRequest) -> None:
    """Refuse a request whose answer would have no form in JSON, before it runs.

    Raises:
        InvalidRequest: An output has a type that is sent as raw data alone, and is not asked for so.
    """
    outputs = model.outputs or {}
    named = {each.name for each in request.outputs if not each.classes}
    for info in outputs.values():
        # A model with several may leave this one out where none is named.
        is_wanted = info.name in named or (not request.outputs and len(outputs) == 1)
        if is_wanted and info.datatype in datatypes.ONLY_RAW and not is_binary(request, info.name):
            raise errors.InvalidRequest(
                f"output {info.name!r} is {info.datatype}, which JSON does not have; ask for it with `binary_data` true"
            )


def encode(request: InferRequest, answer: InferAnswer) -> tuple[bytes, int | None]:
    """Return an answer's body, and how many bytes of it are JSON; None if all are.

    Raises:
        Unsupported: An output has no form in JSON, and was not asked for as raw data.
    """
    told: list[dict[str, Any]] = []
    raw: list[bytes] = []
    elements = 0
    for output in answer.outputs:
        shown: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if output.name in answer.shared:
            shown["parameters"] = told_extent(answer.shared[output.name])
        elif is_binary(request, output.name):
            data = tensors.raw(output)
            shown["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            elements += len(output.values) if isinstance(output.values, list) else output.values.size
            if elements > MOST_ELEMENTS:
                why = f"its outputs have more than {MOST_ELEMENTS} elements; ask for them with `binary_data` true"
                raise errors.Unsupported(f"the answer cannot be sent as JSON: {why}", maybe_executed=True)
            try:
                shown["data"] = tensors.as_json(output)
            except ValueError as error:
                raise errors.Unsupported(f"output {output.name!r}: {error}", maybe_executed=True) from error
        told.append(shown)
    head: dict[str, Any] = {"id": answer.id} if answer.id else {}
    head |= {"model_name": answer.model, "model_version": answer.version}
    if answer.parameters:
        head["parameters"] = dict(answer.parameters)
    text = msgspec.json.encode(head | {"outputs": told})
    return (b"".join((text, *raw)), len(text)) if raw else (text, None)


class _RawData:
    """Reads the raw data behind the JSON.

    Args:
        data: It.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, name: str, size: object) -> memoryview:
        """Return the next bytes."""
        if type(size) is not int or size < 0:
            raise errors.InvalidRequest(f"tensor {name!r}: binary_data_size is a number of bytes")
        if size > len(self._data):
            raise errors.InvalidRequest(
                f"tensor {name!r}: binary_data_size is {size}, and {len(self._data)} bytes are left behind the JSON"
            )
        found, self._data = self._data[:size], self._data[size:]
        return found

    def check_end(self) -> None:
        """Check that all was read."""
        if len(self._data):
            raise errors.InvalidRequest(f"{len(self._data)} bytes are left behind the data of all tensors")


def _input(given: object, reader: _RawData) -> NamedTensor | SharedInput:
    if not isinstance(given, dict):
        raise errors.InvalidRequest("each of `inputs` is an object with name, datatype, shape, and data")
    name = _name("an input", given)
    parameters = _parameters(f"input {name!r}", given.get("parameters"))
    datatype = datatypes.check(given.get("datatype"))
    shape = tensors.shape_of(name, given.get("shape"))
    extent = extent_of(f"tensor {name!r}", parameters)
    if extent is not None:
        if "data" in given or "binary_data_size" in parameters:
            raise errors.InvalidRequest(
                f"tensor {name!r} has data, and a region of shared memory; it has one or the other"
            )
        return SharedInput(name, datatype, shape, extent)
    if "binary_data_size" in parameters:
        if "data" in given:
            raise errors.InvalidRequest(f"tensor {name!r} has both `data` and binary_data_size")
        return tensors.of_raw(name, datatype, shape, reader.take(name, parameters["binary_data_size"]))
    if "data" not in given:
        raise errors.InvalidRequest(f"tensor {name!r} has neither `data` nor binary_data_size")
    return tensors.of_json(name, datatype, shape, given["data"])


def _asked(given: object) -> AskedOutput:
    if not isinstance(given, dict):
        raise errors.InvalidRequest("each of `outputs` is an object with a name")
    name = _name("an output", given)
    parameters = _parameters(f"output {name!r}", given.get("parameters"))
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise errors.InvalidRequest(f"output {name!r}: classification is a number of classes")
    is_binary, extent = _flag(f"output {name!r}", parameters, "binary_data"), extent_of(f"output {name!r}", parameters)
    if extent is not None and (classes or is_binary):
        raise errors.InvalidRequest(
            f"output {name!r} has a region of shared memory, and classification or binary_data; it has one of them"
        )
    return AskedOutput(name, classes, is_binary, extent)


def _name(what: str, given: dict[str, Any]) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise errors.InvalidRequest(f"{what} has no `name`")
    return name


def _id(given: object) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise errors.InvalidRequest("`id` is a text")
    return given


def _parameters(whose: str, given: object) -> Parameters:
    """Return parameters.

    Raises:
        InvalidRequest: They are no object, or have a value that is none of a parameter.
    """
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MOST_PARAMETERS:
        raise errors.InvalidRequest(f"`parameters` of {whose} is an object of at most {MOST_PARAMETERS} values")
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise errors.InvalidRequest(f"the parameter {name[:100]!r} of {whose} is a number, a text, true or false")
    return given


def _flag(whose: str, parameters: Parameters, name: str) -> bool:
    found = parameters.get(name, False)
    if not isinstance(found, bool):
        raise errors.InvalidRequest(f"the parameter {name} of {whose} is true or false")
    return found
