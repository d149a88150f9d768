"""What a request says of its sequence, and the arguments that tell a method of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.serve.oip.datatypes import BYTES, NAMES
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.requests import InferRequest
from atomr_mp.serve.oip.settings import ControlSetting
from atomr_mp.serve.oip.tensors import NamedTensor

ID: Final = "sequence_id"
START: Final = "sequence_start"
END: Final = "sequence_end"

PARAMETERS: Final = frozenset({ID, START, END})
"""Parameters of the protocol's extension."""

MOST_ID_BYTES: Final = 128
"""Most bytes of an id that is a text, as Triton has it."""


class AskedSequence(NamedTuple):
    """What a request says of its sequence."""

    id: int | str
    starts: bool
    ends: bool

    def told(self, model: str) -> dict[str, Any]:
        """Return the argument for `sequence_to`. A method that is two models has sequences of both."""
        return {"model": model, "id": self.id, "start": self.starts, "end": self.ends, "ready": True}


def asked_of(model: Model, request: InferRequest) -> AskedSequence:
    """Return the sequence of a request to a model that has sequences.

    Raises:
        InvalidRequest: It names none, or has several rows.
    """
    given = request.parameters
    identity = given.get(ID, 0)
    to = f"inference request to model '{model.name}' must specify"
    if identity in (0, "") and not isinstance(identity, bool):
        raise errors.InvalidRequest(f"{to} a non-zero or non-empty correlation ID: the parameter {ID}")
    if isinstance(identity, bool | float) or (isinstance(identity, int) and not 0 < identity < 2**64):
        raise errors.InvalidRequest(f"{ID} is a whole number below 2**64 or a text, not {repr(identity)[:60]}")
    if isinstance(identity, str) and len(identity.encode("utf-8", "surrogatepass")) > MOST_ID_BYTES:
        raise errors.InvalidRequest(f"{ID} has more than {MOST_ID_BYTES} bytes")
    flags = given.get(START, False), given.get(END, False)
    for name, flag in zip((START, END), flags, strict=True):
        if not isinstance(flag, bool):
            raise errors.InvalidRequest(f"the parameter {name} is true or false")
    rows = {each.shape[0] for each in request.inputs if each.shape} if model.setting.max_batch_size else {1}
    if rows - {1}:
        raise errors.InvalidRequest(
            f"{to} batch-size 1 due to requirements of sequence batcher: sequences have one row"
        )
    return AskedSequence(identity, bool(flags[0]), bool(flags[1]))


def controls_of(model: Model, asked: AskedSequence) -> dict[str, Any]:
    """Return the arguments that tell a method of a sequence.

    Raises:
        InvalidRequest: A control has another type than the sequence's id.
    """
    setting = model.setting
    found: dict[str, Any] = {} if not setting.sequence_to else {setting.sequence_to: asked.told(model.name)}
    for name, control in setting.sequence_controls.items():
        info = model.controls[name]
        shape = (1, 1) if info.has_rows else (1,)
        value = _value(control, asked)
        tensor = NamedTensor(name, info.datatype, shape, _elements(name, info.datatype, value, shape))
        parameter, argument = model.control(tensor)
        found[parameter] = argument
    return found


def _value(control: ControlSetting, asked: AskedSequence) -> Any:
    flags: Mapping[str, bool] = {"start": asked.starts, "end": asked.ends, "ready": True}
    return asked.id if control.kind == "id" else control.values[flags[control.kind]]


def _elements(name: str, datatype: str, value: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    if isinstance(value, str) != (datatype == BYTES):
        kind = "text" if isinstance(value, str) else "number"
        raise errors.InvalidRequest(f"{ID} is a {kind}, and the model's {name} takes {datatype}")
    if isinstance(value, str):
        return [value.encode("utf-8", "surrogatepass")]
    try:
        return np.full(shape, value, NAMES[datatype])
    except OverflowError as error:
        raise errors.InvalidRequest(f"{ID} is {value}, which the model's {name}, {datatype}, does not have") from error
