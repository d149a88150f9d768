"""The Open Inference Protocol's tensors and bodies: any bytes are a request or refused in words."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.oip import coding, datatypes, generate, http_body, tensors
from atomr_mp.serve.oip.datatypes import NAMES
from atomr_mp.serve.oip.models import ModelTable
from atomr_mp.serve.oip.requests import AskedOutput, InferAnswer, InferRequest, given_headers
from atomr_mp.serve.oip.settings import InputSetting, ModelSetting
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.problems import Problem

REFUSALS: Final = (errors.InvalidRequest, Problem)

MOST: Final = 1000

JSON_VALUES: Final = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**70), 2**70)
    | some.floats(allow_nan=False)
    | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

SHAPES: Final = some.lists(some.integers(0, 3), max_size=3).map(tuple)

DATATYPES: Final = some.sampled_from([*NAMES, "BYTES"])


@some.composite
def drawn_tensors(draw: some.DrawFn) -> NamedTensor:
    """Draw a tensor of any type and shape."""
    datatype, shape = draw(DATATYPES), draw(SHAPES)
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return NamedTensor("x", datatype, shape, [draw(some.binary(max_size=4)) for _ in range(count)])
    element = dtypes.to_numpy(NAMES[datatype])
    data = draw(some.binary(min_size=count * element.itemsize, max_size=count * element.itemsize))
    if datatype == "BOOL":
        data = bytes(each & 1 for each in data)
    return NamedTensor("x", datatype, shape, np.frombuffer(data, element).reshape(shape))


def same(one: NamedTensor, other: NamedTensor) -> bool:
    """Return whether two tensors are equal, bit for bit."""
    return one[:3] == other[:3] and tensors.raw(one) == tensors.raw(other)


@given(drawn_tensors())
def test_raw_data_is_read_as_it_was_written(tensor: NamedTensor) -> None:
    """Of each type and shape."""
    assert same(tensors.of_raw("x", tensor.datatype, tensor.shape, memoryview(tensors.raw(tensor))), tensor)


@given(drawn_tensors())
def test_json_is_read_as_it_was_written(tensor: NamedTensor) -> None:
    """Flat or nested; the types and texts that JSON does not have are refused in words."""
    try:
        flat = json.loads(msgspec.json.encode(tensors.as_json(tensor)))
    except ValueError:
        return
    nested = np.array(flat, dtype=object).reshape(tensor.shape).tolist()
    for data in (flat, nested if tensor.shape else flat):
        found = tensors.of_json("x", tensor.datatype, tensor.shape, data)
        if tensor.datatype.startswith("FP"):  # JSON has one NaN
            assert np.array_equal(found.values, tensor.values, equal_nan=True)
        else:
            assert same(found, tensor)


@given(some.binary(max_size=40), DATATYPES, SHAPES)
def test_any_bytes_are_a_tensor_or_refused(data: bytes, datatype: str, shape: tuple[int, ...]) -> None:
    """One that is read is written as the same bytes."""
    try:
        found = tensors.of_raw("x", datatype, shape, memoryview(data))
    except errors.InvalidRequest:
        return
    assert tensors.raw(found) == data


@given(some.binary(max_size=60))
def test_elements_of_any_length_are_read_or_refused(data: bytes) -> None:
    """Nothing is read beyond the data."""
    try:
        found = datatypes.unpack(memoryview(data), 5)
    except errors.InvalidRequest:
        return
    assert len(found) <= 5
    assert datatypes.pack(found) == data


@given(DATATYPES, SHAPES, JSON_VALUES)
def test_any_json_is_a_tensor_or_refused(datatype: str, shape: tuple[int, ...], data: Any) -> None:
    """One that is read has its shape."""
    try:
        found = tensors.of_json("x", datatype, shape, data)
    except errors.InvalidRequest:
        return
    count = int(np.prod(shape))
    assert (len(found.values) if isinstance(found.values, list) else found.values.size) == count


FIELDS: Final = some.fixed_dictionaries(
    {},
    optional={
        "name": some.sampled_from(["x", "y", ""]) | JSON_VALUES,
        "datatype": DATATYPES | JSON_VALUES,
        "shape": some.lists(some.integers(-1, 4), max_size=3) | JSON_VALUES,
        "data": some.lists(some.integers(0, 1), max_size=4) | JSON_VALUES,
        "parameters": some.dictionaries(
            some.sampled_from(
                ["binary_data_size", "binary_data", "classification", "shared_memory_region", "shared_memory_byte_size"]
            ),
            some.integers(-1, 9) | some.just("r") | JSON_VALUES,
            max_size=3,
        )
        | JSON_VALUES,
    },
)

BODIES: Final = some.fixed_dictionaries(
    {},
    optional={
        "id": some.text(max_size=3) | JSON_VALUES,
        "parameters": some.dictionaries(some.text(max_size=3), JSON_VALUES, max_size=2) | JSON_VALUES,
        "inputs": some.lists(FIELDS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "outputs": some.lists(FIELDS | JSON_VALUES, max_size=2) | JSON_VALUES,
    },
)


@given(BODIES, some.binary(max_size=12))
@example({"inputs": [{"name": "x", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}}]}, b"ab")
def test_any_body_is_a_request_or_refused(given_body: dict[str, Any], data: bytes) -> None:
    """A request's raw data is used to its last byte."""
    text = json.dumps(given_body).encode()
    try:
        found = http_body.decode("m", "", text + data, len(text), MOST)
    except REFUSALS:
        return
    assert found.inputs or found.shared
    sizes = [each.get("parameters") or {} for each in given_body["inputs"]]
    assert sum(each.get("binary_data_size", 0) for each in sizes) == len(data)


@given(some.binary(max_size=80), some.integers(0, 80))
def test_any_bytes_are_a_request_or_refused(body: bytes, json_bytes: int) -> None:
    """Whatever the header says of them."""
    try:
        http_body.decode("m", "", body, min(json_bytes, len(body)), MOST)
    except REFUSALS:
        return


@given(outputs=some.lists(drawn_tensors(), max_size=3), in_binary=some.booleans())
def test_an_answer_is_read_as_it_was_written(outputs: list[NamedTensor], *, in_binary: bool) -> None:
    """By what the header says of its JSON."""
    named = [each._replace(name=f"y{at}") for at, each in enumerate(outputs)]
    asked = [AskedOutput(each.name, is_binary=in_binary) for each in named]
    request = InferRequest("m", "", "7", {}, [], asked)
    try:
        body, json_bytes = http_body.encode(request, InferAnswer("m", "1", "7", {}, named))
    except errors.Unsupported:
        assert not in_binary
        return
    assert (json_bytes is not None) == (in_binary and bool(named))
    told = json.loads(body[:json_bytes])
    assert (told["id"], told["model_name"], told["model_version"]) == ("7", "m", "1")
    at = len(body) if json_bytes is None else json_bytes
    for tensor, each in zip(named, told["outputs"], strict=True):
        assert (each["name"], each["datatype"], each["shape"]) == (tensor.name, tensor.datatype, list(tensor.shape))
        if in_binary:
            size = each["parameters"]["binary_data_size"]
            assert body[at : at + size] == tensors.raw(tensor)
            at += size
    assert at == len(body)


@given(some.binary(max_size=300), some.sampled_from([b"gzip", b"deflate"]))
def test_a_coding_is_read_as_it_was_written_and_bounded(body: bytes, name: bytes) -> None:
    """A result beyond the bound is refused, and so is what is not whole."""
    packed = coding.encoded(body, name)
    assert coding.decoded(packed, name, len(body)) == body
    if body:
        with pytest.raises(Problem, match="more than"):
            coding.decoded(packed, name, len(body) - 1)
    with pytest.raises(Problem, match="not one whole"):
        coding.decoded(packed[:-1], name, 300)
    with pytest.raises(Problem, match="not one whole"):
        coding.decoded(packed + b"x", name, 300)


@given(some.binary(max_size=40), some.sampled_from([b"gzip", b"deflate", b"br", b"", b"identity"]))
def test_any_bytes_are_of_a_coding_or_refused(body: bytes, name: bytes) -> None:
    """A bomb takes no more memory than the bound."""
    try:
        found = coding.decoded(body, name, 100)
    except Problem:
        return
    assert len(found) <= 100


def test_a_bomb_is_refused_at_its_bound() -> None:
    """A thousandfold, and more."""
    with pytest.raises(Problem, match="more than 1000 bytes"):
        coding.decoded(zlib.compress(b"\0" * 10**7), b"deflate", 1000)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (b"", b""),
        (b"gzip", b"gzip"),
        (b"deflate, gzip;q=0.5", b"deflate"),
        (b"gzip;q=0", b""),
        (b"br", b""),
        (b"identity", b""),
    ],
)
def test_an_answer_has_the_coding_that_is_wanted_most(accept: bytes, expected: bytes) -> None:
    """None that is not wanted."""
    assert coding.coding_for(accept) == expected


def method(arguments: dict[str, Any], result: Any = None, required: list[str] | None = None) -> MethodInfo:
    """Return a method with these schemas."""
    schema = {
        "arguments": {"properties": arguments, "required": list(arguments) if required is None else required},
        "result": result or {},
        "$defs": {},
    }
    return MethodInfo("run", list(arguments), True, None, "", schema=json.dumps(schema))


ARRAY: Final = {"type": "array", "format": "ndarray", "dtype": "float32"}


def test_a_method_is_a_model_if_its_needed_parameters_are_tensors() -> None:
    """Else the refusal says which one is none."""
    methods = {
        "A.good": method({"x": ARRAY, "n": {"type": "integer"}}, ARRAY),
        "A.optional": method({"x": ARRAY, "other": {"type": "object"}}, required=["x"]),
        "A.object": method({"x": ARRAY, "other": {"type": "object"}}),
        "A.untyped": method({"x": {"type": "array", "format": "ndarray"}}),
        "A.nothing": method({}),
    }
    table = ModelTable({})
    assert table.names(methods) == ["A.good", "A.optional"]
    good = table.find("A.good", "1", methods)
    assert [each["datatype"] for each in good.metadata()["inputs"]] == ["FP32", "INT64"]
    assert [each["name"] for each in good.metadata()["outputs"]] == ["output"]
    assert list(table.find("A.optional", "", methods).inputs) == ["x"]
    for name, words in {
        "A.object": "other",
        "A.untyped": "element type",
        "A.nothing": "no tensor",
        "B.x": "^Request for unknown model: 'B.x' is not found",
    }.items():
        with pytest.raises(Problem, match=words) as found:
            table.find(name, "", methods)
        assert found.value.status == 404
    with pytest.raises(Problem, match=r"^Request for unknown model: 'A\.good' version 2 is not found"):
        table.find("A.good", "2", methods)


@given(JSON_VALUES | some.dictionaries(some.sampled_from(["x", "n", "id", "parameters", "p"]), JSON_VALUES))
def test_any_value_is_a_generation_or_refused(value: Any) -> None:
    """Its fields are inputs or parameters."""
    methods = {"A.run": method({"x": ARRAY, "n": {"type": "integer"}})}
    model = ModelTable({}).find("A.run", "", methods)
    try:
        found = generate.request_of(model, "", value)
    except errors.InvalidRequest:
        return
    assert {each.name for each in found.inputs} == value.keys() & {"x", "n"}


def test_parameters_that_begin_as_the_protocol_s_are_its_own() -> None:
    """Over HTTP as over gRPC, a client does not make them up."""
    body = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}]}
    for parameters, why in (
        ({"triton_x": 1}, "there is no parameter 'triton_x'"),
        ({"triton_enable_empty_final_response": 1}, "is true or false"),
    ):
        text = json.dumps(body | {"parameters": parameters}).encode()
        with pytest.raises(errors.InvalidRequest, match=why):
            http_body.decode("m", "", text, len(text), 1000)


def test_a_body_without_json_is_one_element_of_bytes() -> None:
    """As it is; a model whose input has no single element needs JSON, as with Triton."""
    described = {
        name: ModelSetting(method="A.run", inputs={"x": InputSetting(shape=shape)})
        for name, shape in (("one", (1,)), ("open", (-1,)), ("two", (2,)))
    }
    methods = {"A.run": method({"x": {"type": "array", "items": {"type": "string"}}})}
    table = ModelTable(described)
    request = http_body.of_raw(table.find("one", "", methods), "", b"\x07ab")
    assert request.inputs == [NamedTensor("x", "BYTES", (1,), [b"\x07ab"])]
    for name in ("open", "two"):
        with pytest.raises(errors.InvalidRequest, match="needs JSON"):
            http_body.of_raw(table.find(name, "", methods), "", b"ab")


def test_headers_that_come_twice_are_a_list() -> None:
    """As HTTP has it; none of them is lost."""
    assert given_headers([("X-A", "1"), ("y", "z"), ("x-a", "2")]) == {"x-a": "1, 2", "y": "z"}
