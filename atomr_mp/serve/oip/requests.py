"""One inference as any form of the protocol asks for it and gets it answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.serve.oip.region import RegionPart, is_size, shown
from atomr_mp.serve.oip.tensors import NamedTensor

ParameterValue = bool | int | float | str
"""The value of a parameter."""

Parameters = Mapping[str, ParameterValue]

EMPTY_FINAL: Final = "triton_enable_empty_final_response"
"""The parameter with which a request asks for an answer without outputs behind the parts of its stream."""

RESERVED_PREFIX: Final = "triton_"
"""Begins parameters that clients may not make up."""

REGION: Final = "shared_memory_region"
REGION_BYTES: Final = "shared_memory_byte_size"
REGION_OFFSET: Final = "shared_memory_offset"
"""The parameters of a tensor that lies in shared memory."""


class AskedOutput(NamedTuple):
    """An output that a client asks for."""

    name: str
    classes: int = 0
    """How many of the greatest elements to give as texts, in place of the tensor; 0 for the tensor."""
    is_binary: bool = False
    """Whether HTTP's answer has it as raw data."""
    extent: RegionPart | None = None
    """Where it is written, in place of the answer."""


class SharedInput(NamedTuple):
    """An input that lies in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    extent: RegionPart


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
    shared: Sequence[SharedInput] = ()
    """Inputs that have not been read yet."""

    @property
    def uses_regions(self) -> bool:
        """Whether inputs or outputs of it lie in shared memory."""
        return bool(self.shared) or any(each.extent is not None for each in self.outputs)


class InferAnswer(NamedTuple):
    """The outcome of one inference, or a part of it."""

    model: str
    version: str
    id: str
    parameters: Parameters
    outputs: Sequence[NamedTensor]
    """In the model's order."""
    shared: Mapping[str, RegionPart] = MappingProxyType({})
    """Where the outputs are that were written into shared memory, and have no elements here, by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs' elements."""
        every = [each.values for each in self.outputs]
        return sum(sum(map(len, each)) if isinstance(each, list) else each.nbytes for each in every)


def extent_of(whose: str, parameters: Parameters) -> RegionPart | None:
    """Return where a tensor lies in shared memory, by its parameters; None if it does not.

    Raises:
        InvalidRequest: The parameters name no extent.
    """
    given = {name: parameters[name] for name in (REGION, REGION_BYTES, REGION_OFFSET) if name in parameters}
    if not given:
        return None
    region, nbytes, offset = given.get(REGION), given.get(REGION_BYTES), given.get(REGION_OFFSET, 0)
    if not isinstance(region, str) or not region:
        raise errors.InvalidRequest(f"{whose} has no {REGION}, the name of a region of shared memory")
    if not is_size(nbytes) or not is_size(offset):
        raise errors.InvalidRequest(
            f"{whose}: {REGION_BYTES} and {REGION_OFFSET} are numbers of bytes; they are {shown(nbytes)} and "
            f"{shown(offset)}"
        )
    return RegionPart(region, offset, nbytes)


def told_extent(extent: RegionPart) -> dict[str, ParameterValue]:
    """Return the parameters by which an answer tells where an output was written."""
    offset: dict[str, ParameterValue] = {REGION_OFFSET: extent.offset} if extent.offset else {}
    return {REGION: extent.name, **offset, REGION_BYTES: extent.byte_size}


def check_reserved(parameters: Parameters) -> None:
    """Check the parameters of a request whose names are the protocol's.

    Raises:
        InvalidRequest: One is not known, or is no true or false.
    """
    for name, value in parameters.items():
        if not name.startswith(RESERVED_PREFIX):
            continue
        if name != EMPTY_FINAL:
            raise errors.InvalidRequest(
                f"there is no parameter {name[:100]!r}; of names in {RESERVED_PREFIX} there is only {EMPTY_FINAL}"
            )
        if not isinstance(value, bool):
            raise errors.InvalidRequest(f"the parameter {EMPTY_FINAL} is true or false")


def given_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers, or gRPC's metadata, by names in small letters; those of one name are one list, as HTTP has it."""
    found: dict[str, str] = {}
    for key, value in pairs:
        name = key.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
