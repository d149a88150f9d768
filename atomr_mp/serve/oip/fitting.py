"""Whether a model's description fits its method, and the tensors that it then has. Pure.

A table cannot be checked before the pool has told its methods, and a reload may change them. So a description that does
not fit is no error of the server: the model is not ready, and says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.oip.datatypes import BYTES
from atomr_mp.serve.oip.settings import InputSetting, ModelSetting, OutputSetting, TensorSetting
from atomr_mp.serve.oip.signature import (
    OUTPUT,
    NoTensor,
    OpenTo,
    TensorInfo,
    TensorKind,
    inputs_of,
    kind_of,
    outputs_of,
)
from atomr_mp.serve.values.schemas import decode

ONE: Final = frozenset({TensorKind.SCALAR, TensorKind.TEXT, TensorKind.BINARY})
"""Forms of one element."""

FLAT: Final = frozenset({TensorKind.LIST, TensorKind.TEXTS, TensorKind.BINARIES})
"""Forms of elements in one list."""

_WIDER: Final[dict[str, frozenset[str]]] = {
    "INT64": frozenset(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    "FP64": frozenset({"FP16", "FP32", "FP64"}),
}
"""The datatypes that Python's own numbers may come from and become, by the one that their annotation tells."""


class MisfitError(Exception):
    """A description does not fit the method; the text says why."""


class Fitted(NamedTuple):
    """The tensors of a model."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo] | None
    """None where only a result shows them."""
    keys: Mapping[str, str]
    """The outputs' names by the result's keys, where they differ."""
    controls: Mapping[str, TensorInfo]
    """What the server adds to a request, to tell of its sequence."""


def fitted(info: MethodInfo, setting: ModelSetting) -> Fitted:
    """Return the tensors of a method with the names, types and shapes that a description gives them.

    Raises:
        MisfitError: It does not fit.
    """
    for name, said, found in (
        ("decoupled", setting.decoupled, info.streams),
        ("idempotent", setting.idempotent, info.idempotent),
    ):
        if said not in (None, found):
            raise MisfitError(f"it is described as {name} = {str(said).lower()}, and {setting.method} is not so")
    if info.batches_rows and setting.max_batch_size > info.batch_items:
        raise MisfitError(
            f"it is described as max_batch_size = {setting.max_batch_size}, and {setting.method} takes at most "
            f"{info.batch_items} rows (max_items of its Batch)"
        )
    if setting.has_sequences and (info.batch_items or info.streams):
        why = "has a Batch, which would mix them" if info.batch_items else "streams"
        raise MisfitError(f"it is described with sequences, and {setting.method} {why}")
    schema = decode(info.schema)
    inputs = _inputs(info, setting, schema)
    controls = {name: inputs.pop(name) for name in setting.sequence_controls}
    if not inputs:
        raise MisfitError(f"{setting.method} takes no tensor")
    return Fitted(inputs, *_outputs(setting, outputs_of(schema)), controls)


def _inputs(info: MethodInfo, setting: ModelSetting, schema: Mapping[str, Any]) -> dict[str, TensorInfo]:
    found, others = inputs_of(schema)
    arguments = schema.get("arguments")
    required: Collection[str] = () if arguments is None else arguments.get("required", ())
    if arguments is None:
        others = {name: NoTensor(f"{name} has no annotation", OpenTo.ANYTHING) for name in info.parameters}
    parameters = [*found, *others]
    reserved = _reserved(setting, schema, parameters)
    given = setting.inputs | {
        name: InputSetting(shape=(1,), datatype=each.datatype, parameter=each.parameter)
        for name, each in setting.sequence_controls.items()
    }
    described = {each.parameter or name: name for name, each in given.items()}
    for parameter, name in described.items():
        if parameter not in parameters:
            raise _no_parameter(f"input {name!r}", setting.method, parameter, parameters)
    missing = [each for each in others if each in required and each not in described and each not in reserved]
    if missing:
        why = others[missing[0]].why
        raise MisfitError(f"{setting.method} needs its parameter {missing[0]}, and no input is: {why}")
    made: dict[str, TensorInfo] = {}
    for parameter in [each for each in info.parameters if each in parameters] or parameters:
        if parameter in reserved or (parameter in others and parameter not in described):
            continue
        name = described.get(parameter, parameter)
        if name in made:
            raise MisfitError(f"two parameters of {setting.method} are the input {name!r}; rename the other one, too")
        said = given[name] if parameter in described else None
        known = found.get(parameter) or _open(name, others[parameter], said, is_optional=parameter not in required)
        if said is not None or not (known.is_optional and known.form in ONE and setting.rows > 1):
            made[name] = _input(name, known, said or InputSetting(), setting.rows)
        # Else it has no place for rows, and nobody has asked for it.
    return made


def _reserved(setting: ModelSetting, schema: Mapping[str, Any], parameters: Collection[str]) -> set[str]:
    """Return the parameters that get something else than tensors.

    Raises:
        MisfitError: One is missing, or does not take it.
    """
    found: set[str] = set()
    for option, kind, parameter in (
        ("id_to", "string", setting.id_to),
        ("parameters_to", "object", setting.parameters_to),
        ("headers_to", "object", setting.headers_to),
        ("sequence_to", "object", setting.sequence_to),
    ):
        if not parameter:
            continue
        if parameter not in parameters:
            raise _no_parameter(option, setting.method, parameter, parameters)
        if kind_of(parameter, schema) not in ("", kind):
            what = "a text" if kind == "string" else "a dict"
            raise MisfitError(f"{option}: the parameter {parameter!r} of {setting.method} does not take {what}")
        found.add(parameter)
    return found


def _no_parameter(what: str, method: str, parameter: str, known: Collection[str]) -> MisfitError:
    hint = did_you_mean(parameter, known)
    return MisfitError(f"{what}: {method} has no parameter {parameter!r}{hint}; it has: {', '.join(known) or 'none'}")


def _open(name: str, parameter: NoTensor, said: InputSetting | None, *, is_optional: bool) -> TensorInfo:
    """Return an input whose annotation leaves open which tensor it is.

    Raises:
        MisfitError: It does not, or nothing else tells.
    """
    if parameter.open_to is OpenTo.NOTHING:
        raise MisfitError(f"input {name!r}: {parameter.why}")
    if said is None or not said.datatype:
        raise MisfitError(f"input {name!r} has no datatype: {parameter.why}; give it one")
    if said.datatype == BYTES and parameter.open_to is OpenTo.ARRAYS:
        raise MisfitError(f"input {name!r} is {BYTES}, and the annotation is of an array")
    form = TensorKind.BINARIES if said.datatype == BYTES else TensorKind.ARRAY
    return TensorInfo(name, said.datatype, (-1,) if form is TensorKind.BINARIES else None, form, is_optional)


def _input(name: str, known: TensorInfo, said: InputSetting, most_rows: int) -> TensorInfo:
    if said.optional and not known.is_optional:
        raise MisfitError(f"input {name!r} is described as optional, and its parameter has no default")
    is_optional = known.is_optional if said.optional is None else said.optional
    return _tensor(f"input {name!r}", known, said, most_rows)._replace(name=name, is_optional=is_optional)


def _keys(setting: ModelSetting, known: Mapping[str, TensorInfo] | None) -> dict[str, str]:
    """Return the described outputs' names by the result's keys.

    Raises:
        MisfitError: One has a key, and the result has none.
    """
    keys = {each.key or name: name for name, each in setting.outputs.items()}
    if len(keys) == 1 and (known is None or list(known) == [OUTPUT]):
        (only,) = keys.values()
        keys[OUTPUT] = only  # a result that is no mapping is the only output
        if known is not None:
            if setting.outputs[only].key not in ("", OUTPUT):
                raise MisfitError(f"output {only!r}: the result of {setting.method} has no keys; leave out key")
            return {OUTPUT: only}
    return keys


def _outputs(
    setting: ModelSetting, known: Mapping[str, TensorInfo] | None
) -> tuple[dict[str, TensorInfo] | None, dict[str, str]]:
    """Return the outputs, and their names by the result's keys."""
    keys = _keys(setting, known)
    if known is None and not setting.outputs:
        return None, {}
    made: dict[str, TensorInfo] = {}
    for key, name in keys.items():
        if known is not None and key not in known:
            hint = did_you_mean(key, known)
            raise MisfitError(
                f"output {name!r}: the result of {setting.method} has no {key!r}{hint}; it has: {', '.join(known)}"
            )
        said = setting.outputs[name]
        info = TensorInfo(name, said.datatype, None, TensorKind.ARRAY) if known is None else known[key]
        if not info.datatype:
            raise MisfitError(f"output {name!r} has no datatype: the annotation of {setting.method} names none")
        made[name] = _tensor(f"output {name!r}", info, said, setting.rows)._replace(name=name)
    for key, info in (known or {}).items():
        if key not in keys:
            if key in made:
                raise MisfitError(f"two outputs of {setting.method} are called {key!r}; give the other one a name, too")
            made[key] = _tensor(f"output {key!r}", info, OutputSetting(), setting.rows)
    return made, keys


def _tensor(what: str, known: TensorInfo, said: TensorSetting, most_rows: int) -> TensorInfo:
    """Return a tensor by its annotation and its description.

    Raises:
        MisfitError: They contradict each other.
    """
    datatype = said.datatype or known.datatype
    possible = {known.datatype} if known.form is TensorKind.ARRAY else _WIDER.get(known.datatype, {known.datatype})
    if datatype not in possible:
        raise MisfitError(f"{what} is described as {datatype}, and the annotation says {known.datatype}")
    has_rows = most_rows > 0
    shape = known.shape if said.shape is None else said.shape
    if said.shape is None and has_rows and most_rows > 1 and known.form in FLAT:
        shape = (1,)  # a row has one element of the list
    if shape is not None:
        lengths = [each for each in ((-1 if most_rows > 1 else 1), *shape) if each != 1]
        if known.form in ONE and lengths:
            raise MisfitError(f"{what} has one element by its annotation, and {_told(shape, most_rows)}")
        if known.form in FLAT and len(lengths) > 1:
            raise MisfitError(f"{what} is one list by its annotation, and {_told(shape, most_rows)}")
        shape = (-1, *shape) if has_rows else shape
    return known._replace(datatype=datatype, shape=shape, has_rows=has_rows)


def _told(shape: tuple[int, ...], most_rows: int) -> str:
    rows = f" in up to {most_rows} rows" if most_rows else ""
    return f"the shape {list(shape)}{rows} by its description"
