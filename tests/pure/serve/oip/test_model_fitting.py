"""Descriptions that fit their methods give one model, whichever way it is looked at; others say why they do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypedDict

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.oip import tensors
from atomr_mp.serve.oip.config import config_of
from atomr_mp.serve.oip.datatypes import BYTES, NAMES
from atomr_mp.serve.oip.inference import Inference, answer_of
from atomr_mp.serve.oip.model_config import checks
from atomr_mp.serve.oip.models import DOES_NOT_FIT, NOT_READY, Model, ModelTable
from atomr_mp.serve.oip.requests import AskedOutput, InferRequest
from atomr_mp.serve.oip.sequences.asked import AskedSequence, controls_of
from atomr_mp.serve.oip.settings import ControlSetting, ModelSetting
from atomr_mp.serve.oip.settings import InputSetting as Input
from atomr_mp.serve.oip.settings import OutputSetting as Output
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.problems import Problem
from atomr_mp_workers.schemas import Described, schema_of

pytest.importorskip("google.protobuf")

from google.protobuf import json_format

from atomr_mp.serve.oip.model_config.messages import message_class

Floats = NDArray[np.float32]


class Both(TypedDict):
    """A result with two outputs."""

    total: Floats
    size: int


def method(
    result: Any = Any, /, *, optional: str = "", streams: bool = False, most_rows: int = 0, **parameters: Any
) -> MethodInfo:
    """Return a method as a worker tells of it.

    Args:
        result: The annotation of its result.
        optional: Names of parameters that have defaults, with blanks between.
        streams: Whether it streams.
        most_rows: Most rows of its batches; 0 if it has no batches of rows.
        **parameters: Annotations.
    """
    described = [Described(name, hint, hint, name not in optional.split()) for name, hint in parameters.items()]
    return MethodInfo(
        "m",
        list(parameters),
        idempotent=True,
        deadline_s=None,
        doc="",
        schema=schema_of(described, result),
        streams=streams,
        batch_items=most_rows,
        batches_rows=most_rows > 0,
        batch_wait_s=0.002 if most_rows else 0.0,
    )


METHODS: Final = {
    "A.array": method(Floats, x=Floats),
    "A.two": method(Both, x=Floats, y=NDArray[np.int64], optional="y"),
    "A.one": method(int, n=int),
    "A.real": method(float, x=float, flag=bool, optional="flag"),
    "A.text": method(str, text=str, request_id=str, options=dict[str, Any], optional="request_id options"),
    "A.texts": method(list[str], texts=list[str]),
    "A.numbers": method(list[float], numbers=list[float]),
    "A.bare": method(x=np.ndarray),
    "A.any": method(x=Any, y=Any, optional="y"),
    "A.config": method(Floats, x=Floats, config=dict[str, int]),
    "A.knobs": method(Floats, x=Floats, scale=float, optional="scale"),
    "A.rows": method(Floats, x=Floats, most_rows=16),
    "A.none": method(Floats),
    "A.step": method(
        Floats, x=Floats, begins=NDArray[np.int32], number=int, options=dict[str, Any], optional="options"
    ),
    "A.stream": method(int, n=int, streams=True),
    "A.unknown": MethodInfo("m", ["x"], idempotent=True, deadline_s=None, doc=""),
}


START: Final = ControlSetting(kind="start", datatype="INT32")
NUMBER: Final = ControlSetting(kind="id", datatype="INT64")


def found(setting: ModelSetting) -> Model:
    """Return the model of a description."""
    return ModelTable({"m": checks.check("file", "m", setting, "")}).find("m", "", METHODS)


def why_not(setting: ModelSetting) -> str:
    """Return why a description does not fit."""
    table = ModelTable({"m": checks.check("file", "m", setting, "")})
    with pytest.raises(Problem) as caught:
        table.find("m", "", METHODS)
    assert (caught.value.status, caught.value.code) in ((400, DOES_NOT_FIT), (503, NOT_READY))
    assert table.unfit(METHODS) == {"m": caught.value.message}
    assert table.names(METHODS).count("m") == 1
    return caught.value.message


def setting(name: str, /, **others: Any) -> ModelSetting:
    """Return a description of a method."""
    return ModelSetting(method=name, **others)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (setting("A.arrays"), "is not ready: there is no method 'A.arrays'; did you mean A.array?"),
        (setting("A.array", inputs={"y": Input()}), "input 'y': A.array has no parameter 'y'; it has: x"),
        (setting("A.array", inputs={"y": Input(parameter="z")}), "A.array has no parameter 'z'"),
        (setting("A.array", inputs={"x": Input(datatype="FP16")}), "described as FP16, and the annotation says FP32"),
        (setting("A.array", inputs={"x": Input(datatype=BYTES)}), "described as BYTES, and the annotation says FP32"),
        (setting("A.array", inputs={"x": Input(optional=True)}), "described as optional, and its parameter has no"),
        (setting("A.one", inputs={"n": Input(datatype="FP32")}), "described as FP32, and the annotation says INT64"),
        (setting("A.one", inputs={"n": Input(shape=(3,))}), "input 'n' has one element by its annotation, and the"),
        (setting("A.one", max_batch_size=2), "input 'n' has one element by its annotation"),
        (setting("A.texts", inputs={"texts": Input(shape=(2, -1))}), "input 'texts' is one list by its annotation"),
        (setting("A.texts", inputs={"texts": Input(shape=(2,))}, max_batch_size=4), "is one list by its annotation"),
        (setting("A.two", inputs={"y": Input(parameter="x")}), "two parameters of A.two are the input 'y'"),
        (setting("A.bare"), "needs its parameter x, and no input is: x is an array whose annotation names no element"),
        (setting("A.bare", inputs={"x": Input()}), "input 'x' has no datatype: x is an array whose annotation"),
        (setting("A.bare", inputs={"x": Input(datatype=BYTES)}), "is BYTES, and the annotation is of an array"),
        (setting("A.config"), "A.config needs its parameter config, and no input is: config is neither an array"),
        (setting("A.config", inputs={"config": Input(datatype="FP32")}), "input 'config': config is neither an"),
        (setting("A.none"), "A.none takes no tensor"),
        (setting("A.rows", max_batch_size=17), "max_batch_size = 17, and A.rows takes at most 16 rows"),
        (setting("A.knobs", max_batch_size=4, inputs={"scale": Input()}), "'scale' has one element by its annotation"),
        (setting("A.text", id_to="id"), "id_to: A.text has no parameter 'id'; "),
        (setting("A.text", id_to="options"), "id_to: the parameter 'options' of A.text does not take a text"),
        (setting("A.text", parameters_to="request_id"), "the parameter 'request_id' of A.text does not take a dict"),
        (setting("A.text", headers_to="text", headers=("a",)), "the parameter 'text' of A.text does not take a"),
        (setting("A.stream", sequence_idle_s=1.0), "it is described with sequences, and A.stream streams"),
        (setting("A.rows", sequence_idle_s=1.0), "with sequences, and A.rows has a Batch, which would mix them"),
        (setting("A.text", sequence_to="text"), "sequence_to: the parameter 'text' of A.text does not take a dict"),
        (setting("A.array", sequence_controls={"S": START}), "input 'S': A.array has no parameter 'S'; it has: x"),
        (setting("A.array", sequence_controls={"x": START}), "input 'x' is described as INT32, and the annotation"),
        (setting("A.one", sequence_controls={"n": NUMBER}), "A.one takes no tensor"),
        (setting("A.array", decoupled=True), "described as decoupled = true, and A.array is not so"),
        (setting("A.stream", decoupled=False), "described as decoupled = false, and A.stream is not so"),
        (setting("A.array", idempotent=False), "described as idempotent = false, and A.array is not so"),
        (setting("A.two", outputs={"sum": Output()}), "output 'sum': the result of A.two has no 'sum'; "),
        (setting("A.two", outputs={"total": Output(datatype="INT8")}), "output 'total' is described as INT8"),
        (setting("A.two", outputs={"total": Output(key="size")}), "two outputs of A.two are called 'total'"),
        (setting("A.array", outputs={"a": Output(), "b": Output()}), "the result of A.array has no 'a'"),
        (setting("A.bare", inputs={"x": Input(datatype="FP32")}, outputs={"y": Output()}), "has no datatype"),
        (setting("A.array", outputs={"y": Output(key="nope")}), "the result of A.array has no keys; leave out key"),
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_says_why(said: ModelSetting, why: str) -> None:
    """The model's name is there, and the reason is that of its readiness and of each request."""
    told = why_not(said)
    assert told.startswith("the model m ")
    assert why in told


def test_a_missing_method_may_come_and_a_wrong_description_stays() -> None:
    """So the first is 503, which is asked again, and the second is not."""
    table = ModelTable({"m": setting("A.later"), "w": setting("A.none")})
    for name, status in (("m", 503), ("w", 400)):
        with pytest.raises(Problem) as caught:
            table.find(name, "", METHODS)
        assert caught.value.status == status
    assert table.find("m", "", {**METHODS, "A.later": METHODS["A.array"]}).method == "A.later"
    assert list(table.unfit({**METHODS, "A.later": METHODS["A.array"]})) == ["w"]
    with pytest.raises(Problem) as caught:
        table.find("w", "2", METHODS)
    assert caught.value.status == 404


def test_a_model_has_no_other_methods_name() -> None:
    """Whoever asks that method by its own name would reach another one."""
    setting = checks.check("f", "A.one", ModelSetting(method="A.real"), "")
    with pytest.raises(Problem, match=r"the name of another method than its own, A\.real") as caught:
        ModelTable({"A.one": setting}).find("A.one", "", METHODS)
    assert caught.value.code == DOES_NOT_FIT


def test_an_unknown_name_is_answered_with_a_few_of_many_models() -> None:
    """The text stays short, however many there are."""
    methods = {f"A.m{number:03}": METHODS["A.one"] for number in range(500)}
    with pytest.raises(Problem, match=r"there are: A\.m000, .*, A\.m019 and 480 more$"):
        ModelTable({}).find("B.other", "", methods)


def test_a_reload_is_looked_at_again() -> None:
    """Each generation of a method is judged by itself."""
    table = ModelTable({"m": setting("A.m", inputs={"x": Input(datatype="FP32")})})
    assert table.find("m", "", {"A.m": METHODS["A.array"]}).inputs["x"].datatype == "FP32"
    with pytest.raises(Problem):
        table.find("m", "", {"A.m": method(x=NDArray[np.float64])})
    assert table.find("m", "", {"A.m": METHODS["A.array"]}).inputs["x"].datatype == "FP32"


@pytest.mark.parametrize(
    ("said", "inputs", "outputs"),
    [
        (setting("A.array"), [("x", "FP32", [-1])], [("output", "FP32", [-1])]),
        (setting("A.array", max_batch_size=4), [("x", "FP32", [-1, -1])], [("output", "FP32", [-1, -1])]),
        (
            setting("A.array", inputs={"a/b:0": Input(parameter="x", shape=(2, -1))}, max_batch_size=4),
            [("a/b:0", "FP32", [-1, 2, -1])],
            [("output", "FP32", [-1, -1])],
        ),
        (setting("A.array", outputs={"y": Output(shape=())}), [("x", "FP32", [-1])], [("y", "FP32", [])]),
        (setting("A.one", inputs={"n": Input(datatype="UINT8")}), [("n", "UINT8", [1])], [("output", "INT64", [1])]),
        (setting("A.one", max_batch_size=1), [("n", "INT64", [-1, 1])], [("output", "INT64", [-1, 1])]),
        (setting("A.texts", max_batch_size=8), [("texts", BYTES, [-1, 1])], [("output", BYTES, [-1, 1])]),
        (
            setting("A.knobs", max_batch_size=4),
            [("x", "FP32", [-1, -1])],
            [("output", "FP32", [-1, -1])],
        ),
        (
            setting("A.numbers", inputs={"numbers": Input(shape=(1, 3), datatype="FP16")}),
            [("numbers", "FP16", [1, 3])],
            [("output", "FP64", [-1])],
        ),
        (setting("A.text", id_to="request_id", parameters_to="options"), [("text", BYTES, [1])],
         [("output", BYTES, [1])]),
        (setting("A.bare", inputs={"x": Input(datatype="BF16", shape=(2,))}), [("x", "BF16", [2])], []),
        (setting("A.any", inputs={"x": Input(datatype=BYTES)}), [("x", BYTES, [-1])], []),
        (setting("A.unknown", inputs={"x": Input(datatype="INT8")}), [("x", "INT8", [-1])], []),
        (
            setting("A.two", outputs={"n": Output(key="size")}),
            [("x", "FP32", [-1]), ("y", "INT64", [-1])],
            [("n", "INT64", [1]), ("total", "FP32", [-1])],
        ),
        (
            setting("A.bare", inputs={"x": Input(datatype="FP32")}, outputs={"y": Output(datatype="FP64")}),
            [("x", "FP32", [-1])],
            [("y", "FP64", [-1])],
        ),
    ],
)  # fmt: skip
def test_metadata_is_that_of_description_and_annotation(
    said: ModelSetting, inputs: list[Any], outputs: list[Any]
) -> None:
    """The description comes first where it says something."""
    told = found(said).metadata()
    for side, expected in (("inputs", inputs), ("outputs", outputs)):
        assert [(each["name"], each["datatype"], each["shape"]) for each in told[side]] == expected


def test_optional_inputs_are_as_the_description_says() -> None:
    """A parameter with a default may still be needed."""
    given = [tensors.of_json("x", "FP32", (1,), [1.0])]
    assert found(setting("A.two")).arguments(given).keys() == {"x"}
    needed = found(setting("A.two", inputs={"y": Input(optional=False)}))
    assert config_of(needed)["input"][1]["optional"] is False
    with pytest.raises(
        errors.InvalidRequest, match=r"expected 2 inputs but got 1 inputs .* missing required input\(s\) \['y'\]"
    ):
        needed.arguments(given)


def outcome(said: ModelSetting, result: Any, *asked: AskedOutput) -> list[tuple[Any, ...]]:
    """Return the outputs of an answer, each with its elements."""
    request = InferRequest("m", "", "", {}, [], asked)
    return [
        (each.name, each.datatype, each.shape, each.values if isinstance(each.values, list) else each.values.tolist())
        for each in answer_of(found(said), request, result).outputs
    ]


ANY: Final = {"x": Input(datatype="FP32")}


@pytest.mark.parametrize(
    ("said", "result", "expected"),
    [
        (setting("A.one", outputs={"y": Output(datatype="INT8")}), 3, [("y", "INT8", (1,), [3])]),
        (setting("A.one", outputs={"y": Output(shape=())}), 3, [("y", "INT64", (), 3)]),
        (
            setting("A.numbers", outputs={"y": Output(datatype="FP32")}, max_batch_size=4),
            [1.5, 2.0],
            [("y", "FP32", (2, 1), [[1.5], [2.0]])],
        ),
        (setting("A.texts", outputs={"y": Output()}, max_batch_size=4), ["a", "b"],
         [("y", BYTES, (2, 1), [b"a", b"b"])]),
        (setting("A.two", outputs={"n": Output(key="size")}), {"total": np.ones(1, np.float32), "size": 2, "more": 1},
         [("total", "FP32", (1,), [1.0]), ("n", "INT64", (1,), [2])]),
        (setting("A.any", inputs=ANY, outputs={"y": Output(datatype="INT32")}), [1, 2], [("y", "INT32", (2,), [1, 2])]),
        (setting("A.any", inputs=ANY, outputs={"y": Output(datatype="INT32")}), {"y": 1, "z": 2},
         [("y", "INT32", (1,), [1])]),
        (setting("A.any", inputs=ANY), {"y": 1}, [("y", "INT64", (1,), [1])]),
    ],
)  # fmt: skip
def test_results_become_the_outputs_that_are_described(said: ModelSetting, result: Any, expected: Any) -> None:
    """Python's own numbers and lists take the datatype and the shape; what is not described is left out."""
    assert outcome(said, result) == expected


@pytest.mark.parametrize(
    ("said", "result", "why"),
    [
        (setting("A.any", inputs=ANY, outputs={"y": Output(datatype="FP32")}), np.ones(2),
         "is FP64, and described as FP32"),
        (setting("A.array", outputs={"y": Output(shape=(3,))}), np.ones(2, np.float32),
         r"is \[2\], and described as \[3\]"),
        (setting("A.array", outputs={"y": Output(shape=(3,))}, max_batch_size=2), np.ones(3, np.float32),
         r"is \[3\], and described as \[-1, 3\]"),
        (setting("A.array", outputs={"y": Output(shape=(3, 1))}), np.ones(3, np.float32),
         r"is \[3\], and described as \[3, 1\]"),
        (setting("A.one", outputs={"y": Output(datatype="INT8")}), 300, "from -128 to 127"),
        (setting("A.one", outputs={"y": Output(datatype="INT8")}), "text", "is BYTES, and described as INT8"),
        (setting("A.any", inputs=ANY, outputs={"y": Output(datatype="FP32")}), {"z": 1},
         "none of the model's outputs y"),
        (setting("A.any", inputs=ANY,
                 outputs={"y": Output(datatype="FP32"), "z": Output(datatype="FP32")}), 1.5,
         "none of the model's outputs y, z"),
    ],
)  # fmt: skip
def test_a_result_that_is_not_as_described_is_an_error(said: ModelSetting, result: Any, why: str) -> None:
    """A client would otherwise read it as what it is not."""
    with pytest.raises(errors.Unsupported, match=why) as caught:
        outcome(said, result)
    assert caught.value.maybe_executed


def test_priorities_and_deadlines_are_those_of_the_description() -> None:
    """Beyond the levels, and without one, the default counts; the earlier deadline holds."""
    model = found(setting("A.array", priority_levels=3, default_priority_level=2, deadline_s=1.0))
    maker = object.__new__(Inference)
    maker._most_deadline_s = 100.0  # type: ignore[misc]

    def options(deadline_s: float | None = None, **parameters: int) -> Any:
        return maker.options(model, InferRequest("m", "", "", parameters, [], []), deadline_s)

    assert [options(priority=each).priority for each in (0, 1, 2, 3, 4)] == [6, 7, 6, 5, 6]
    assert options().deadline_s == 1.0
    assert options(timeout=500_000).deadline_s == 0.5
    assert options(timeout=5_000_000).deadline_s == 1.0
    assert options(0.25).deadline_s == 0.25
    told = config_of(model)["dynamic_batching"]
    assert (told["priority_levels"], told["default_priority_level"]) == (3, 2)
    assert told["default_queue_policy"]["default_timeout_microseconds"] == 1_000_000


def test_the_configuration_tells_how_long_a_batch_of_rows_waits() -> None:
    """Only of models that have rows, for they alone are batched."""
    told = config_of(found(setting("A.rows", max_batch_size=16)))["dynamic_batching"]
    assert (told["max_queue_delay_microseconds"], told["preferred_batch_size"]) == (2000, [])
    assert "dynamic_batching" not in config_of(found(setting("A.rows")))


# --- any description --------------------------------------------------------------------------------------------------

shapes = st.none() | st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=2).map(tuple)
KINDS: Final = ["", "FP32", "INT64", "INT8", "FP64", BYTES, "BOOL"]
LIKELY: Final = {"x": "FP32", "y": "INT64", "n": "INT32", "text": BYTES, "texts": BYTES, "numbers": "FP16"}
"""Datatypes that fit most of the parameters."""


@st.composite
def descriptions(draw: st.DrawFn) -> ModelSetting:
    """Draw a description that is near to what fits its method."""
    name = draw(st.sampled_from(sorted(METHODS)))
    is_odd = draw(st.integers(0, 9)) == 0

    def some(values: list[str]) -> str:
        return draw(st.sampled_from(values))

    inputs: dict[str, Input] = {}
    for parameter in METHODS[name].parameters:
        if draw(st.booleans()) or name in ("A.bare", "A.any", "A.unknown"):
            tensor = some([parameter, parameter.upper(), *(["x", "y"] if is_odd else [])])
            renamed = parameter if tensor != parameter else some(["", parameter, *(["x"] if is_odd else [])])
            likely = LIKELY.get(parameter, "")
            kind = some(KINDS if is_odd else [likely, likely, "INT8" if name == "A.unknown" else likely])
            optional = draw(st.sampled_from([None, None, False, True] if is_odd else [None, False]))
            inputs[tensor] = Input(shape=draw(shapes), datatype=kind, parameter=renamed, optional=optional)
    outputs: dict[str, Output] = {}
    for key in draw(st.lists(st.sampled_from(["total", "size", "output", "OUT"]), max_size=2, unique=True)):
        kind = some(KINDS if is_odd or name in ("A.bare", "A.any", "A.unknown") else [""])
        outputs[some([key, key.upper()])] = Output(shape=draw(shapes), datatype=kind, key=some([key, key, ""]))
    return ModelSetting(
        method=name,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=draw(st.sampled_from([0, 0, 1, 4])),
        id_to=some(["", "request_id"]) if name == "A.text" or is_odd else "",
        parameters_to=some(["", "options"]) if name == "A.text" or is_odd else "",
        sequence_to=some(["", "options"]) if name == "A.step" else "",
        sequence_controls=draw(st.sampled_from([{}, {"begins": START}, {"begins": START, "number": NUMBER}]))
        if name == "A.step"
        else {},
        sequence_idle_s=draw(st.sampled_from([None, None, None, 2.0])),
    )


def a_tensor(name: str, datatype: str, shape: list[int], rows: int) -> NamedTensor:
    """Return a tensor as metadata tells it; open lengths are 2, but that of rows."""
    lengths = tuple(2 if each == -1 else each for each in shape)
    if rows and lengths:
        lengths = (rows, *lengths[1:])
    count = int(np.prod(lengths))
    if datatype == BYTES:
        return NamedTensor(name, BYTES, lengths, [b"a"] * count)
    return tensors.of_raw(name, datatype, lengths, memoryview(np.zeros(lengths, NAMES[datatype]).tobytes()))


def judged(said: ModelSetting) -> Iterator[Model]:
    """Yield the model of a description, if it is accepted and fits."""
    refusal = ""
    try:
        yield found(said)
    except errors.ConfigurationError:
        return
    except Problem as problem:
        refusal = problem.message
    assert not refusal or refusal.startswith("the model m does not fit its method: ")


@hypothesis.settings(deadline=None, max_examples=400)
@hypothesis.given(descriptions())
def test_whatever_is_accepted_is_the_same_from_every_side(said: ModelSetting) -> None:
    """A request that is made by the metadata alone is accepted, and gives each parameter one argument of its kind."""
    for model in judged(said):
        told, config = model.metadata(), config_of(model)
        json_format.ParseDict(config, message_class()())  # Triton's own names and types
        rows = min(2, said.rows)
        for side in ("input", "output"):
            assert [each["name"] for each in config[side]] == [each["name"] for each in told[f"{side}s"]]
            for one, other in zip(config[side], told[f"{side}s"], strict=True):
                assert one["data_type"] == f"TYPE_{other['datatype'].replace(BYTES, 'STRING')}"
                assert ([-1] if rows else []) + list(one["dims"]) == other["shape"]
        assert set(said.inputs) <= {each["name"] for each in told["inputs"]}
        assert set(said.outputs) <= {each["name"] for each in told["outputs"]}
        given = [a_tensor(each["name"], each["datatype"], each["shape"], rows) for each in told["inputs"]]
        arguments = model.arguments(given)
        assert len(arguments) == len(given)
        if said.has_sequences:
            arguments |= controls_of(model, AskedSequence(5, True, False))
            told_controls = config["sequence_batching"]["control_input"]
            assert [each["name"] for each in told_controls] == list(said.sequence_controls)
        reserved = {said.id_to, said.parameters_to}
        assert set(arguments) <= set(model.info.parameters) - reserved
        for each, about in zip(given, config["input"], strict=True):
            setting_of = said.inputs.get(each.name)
            parameter = (setting_of and setting_of.parameter) or each.name
            argument, others = arguments[parameter], [one for one in given if one is not each]
            if isinstance(argument, np.ndarray):
                assert argument.shape == each.shape
            elif isinstance(argument, list):
                assert len(argument) == (len(each.values) if isinstance(each.values, list) else each.values.size)
                assert not any(isinstance(one, list) for one in argument)
            if about["optional"]:
                assert not rows or len(given) == 1 or len(model.arguments(others)) == len(others)
            else:
                with pytest.raises(errors.InvalidRequest, match=f"missing required .*{re.escape(each.name)}"):
                    model.arguments(others)
