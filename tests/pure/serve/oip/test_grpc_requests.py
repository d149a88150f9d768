"""Requests and answers as messages."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays
from tritonclient.grpc import service_pb2 as theirs
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from atomr_mp import errors
from atomr_mp.serve.oip import tensors
from atomr_mp.serve.oip.datatypes import NAMES
from atomr_mp.serve.oip.grpc import requests
from atomr_mp.serve.oip.requests import InferAnswer
from atomr_mp.serve.oip.tensors import NamedTensor

SMALL = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
NUMPY = {name: np.dtype(ml_dtypes.bfloat16) if name == "BF16" else np.dtype(ours) for name, ours in NAMES.items()}
TYPED = sorted(set(requests.CONTENTS) - {"BYTES"})


def request(*inputs: Any, raw: tuple[bytes, ...] = (), **more: Any) -> theirs.ModelInferRequest:
    """Return a request as a client makes it."""
    return theirs.ModelInferRequest(model_name="A.m", inputs=inputs, raw_input_contents=raw, **more)


def tensor(name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (2,), **contents: Any) -> Any:
    """Return an input."""
    made = theirs.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(made.contents, field).extend(values)
    return made


def decoded(message: Any) -> Any:
    """Return what is read of a message."""
    return requests.decode(message.SerializeToString())


@given(some.data())
def test_raw_elements_of_any_type_come_as_they_were_sent(data: some.DataObject) -> None:
    """A client's array is the tensor's, and goes back as the same bytes."""
    datatype = data.draw(some.sampled_from(sorted(NUMPY)))
    element = NUMPY[datatype]
    shape = data.draw(SMALL)
    array = data.draw(arrays.arrays(np.uint8, (int(np.prod(shape)) * element.itemsize,)))
    if datatype == "BOOL":
        array &= 1
    array = array.view(element).reshape(shape)
    found = decoded(request(tensor("x", datatype, shape), raw=(array.tobytes(),)))
    (x,) = found.inputs
    assert (x.name, x.datatype, x.shape) == ("x", datatype, shape)
    assert x.values.dtype == element
    assert x.values.tobytes() == array.tobytes()
    answer = theirs.ModelInferResponse.FromString(
        requests.encode(InferAnswer("A.m", "1", "7", {}, [tensors.of_array("x", x.values)]))
    )
    assert (answer.model_name, answer.model_version, answer.id) == ("A.m", "1", "7")
    assert (answer.outputs[0].datatype, tuple(answer.outputs[0].shape)) == (datatype, shape)
    assert answer.raw_output_contents[0] == array.tobytes()


@given(some.data())
def test_typed_elements_come_as_they_were_sent(data: some.DataObject) -> None:
    """Numbers of each type, infinite ones among them."""
    datatype = data.draw(some.sampled_from(TYPED))
    array = data.draw(arrays.arrays(NUMPY[datatype], SMALL))
    found = decoded(
        request(tensor("x", datatype, array.shape, **{requests.CONTENTS[datatype]: array.reshape(-1).tolist()}))
    )
    values = found.inputs[0].values
    assert values.dtype == array.dtype
    np.testing.assert_array_equal(values, array)


@given(some.lists(some.binary(max_size=9), max_size=5), some.booleans())
def test_texts_and_bytes_come_as_they_were_sent(elements: list[bytes], is_raw: bool) -> None:  # noqa: FBT001 - drawn
    """BYTES, raw as the client packs them, and typed."""
    shape = (len(elements),)
    if is_raw:
        packed = serialize_byte_tensor(np.array(elements, object))
        given_one = request(tensor("x", "BYTES", shape), raw=(packed.item() if packed.size else b"",))
    else:
        given_one = request(tensor("x", "BYTES", shape, bytes_contents=elements))
    found = decoded(given_one).inputs[0]
    assert found.values == elements
    answer = theirs.ModelInferResponse.FromString(requests.encode(InferAnswer("m", "1", "", {}, [found])))
    assert deserialize_bytes_tensor(answer.raw_output_contents[0]).tolist() == elements


def test_parameters_have_each_type() -> None:
    """Parameters of the request are Python's values, and classification is of an output."""
    message = request(tensor(fp32_contents=[1, 2]), id="7", model_version="1")
    message.parameters["b"].bool_param = True
    message.parameters["i"].int64_param = -(2**63)
    message.parameters["s"].string_param = "text"
    message.parameters["d"].double_param = 1.5
    message.parameters["u"].uint64_param = 2**64 - 1
    message.outputs.add(name="y").parameters["classification"].int64_param = 3
    found = decoded(message)
    assert found.parameters == {"b": True, "i": -(2**63), "s": "text", "d": 1.5, "u": 2**64 - 1}
    assert (found.model, found.version, found.id) == ("A.m", "1", "7")
    assert [(each.name, each.classes) for each in found.outputs] == [("y", 3)]
    back = theirs.ModelInferResponse.FromString(requests.encode(InferAnswer("m", "1", "", found.parameters, [])))
    assert {name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in back.parameters.items()} == (
        found.parameters
    )


def test_each_output_has_its_raw_contents() -> None:
    """Clients find them by place, so an empty tensor has them, too."""
    outputs = [NamedTensor("a", "FP32", (0,), np.zeros(0, "f4")), NamedTensor("b", "BYTES", (1,), [b"x"])]
    found = theirs.ModelInferResponse.FromString(requests.encode(InferAnswer("m", "1", "", {}, outputs)))
    assert list(found.raw_output_contents) == [b"", b"\x01\0\0\0x"]


def with_parameter(message: Any, of: Any, name: str, **value: Any) -> Any:
    """Return a message after setting a parameter in it."""
    parameter = of(message).parameters[name]
    for field, each in value.items():
        setattr(parameter, field, each)
    return message


WRONG = {
    "raw and typed": (request(tensor(fp32_contents=[1, 2]), raw=(bytes(8),)), "one or the other"),
    "too few raw": (request(tensor(), tensor("y"), raw=(bytes(8),)), "2 inputs and 1 raw_input_contents"),
    "too many raw": (request(tensor(), raw=(bytes(8), b"")), "1 inputs and 2 raw_input_contents"),
    "no contents": (request(tensor()), "0 elements, and the shape"),
    "too few bytes": (request(tensor(), raw=(bytes(7),)), "its data has 7 bytes"),
    "another field": (request(tensor(fp64_contents=[1, 2])), "in fp32_contents, not in fp64_contents"),
    "two fields": (request(tensor(fp32_contents=[1, 2], int_contents=[1])), "not in int_contents"),
    "half floats": (request(tensor("x", "FP16", fp32_contents=[1, 2])), "send it raw"),
    "too large": (request(tensor("x", "UINT8", uint_contents=[256, 0])), "from 0 to 255"),
    "too small": (request(tensor("x", "INT8", int_contents=[-129, 0])), "from -128 to 127"),
    "negative length": (request(tensor("x", "FP32", (-1,), fp32_contents=[1])), "negative length"),
    "overflow": (request(tensor("x", "FP32", (2**62, 4), fp32_contents=[1])), "'x'"),
    "datatype": (request(tensor("x", "float", fp32_contents=[1, 2])), "no datatype 'float'"),
    "no name": (request(tensor("", fp32_contents=[1, 2])), "no `name`"),
    "no value": (with_parameter(request(), lambda each: each, "p"), "'p' of the request has no value"),
    "shared memory": (
        with_parameter(request(tensor()), lambda each: each.inputs[0], "shared_memory_region", string_param="r"),
        "shared_memory_byte_size and shared_memory_offset are numbers of bytes",
    ),
    "classes": (
        with_parameter(
            request(outputs=[theirs.ModelInferRequest.InferRequestedOutputTensor(name="y")]),
            lambda each: each.outputs[0],
            "classification",
            bool_param=True,
        ),
        "a number of classes",
    ),
    "bytes beyond": (request(tensor("x", "BYTES", (1,)), raw=(b"\xff\0\0\0x",)), "255 bytes by the length"),
}


@pytest.mark.parametrize(("message", "why"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(message: Any, why: str) -> None:
    """A request that is none is refused in words."""
    with pytest.raises(errors.InvalidRequest, match=why):
        decoded(message)


def test_a_message_of_many_fields_is_refused_before_it_is_decoded() -> None:
    """An empty input has two bytes, and takes many more once it is decoded."""
    with pytest.raises(errors.InvalidRequest, match="inputs, outputs and parameters"):
        requests.decode(b"\x2a\x00" * 10**6)
    with pytest.raises(errors.InvalidRequest, match="inputs, outputs and parameters"):
        requests.decode(b"\x2a\x80\x89\x7a" + b"\x22\x00" * 10**6)


def test_a_large_tensor_does_not_count_as_fields() -> None:
    """The bound is on the message's own fields."""
    content = b"\x2a\x00" * 10**6
    found = decoded(request(tensor("x", "UINT8", (len(content),)), raw=(content,)))
    assert found.inputs[0].values.tobytes() == content


def test_typed_elements_are_bounded() -> None:
    """Beyond, they are sent raw."""
    many = requests.MOST_TYPED_ELEMENTS + 1
    with pytest.raises(errors.InvalidRequest, match="send them raw"):
        decoded(request(tensor("x", "BOOL", (many,), bool_contents=[True] * many)))


@given(some.binary(max_size=200))
def test_any_bytes_are_a_request_or_are_refused(data: bytes) -> None:
    """No bytes give another error."""
    refused_or_read(data)


@given(some.sampled_from(sorted(WRONG)), some.data())
def test_any_broken_message_is_a_request_or_is_refused(which: str, data: some.DataObject) -> None:
    """Bytes of a message are exchanged, left out and repeated."""
    found = bytearray(WRONG[which][0].SerializeToString())
    for _ in range(data.draw(some.integers(1, 4))):
        at = data.draw(some.integers(0, len(found)))
        end = data.draw(some.integers(at, min(len(found), at + 8)))
        found[at:end] = data.draw(some.binary(max_size=8))
    refused_or_read(bytes(found))


def refused_or_read(data: bytes) -> None:
    """Decode bytes, also by the way of large messages."""
    try:
        requests._check_fields(memoryview(data), requests._NESTED, requests.MOST_FIELDS)
        found = requests.decode(data)
    except errors.InvalidRequest:
        return
    theirs.ModelInferRequest.FromString(data)
    assert all(isinstance(each, NamedTensor) for each in found.inputs)
