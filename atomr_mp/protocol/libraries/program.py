"""Programs: many requests sent, checked and run as one. Pure.

A program is recorded once, see `atomr_mp.libraries.program`, and run any number of times. Its arrays are *slots*: first
its inputs, which each run gives, then the refs that it uses, then its temporaries, which live in the worker for the
time of a run. A step is a request whose arrays are slots, or views of inputs and temporaries. What one step writes and
a later one uses is ordered; nothing within a program conflicts.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.codec import Codec, Message
from atomr_mp.protocol.declaration.arguments import reads
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES, LibraryRequest
from atomr_mp.protocol.refs import Operand, WireRef
from atomr_mp.protocol.token import TOKEN_BYTES
from atomr_mp.protocol.words import counted

MAX_STEPS: Final = 1024
MAX_SLOTS: Final = 4096
MAX_BYTES: Final = 2**20
"""Longest definition of a program."""

PLACES: Final = 64
"""Programs that a worker keeps of a session."""

KEPT_BYTES: Final = 2**18
"""Longest definition that it keeps: to send a longer one again is little beside its steps."""

Count = Annotated[int, Meta(ge=0, le=MAX_SLOTS)]


class ProgramStep(Message, frozen=True):
    """A request of a library."""

    library: Annotated[str, Meta(max_length=64)]
    request: Annotated[str, Meta(max_length=64)]
    body: bytes
    """Its message; arrays are refs whose buffers are the numbers of slots."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.library}.{self.request}"


class Definition(Message, frozen=True):
    """A program."""

    inputs: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """How each input must lie."""
    refs: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """How the refs lie that it was recorded with, wherever that is, see `anywhere`."""
    temporaries: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """How its temporaries lie; without gaps."""
    steps: Annotated[list[ProgramStep], Meta(max_length=MAX_STEPS)]
    returns: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """Slots, or views of them, that a run answers with."""

    @property
    def first_temporary(self) -> int:
        """Number of the first slot that is a temporary."""
        return len(self.inputs) + len(self.refs)


DEFINITIONS: Final[Codec[Definition]] = Codec(Definition, channel="program")


class RunProgram(LibraryRequest, frozen=True):
    """Run a program. Returns refs to what it returns."""

    name: ClassVar = "run"
    captured: ClassVar = False
    program: Annotated[bytes, Meta(max_length=MAX_BYTES)]
    """The definition, as msgpack; empty if the worker has been told it, and `digest` and `place` name it."""
    inputs: Annotated[list[Any], Meta(max_length=MAX_SLOTS)]
    """An array or a ref for each input."""
    refs: Annotated[list[Operand], reads("*_", dtype="_")]
    """The refs that it was recorded with."""
    writes: Annotated[list[Count], Meta(max_length=MAX_SLOTS)]
    """Slots among inputs and refs that a step writes."""
    digest: Annotated[bytes, Meta(max_length=hashlib.sha256().digest_size)] = b""
    """The definition's SHA-256; needed if that is not sent."""
    place: Annotated[int, Meta(ge=-1, lt=PLACES)] = -1
    """Where the worker keeps, or has kept, the definition for this session; -1 if it is not to keep it."""

    def check(self) -> None:
        """Check that what is written is there; all else is checked when the program is prepared."""
        given = [*self.inputs, *self.refs]
        if any(slot >= len(given) for slot in self.writes):
            raise errors.InvalidRequest(f"slots {self.writes} are written of {counted(len(given), 'slot')}")

    def written(self) -> list[Any]:
        """Return the refs that a step writes; an input that is sent by value is the program's own."""
        given = [*self.inputs, *self.refs]
        return [given[slot] for slot in self.writes if isinstance(given[slot], Operand)]

    def read(self) -> list[Any]:
        """Return the refs that no step writes."""
        given = enumerate([*self.inputs, *self.refs])
        return [each for slot, each in given if slot not in self.writes and isinstance(each, Operand)]

    def triangle_of(self, _array: Operand) -> None:
        """Return None: steps may write any part of a slot."""

    def identity(self) -> tuple[object, ...]:
        """Return nothing that recurs: programs are not remembered by the client."""
        return (id(self),)

    def plan_key(self) -> tuple[object, ...]:
        """Return the key of a preparation: the definition, the arrays' layouts, and which arrays share memory."""
        given = [*self.inputs, *self.refs]
        groups = _overlapping([each for each in given if isinstance(each, Operand)])
        keys: list[object] = []
        for each in given:
            if isinstance(each, Operand):
                group, begin = groups[each.memory, each.layout]
                offset = each.layout.offset - begin + begin % ALIGNED_BYTES
                keys.append((each.layout._replace(offset=offset), group))
            else:
                keys.append(None)
        return (RunProgram, self.digest or digest(self.program), tuple(self.writes), *keys)


def by_digest(fields: Any) -> Any:
    """Return the fields of a run in the one form that a run has whatever its program's place, whole or by digest.

    Fields that are none of a run are returned as they are: they may be from another process.
    """
    if isinstance(fields, RunProgram):
        fields = msgspec.structs.astuple(fields)
    if not isinstance(fields, list | tuple) or len(fields) != len(RunProgram.__struct_fields__):
        return fields
    whole, inputs, refs, writes, known, _place = fields
    if not isinstance(whole, bytes) or not isinstance(known, bytes):
        return fields
    return [b"", inputs, refs, writes, digest(whole) if whole else known, -1]


def digest(definition: bytes) -> bytes:
    """Return the digest that names a definition."""
    return hashlib.sha256(definition).digest()


def _overlapping(operands: list[Operand]) -> dict[tuple[object, Layout], tuple[int, int]]:
    """Return for each array the number of its group, of those that overlap, and where the group begins."""
    found: dict[tuple[object, Layout], tuple[int, int]] = {}
    by_memory: dict[object, list[tuple[int, int, int]]] = {}
    for number, each in enumerate(operands):
        by_memory.setdefault(each.memory, []).append((*each.layout.span, number))
    for memory, spans in by_memory.items():
        begin, end, group = 0, -1, -1
        for low, high, number in sorted(spans):
            if low >= end:
                begin, group = low, number
            end = max(end, high)
            found[memory, operands[number].layout] = group, begin
    return found


def anywhere(layout: Layout) -> Layout:
    """Return how a ref's array lies wherever its memory is: a program recorded anew with refs made anew is the same."""
    return layout.at(layout.offset % ALIGNED_BYTES)


def slot(number: int, layout: Layout) -> WireRef:
    """Return how a slot, or a view of one, is told in a program."""
    return WireRef(bytes(TOKEN_BYTES), number, 0, layout.dtype, layout.shape, layout.strides, layout.offset)
