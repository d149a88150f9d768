"""The models of a pool: methods whose parameters are tensors, by their own names or those of a table. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.serve.oip import tensors
from atomr_mp.serve.oip.datatypes import BYTES, NAMES
from atomr_mp.serve.oip.fitting import ONE, MisfitError, fitted
from atomr_mp.serve.oip.settings import ModelSetting
from atomr_mp.serve.oip.signature import OUTPUT, TensorInfo, TensorKind, inputs_of
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values import arrays
from atomr_mp.serve.values.schemas import decode

VERSION: Final = "1"
"""The only version that a model has."""

UNKNOWN: Final = "Request for unknown model"
"""Begins the text of the error for a missing model or version, by which Triton's clients know it."""

NOT_READY: Final = "model_not_ready"

DOES_NOT_FIT: Final = "model_unfit"

UNFIT: Final = frozenset({NOT_READY, DOES_NOT_FIT})
"""Codes of problems of a model that is described and cannot be asked."""

MOST_TOLD: Final = 20
"""Most models that an error tells."""

PLATFORM: Final = "atomr_mp"
"""The platform of all models, as metadata tells it."""


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
    keys: Mapping[str, str] = MappingProxyType({})
    """The outputs' names by the result's keys, where they differ."""
    controls: Mapping[str, TensorInfo] = MappingProxyType({})
    """What the server adds to a request, to tell of its sequence."""

    def control(self, tensor: NamedTensor) -> tuple[str, Any]:
        """Return the parameter and the argument that a tensor of the server's own becomes."""
        said = self.setting.sequence_controls[tensor.name]
        return said.parameter or tensor.name, _argument(tensor, self.controls[tensor.name])

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
        said = self.setting.inputs.get(tensor.name)
        return (said and said.parameter) or tensor.name, _argument(tensor, expected)

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
        self._check_all_needed([each.name for each in given])
        if self.setting.max_batch_size:
            self._check_rows(given)
        return found

    def _check_all_needed(self, given: Sequence[str]) -> None:
        """Refuse a request that lacks inputs, in Triton's words, which say all of them."""
        needed = [each.name for each in self.inputs.values() if not each.is_optional]
        missing = [name for name in needed if name not in given]
        if not missing:
            return
        most = len(self.inputs)
        expected = f"{most} inputs" if len(needed) == most else f"number of inputs between {len(needed)} and {most}"
        names, lacking = (",".join(map(repr, each)) for each in (given, missing))
        raise errors.InvalidRequest(
            f"expected {expected} but got {len(given)} inputs for model {self.name!r}. Got input(s) [{names}], but "
            f"missing required input(s) [{lacking}]. Please provide all required input(s)."
        )

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
        is_one = expected.form in ONE and all(length == 1 for length in tensor.shape)
        fits = is_one or fits_into(tensor.shape, expected.shape)
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
        found: dict[str, NamedTensor] = {}
        for key, value in named.items():
            name = self.keys.get(key, str(key))
            told = (self.outputs or {}).get(name)
            if told is None and self.setting.outputs:
                continue  # a description tells all outputs
            try:
                tensor = _tensor(name, value, None if told is None else told.datatype)
                described = told if name in self.setting.outputs else None
                found[name] = tensor if described is None else _as_told(tensor, described, value)
            except (TypeError, ValueError, OverflowError) as error:
                raise errors.Unsupported(
                    f"{self.method} has returned what is no tensor for output {name!r}: {error}", maybe_executed=True
                ) from error
        if not found and self.setting.outputs:
            raise errors.Unsupported(
                f"{self.method} has returned none of the model's outputs {', '.join(self.setting.outputs)}",
                maybe_executed=True,
            )
        return found

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
            return values.reshape(-1).tolist()
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
        TypeError: It is no tensor.
        ValueError: Its elements have no datatype.
    """
    import numpy as np

    if isinstance(value, str | bytes):
        return NamedTensor(name, BYTES, (1,), [value.encode() if isinstance(value, str) else value])
    if isinstance(value, list | tuple) and (datatype == BYTES or isinstance(next(iter(value), None), str | bytes)):
        return NamedTensor(name, BYTES, (len(value),), [_bytes(each) for each in value])
    if isinstance(value, bool | int | float | list | tuple):
        given = list(value) if isinstance(value, list | tuple) else [value]
        if datatype is None or datatype == BYTES:
            return tensors.of_array(name, np.asarray(given))
        if datatype.startswith(("FP", "BF")):  # NaN is no number in lists of JSON
            return tensors.of_array(name, np.asarray(given, dtype=dtypes.to_numpy(NAMES[datatype])))
        return tensors.of_array(name, arrays.from_lists(given, NAMES[datatype]))
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


def fits_into(shape: Sequence[int], told: Sequence[int] | None) -> bool:
    """Return whether a shape fits one that has -1 for any length; None fits all."""
    return told is None or (
        len(shape) == len(told) and all(one in (-1, other) for one, other in zip(told, shape, strict=True))
    )


def _as_told(tensor: NamedTensor, told: TensorInfo, value: object) -> NamedTensor:
    """Return an output as its description tells it.

    Raises:
        ValueError: It is another one.
    """
    import numpy as np

    values, shape, datatype = tensor.values, tensor.shape, told.datatype
    is_own = not isinstance(value, np.ndarray)
    """Whether it is of Python's own numbers and lists, which have neither a datatype nor a shape of theirs."""
    if tensor.datatype != datatype:
        if not is_own or isinstance(values, list) or datatype == BYTES:
            raise ValueError(f"it is {tensor.datatype}, and described as {datatype}")
        values = arrays.from_lists(values.tolist(), NAMES[datatype])
    if not fits_into(shape, told.shape):
        assert told.shape is not None
        count = math.prod(shape)
        shape = tuple(count if length == -1 else length for length in told.shape)
        if not is_own or len(tensor.shape) > 1 or told.shape.count(-1) > 1 or math.prod(shape) != count:
            raise ValueError(f"its shape is {list(tensor.shape)}, and described as {told.told_shape}")
    return NamedTensor(tensor.name, datatype, shape, values if isinstance(values, list) else values.reshape(shape))


class ModelTable:
    """Finds models by name.

    Args:
        settings: Those that a table describes, by name.
    """

    def __init__(self, settings: Mapping[str, ModelSetting]) -> None:
        self._settings: Final = dict(settings)
        self._known: dict[tuple[str, int], tuple[MethodInfo, Model | str]] = {}
        """Models, or why there are none, by their names and the identities of their methods, which it keeps alive."""

    @property
    def described(self) -> Collection[str]:
        """The names of models that are described."""
        return self._settings.keys()

    def method_of(self, name: str) -> str:
        """Return the method of a model, whether or not the pool has it."""
        setting = self._settings.get(name)
        return name if setting is None else setting.method

    def names(self, methods: Mapping[str, MethodInfo]) -> list[str]:
        """Return the names of all models of a pool with these methods."""
        own = [name for name in methods if not _why_not(methods[name].schema)]
        return sorted({*self._settings, *own})

    def unfit(self, methods: Mapping[str, MethodInfo]) -> dict[str, str]:
        """Return the models that are described and do not fit these methods, each with the reason."""
        found: dict[str, str] = {}
        for name in self._settings:
            try:
                self.find(name, "", methods)
            except Problem as problem:
                found[name] = problem.message
        return found

    def find(self, name: str, version: str, methods: Mapping[str, MethodInfo]) -> Model:
        """Return a model.

        Args:
            name: Its name.
            version: Its version; empty for the latest.
            methods: The pool's methods.

        Raises:
            Problem: 404, there is no such model or version; 503, its method is missing; 400, its description does not
                fit the method. `UNFIT` has the codes of the latter two.
        """
        setting = self._settings.get(name) or (ModelSetting(method=name) if name in methods else None)
        if setting is None:
            known = self.names(methods)
            hint = did_you_mean(name[:100], known)
            more = f" and {len(known) - MOST_TOLD} more" if len(known) > MOST_TOLD else ""
            told = f"{', '.join(known[:MOST_TOLD])}{more}"
            raise Problem(404, "model_not_found", f"{UNKNOWN}: {name[:100]!r} is not found{hint}; there are: {told}")
        if version and version != VERSION:
            why = f"{UNKNOWN}: {name!r} version {version[:20]} is not found, but {VERSION} is"
            raise Problem(404, "model_not_found", why)
        info = methods.get(setting.method)
        if info is None:
            hint = did_you_mean(setting.method, methods)
            why = f"the model {name} is not ready: there is no method {setting.method!r}{hint}"
            raise Problem(503, NOT_READY, why)
        if name in methods and name != setting.method:
            why = (
                f"the model {name} has the name of another method than its own, {setting.method}; give it another name"
            )
            raise Problem(400, DOES_NOT_FIT, why)
        why = _why_not(info.schema) if name not in self._settings else ""
        if why:
            raise Problem(404, "model_not_found", f"{name} is a method, but no model: {why}")
        known_model = self._known.get((name, id(info)))
        if known_model is None:
            if len(self._known) > 2 * len(methods) + len(self._settings):
                self._known.clear()  # of methods that a reload has removed
            known_model = self._known[name, id(info)] = info, _model(name, info, setting)
        found = known_model[1]
        if isinstance(found, str):
            raise Problem(400, DOES_NOT_FIT, found)
        return found


@functools.lru_cache(maxsize=1024)
def _why_not(schema: str) -> str:
    """Return why a method with this schema is no model by itself; empty if it is one."""
    found = decode(schema)
    inputs, others = inputs_of(found)
    needed = found.get("arguments", {}).get("required", ())
    return next((each.why for name, each in others.items() if name in needed), "" if inputs else "it takes no tensor")


def _model(name: str, info: MethodInfo, setting: ModelSetting) -> Model | str:
    """Return a model of a method; why there is none if its description does not fit."""
    try:
        inputs, outputs, keys, controls = fitted(info, setting)
    except MisfitError as error:
        return f"the model {name} does not fit its method: {error}"
    return Model(name, setting.method, info, inputs, outputs, setting, keys, controls)
