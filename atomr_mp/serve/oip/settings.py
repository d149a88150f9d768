"""What a description says of a model beyond its method. Pure; `model_config/` reads and checks it."""

from __future__ import annotations

from typing import Final

import msgspec

MICROSECONDS: Final = 10**6
"""Microseconds in a second; Triton's durations have this unit."""


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

    def level_of(self, asked: int) -> int:
        """Return the level of priority for the one that a request asks for; 0 for none."""
        return asked if not self.priority_levels or 0 < asked <= self.priority_levels else self.default_priority_level
