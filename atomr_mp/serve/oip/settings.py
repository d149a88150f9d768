"""What a description says of a model beyond its method. Pure; `model_config/` reads and checks it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MICROSECONDS: Final = 10**6
"""Microseconds in a second; Triton's durations have this unit."""


SEQUENCE_IDLE_S: Final = 1.0
"""Triton's own default."""


class TensorSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of an input or an output."""

    shape: tuple[int, ...] | None = None
    """Lengths, without the dimension of rows; -1 for any. None for those of the annotation."""
    datatype: str = ""
    """One of the protocol's names; empty for that of the annotation."""


class InputSetting(TensorSetting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of an input."""

    parameter: str = ""
    """The method's parameter; empty if it has the input's name."""
    optional: bool | None = None
    """Whether a request may leave it out; None if it may where the parameter has a default."""


class OutputSetting(TensorSetting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of an output."""

    key: str = ""
    """The key in the method's result; empty if it has the output's name, or if the result is no mapping."""
    labels: tuple[str, ...] = ()
    """Names of its elements, for `classification`."""
    label_filename: str = ""
    """The file that they are from, as the configuration tells it; empty for none."""


FALSE_TRUE: Final[dict[str, tuple[str, type[float]]]] = {
    "INT32": ("int32_false_true", int),
    "FP32": ("fp32_false_true", float),
    "BOOL": ("bool_false_true", bool),
}
"""Triton's field with a control's values, and their type, by its datatype."""


ID_DATATYPES: Final = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
"""Datatypes of a control that is a sequence's id."""


class ControlSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that tells a method about a request's sequence."""

    kind: Literal["start", "end", "ready", "id"]
    datatype: str
    """One of the protocol's names."""
    values: tuple[float, float] = (0, 1)
    """Those for false and for true, unless it is the id."""
    parameter: str = ""
    """The method's parameter; empty if it has the tensor's name."""


class ModelSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as it is described."""

    method: str = ""
    """ "Actor.method"; in a table, empty for the model's own name."""
    inputs: dict[str, InputSetting] = {}
    outputs: dict[str, OutputSetting] = {}
    max_batch_size: int = 0
    """Most rows of a request; its tensors have a first dimension for them. 0 for none."""
    id_to: str = ""
    """The parameter that gets the request's id as a `str`; empty for none."""
    parameters_to: str = ""
    """The parameter that gets the request's own parameters as a `dict`; empty for none."""
    sequence_to: str = ""
    """The parameter that gets what is known of the request's sequence as a `dict`; empty for none."""
    sequence_idle_s: float | None = None
    """Seconds after which a sequence ends without a request; None for `SEQUENCE_IDLE_S`, or for no sequences."""
    sequence_controls: dict[str, ControlSetting] = {}
    """Tensors that the server adds to a request, by their names in a config.pbtxt."""
    headers_to: str = ""
    """The parameter that gets chosen headers, or gRPC's metadata, as a `dict`; empty for none."""
    headers: tuple[str, ...] = ()
    """The headers' names, in small letters."""
    decoupled: bool | None = None
    """Whether the method streams, which is checked; None if nothing is said."""
    idempotent: bool | None = None
    """Whether the method is idempotent, which is checked; None if nothing is said."""
    priority_levels: int = 0
    """Levels of priority; 1 is the first. The default counts beyond them, and for requests without a priority. 0 for
    the protocol's own."""
    default_priority_level: int = 0
    deadline_s: float | None = None
    """Seconds that a request may take that asks for no less; None for the method's own."""
    parameters: dict[str, str] = {}
    """Texts that the configuration tells."""

    @property
    def has_sequences(self) -> bool:
        """Whether its requests are of sequences."""
        return bool(self.sequence_to or self.sequence_controls) or self.sequence_idle_s is not None

    @property
    def idle_s(self) -> float:
        """Seconds after which a sequence ends without a request."""
        return SEQUENCE_IDLE_S if self.sequence_idle_s is None else self.sequence_idle_s

    @property
    def rows(self) -> int:
        """Most rows that a request may have; of sequences each has one."""
        return min(self.max_batch_size, 1) if self.has_sequences else self.max_batch_size

    def level_of(self, asked: int) -> int:
        """Return the level of priority for the one that a request asks for; 0 for none."""
        return asked if not self.priority_levels or 0 < asked <= self.priority_levels else self.default_priority_level
