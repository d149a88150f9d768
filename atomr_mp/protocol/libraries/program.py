"""Programs: many requests sent, checked and run as one. Pure.

A program is recorded once, see `atomr_mp.libraries.program`, and run any number of times. Its arrays are *slots*: first
its inputs, which each run gives, then the refs that it uses, then its temporaries, which live in the worker for the
time of a run. A step is a request whose arrays are slots, or views of inputs and temporaries. A step that uses what an
earlier one writes runs after it; nothing within a program conflicts. Some steps may be the bodies of branches and
loops, see `blocks`.
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
from atomr_mp.protocol.libraries.blocks import MAX_BLOCKS, StepBlock
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
"""Longest definition that a worker keeps: sending a longer one again costs little beside its steps."""

Count = Annotated[int, Meta(ge=0, le=MAX_SLOTS)]


class ProgramStep(Message, frozen=True):
    """A request of a library."""

    library: Annotated[str, Meta(max_length=64)]
    request: Annotated[str, Meta(max_length=64)]
    body: bytes
    """Its message; arrays are refs whose buffers are the numbers of slots."""

    @property
    def name(self) -> str:
        """The request's name in messages, "library.request"."""
        return f"{self.library}.{self.request}"


class Definition(Message, frozen=True):
    """A program."""

    inputs: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """The layout that each input must have."""
    refs: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """Layouts of the refs that it was recorded with, wherever their memory is, see `anywhere`."""
    temporaries: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """Layouts of its temporaries, which have no gaps."""
    steps: Annotated[list[ProgramStep], Meta(max_length=MAX_STEPS)]
    returns: Annotated[list[WireRef], Meta(max_length=MAX_SLOTS)]
    """Slots, or views of them, that a run answers with."""
    blocks: Annotated[list[StepBlock], Meta(max_length=MAX_BLOCKS)] = msgspec.field(default_factory=list)
    """Branches and loops, in the order of their first steps, outer ones first."""

    @property
    def first_temporary(self) -> int:
        """Number of the first slot that is a temporary."""
        return len(self.inputs) + len(self.refs)


DEFINITIONS: Final[Codec[Definition]] = Codec(Definition, channel="program")


class RunProgram(LibraryRequest, frozen=True):
    """Run a program. Returns refs to the arrays that the program returns."""

    name: ClassVar = "run"
    captured: ClassVar = False
    moves: ClassVar = False
    counts: ClassVar = True
    program: Annotated[bytes, Meta(max_length=MAX_BYTES)]
    """The definition, as msgpack; empty if the worker has it already, and `digest` and `place` name it."""
    inputs: Annotated[list[Any], Meta(max_length=MAX_SLOTS)]
    """An array or a ref for each input."""
    refs: Annotated[list[Operand], reads("*_", dtype="_")]
    """The refs that it was recorded with."""
    writes: Annotated[list[Count], Meta(max_length=MAX_SLOTS)]
    """Slots among inputs and refs that a step writes."""
    digest: Annotated[bytes, Meta(max_length=hashlib.sha256().digest_size)] = b""
    """The definition's SHA-256; needed if the definition is not sent."""
    place: Annotated[int, Meta(ge=-1, lt=PLACES)] = -1
    """Where the worker keeps, or has kept, the definition for this session; -1 if it is not to keep it."""
    needs: Annotated[list[Count], Meta(max_length=MAX_SLOTS)] | None = None
    """Slots among inputs and refs whose content a step reads before the steps have written all of it; None for all."""
    fills: Annotated[tuple[Count, ...], Meta(max_length=MAX_SLOTS)] = ()
    """Slots whose elements are all written by the steps."""
    settled: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MAX_SLOTS)] = ()
    """Pairs of a needed slot and a written one in the same memory: all that steps write of the second is written before
    a step reads the first."""
    varies: bool = False
    """Whether it has branches or loops, so that not all runs do the same steps, and a run may take long."""

    def check(self) -> None:
        """Check that the written slots exist; all else is checked when the program is prepared."""
        given = [*self.inputs, *self.refs]
        settled = [slot for pair in self.settled for slot in pair]
        told = (self.writes, "written"), (self.needs or (), "needed"), (self.fills, "filled"), (settled, "settled")
        for slots, what in told:
            if any(slot >= len(given) for slot in slots):
                raise errors.InvalidRequest(f"slots {slots} are {what} of {counted(len(given), 'slot')}")

    def written(self) -> list[Any]:
        """Return the refs that a step writes; an input that is sent by value is the program's own."""
        given = [*self.inputs, *self.refs]
        return [given[slot] for slot in self.writes if isinstance(given[slot], Operand)]

    def read(self) -> list[Any]:
        """Return the refs whose content matters."""
        given = enumerate([*self.inputs, *self.refs])
        needs = self.needs
        return [each for slot, each in given if isinstance(each, Operand) and (needs is None or slot in needs)]

    def triangle_of(self, array: Operand) -> str | None:
        """Return "" if the steps write all of a slot; else a name, since each run writes the same elements.

        A run with branches or loops need not.
        """
        given = [*self.inputs, *self.refs]
        if any(given[slot] is array for slot in self.fills):
            return ""
        if self.varies:
            return None
        slots = [slot for slot in self.writes if given[slot] is array]
        return f"slots {slots} of {(self.digest or digest(self.program)).hex()}"

    def written_before(self, array: Operand) -> list[Any]:
        """Return the written refs that the steps are done with before a step reads an array; see `settled`."""
        if not self.settled:
            return []
        given = [*self.inputs, *self.refs]
        settled: dict[int, set[int]] = {}
        for slot, other in self.settled:
            settled.setdefault(slot, set()).add(other)
        needs = range(len(given)) if self.needs is None else self.needs
        always = set(self.writes).intersection(*(settled.get(slot, ()) for slot in needs if given[slot] is array))
        # One array may be several slots, and steps may write other parts of it through each slot.
        never = {id(given[slot]) for slot in self.writes if slot not in always}
        return [each for each in self.written() if each.memory == array.memory and id(each) not in never]

    def identity(self) -> tuple[object, ...]:
        """Return a key of this object alone: the client remembers no programs."""
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
        needs = None if self.needs is None else tuple(self.needs)
        return (
            RunProgram,
            self.digest or digest(self.program),
            tuple(self.writes),
            needs,
            self.fills,
            self.settled,
            self.varies,
            *keys,
        )


def by_digest(fields: Any) -> Any:
    """Return a run's fields by digest and without a place, so that equal runs are equal however they were sent.

    Fields that do not belong to a run are returned as they are: another process may have sent them.
    """
    if isinstance(fields, RunProgram):
        fields = msgspec.structs.astuple(fields)
    if not isinstance(fields, list | tuple) or len(fields) != len(RunProgram.__struct_fields__):
        return fields
    whole, inputs, refs, writes, known, _place, *rest = fields
    if not isinstance(whole, bytes) or not isinstance(known, bytes):
        return fields
    return [b"", inputs, refs, writes, digest(whole) if whole else known, -1, *rest]


def digest(definition: bytes) -> bytes:
    """Return the digest that names a definition."""
    return hashlib.sha256(definition).digest()


def _overlapping(operands: list[Operand]) -> dict[tuple[object, Layout], tuple[int, int]]:
    """Return for each array the number of its group of overlapping arrays, and the offset where the group begins."""
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
    """Return a ref's layout without the place of its memory: a program recorded again with new refs is the same."""
    return layout.at(layout.offset % ALIGNED_BYTES)


def slot(number: int, layout: Layout) -> WireRef:
    """Return the form in which a program names a slot, or a view of one."""
    return WireRef(bytes(TOKEN_BYTES), number, 0, layout.dtype, layout.shape, layout.strides, layout.offset)
