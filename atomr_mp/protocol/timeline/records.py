"""The records of a timeline. All times are CLOCK_MONOTONIC, in nanoseconds, of the pool's machine."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U16, U32, U64, Codec, Message, Name

LONGEST_S: Final = 60.0
"""The longest trace."""

MAX_GPU_TIMES: Final = 64
"""Most pieces of work on the GPU that one request tells of; the last one stands for all further ones."""

Code = Annotated[str, msgspec.Meta(max_length=200)]
"""The code of an error, empty without one."""


Kernel = Annotated[str, msgspec.Meta(max_length=200)]
"""The name of the kernel that is launched, empty for what is no launch."""


class SpanKind(IntEnum):
    """What a worker does for a request, beside its method."""

    STEP = 0
    """A step of a program."""
    COPY = 1
    """A copy between the memory of the host and the device's."""


class Begun(Message, frozen=True, tag="begun"):
    """A request begins. Its end has a record of its own, unless its worker ends before."""

    session: U32
    request: U64
    method: Name
    place: U16
    """What it runs on, as `board.PlaceKind`."""
    number: U32
    """Which one of these."""
    submitted_ns: U64
    """When its caller has called, 0 if that is not known."""
    received_ns: U64
    started_ns: U64
    """When its worker has taken it up; its own code may begin later. With session and number it names the request."""
    kernel: Kernel


class GpuTime(Message, frozen=True):
    """Work of a request on a stream of a GPU, by the GPU's own clock."""

    stream: U32
    started_ns: U64
    took_ns: U64


class Ended(Message, frozen=True, tag="ended"):
    """A request has ended: its answer is on its way."""

    session: U32
    request: U64
    method: Name
    place: U16
    number: U32
    started_ns: U64
    """As in its `Begun`."""
    began_ns: U64
    """When its own code, or that of its batch, has begun."""
    ended_ns: U64
    """When that has ended, and its work on the GPU."""
    worked_ns: U64
    """How long that has run: less than from its begin to its end if it ran in parts."""
    answered_ns: U64
    """When the loop has taken it back, and answers."""
    items: U32
    """How many items it stands for."""
    batch: U64
    """Number of the batch that it ran in, 0 if in none."""
    batch_items: U32
    """How many items the batch has."""
    error: Code
    flops: U64
    """Arithmetic operations by its declaration, 0 if it has none."""
    nbytes: U64
    """Bytes that it reads and writes at least, by its declaration."""
    gpu: Annotated[list[GpuTime], msgspec.Meta(max_length=MAX_GPU_TIMES)]


class Spanned(Message, frozen=True, tag="spanned"):
    """A part of a request, or a copy for none."""

    kind: SpanKind
    name: Name
    session: U32
    """0 if it belongs to no request, or to several."""
    request: U64
    place: U16
    number: U32
    started_ns: U64
    ended_ns: U64
    flops: U64
    """Arithmetic operations of a step, as of a request."""
    nbytes: U64
    kernel: Kernel


Record = Begun | Ended | Spanned

RECORDS: Final[Codec[Record]] = Codec(Record, channel="trace")
