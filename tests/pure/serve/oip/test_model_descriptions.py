"""Descriptions of models: what is read of TOML and of Triton's config.pbtxt, and what is refused, in which words."""

from __future__ import annotations

import builtins
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.decoders import known
from atomr_mp.serve.oip.model_config import files
from atomr_mp.serve.oip.model_config.files import MOST_BYTES, MOST_LABEL_BYTES, read
from atomr_mp.serve.oip.settings import ControlSetting, InputSetting, ModelSetting, OutputSetting

pytest.importorskip("google.protobuf")

import msgspec

from atomr_mp.serve.oip.model_config import triton
from atomr_mp.serve.oip.model_config.messages import message_class

WHOLE: Final = """
[digits]
method = "Digits.scores"
max_batch_size = 32
id_to = "request_id"
parameters_to = "options"
headers_to = "heard"
headers = ["X-Tenant"]
decoupled = false
idempotent = true
priority_levels = 3
default_priority_level = 2
deadline_s = 1.5
parameters = { owner = "vision" }
sequence_to = "sequence"
sequence_idle_s = 2.5

[digits.sequence_controls.START]
kind = "start"
datatype = "BOOL"
parameter = "begins"

[digits.inputs.INPUT__0]
parameter = "pixels"
shape = [28, -1]
datatype = "FP32"
optional = false

[digits.outputs.OUTPUT__0]
key = "scores"
shape = [10]
labels = ["zero", "one"]
"""

PBTXT: Final = """
name: "digits"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 28, -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_STRING dims: [ 10 ] label_filename: "labels.txt" } ]
dynamic_batching {
  preferred_batch_size: [ 8 ]
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1500000 allow_timeout_override: true }
}
instance_group [ { kind: KIND_GPU count: 2 } ]
model_transaction_policy { decoupled: false }
parameters { key: "method" value { string_value: "Digits.scores" } }
parameters { key: "id_to" value { string_value: "request_id" } }
parameters { key: "parameters_to" value { string_value: "options" } }
parameters { key: "headers_to" value { string_value: "heard" } }
parameters { key: "headers" value { string_value: "X-Tenant, " } }
parameters { key: "input.INPUT__0" value { string_value: "pixels" } }
parameters { key: "output.OUTPUT__0" value { string_value: "scores" } }
parameters { key: "owner" value { string_value: "vision" } }
"""

METHOD: Final = 'parameters { key: "method" value { string_value: "A.m" } }\n'


def written(directory: Path, text: str | bytes, name: str = "models.toml") -> Path:
    """Return a new file."""
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(*paths: Path) -> str:
    """Return why files are refused; the first of them is named in front."""
    with pytest.raises(errors.ConfigurationError) as caught:
        read(paths)
    return str(caught.value)


def model(text: str, tmp_path: Path) -> ModelSetting:
    """Return the only model of a text in TOML."""
    (found,) = read([written(tmp_path, text)]).models.values()
    return found


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_says_all_that_a_setting_has(tmp_path: Path) -> None:
    """Each field is what the file says, and headers are in small letters."""
    found = model(WHOLE, tmp_path)
    assert found == ModelSetting(
        method="Digits.scores",
        inputs={
            "INPUT__0": InputSetting(parameter="pixels", shape=(28, -1), datatype="FP32", optional=False),
        },
        outputs={"OUTPUT__0": OutputSetting(key="scores", shape=(10,), labels=("zero", "one"))},
        max_batch_size=32,
        id_to="request_id",
        parameters_to="options",
        headers_to="heard",
        headers=("x-tenant",),
        decoupled=False,
        idempotent=True,
        priority_levels=3,
        default_priority_level=2,
        deadline_s=1.5,
        parameters={"owner": "vision"},
        sequence_to="sequence",
        sequence_idle_s=2.5,
        sequence_controls={"START": ControlSetting(kind="start", datatype="BOOL", parameter="begins")},
    )
    assert {
        name for name in ModelSetting.__struct_fields__ if getattr(found, name) == getattr(ModelSetting(), name)
    } == set()


def test_a_setting_travels_to_front_ends_as_it_is(tmp_path: Path) -> None:
    """By JSON, in the parent's plan."""
    found = model(WHOLE, tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(found), type=known(ModelSetting)) == found


def test_a_model_without_a_method_is_that_of_its_name(tmp_path: Path) -> None:
    """So a table can say more of a method without another name."""
    assert model("['Digits.scores']\nmax_batch_size = 1", tmp_path).method == "Digits.scores"


def test_labels_are_read_beside_the_description(tmp_path: Path) -> None:
    """One a line, whatever ends the last one; an empty line is a label, too."""
    (tmp_path / "of").mkdir()
    written(tmp_path / "of", b"zero\r\n\nt\xc3\xaate\n", "labels.txt")
    found = model("[m]\nmethod = 'A.m'\noutputs.o.label_filename = 'of/labels.txt'", tmp_path).outputs["o"]
    assert (found.labels, found.label_filename) == (("zero", "", "tête"), "of/labels.txt")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[m\n", r"line 1"),
        ("m = 1", r"model 'm' is 1, and not a table"),
        ("[m]", r"model 'm': it has no method, and its own name is none; write method = \"Actor\.method\""),
        ("[m]\nmethod = 'm'", r"model 'm': method is 'm'; write method"),
        ("[m]\nmethod = 'A.m.x'", r"method is 'A.m.x'"),
        ("[m]\nmethod = 1", r"method is 1: Expected `str`, got `int`"),
        ("[m]\nmethods = 'A.m'", r"there is no setting 'methods'; did you mean method\?"),
        ("[m]\nmethod = 'A.m'\ninputs = 3", r"inputs is 3, and not a table"),
        ("[m]\nmethod = 'A.m'\ninputs.x = 3", r"input 'x' is 3, and not a table"),
        ("[m]\nmethod = 'A.m'\ninputs.x.labels = ['a']", r"input 'x': there is no setting 'labels'"),
        ("[m]\nmethod = 'A.m'\noutputs.x.optional = true", r"output 'x': there is no setting 'optional'"),
        ("[m]\nmethod = 'A.m'\ninputs.x.shape = [0]", r"input 'x': a length of its shape is 0; write 1 or more, or -1"),
        ("[m]\nmethod = 'A.m'\ninputs.x.shape = [-2]", r"a length of its shape is -2"),
        (f"[m]\nmethod = 'A.m'\ninputs.x.shape = [{2**63}]", r"a length of its shape is 9223372036854775808"),
        ("[m]\nmethod = 'A.m'\ninputs.x.shape = [1.5]", r"shape is \[1.5\]: Expected `int`"),
        (f"[m]\nmethod = 'A.m'\ninputs.x.shape = {[1] * 32}", r"its shape has 32 lengths; there are fewer than 32"),
        ("[m]\nmethod = 'A.m'\ninputs.x.datatype = 'FP23'", r"there is no datatype 'FP23'; did you mean FP32\?"),
        ("[m]\nmethod = 'A.m'\ninputs.x.datatype = 'TYPE_FP32'", r"there is no datatype 'TYPE_FP32'"),
        ("[m]\nmethod = 'A.m'\ninputs.'' = {}", r"its name has 1 to 256 bytes"),
        ('[m]\nmethod = "A.m"\ninputs."\\u0000" = {}', r"no characters that cannot be seen"),
        (f"[m]\nmethod = 'A.m'\ninputs.{'x' * 257} = {{}}", r"its name has 1 to 256 bytes"),
        (
            "[m]\nmethod = 'A.m'\ninputs.a.parameter = 'x'\ninputs.b.parameter = 'x'",
            r"the parameter 'x' is given to 2 things",
        ),
        ("[m]\nmethod = 'A.m'\ninputs.x = {}\nid_to = 'x'", r"the parameter 'x' is given to 2 things"),
        ("[m]\nmethod = 'A.m'\nparameters_to = 'x'\nid_to = 'x'", r"the parameter 'x' is given to 2 things"),
        ("[m]\nmethod = 'A.m'\noutputs.a.key = 'x'\noutputs.x = {}", r"the key 'x' is given to 2 things"),
        ("[m]\nmethod = 'A.m'\nmax_batch_size = -1", r"max_batch_size must be .*; got -1"),
        (f"[m]\nmethod = 'A.m'\nmax_batch_size = {2**31}", r"max_batch_size must be .*; got 2147483648"),
        ("[m]\nmethod = 'A.m'\nmax_batch_size = true", r"max_batch_size is True: Expected `int`"),
        ("[m]\nmethod = 'A.m'\npriority_levels = 2", r"default_priority_level is missing; it is 1 to 2"),
        (
            "[m]\nmethod = 'A.m'\npriority_levels = 2\ndefault_priority_level = 3",
            r"default_priority_level must be .*; got 3",
        ),
        ("[m]\nmethod = 'A.m'\ndefault_priority_level = 1", r"default_priority_level needs priority_levels"),
        ("[m]\nmethod = 'A.m'\ndeadline_s = 0", r"deadline_s must be .*; got 0"),
        ("[m]\nmethod = 'A.m'\ndeadline_s = nan", r"deadline_s must be .*; got nan"),
        ("[m]\nmethod = 'A.m'\nheaders = ['x']", r"headers and headers_to go together"),
        ("[m]\nmethod = 'A.m'\nheaders_to = 'x'", r"headers and headers_to go together"),
        ("[m]\nmethod = 'A.m'\nheaders_to = 'x'\nheaders = ['a b']", r"headers: 'a b' is no header's name"),
        ("[m]\nmethod = 'A.m'\nparameters.x = 1", r"parameters is \{'x': 1\}: Expected `str`"),
        (
            "[m]\nmethod = 'A.m'\noutputs.x.label_filename = 'none.txt'",
            r"output 'x': the file of its labels .* is no file",
        ),
        ("[m]\nmethod = 'A.m'\noutputs.x = {label_filename = 'models.toml', labels = ['a']}", r"has both labels and"),
        (
            '[m]\nmethod = "A.m"\noutputs.x.label_filename = "\\u0000"',
            r"the file of its labels .* cannot be read|no file",
        ),
        ("[m]\nmethod = 'A.m'\nsequence_idle_s = 0", r"sequence_idle_s must be .*; got 0"),
        ("[m]\nmethod = 'A.m'\nsequence_to = 'x'\nid_to = 'x'", r"the parameter 'x' is given to 2 things"),
        (
            "[m]\nmethod = 'A.m'\nsequence_controls.x.kind = 'begin'",
            r"sequence_controls is .*Invalid enum value 'begin'",
        ),
        (
            "[m]\nmethod = 'A.m'\nsequence_controls.x = {kind = 'end', datatype = 'INT64'}",
            r"sequence_controls 'x': its datatype is one of INT32, FP32, BOOL, not 'INT64'",
        ),
        (
            "[m]\nmethod = 'A.m'\nsequence_controls.x = {kind = 'id', datatype = 'BOOL'}",
            r"sequence_controls 'x': its datatype is one of UINT64, .*, not 'BOOL'",
        ),
        (
            "[m]\nmethod = 'A.m'\ninputs.x.parameter = 'y'\nsequence_controls.x = {kind = 'id', datatype = 'INT64'}",
            r"an input has this name, too",
        ),
        (
            "[m]\nmethod = 'A.m'\nsequence_controls.x = {kind = 'id', datatype = 'INT64'}\ninputs.y.parameter = 'x'",
            r"the parameter 'x' is given to 2 things",
        ),
        (b"\xff", r"cannot be read: 'utf-8' codec"),
        (f"x = {'9' * 5000}", r"limit"),
        (f"x = {'[' * 100_000}", r"nested too deeply|recursion"),
        (b"#" * (MOST_BYTES + 1), r"has more than 1048576 bytes"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_its_words(text: str | bytes, why: str, tmp_path: Path) -> None:
    """The error names the file, the model and what is wrong."""
    path = written(tmp_path, text)
    told = refused(path)
    assert str(path) in told
    assert re.search(why, told), told


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a b", "a\tb", "a\nb", "\0", "a\x7f", "a\u200bb", "a\u00a0b", "..", "a..b", ".", "x" * 257, "ä" * 129,
     "stats", "a\ufffd"],
)  # fmt: skip
def test_a_model_s_name_is_one_segment_of_a_path(name: str, tmp_path: Path) -> None:
    """Whatever a client or a proxy would read as another path, or a person not at all, is refused."""
    quoted = "".join(f"\\u{ord(each):04x}" if each in '\\"' or not each.isprintable() else each for each in name)
    assert "the model's name" in refused(written(tmp_path, f'["{quoted}"]\nmethod = "A.m"'))


@pytest.mark.parametrize("name", ["resnet-50", "v1.2", "größe", "模型", "a%2Fb", "x" * 256, "a:b@c", "A.m"])
def test_other_names_are_taken(name: str, tmp_path: Path) -> None:
    """As they are."""
    assert list(read([written(tmp_path, f'["{name}"]\nmethod = "A.m"')]).models) == [name]


def test_a_model_is_described_once(tmp_path: Path) -> None:
    """The error names both files."""
    one = written(tmp_path, "[m]\nmethod = 'A.m'", "one.toml")
    two = written(tmp_path, f'name: "m" {METHOD}', "two.pbtxt")
    told = refused(one, two)
    assert "the model 'm' is described twice" in told
    assert str(one) in told
    assert str(two) in told


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe without a writer is not read."""
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in refused(tmp_path / "pipe")
    assert "is no file" in refused(tmp_path)
    assert "is no file" in refused(tmp_path / "none.toml")
    os.mkfifo(tmp_path / "labels.pbtxt")
    assert "is no file" in refused(tmp_path / "labels.pbtxt")


def test_labels_have_a_limit(tmp_path: Path) -> None:
    """Memory is bounded before the file is read."""
    with (tmp_path / "labels.txt").open("wb") as file:
        file.truncate(MOST_LABEL_BYTES + 1)
    path = written(tmp_path, "[m]\nmethod = 'A.m'\noutputs.x.label_filename = 'labels.txt'")
    assert f"has more than {MOST_LABEL_BYTES} bytes" in refused(path)


# --- Triton's ---------------------------------------------------------------------------------------------------------


def test_a_config_pbtxt_is_taken_over(tmp_path: Path) -> None:
    """It gives the setting that a table would give; a warning for each field without effect has the reason."""
    written(tmp_path, "zero\none\n", "labels.txt")
    path = written(tmp_path, PBTXT, "config.pbtxt")
    found = read([path])
    assert found.models == {
        "digits": ModelSetting(
            method="Digits.scores",
            inputs={"INPUT__0": InputSetting(parameter="pixels", shape=(28, -1), datatype="FP32", optional=False)},
            outputs={
                "OUTPUT__0": OutputSetting(
                    key="scores", shape=(10,), datatype="BYTES", labels=("zero", "one"), label_filename="labels.txt"
                )
            },
            max_batch_size=32,
            id_to="request_id",
            parameters_to="options",
            headers_to="heard",
            headers=("x-tenant",),
            decoupled=False,
            priority_levels=3,
            default_priority_level=2,
            deadline_s=1.5,
            parameters={"owner": "vision"},
        )
    }
    told = {each.removeprefix(f"{path}: ").partition(" is ignored: ")[0] for each in found.warnings}
    assert told == {
        "platform",
        "dynamic_batching",
        "dynamic_batching.default_queue_policy.timeout_action",
        "instance_group",
    }


SEQUENCES: Final = """
name: "sums"
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  direct { max_queue_delay_microseconds: 7 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ -1, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] },
    { name: "NUMBER" control [ { kind: CONTROL_SEQUENCE_CORRID } ] }
  ]
}
parameters { key: "method" value { string_value: "Sums.add" } }
parameters { key: "sequence_to" value { string_value: "sequence" } }
parameters { key: "input.START" value { string_value: "begins" } }
"""


def test_a_config_with_sequences_is_taken_over(tmp_path: Path) -> None:
    """Each control is a tensor of the server's own; a field without effect has a warning."""
    path = written(tmp_path, SEQUENCES, "config.pbtxt")
    found = read([path])
    assert found.models == {
        "sums": ModelSetting(
            method="Sums.add",
            sequence_to="sequence",
            sequence_idle_s=5.0,
            sequence_controls={
                "START": ControlSetting(kind="start", datatype="FP32", values=(-1.0, 1.0), parameter="begins"),
                "READY": ControlSetting(kind="ready", datatype="INT32", values=(0.0, 1.0)),
                "END": ControlSetting(kind="end", datatype="BOOL", values=(0.0, 1.0)),
                "CORRID": ControlSetting(kind="id", datatype="BYTES", values=(0.0, 1.0)),
                "NUMBER": ControlSetting(kind="id", datatype="UINT64", values=(0.0, 1.0)),
            },
        )
    }
    assert [each.partition(" is ignored")[0] for each in found.warnings] == [
        f"{path}: sequence_batching.direct.max_queue_delay_microseconds"
    ]
    (plain,) = read([written(tmp_path, "sequence_batching {} " + METHOD, "plain.pbtxt")]).models.values()
    assert (plain.has_sequences, plain.idle_s) == (True, 1.0)


def test_a_model_without_a_name_has_that_of_its_folder(tmp_path: Path) -> None:
    """As in Triton's repositories."""
    (tmp_path / "resnet").mkdir()
    assert list(read([written(tmp_path / "resnet", METHOD, "config.pbtxt")]).models) == ["resnet"]


def test_what_a_config_does_not_say_is_the_method_s(tmp_path: Path) -> None:
    """Datatypes, shapes and whether it streams."""
    path = written(tmp_path, f'input {{ name: "x" }} output {{ name: "y" }} {METHOD}', "config.pbtxt")
    (found,) = read([path]).models.values()
    assert (found.inputs["x"].datatype, found.inputs["x"].shape, found.decoupled) == ("", None, None)
    assert (found.outputs["y"].datatype, found.outputs["y"].shape, found.deadline_s) == ("", None, None)


REFUSALS: Final = {
    "sequence_batching.oldest": "sequence_batching { oldest { max_candidate_sequences: 4 } }",
    "sequence_batching.state": 'sequence_batching { state [ { input_name: "s" output_name: "s" } ] }',
    "sequence_batching.iterative_sequence": "sequence_batching { iterative_sequence: true }",
    "ensemble_scheduling": 'ensemble_scheduling { step [ { model_name: "a" } ] }',
    "batch_input": "batch_input [ { kind: BATCH_ELEMENT_COUNT } ]",
    "batch_output": "batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE } ]",
    **{
        f"{side}.{name}": f'{side} {{ name: "x" {name}{value} }}'
        for side in ("input", "output")
        for name, value in (("reshape", " { }"), ("is_shape_tensor", ": true"), ("is_non_linear_format_io", ": true"))
    },
}


@pytest.mark.parametrize("field", REFUSALS)
def test_what_a_method_cannot_keep_is_refused(field: str, tmp_path: Path) -> None:
    """The error names the field and the reason."""
    path = written(tmp_path, METHOD + REFUSALS[field], "config.pbtxt")
    assert f"{path}: {field} is not offered here: " in refused(path)


def test_each_refusal_is_tried() -> None:
    """The table has no other."""
    assert REFUSALS.keys() == {rule.field for rule in triton.RULES if rule.fate is triton.Fate.REFUSED}


def test_there_is_a_rule_for_each_field() -> None:
    """Of the message, and of each message of whose fields some have rules of their own."""
    ruled = {rule.field for rule in triton.RULES}
    assert len(ruled) == len(triton.RULES)
    seen: set[str] = set()

    def look(descriptor: Any, prefix: str) -> None:
        for field in descriptor.fields:
            path = f"{prefix}{field.name}"
            inner = [each for each in ruled if each.startswith(f"{path}.")]
            covered = any(path.startswith(f"{each}.") for each in ruled)
            assert path in ruled or inner or covered, path
            seen.add(path)
            if inner:
                look(field.message_type, f"{path}.")

    look(message_class().DESCRIPTOR, "")
    assert ruled <= seen


@pytest.mark.parametrize(
    "rule", [each for each in triton.RULES if each.fate is triton.Fate.IGNORED], ids=lambda each: each.field
)
def test_what_is_ignored_is_told(rule: triton.Rule, tmp_path: Path) -> None:
    """Each such field makes one line, with its reason."""
    config: Any = message_class()(name="A.m")
    target = config
    *outer, last = rule.field.split(".")
    for each in outer:
        target = getattr(target, each).add(name="x") if each in ("input", "output") else getattr(target, each)
    field = target.DESCRIPTOR.fields_by_name[last]
    value = getattr(target, last)
    if field.message_type is None:
        setattr(target, last, {field.TYPE_STRING: "x", field.TYPE_BOOL: True}.get(field.type, 1))
    elif hasattr(value, "SetInParent"):
        value.SetInParent()
    elif hasattr(value, "add"):
        value.add()
    elif field.message_type.fields_by_name["value"].message_type is None:
        value["k"] = "v"
    else:
        value[1].SetInParent()
    path = written(tmp_path, str(config), "config.pbtxt")
    assert f"{path}: {rule.field} is ignored: {rule.why}" in read([path]).warnings


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name 'm'", r"line 1, column \d+: "),
        ("\nnames: 'm'", r"line 2, column \d+: .*names"),
        ("max_batch_size: 4294967296", r"line 1, column \d+"),
        ("max_batch_size: -1\nname: 'A.m'", r"max_batch_size must be .*; got -1"),
        ("name: 'm'", r"its own name is none; write parameters \{ key: \"method\""),
        ("name: 'a b' " + METHOD, r"the model's name 'a b' has white space"),
        ("name: '\\000' " + METHOD, r"the model's name '\\x00' has white space"),
        ("name: '\\377' " + METHOD, r"line 1|decode"),
        ("input [ { name: 'x' }, { name: 'x' } ] " + METHOD, r"two inputs are called 'x'"),
        ("output { name: 'x' } output { name: 'x' } " + METHOD, r"two outputs are called 'x'"),
        ("input { } " + METHOD, r"input '': its name"),
        ("input { name: 'x' dims: 0 } " + METHOD, r"a length of its shape is 0"),
        ("input { name: 'x' data_type: TYPE_FP8 } " + METHOD, r"line 1, column \d+: .*TYPE_FP8"),
        ("parameters { key: 'input.y' value { string_value: 'a' } } " + METHOD, r"'input.y' names a tensor that"),
        ("sequence_batching { control_input { name: 'x' } } " + METHOD, r"control_input 'x' has one control"),
        (
            "sequence_batching { control_input { name: 'x' control { int32_false_true: [ 0 ] } } } " + METHOD,
            r"control_input 'x' has a kind, and two values",
        ),
        (
            "sequence_batching { control_input { name: 'x' control { int32_false_true: [ 0, 1 ] "
            "bool_false_true: [ false, true ] } } } " + METHOD,
            r"control_input 'x' has a kind, and two values, for false and true, of one type",
        ),
        (
            "input { name: 'x' } sequence_batching { control_input { name: 'x' "
            "control { int32_false_true: [ 0, 1 ] } } } " + METHOD,
            r"two inputs are called 'x'",
        ),
        ("dynamic_batching { priority_levels: 2 } " + METHOD, r"default_priority_level is missing"),
        (
            "dynamic_batching { priority_levels: 18446744073709551615 } " + METHOD,
            r"priority_levels must be .*; got 18446744073709551615",
        ),
        ("output { name: 'x' label_filename: 'none' } " + METHOD, r"the file of its labels .* is no file"),
        ("max_batch_size: " + "9" * 5000, r"line 1|limit"),
        (b"\xff", r"cannot be read"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_its_words(text: str | bytes, why: str, tmp_path: Path) -> None:
    """The error names the file, and the line where the text is none of such a message."""
    path = written(tmp_path, text, "config.pbtxt")
    told = refused(path)
    assert str(path) in told
    assert re.search(why, told), told


def test_without_protobuf_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables need nothing."""
    path = written(tmp_path, PBTXT, "config.pbtxt")
    imported = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.startswith("google"):
            raise ImportError(name)
        return imported(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [each for each in sys.modules if each.startswith("google")]:
        monkeypatch.delitem(sys.modules, name)
    assert "the extra `serve-grpc` has it: pip install 'atomr-mp[serve-grpc]'" in refused(path)
    assert model(WHOLE, tmp_path).method == "Digits.scores"


# --- any text ---------------------------------------------------------------------------------------------------------

PIECES: Final = re.compile(r"\w+|\s+|[^\w\s]")


def mangled(*texts: str) -> st.SearchStrategy[str]:
    """Return texts that are near to these: pieces of them, moved, doubled, left out, and others between."""
    pieces = sorted({piece for text in texts for piece in PIECES.findall(text)})
    other = st.one_of(st.sampled_from(pieces), st.text(max_size=4), st.integers().map(str))

    @st.composite
    def changed(draw: st.DrawFn) -> str:
        found = PIECES.findall(draw(st.sampled_from(texts)))
        for _ in range(draw(st.integers(0, 6))):
            at = draw(st.integers(0, len(found)))
            found[at : at + draw(st.integers(0, 3))] = draw(st.lists(other, max_size=3))
        return "".join(found)

    return st.one_of(changed(), st.lists(other, max_size=40).map(" ".join))


def check_outcome(path: Path) -> None:
    """Check that a file is refused by its name, or gives settings that can travel."""
    refusal, models = str(path), dict[str, ModelSetting]()
    try:
        models = read([path]).models
    except errors.ConfigurationError as error:
        refusal = str(error)
    assert str(path) in refusal
    for each in models.values():
        assert msgspec.json.decode(msgspec.json.encode(each), type=known(ModelSetting)) == each


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(text=mangled(WHOLE), as_bytes=st.none() | st.binary(max_size=60))
def test_any_table_is_a_setting_or_a_typed_error(text: str, as_bytes: bytes | None, tmp_path: Path) -> None:
    """Nothing else is raised, and what is taken can travel."""
    path = written(tmp_path, text.encode("utf-8", "replace") if as_bytes is None else as_bytes)
    check_outcome(path)


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    text=mangled(PBTXT, SEQUENCES, METHOD, *REFUSALS.values()), as_bytes=st.none() | st.binary(max_size=60)
)
def test_any_config_is_a_setting_or_a_typed_error(text: str, as_bytes: bytes | None, tmp_path: Path) -> None:
    """Nothing else is raised, and what is taken can travel."""
    written(tmp_path, "zero\n", "labels.txt")
    path = written(tmp_path, text.encode("utf-8", "replace") if as_bytes is None else as_bytes, "config.pbtxt")
    check_outcome(path)


def test_no_files_are_no_models() -> None:
    """The server of most users."""
    assert read([]) == files.Descriptions({}, [])
