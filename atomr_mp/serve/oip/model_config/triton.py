"""A model's description by a config.pbtxt of Triton's. Pure; it needs the package protobuf.

`RULES` is all that is done with a file's fields, and the page's table is made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from atomr_mp import errors
from atomr_mp.serve.oip.datatypes import BYTES
from atomr_mp.serve.oip.model_config.messages import message_class
from atomr_mp.serve.oip.settings import (
    FALSE_TRUE,
    MICROSECONDS,
    SEQUENCE_IDLE_S,
    ControlSetting,
    InputSetting,
    ModelSetting,
    OutputSetting,
)

EXTRA: Final = "serve-grpc"
"""The extra that brings protobuf."""

HOW: Final = 'parameters { key: "method" value { string_value: "Actor.method" } }'
"""How a file names its method."""


class Fate(Enum):
    """What is done with a field that is set."""

    TAKEN = "taken over"
    IGNORED = "ignored, with a warning"
    REFUSED = "refused"


class Rule(NamedTuple):
    """What is done with a field."""

    field: str
    """Its path. A rule of a message is one of all that is in it, but for what has a rule of its own."""
    fate: Fate
    why: str


_POOL: Final = "workers are the pool's: `--gpus`, `--workers-per-gpu`"
_NO_FILES: Final = "no model's files are loaded, but actors"

RULES: Final = (
    Rule("name", Fate.TAKEN, "the model's name; without it, that of the file's folder"),
    Rule("max_batch_size", Fate.TAKEN, "most rows of a request, and the first dimension of its tensors"),
    Rule("input.name", Fate.TAKEN, "the parameter's name, unless `input.NAME` in `parameters` tells it"),
    Rule("input.data_type", Fate.TAKEN, "has to agree with the annotation"),
    Rule("input.dims", Fate.TAKEN, "checked in each request"),
    Rule("input.optional", Fate.TAKEN, "the parameter needs a default"),
    Rule("input.format", Fate.IGNORED, "it changes nothing of a tensor"),
    Rule("input.allow_ragged_batch", Fate.IGNORED, "requests share a batch if their shapes are equal"),
    Rule("input.reshape", Fate.REFUSED, "a method gets the shape that the client sends; reshape there"),
    Rule("input.is_shape_tensor", Fate.REFUSED, "it is of TensorRT alone"),
    Rule("input.is_non_linear_format_io", Fate.REFUSED, "it is of TensorRT alone"),
    Rule("output.name", Fate.TAKEN, "the result's key, unless `output.NAME` in `parameters` tells it"),
    Rule("output.data_type", Fate.TAKEN, "has to agree with the annotation, and with each result"),
    Rule("output.dims", Fate.TAKEN, "checked in each result"),
    Rule("output.label_filename", Fate.TAKEN, "read with the file, and relative to it"),
    Rule("output.reshape", Fate.REFUSED, "a client gets the shape that the method returns; reshape there"),
    Rule("output.is_shape_tensor", Fate.REFUSED, "it is of TensorRT alone"),
    Rule("output.is_non_linear_format_io", Fate.REFUSED, "it is of TensorRT alone"),
    Rule(
        "dynamic_batching",
        Fate.IGNORED,
        "a method forms batches by its own `Batch`; priorities and a timeout are taken over",
    ),
    Rule("dynamic_batching.priority_levels", Fate.TAKEN, "levels beyond them are the default one"),
    Rule("dynamic_batching.default_priority_level", Fate.TAKEN, "of requests that name none"),
    Rule(
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        Fate.TAKEN,
        "the deadline of a request that asks for none earlier; of the whole call, not of its wait alone",
    ),
    Rule(
        "dynamic_batching.default_queue_policy.timeout_action",
        Fate.IGNORED,
        "what is late is refused, as by REJECT",
    ),
    Rule(
        "dynamic_batching.default_queue_policy.allow_timeout_override",
        Fate.TAKEN,
        "a request's `timeout` counts in any case, if it is earlier",
    ),
    Rule("dynamic_batching.default_queue_policy.max_queue_size", Fate.IGNORED, "the pool's own limits hold"),
    Rule("dynamic_batching.priority_queue_policy", Fate.IGNORED, "all levels have the default's deadline"),
    Rule("model_transaction_policy.decoupled", Fate.TAKEN, "has to agree with whether the method streams"),
    Rule(
        "parameters",
        Fate.TAKEN,
        "`method`, `id_to`, `parameters_to`, `headers_to`, `sequence_to`, `headers` (with commas between), "
        "`input.NAME` and `output.NAME` are as in a table; the configuration tells the others",
    ),
    Rule("sequence_batching", Fate.TAKEN, "a sequence runs on one worker, one request at a time"),
    Rule("sequence_batching.direct", Fate.TAKEN, "the only strategy"),
    Rule("sequence_batching.direct.max_queue_delay_microseconds", Fate.IGNORED, "requests are not put into batches"),
    Rule("sequence_batching.direct.minimum_slot_utilization", Fate.IGNORED, "requests are not put into batches"),
    Rule("sequence_batching.max_sequence_idle_microseconds", Fate.TAKEN, "one second by default"),
    Rule(
        "sequence_batching.control_input",
        Fate.TAKEN,
        "a parameter of this name, unless `input.NAME` in `parameters` tells it; its tensor has one element",
    ),
    Rule("sequence_batching.oldest", Fate.REFUSED, "batches are not formed of several sequences; leave it out"),
    Rule("sequence_batching.state", Fate.REFUSED, "the actor keeps the state of a sequence, by its id"),
    Rule("sequence_batching.iterative_sequence", Fate.REFUSED, "write a method that streams"),
    Rule("ensemble_scheduling", Fate.REFUSED, "write a method that calls the others"),
    Rule("batch_input", Fate.REFUSED, "the method has to make it"),
    Rule("batch_output", Fate.REFUSED, "the method has to make it"),
    Rule("platform", Fate.IGNORED, "a method is the model"),
    Rule("backend", Fate.IGNORED, "a method is the model"),
    Rule("runtime", Fate.IGNORED, "a method is the model"),
    Rule("version_policy", Fate.IGNORED, "each model has the version 1 alone"),
    Rule("instance_group", Fate.IGNORED, _POOL),
    Rule("optimization", Fate.IGNORED, "that is the actor's own matter"),
    Rule("default_model_filename", Fate.IGNORED, _NO_FILES),
    Rule("cc_model_filenames", Fate.IGNORED, _NO_FILES),
    Rule("model_operations", Fate.IGNORED, _NO_FILES),
    Rule("model_repository_agents", Fate.IGNORED, _NO_FILES),
    Rule("model_warmup", Fate.IGNORED, "new workers make the call of a method's `example`"),
    Rule("response_cache", Fate.IGNORED, "no answer is kept"),
    Rule("metric_tags", Fate.IGNORED, "metrics have the labels of the pool"),
    Rule("model_metrics", Fate.IGNORED, "metrics have the labels of the pool"),
)
"""What is done with each field."""

_BY_FIELD: Final = {rule.field: rule for rule in RULES}

_DIVIDED: Final = frozenset(rule.field.rpartition(".")[0] for rule in RULES)
"""Messages of whose fields some have rules of their own."""

_TO: Final = ("method", "id_to", "parameters_to", "headers_to", "sequence_to")
"""Keys of `parameters` that are settings."""


_KINDS: Final[dict[str, Literal["start", "end", "ready", "id"]]] = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "id",
}
"""Our kinds of controls by Triton's."""


class TritonModel(NamedTuple):
    """The model of a file."""

    name: str
    setting: ModelSetting
    warnings: list[str]
    """What of it has no effect, and why."""


def model_of(text: str, where: str, folder: str) -> TritonModel:
    """Return the model that a file describes, as it is said; `checks.py` has the rules.

    Args:
        text: The file's.
        where: The file, for the error.
        folder: The name of the folder that it is in.

    Raises:
        ConfigurationError: It is no text of such a message, or has a field that is refused; or protobuf is missing.
    """
    try:
        from google.protobuf import text_format
    except ImportError as error:
        raise errors.ConfigurationError(
            f"{where}: protobuf is not installed; the extra `{EXTRA}` has it: pip install 'atomr-mp[{EXTRA}]'"
        ) from error
    config = message_class()()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise errors.ConfigurationError(f"{where}: {_told(error)}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise errors.ConfigurationError(f"{where}: {str(error) or 'it is nested too deeply'}") from error
    warnings = []
    for path in _set_fields(config, ""):
        rule = _BY_FIELD[path]
        if rule.fate is Fate.REFUSED:
            raise errors.ConfigurationError(f"{where}: {path} is not offered here: {rule.why}")
        if rule.fate is Fate.IGNORED:
            warnings.append(f"{where}: {path} is ignored: {rule.why}")
    return TritonModel(config.name or folder, _setting(where, config), list(dict.fromkeys(warnings)))


def _told(error: Any) -> str:
    line, column, text = error.GetLine(), error.GetColumn(), str(error)
    place = "" if line is None else f"line {line}, column {column}: "
    return place + text.removeprefix(f"{line}:{column} : ")


def _set_fields(message: Any, prefix: str) -> Iterator[str]:
    """Yield the paths of what a message sets, down to those that have a rule."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if path in _BY_FIELD:
            yield path
        if path in _DIVIDED:
            for each in [value] if field.message_type is not None and not _is_repeated(value) else value:
                yield from _set_fields(each, f"{path}.")


def _is_repeated(value: Any) -> bool:
    return not hasattr(value, "ListFields")


def _setting(where: str, config: Any) -> ModelSetting:
    texts = {key: value.string_value for key, value in config.parameters.items()}
    given = {key: texts.pop(key) for key in _TO if key in texts}
    headers = tuple(each.strip().lower() for each in texts.pop("headers", "").split(",") if each.strip())
    inputs: dict[str, InputSetting] = {}
    outputs: dict[str, OutputSetting] = {}
    for each in config.input:
        _check_new(where, "input", each.name, inputs)
        inputs[each.name] = InputSetting(
            shape=tuple(each.dims) or None,
            datatype=_datatype(each),
            parameter=texts.pop(f"input.{each.name}", ""),
            optional=each.optional,
        )
    for each in config.output:
        _check_new(where, "output", each.name, outputs)
        outputs[each.name] = OutputSetting(
            shape=tuple(each.dims) or None,
            datatype=_datatype(each),
            key=texts.pop(f"output.{each.name}", ""),
            label_filename=each.label_filename,
        )
    controls = _controls(where, config, inputs, texts)
    for key in texts:
        if key.startswith(("input.", "output.")):
            raise errors.ConfigurationError(f"{where}: parameters: {key!r} names a tensor that the file does not have")
    batching, policy = config.dynamic_batching, config.dynamic_batching.default_queue_policy
    timeout = policy.default_timeout_microseconds
    idle_us = config.sequence_batching.max_sequence_idle_microseconds
    has_sequences = config.HasField("sequence_batching")
    return ModelSetting(
        sequence_idle_s=(idle_us / MICROSECONDS if idle_us else SEQUENCE_IDLE_S) if has_sequences else None,
        sequence_controls=controls,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=config.max_batch_size,
        headers=headers,
        decoupled=config.model_transaction_policy.decoupled if config.HasField("model_transaction_policy") else None,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        deadline_s=timeout / MICROSECONDS if timeout else None,
        parameters=texts,
        **given,
    )


def _controls(
    where: str, config: Any, inputs: dict[str, InputSetting], texts: dict[str, str]
) -> dict[str, ControlSetting]:
    """Return the tensors that tell of a sequence; their `input.NAME` are taken out of `texts`."""
    found: dict[str, ControlSetting] = {}
    for each in config.sequence_batching.control_input:
        _check_new(where, "input", each.name, inputs | found)
        if len(each.control) != 1:
            raise errors.ConfigurationError(f"{where}: the control_input {each.name!r} has one control")
        (control,) = each.control
        told = control.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number.get(control.kind)
        kind = None if told is None else _KINDS.get(told.name)
        values = [(datatype, getattr(control, field)) for datatype, (field, _) in FALSE_TRUE.items()]
        values = [(datatype, pair) for datatype, pair in values if len(pair)]
        if kind is None or (kind != "id" and (len(values) != 1 or len(values[0][1]) != 2)):
            raise errors.ConfigurationError(
                f"{where}: the control_input {each.name!r} has a kind, and two values, for false and true, of one type"
            )
        datatype = _datatype(control) or "UINT64" if kind == "id" else values[0][0]
        pair = (0.0, 1.0) if kind == "id" else (float(values[0][1][0]), float(values[0][1][1]))
        parameter = texts.pop(f"input.{each.name}", "")
        found[each.name] = ControlSetting(kind=kind, datatype=datatype, values=pair, parameter=parameter)
    return found


def _check_new(where: str, what: str, name: str, known: dict[str, Any]) -> None:
    if name in known:
        raise errors.ConfigurationError(f"{where}: two {what}s are called {name!r}")


def _datatype(tensor: Any) -> str:
    """Return a tensor's datatype; empty if the file does not tell it."""
    kinds = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    kind = kinds.get(tensor.data_type)
    name = "INVALID" if kind is None else kind.name.removeprefix("TYPE_")
    return {"INVALID": "", "STRING": BYTES}.get(name, name)
