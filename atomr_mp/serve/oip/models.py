"""The models of a pool: methods whose parameters are tensors, by their own names or those of a table. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.oip import tensors
from atomr_mp.serve.oip.datatypes import BYTES, NAMES
from atomr_mp.serve.oip.signature import OUTPUT, TensorInfo, TensorKind, inputs_of, outputs_of
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values.schemas import decode

VERSION: Final = "1"
"""The only version that a model has."""

PLATFORM: Final = "atomr_mp"
"""The platform of all models, as metadata tells it."""


class TensorSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a table says of an input or an output beyond the method's annotation."""

    shape: tuple[int, ...] | None = None
    """Lengths, without the dimension of the batch; -1 for any. None for any shape."""
    datatype: str = ""
    """One of the protocol's names, where the annotation names none; empty else."""
    parameter: str = ""
    """The parameter, or the result's key, where it has another name; empty else."""
    labels: tuple[str, ...] = ()
    """Names of an output's elements, for `classification`."""


class ModelSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as a table describes it."""

    method: str
    """ "Actor.method"."""
    inputs: dict[str, TensorSetting] = {}
    outputs: dict[str, TensorSetting] = {}
    max_batch_size: int = 0
    """Most rows of a request; its tensors have a first dimension for them. 0 for none."""
    id_to: str = ""
    """The parameter that gets the request's id as a `str`; empty for none."""
    parameters_to: str = ""
    """The parameter that gets the request's own parameters as a `dict`; empty for none."""
    headers_to: str = ""
    """The parameter that gets chosen headers, or gRPC's metadata, as a `dict`; empty for none."""
    headers: tuple[str, ...] = ()
    """The headers' names, in small letters."""


class Model(NamedTuple):
    """A model."""

    name: str
    method: str
    """ "Actor.method"."""
    info: MethodInfo
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo] | None
    """None where only a result shows them."""
    setting: ModelSetting

    def argument_of(self, tensor: NamedTensor) -> tuple[str, Any]:
        """Return the parameter and the argument that a tensor becomes.

        Raises:
            InvalidRequest: The model has no such input, or one of another datatype or shape.
        """
        expected = self.inputs.get(tensor.name)
        if expected is None:
            hint = did_you_mean(tensor.name[:100], self.inputs)
            raise errors.InvalidRequest(
                f"the model {self.name} has no input {tensor.name[:100]!r}{hint}; it has: {', '.join(self.inputs)}"
            )
        if tensor.datatype != expected.datatype:
            raise errors.InvalidRequest(
                f"input {tensor.name!r} of the model {self.name} is {expected.datatype}, not {tensor.datatype}"
            )
        self._check_shape(tensor, expected)
        return self._parameter(self.setting.inputs, tensor.name), _argument(tensor, expected)

    def arguments(self, given: Sequence[NamedTensor]) -> dict[str, Any]:
        """Return a method's arguments by name.

        Raises:
            InvalidRequest: Tensors are missing, given twice, or not the model's.
        """
        found = dict(map(self.argument_of, given))
        if len(found) < len(given):
            names = [each.name for each in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise errors.InvalidRequest(f"input {twice!r} is given twice")
        names_given = {each.name for each in given}
        missing = [each.name for each in self.inputs.values() if not each.is_optional and each.name not in names_given]
        if missing:
            raise errors.InvalidRequest(f"the model {self.name} needs its input {', '.join(map(repr, missing))}, too")
        if self.setting.max_batch_size:
            self._check_rows(given)
        return found

    def _check_rows(self, given: Sequence[NamedTensor]) -> None:
        rows = {each.shape[0] for each in given}
        most = self.setting.max_batch_size
        if len(rows) != 1:
            raise errors.InvalidRequest(
                f"the first length of each input is the number of rows, and they differ: {rows}"
            )
        if not 0 < (count := rows.pop()) <= most:
            raise errors.InvalidRequest(f"a request to {self.name} has 1 to {most} rows, not {count}")

    def _check_shape(self, tensor: NamedTensor, expected: TensorInfo) -> None:
        shape = expected.shape
        if expected.form in {TensorKind.SCALAR, TensorKind.TEXT, TensorKind.BINARY}:
            fits = all(length == 1 for length in tensor.shape)
        else:
            fits = shape is None or (
                len(shape) == len(tensor.shape)
                and all(one in (-1, other) for one, other in zip(shape, tensor.shape, strict=True))
            )
        if not fits or (self.setting.max_batch_size and not tensor.shape):
            raise errors.InvalidRequest(
                f"input {tensor.name!r} of the model {self.name} has the shape {expected.told_shape}, not "
                f"{list(tensor.shape)}"
            )

    def tensors_of(self, result: object) -> dict[str, NamedTensor]:
        """Return a result's outputs by name.

        Raises:
            Unsupported: It has a value that is no tensor.
        """
        named = result if isinstance(result, dict) else {OUTPUT: result}
        by_key = {setting.parameter: name for name, setting in self.setting.outputs.items() if setting.parameter}
        found: dict[str, NamedTensor] = {}
        for key, value in named.items():
            name = by_key.get(key, str(key))
            told = None if self.outputs is None else self.outputs.get(name)
            try:
                found[name] = _tensor(name, value, None if told is None else told.datatype)
            except (TypeError, ValueError, OverflowError) as error:
                raise errors.Unsupported(
                    f"{self.method} has returned what is no tensor for output {name!r}: {error}", maybe_executed=True
                ) from error
        return found

    def _parameter(self, settings: Mapping[str, TensorSetting], name: str) -> str:
        setting = settings.get(name)
        return name if setting is None or not setting.parameter else setting.parameter

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata, as the protocol has it."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [_told(each) for each in self.inputs.values()],
            "outputs": [_told(each) for each in (self.outputs or {}).values()],
        }


def _told(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": info.datatype, "shape": info.told_shape}


def _argument(tensor: NamedTensor, expected: TensorInfo) -> Any:
    values = tensor.values
    match expected.form:
        case TensorKind.ARRAY:
            assert not isinstance(values, list)
            return values
        case TensorKind.SCALAR:
            assert not isinstance(values, list)
            return values.reshape(-1)[0].item()
        case TensorKind.LIST:
            assert not isinstance(values, list)
            return values.tolist()
    assert isinstance(values, list)
    if expected.form in {TensorKind.BINARY, TensorKind.BINARIES}:
        return values[0] if expected.form is TensorKind.BINARY else values
    try:
        texts = [each.decode() for each in values]
    except UnicodeDecodeError as error:
        raise errors.InvalidRequest(f"input {tensor.name!r} is a text, and its bytes are no UTF-8") from error
    return texts[0] if expected.form is TensorKind.TEXT else texts


def _tensor(name: str, value: object, datatype: str | None) -> NamedTensor:
    """Return a value of a result as a tensor.

    Args:
        name: The output.
        value: The value.
        datatype: The datatype that metadata tells, which numbers and lists take; None for none.

    Raises:
        TypeError: It is not a tensor.
        ValueError: It is one of a kind that the protocol does not have.
    """
    import numpy as np

    if isinstance(value, str | bytes):
        return NamedTensor(name, BYTES, (1,), [value.encode() if isinstance(value, str) else value])
    if isinstance(value, list | tuple) and (datatype == BYTES or isinstance(next(iter(value), None), str | bytes)):
        return NamedTensor(name, BYTES, (len(value),), [_bytes(each) for each in value])
    if isinstance(value, bool | int | float | list | tuple):
        element = None if datatype in (None, BYTES) else dtypes.to_numpy(NAMES[datatype])
        return tensors.of_array(name, np.atleast_1d(np.asarray(value, dtype=element)))
    if isinstance(value, np.ndarray):
        return tensors.of_array(name, value)
    raise TypeError(f"a {type(value).__name__}")


def _bytes(element: object) -> bytes:
    """Return an element of BYTES.

    Raises:
        TypeError: It is neither a text nor bytes.
    """
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, bytes):
        return element
    raise TypeError(f"a {type(element).__name__} among texts")


class ModelTable:
    """Finds models by name.

    Args:
        settings: Those that a table describes, by name.
    """

    def __init__(self, settings: Mapping[str, ModelSetting]) -> None:
        self._settings: Final = dict(settings)
        self._known: dict[tuple[str, int], tuple[MethodInfo, Model]] = {}

    def method_of(self, name: str) -> str:
        """Return the method of a model, whether or not the pool has it."""
        setting = self._settings.get(name)
        return name if setting is None else setting.method

    def names(self, methods: Mapping[str, MethodInfo]) -> list[str]:
        """Return the names of all models of a pool with these methods."""
        own = [name for name in methods if not _why_not(methods[name].schema)]
        return sorted({*self._settings, *own})

    def find(self, name: str, version: str, methods: Mapping[str, MethodInfo]) -> Model:
        """Return a model.

        Args:
            name: Its name.
            version: Its version; empty for the latest.
            methods: The pool's methods.

        Raises:
            Problem: 404; there is no such model or version.
        """
        setting = self._settings.get(name) or (ModelSetting(method=name) if name in methods else None)
        info = None if setting is None else methods.get(setting.method)
        if setting is None or info is None:
            known = self.names(methods)
            hint = did_you_mean(name[:100], known)
            raise Problem(
                404, "model_not_found", f"there is no model {name[:100]!r}{hint}; there are: {', '.join(known)}"
            )
        why = _why_not(info.schema) if name not in self._settings else ""
        if why:
            raise Problem(404, "model_not_found", f"{name} is a method, but no model: {why}")
        if version and version != VERSION:
            raise Problem(404, "model_not_found", f"the model {name} has no version {version[:20]!r}, but {VERSION}")
        found = self._known.get((name, id(info)))
        if found is None or found[0] is not info:
            if len(self._known) > 2 * len(methods) + len(self._settings):
                self._known.clear()  # of methods that a reload has removed
            found = self._known[name, id(info)] = info, _model(name, info, setting)
        return found[1]


@functools.lru_cache(maxsize=1024)
def _why_not(schema: str) -> str:
    """Return why a method with this schema is no model by itself; empty if it is one."""
    found = decode(schema)
    inputs, others = inputs_of(found)
    needed = found.get("arguments", {}).get("required", ())
    return next((why for name, why in others.items() if name in needed), "" if inputs else "it takes no tensor")


def _model(name: str, info: MethodInfo, setting: ModelSetting) -> Model:
    """Return a model of a method, by its annotations and what the table says beyond them."""
    schema = decode(info.schema)
    inputs, _ = inputs_of(schema)
    reserved = {setting.id_to, setting.parameters_to, setting.headers_to}
    inputs = {each: found for each, found in inputs.items() if each not in reserved}
    outputs = outputs_of(schema)
    has_rows = setting.max_batch_size > 0
    told_outputs = _renamed(outputs or {}, setting.outputs, has_rows=has_rows)
    return Model(
        name,
        setting.method,
        info,
        _renamed(inputs, setting.inputs, has_rows=has_rows),
        told_outputs if outputs is not None or setting.outputs else None,
        setting,
    )


def _renamed(
    found: Mapping[str, TensorInfo], settings: Mapping[str, TensorSetting], *, has_rows: bool
) -> dict[str, TensorInfo]:
    """Return the tensors with the names, types and shapes that a table gives them."""
    names = {setting.parameter or name: name for name, setting in settings.items()}
    made: dict[str, TensorInfo] = {}
    for key in [*found, *(key for key in names if key not in found)]:
        name = names.get(key, key)
        setting = settings.get(name, TensorSetting())
        info = found.get(key) or TensorInfo(name, setting.datatype or BYTES, None, TensorKind.ARRAY)
        datatype = setting.datatype or info.datatype
        form = TensorKind.BINARIES if datatype == BYTES and info.form is TensorKind.ARRAY else info.form
        shape = info.shape if setting.shape is None else setting.shape
        if shape is not None and has_rows:
            shape = (-1, *shape)
        made[name] = info._replace(name=name, datatype=datatype, shape=shape, form=form)
    return made
