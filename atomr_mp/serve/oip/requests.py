"""One inference as any form of the protocol asks for it and gets it answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from atomr_mp.serve.oip.tensors import NamedTensor

ParameterValue = bool | int | float | str
"""The value of a parameter."""

Parameters = Mapping[str, ParameterValue]


class AskedOutput(NamedTuple):
    """An output that a client asks for."""

    name: str
    classes: int = 0
    """How many of the greatest elements to give as texts, in place of the tensor; 0 for the tensor."""
    is_binary: bool = False
    """Whether HTTP's answer has it as raw data."""


class InferRequest(NamedTuple):
    """One inference."""

    model: str
    version: str
    """Empty for the latest."""
    id: str
    parameters: Parameters
    inputs: Sequence[NamedTensor]
    outputs: Sequence[AskedOutput]
    """Empty for all of them."""


class InferAnswer(NamedTuple):
    """The outcome of one inference, or a part of it."""

    model: str
    version: str
    id: str
    parameters: Parameters
    outputs: Sequence[NamedTensor]
    """In the model's order."""
