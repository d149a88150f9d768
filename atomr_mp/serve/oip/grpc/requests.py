"""Translates between gRPC's messages and the protocol's requests and answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from atomr_mp import errors
from atomr_mp.serve.oip import datatypes, tensors
from atomr_mp.serve.oip.datatypes import ONLY_RAW
from atomr_mp.serve.oip.grpc.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from atomr_mp.serve.oip.http_body import MOST_PARAMETERS
from atomr_mp.serve.oip.requests import (
    AskedOutput,
    InferAnswer,
    InferRequest,
    ParameterValue,
    SharedInput,
    check_reserved,
    extent_of,
    told_extent,
)
from atomr_mp.serve.oip.tensors import NamedTensor

FINAL: Final = "triton_final_response"
"""The parameter of a stream's answer that says whether it is the last one of its request."""

SMALL_BYTES: Final = 64 * 2**10
"""Messages up to here are decoded without a look at how many fields they have."""

MOST_FIELDS: Final = 10_000
"""Most fields of a larger message, without the elements of its tensors: an empty one takes many times its two bytes."""

MOST_TYPED_ELEMENTS: Final = 2**21
"""Most elements of a request in typed contents, each of which is looked at by itself."""

MOST_ANSWER_BYTES: Final = 2**31 - 2**16
"""Most bytes of an answer's tensors: a message has less than 2 GiB."""

CONTENTS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    datatypes.BYTES: "bytes_contents",
}
"""The field of typed contents by datatype."""

MOST_VERSION_DIGITS: Final = 18
"""Most digits of a version, which is a signed number of 64 bits."""

_NESTED: Final[dict[int, Any]] = {4: {}, 5: {4: {}}, 6: {2: {}}}
"""Numbers of the repeated messages in a request, and of those in them."""


def decode(data: bytes) -> InferRequest:
    """Return the request of a ModelInferRequest.

    Raises:
        InvalidRequest: The bytes are none, or what they ask for is no request.
    """
    return request_of(message_of(data))


def message_of(data: bytes) -> Any:
    """Return a ModelInferRequest.

    Raises:
        InvalidRequest: The bytes are none, or it has too many fields.
    """
    if len(data) > SMALL_BYTES:
        _check_fields(memoryview(data), _NESTED, MOST_FIELDS)
    return parsed(ModelInferRequest, data)


def head_of(message: Any) -> InferRequest:
    """Return the model, the version and the id of a ModelInferRequest, as a request without tensors."""
    return InferRequest(message.model_name, message.model_version, message.id, {}, (), ())


def request_of(message: Any) -> InferRequest:
    """Return the request of a ModelInferRequest.

    Raises:
        InvalidRequest: It asks for what is no request.
    """
    check_version(message.model_version)
    raw = message.raw_input_contents
    inputs, shared = _apart(message.inputs)
    if len(raw) > 0:
        if len(raw) != len(inputs):
            beside = " beside those in shared memory" if shared else ""
            raise errors.InvalidRequest(
                f"the request has {len(inputs)} inputs{beside} and {len(raw)} raw_input_contents; each input has one"
            )
        found = [_of_raw(each, content) for each, content in zip(inputs, raw, strict=True)]
    else:
        found = _of_contents(inputs)
    parameters = _parameters("the request", message.parameters)
    check_reserved(parameters)
    return head_of(message)._replace(
        parameters=parameters, inputs=found, outputs=[_asked(each) for each in message.outputs], shared=shared
    )


def check_version(version: str) -> None:
    """Check that a version is empty or a whole number, as those of models are.

    Raises:
        InvalidRequest: It is something else.
    """
    if version and not (version.isascii() and version.isdigit() and len(version) <= MOST_VERSION_DIGITS):
        raise errors.InvalidRequest(f"a version is a whole number, not {version[:20]!r}")


def parsed(kind: Any, data: bytes) -> Any:
    """Return a message of a class.

    Raises:
        InvalidRequest: The bytes are none.
    """
    try:
        return kind.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise errors.InvalidRequest(f"the bytes are no {kind.DESCRIPTOR.name}: {error}") from error


def encode(answer: InferAnswer) -> bytes:
    """Return an answer as a ModelInferResponse.

    Raises:
        Unsupported: It has no form as a message.
    """
    message = ModelInferResponse()
    _fill(message, answer)
    found: bytes = message.SerializeToString()
    return found


def encode_part(answer: InferAnswer, *, is_final: bool) -> bytes:
    """Return an answer as a ModelStreamInferResponse.

    Args:
        answer: The answer.
        is_final: Whether no other one of its request follows.

    Raises:
        Unsupported: It has no form as a message.
    """
    message = ModelStreamInferResponse()
    _fill(message.infer_response, answer)
    message.infer_response.parameters[FINAL].bool_param = is_final
    found: bytes = message.SerializeToString()
    return found


def encode_end(model: str, request_id: str, error: str = "") -> bytes:
    """Return the last ModelStreamInferResponse of a request, without outputs.

    Args:
        model: The model's name; empty if it is not known.
        request_id: The request's id.
        error: What has ended it; empty for its proper end.
    """
    message = ModelStreamInferResponse(error_message=error)
    message.infer_response.model_name, message.infer_response.id = model, request_id
    message.infer_response.parameters[FINAL].bool_param = True
    found: bytes = message.SerializeToString()
    return found


def _fill(message: Any, answer: InferAnswer) -> None:
    message.model_name, message.model_version, message.id = answer.model, answer.version, answer.id
    for name, value in answer.parameters.items():
        setattr(message.parameters[name], _choice(value), value)
    left = MOST_ANSWER_BYTES
    for tensor in answer.outputs:
        extent = answer.shared.get(tensor.name)
        data = b"" if extent is not None else tensors.raw(tensor)  # clients count outputs and contents together
        left -= len(data)
        if left < 0:
            raise errors.Unsupported("the answer has 2 GiB or more, which no message has", maybe_executed=True)
        try:
            output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        except ValueError as error:  # UnicodeEncodeError is one
            raise errors.Unsupported(f"an output has a name that is no text: {error}", maybe_executed=True) from error
        for name, value in ({} if extent is None else told_extent(extent)).items():
            setattr(output.parameters[name], _choice(value), value)
        message.raw_output_contents.append(data)


def _choice(value: ParameterValue) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "int64_param" if value < 2**63 else "uint64_param"
    return "double_param" if isinstance(value, float) else "string_param"


def _of_raw(given: Any, content: bytes) -> NamedTensor:
    """Return an input whose elements are raw."""
    name, datatype, shape = _head(given)
    if given.HasField("contents"):
        raise errors.InvalidRequest(
            f"tensor {name[:100]!r} has contents, and the request raw_input_contents; all inputs have one or the other"
        )
    return tensors.of_raw(name, datatype, shape, memoryview(content))


def _of_contents(inputs: Any) -> list[NamedTensor]:
    """Return the inputs of a request that has no raw ones.

    Raises:
        InvalidRequest: One is no tensor.
    """
    found, left = [], MOST_TYPED_ELEMENTS
    for given in inputs:
        name, datatype, shape = _head(given)
        if datatype in ONLY_RAW:
            raise errors.InvalidRequest(f"tensor {name[:100]!r}: {datatype} has no typed contents; send it raw")
        own = CONTENTS[datatype]
        other = next((field for field in CONTENTS.values() if field != own and len(getattr(given.contents, field))), "")
        if other:
            raise errors.InvalidRequest(f"tensor {name[:100]!r}: elements of {datatype} are in {own}, not in {other}")
        elements = getattr(given.contents, own)
        left -= len(elements)
        if left < 0:
            raise errors.InvalidRequest(
                f"the request has more than {MOST_TYPED_ELEMENTS} elements in typed contents; send them raw"
            )
        found.append(tensors.of_list(name, datatype, shape, elements))
    return found


def _apart(inputs: Any) -> tuple[list[Any], list[SharedInput]]:
    """Return the inputs that lie in no shared memory, and those that do.

    Raises:
        InvalidRequest: Parameters name no place there.
    """
    others: list[Any] = []
    shared: list[SharedInput] = []
    for given in inputs:
        shown = given.name[:100]
        extent = extent_of(f"tensor {shown!r}", _parameters(f"input {shown!r}", given.parameters))
        if extent is None:
            others.append(given)
        elif given.HasField("contents"):
            raise errors.InvalidRequest(
                f"tensor {shown!r} has contents, and a region of shared memory; it has one or the other"
            )
        else:
            shared.append(SharedInput(*_head(given), extent))
    return others, shared


def _head(given: Any) -> tuple[str, str, tuple[int, ...]]:
    """Return an input's name, datatype and shape.

    Raises:
        InvalidRequest: One of them is none.
    """
    name: str = given.name
    if not name:
        raise errors.InvalidRequest("an input has no `name`")
    return name, datatypes.check(given.datatype), tensors.shape_of(name, tuple(given.shape))


def _asked(given: Any) -> AskedOutput:
    name: str = given.name
    if not name:
        raise errors.InvalidRequest("an output has no `name`")
    shown = f"output {name[:100]!r}"
    parameters = _parameters(shown, given.parameters)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise errors.InvalidRequest(f"{shown}: classification is a number of classes")
    extent = extent_of(shown, parameters)
    if extent is not None and classes:
        raise errors.InvalidRequest(f"{shown} has a region of shared memory, and classification; it has one of them")
    return AskedOutput(name, classes, is_binary=True, extent=extent)


def _parameters(whose: str, given: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """Return parameters.

    Raises:
        InvalidRequest: There are too many, or one has no value.
    """
    if len(given) > MOST_PARAMETERS:
        raise errors.InvalidRequest(f"`parameters` of {whose} are at most {MOST_PARAMETERS}")
    found: dict[str, ParameterValue] = {}
    for name, value in given.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise errors.InvalidRequest(f"the parameter {name[:100]!r} of {whose} has no value")
        found[name] = getattr(value, choice)
    return found


def _check_fields(data: memoryview, nested: Mapping[int, Any], left: int) -> int:
    """Count the fields of a message, and return how many more there may be.

    Args:
        data: The message. What is wrong with it is left to its decoder.
        nested: Numbers of the fields in which the fields count, too.
        left: How many there may be.

    Raises:
        InvalidRequest: There are more.
    """
    at, end = 0, len(data)
    while at < end:
        if not left:
            raise errors.InvalidRequest(f"the request has more than {MOST_FIELDS} inputs, outputs and parameters")
        left -= 1
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            if tag >> 3 in nested:
                left = _check_fields(data[at : at + length], nested[tag >> 3], left)
            at += length
        elif kind in {1, 5}:
            at += 8 if kind == 1 else 4
        # The start or the end of a group has no more than its tag.
    return left


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the place behind it; behind the data if it is not whole."""
    found = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7
    return 0, len(data)
