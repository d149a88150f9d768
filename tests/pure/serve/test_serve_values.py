from __future__ import annotations

import contextlib
import decimal
import io
import json
from typing import Any, Final

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from atomr_mp import errors
from atomr_mp.protocol.flow.limits import MAX_DEPTH
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values import arrays, results, schemas
from atomr_mp.serve.values.bodies import FEW, SHORT_BYTES, count_of, from_json, odd_numbers
from atomr_mp.serve.values.conversions import NO_ODD_NUMBERS
from atomr_mp_workers.schemas import Described, item_of, schema_of

DTYPES: Final = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Node(msgspec.Struct):
    """Refers to itself."""

    content: bytes
    children: list[Node] = []


def info_of(result: Any = Any, **parameters: Any) -> MethodInfo:
    """Return a method as a worker tells of it."""
    described = [Described(name, hint, hint, True) for name, hint in parameters.items()]
    return MethodInfo(
        "m", list(parameters), idempotent=False, deadline_s=None, doc="", schema=schema_of(described, result)
    )


PLANS: Final = [
    schemas.plan_of("A.m", info_of(a=np.ndarray)),
    schemas.plan_of("A.m", info_of(a=bytes, b=list[bytes], c=dict[str, bytes], d=tuple[bytes, int])),
    schemas.plan_of("A.m", info_of(a=Node)),
    schemas.plan_of("A.m", info_of(a=bytes | None, b=Any, c=int)),
    schemas.plan_of("A.m", MethodInfo("m", ["a"], idempotent=False, deadline_s=None, doc="")),
    schemas.plan_of("A.m", MethodInfo("m", ["a"], idempotent=False, deadline_s=None, doc="", schema="no JSON")),
]


@hypothesis.given(st.binary(max_size=400), st.sampled_from(PLANS))
def test_any_bytes_are_arguments_or_a_typed_error(body: bytes, plan: schemas.ArgumentPlan) -> None:
    """Nothing else is raised, whatever a client sends."""
    try:
        plan.arguments(from_json(body, 1000))
    except (Problem, errors.InvalidRequest):
        return


@hypothesis.given(json_values, st.sampled_from(PLANS))
def test_any_json_is_arguments_or_a_typed_error(value: Any, plan: schemas.ArgumentPlan) -> None:
    """Of any form."""
    for given in (value, [value], {"a": value, "b": value}):
        try:
            plan.arguments(from_json(json.dumps(given).encode(), 1000))
        except (Problem, errors.InvalidRequest):
            continue


SPELT: Final = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
NUMBERED: Final = schemas.plan_of(
    "A.m",
    info_of(
        a=int, b=float, c=list[int], d=list[float], e=dict[str, int | float], f=decimal.Decimal, g=tuple[int, float]
    ),
)


@hypothesis.given(st.lists(SPELT, min_size=1, max_size=5), st.sampled_from("abcdefg"), st.booleans())
def test_numbers_that_a_body_does_not_have_need_no_look(numbers: list[str], name: str, by_name: bool) -> None:  # noqa: FBT001
    """However they are spelt, the arguments are those that a look at each number gives."""
    values = {"e": "{" + ",".join(f'"{at}":{each}' for at, each in enumerate(numbers)) + "}"}
    text = values.get(name, numbers[0] if name in "abf" else f"[{','.join(numbers)}]")
    body = (f'{{"{name}":{text}}}' if by_name else f"[{text}]").encode()
    value = from_json(body, 1000)
    found, expected = NUMBERED.arguments(value, odd_numbers(body)), NUMBERED.arguments(value)
    assert repr(found) == repr(expected)


@hypothesis.given(json_values, st.sampled_from([*PLANS, NUMBERED]))
def test_a_method_without_numbers_has_no_odd_ones(value: Any, plan: schemas.ArgumentPlan) -> None:
    """Its arguments are the same whether or not its body is searched for them."""

    def made(*numbers: Any) -> str:
        try:
            return repr(plan.arguments(dict.fromkeys(plan.info.parameters, value), *numbers))
        except errors.InvalidRequest as error:
            return str(error)

    assert plan.has_odd_numbers or made() == made(NO_ODD_NUMBERS)


@hypothesis.given(st.lists(st.integers(0, 2 * SHORT_BYTES), max_size=2 * FEW), st.integers(0, 2 * SHORT_BYTES))
def test_a_byte_is_counted_in_bodies_of_any_length(places: list[int], nbytes: int) -> None:
    """However often it is there."""
    body = bytearray(b"x" * nbytes)
    for at in places:
        body[at : at + 1] = b"["
    assert count_of(bytes(body), b"[") == body.count(b"[")


def written(value: Any, repeats: list[str]) -> str:
    """Write a value as JSON; objects write the first of their names twice if the list asks for it, and tell that."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(name)}: {written(each, repeats)}" for name, each in value.items()]
        if pairs and repeats and repeats[0] == "once":
            repeats[0] = next(iter(value))
            pairs.append(pairs[0])
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(each, repeats) for each in value) + "]"
    return json.dumps(value)


finite_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('a:{}[]"\\\n', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a:{}[]"\\', max_size=3), inner, max_size=3),
    max_leaves=12,
)


@hypothesis.given(finite_values, st.booleans())
def test_a_name_is_there_once_in_each_object(value: Any, twice: bool) -> None:  # noqa: FBT001
    """The last one would win, and a proxy may have looked at the first. Texts may look like names and objects."""
    repeats = ["once"] if twice else []
    body = written(value, repeats).encode()
    if repeats in ([], ["once"]):
        assert from_json(body, 1000) == value
        return
    with pytest.raises(Problem) as caught:
        from_json(body, 1000)
    assert (caught.value.status, repr(repeats[0]) in caught.value.message) == (400, True)


@hypothesis.given(st.integers(1, 3000), st.sampled_from(["[", '{"a":']))
def test_a_body_that_is_nested_too_deeply_hears_that(depth: int, opening: str) -> None:
    """At every depth, also beyond the parser's own, and not that it is no JSON."""
    body = (opening * depth + "1" + ("]" if opening == "[" else "}") * depth).encode()
    refused = pytest.raises(errors.InvalidRequest, match="nested deeper")
    with contextlib.nullcontext() if depth <= MAX_DEPTH else refused:
        from_json(body, 10_000)


@hypothesis.given(finite_values)
def test_a_body_has_a_bounded_number_of_containers(value: Any) -> None:
    """They take long to decode; brackets in texts are none."""
    body = json.dumps(value).encode()

    def count(each: Any) -> int:
        inner = each.values() if isinstance(each, dict) else each
        return 1 + sum(map(count, inner)) if isinstance(each, list | dict) else 0

    assert from_json(body, count(value)) == value
    if count(value):
        with pytest.raises(Problem) as caught:
            from_json(body, count(value) - 1)
        assert caught.value.status == 413


NUMBERS: Final = schemas.plan_of(
    "A.m", info_of(a=float, b=int, c=list[float], d=list[int], e=int | None, f=float | str, g=decimal.Decimal)
)


@hypothesis.given(st.integers(), st.integers(-(2**53), 2**53))
@hypothesis.example(10**400, 0)
def test_a_number_is_the_same_however_json_writes_it(wide: int, whole: int) -> None:
    """A whole number may have a point; a float may be written without one, as JavaScript does below 1e21."""
    given = {"a": wide, "b": float(whole), "c": [0.5, wide], "d": [1, float(whole)], "e": float(whole), "f": wide}
    try:
        _, found = NUMBERS.arguments({**given, "g": wide})
    except errors.InvalidRequest:
        assert abs(wide) > 1e308
        return
    assert found is not None
    made = {name: value for name, value in found.items() if name != "g"}
    expected = {**given, "a": float(wide), "c": [0.5, float(wide)], "f": float(wide)}
    if -(2**63) <= wide < 2**64:
        expected |= {"a": wide, "c": [0.5, wide], "f": wide}
    assert made == expected
    assert decimal.Decimal(found["g"]) == wide
    assert {type(found["b"]), type(found["e"]), *map(type, found["d"])} == {int}
    msgspec.msgpack.encode(found)  # nothing is left that cannot be sent


RANGES: Final = st.sampled_from(
    ["*/*", "application/*", "application/json", "application/x-npy", "application/octet-stream", "text/html"]
)

QUALITIES: Final = st.sampled_from(["", ";q=0", "; Q=0.000", ";q=0.1", " ; charset=utf-8 ; q=0.5", ";q=1", ";q=x"])


@hypothesis.given(st.dictionaries(RANGES, QUALITIES, min_size=1))
def test_a_client_gets_only_what_it_accepts(accepted: dict[str, str]) -> None:
    """What names a type most precisely counts, also if it says that the type is not accepted at all."""

    def wanted(kind: str) -> float:
        for each in (kind, "application/*", "*/*"):
            if each in accepted:
                return {"0": 0.0, "0.000": 0.0, "0.1": 0.1, "0.5": 0.5}.get(accepted[each].rpartition("=")[2], 1.0)
        return 0.0

    kinds = ("application/json", "application/x-npy", "application/octet-stream")
    most = max(map(wanted, kinds))
    accept = ", ".join(kind + quality for kind, quality in accepted.items()).encode()
    if not most:
        with pytest.raises(Problem, match="application/json"):
            results.form_of(accept, {})
    else:
        assert results.form_of(accept, {}).decode() == next(kind for kind in kinds if wanted(kind) == most)


keys = (
    st.integers(-3, 3) | st.sampled_from(["1", "-1", "a", "true", "1.0"]) | st.booleans() | st.sampled_from([1.5, 1.0])
)

maps = st.recursive(
    st.none() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@hypothesis.given(maps)
def test_an_object_of_a_result_has_no_name_twice(value: Any) -> None:
    """Of the keys 1 and "1" a reader would see one value; such a result is refused."""

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def clashes(each: Any) -> bool:
        if isinstance(each, dict):
            names = [json.dumps(key) if isinstance(key, bool | float) else str(key) for key in each]
            return len(set(names)) < len(names) or any(map(clashes, each.values()))
        return isinstance(each, list) and any(map(clashes, each))

    try:
        body = results.encode_json(value)
    except errors.Unsupported as error:
        assert clashes(value) or "keys" not in str(error)  # noqa: PT017 - a key without a form in JSON is refused, too
        return
    json.loads(body, object_pairs_hook=look)


@pytest.mark.parametrize("shape", ["1" * 80 + "x", "(" * 900, "1," * 400 + "x", "9" * 3000, "-1", "1.5", "True", "f()"])
def test_a_header_that_is_none_is_refused(shape: str) -> None:
    """In time that grows with its length alone, so that no header keeps a front end from others."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape},), }}\n".encode()
    with pytest.raises(errors.InvalidRequest):
        arrays.from_npy(arrays.MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header)


@hypothesis.given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: arrays.MAGIC + b"\x01\x00" + data))
def test_any_bytes_are_an_array_or_a_typed_error(data: bytes) -> None:
    """No header is evaluated, and nothing is made that the bytes do not fill."""
    try:
        assert arrays.from_npy(data).nbytes <= len(data)
    except errors.InvalidRequest:
        return


@hypothesis.given(st.text("<>|=biufcSUVOMmgFDsg?0123456789[],()' ", max_size=12) | st.sampled_from(["M8[s]", "M8[0s]"]))
def test_any_name_of_an_element_type_is_known_or_refused(name: str) -> None:
    """NumPy's own parser raises a dozen kinds of errors at some, and ends the process at others."""
    header = f"{{'descr': {name!r}, 'fortran_order': False, 'shape': (0,), }}\n".encode()
    try:
        found = arrays.from_npy(arrays.MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header)
    except errors.InvalidRequest:
        return
    assert found.dtype.kind in "biufc"


@hypothesis.given(st.data())
def test_an_array_survives_the_file(data: st.DataObject) -> None:
    """Of every element type that crosses the wire and NumPy has, in either order and of either byte order."""
    dtype = data.draw(st.sampled_from(DTYPES))
    array = data.draw(st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0)))
    if data.draw(st.booleans()):
        array = np.asfortranarray(array)
    if data.draw(st.booleans()):
        array = array.astype(array.dtype.newbyteorder(">"))
    for version in ((1, 0), (2, 0), (3, 0)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version, allow_pickle=False)
        found = arrays.from_npy(file.getvalue())
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(np.load(io.BytesIO(arrays.to_npy(array))), array)


def test_objects_and_structures_are_refused() -> None:
    """They would be pickled, or are no plain element."""
    for array in (np.array([None]), np.zeros(2, [("a", "i4")]), np.array(["a"]), np.zeros(2, "datetime64[s]")):
        file = io.BytesIO()
        np.save(file, array, allow_pickle=True)
        with pytest.raises(errors.InvalidRequest):
            arrays.from_npy(file.getvalue())


@hypothesis.given(st.data())
def test_an_array_survives_json(data: st.DataObject) -> None:
    """Each finite number is the same again, of every element type; the type is the parameter's."""
    dtype = data.draw(st.sampled_from(DTYPES))
    elements = {"allow_nan": False, "allow_infinity": False} if np.dtype(dtype).kind in "fc" else None
    shape = st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0)
    array = data.draw(st_numpy.arrays(dtype, shape, elements=elements))
    text = results.encode_json(array)
    found = arrays.from_lists(json.loads(text), dtype)
    assert found.dtype == dtype
    if array.size:
        np.testing.assert_array_equal(found, array)
    assert found.size == array.size  # lists without elements do not show all lengths


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "int32"),
        ([300], "uint8"),
        ([-1], "uint64"),
        ([1e39], "float32"),
        ([1, [2]], None),
        (["1"], None),
        ([None], None),
        ([1.0], "complex64"),
        ([2**70], None),
    ],
)
def test_a_number_that_does_not_fit_is_refused(value: Any, dtype: str | None) -> None:
    """None is cut, wrapped or made infinite."""
    with pytest.raises(ValueError, match=r"\w"):
        arrays.from_lists(value, dtype)


def test_bytes_and_arrays_are_found_wherever_the_schema_has_them() -> None:
    """In lists, maps, structs, also such as refer to themselves, and where they may be missing."""
    plan = PLANS[2]
    node = {"content": "AP8=", "children": [{"content": "AA=="}]}
    _, kwargs = plan.arguments({"a": node})
    assert kwargs == {"a": {"content": b"\x00\xff", "children": [{"content": b"\x00"}]}}
    args, _ = PLANS[1].arguments(["AA==", ["AA=="], {"k": "AA=="}, ["AA==", 1]])
    assert args == (b"\0", [b"\0"], {"k": b"\0"}, [b"\0", 1])
    assert PLANS[3].arguments([None, "AA==", 1])[0] == (None, "AA==", 1)
    assert PLANS[3].arguments(["AA==", 0, 1])[0] == (b"\0", 0, 1)


def test_a_raw_array_is_for_a_method_that_needs_one_argument() -> None:
    """Which may be an array, as far as is known."""
    assert PLANS[0].array == "a"
    assert PLANS[4].array == "a"
    assert schemas.plan_of("A.m", info_of(a=str)).array == ""
    assert schemas.plan_of("A.m", info_of(a=np.ndarray, b=int)).array == ""
    with pytest.raises(errors.InvalidRequest, match="2 parameters"):
        schemas.needs_one_array(schemas.plan_of("A.m", info_of(a=np.ndarray, b=int)))


def test_an_example_has_what_a_method_needs() -> None:
    """Of each kind something that fits."""
    example = json.loads(schemas.example(info_of(a=str, b=Node, c=np.ndarray, d=int | None)))
    assert example == {"a": "text", "b": {"content": "text"}, "c": [1.0, 2.0], "d": 1}


def test_a_schema_tells_element_types_and_items() -> None:
    """Of arrays whose annotation names one; of a batched method those of a single item."""
    schema = schemas.decoded(info_of(result=np.ndarray[Any, np.dtype[np.int16]], a=np.ndarray))
    assert schema["result"] == {"type": "array", "format": "ndarray", "dtype": "int16"}
    assert schema["arguments"]["properties"]["a"] == {"type": "array", "format": "ndarray"}
    assert item_of(list[int]) is int
    assert item_of(np.ndarray) is Any


def test_what_has_no_schema_has_none() -> None:
    """A method works without one, and a huge one is left out."""

    class Strange:
        pass

    assert schemas.decoded(info_of(result=Strange, a=int))["result"] == {"title": "Strange"}
    many = {f"parameter_{number}": int for number in range(1000)}
    assert info_of(**many).schema == ""


WHOLE: Final = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(-(2**53), 2**53).map(float), st.sampled_from([2**53 + 1, 2**63, 0])
)


@hypothesis.given(st.lists(WHOLE, min_size=1, max_size=4), st.sampled_from([None, "int64", "uint64", "int32", "uint8"]))
@hypothesis.example([2**63 + 1, 1], None)
@hypothesis.example([2**53 + 1, 1.0], "int64")
def test_whole_numbers_of_an_array_are_those_that_were_given(given: list[Any], dtype: str | None) -> None:
    """However NumPy would round a list of several kinds. A list with a point is float64 where no type is wanted."""
    exact = [int(each) for each in given]
    try:
        found = arrays.from_lists([given, given], dtype)
    except ValueError:
        low, high = (-(2**63), 2**64 - 1) if dtype is None else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = low <= min(exact) and max(exact) <= high
        assert not fits or (dtype is None and min(exact) < 0 and max(exact) >= 2**63)
        return
    if dtype is None and any(type(each) is float for each in given):
        assert found.dtype == np.float64
    else:
        assert found.tolist() == [exact, exact]
