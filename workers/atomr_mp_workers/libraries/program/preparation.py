"""The preparation of a program: its requests, decoded and checked, their plans, and the places of its temporaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.allocation import aligned
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import STEPS, blocks, program
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES, LibraryRequest
from atomr_mp.protocol.libraries.coverage import Coverage, first_reads, walked
from atomr_mp.protocol.libraries.world import WORLD
from atomr_mp.protocol.refs import ClientArray, Operand, WireRef
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.method import LibraryMethod
from atomr_mp_workers.libraries.program.block_checks import PreparedBlock, passages, prepared_blocks
from atomr_mp_workers.libraries.program.course import Instruction, instructions
from atomr_mp_workers.libraries.program.graphs import COPIED_BYTES, GraphTable, Refusal
from atomr_mp_workers.libraries.program.views import SlotView, placed
from atomr_mp_workers.libraries.weights import weight
from atomr_mp_workers.memory.arrays import DeviceArray


class PreparedStep(NamedTuple):
    """A step that has been checked."""

    name: str
    run: Callable[[LibraryRequest], Any]
    """Does it, given its request with the arrays of a run."""
    request: LibraryRequest
    whole: dict[str, int] | None
    """The slots of its arrays by field, where each is a whole slot and a field of its own; None otherwise."""
    work: list[int]
    """The arithmetic operations and the bytes that it declares; empty until a trace asks for them."""

    def actual(self, slots: list[DeviceArray]) -> LibraryRequest:
        """Return the request with the arrays of a run."""
        if self.whole is not None:
            return msgspec.structs.replace(self.request, **{name: slots[slot] for name, slot in self.whole.items()})
        return with_arrays(self.request, lambda view: cast("SlotView", view).of(slots))


class Prepared(NamedTuple):
    """A program that has been checked."""

    steps: list[PreparedStep]
    temporaries: list[Layout]
    """Layouts of the temporaries in the memory of a run."""
    nbytes: int
    """Bytes of the temporaries that are not returned."""
    apart: frozenset[int]
    """Temporaries that are returned, so that they have memory of their own."""
    returns: list[tuple[int, Layout]]
    first: int
    """Number of the first slot that is a temporary."""
    copied: dict[int, Layout]
    """Inputs that a graph copies to buffers of its own, with their layouts there: as far from an aligned address as the
    caller's, so that libraries choose the same kernels."""
    graphs: GraphTable[Any]
    clears: list[int]
    """Temporaries that are zero at the start of a run, since steps read elements that no step may have written."""
    frames: list[list[DeviceArray]]
    """Temporaries of ended runs, kept for later ones; returned temporaries are not among them."""
    instructions: list[Instruction]
    """The way through the steps."""
    blocks: list[PreparedBlock]
    """Branches and loops."""
    weight: int
    """The weight of the heaviest step."""


class Preparation:
    """Prepares a program.

    Args:
        definition: The program.
        request: A request to run it.
        libraries: The libraries of its steps.
    """

    def __init__(self, definition: program.Definition, request: program.RunProgram, libraries: Libraries) -> None:
        self._definition = definition
        self._given = [*request.inputs, *request.refs]
        self._writes = frozenset(request.writes)
        self._needs, self._fills = request.needs, request.fills
        self._settled: Final[dict[int, list[int]]] = {}
        for slot, other in request.settled:
            self._settled.setdefault(slot, []).append(other)
        self._libraries = libraries
        self._varies = request.varies
        self._check_given(request)

    def prepared(self) -> Prepared:
        """Return the program, ready to run."""
        definition = self._definition
        blocks.check_nesting(definition.blocks, len(definition.steps))
        if definition.blocks and not self._varies:
            raise errors.InvalidRequest("the program has branches or loops, and the request does not say so (varies)")
        steps = [self._step(number, step) for number, step in enumerate(definition.steps)]
        requests = [each.request for each in steps]
        found = prepared_blocks(definition, requests, self._view)
        first = definition.first_temporary
        returns = [self._returned(wire) for wire in definition.returns]
        apart = frozenset(slot - first for slot, _ in returns)
        temporaries, end = [], 0
        for number, wire in enumerate(definition.temporaries):
            layout = Layout.contiguous(wire.dtype, wire.shape, 0 if number in apart else end)
            temporaries.append(layout)
            if number not in apart:
                end = aligned(end + layout.nbytes)
        is_captured = all(each.is_captured() for each in requests) and (
            self._libraries.world_in_graphs or all(each.library != WORLD for each in definition.steps)
        )
        graphs: GraphTable[Any] = GraphTable(None if is_captured and not found else Refusal.STEP)
        clears = self._unwritten(steps, passages(definition, requests, found))
        way = instructions(definition.blocks, len(steps))
        copied = self._copied()
        heaviest = max((weight(step.request) for step in steps), default=0)
        return Prepared(
            steps, temporaries, end, apart, returns, first, copied, graphs, clears, [], way, found, heaviest
        )

    def _unwritten(self, steps: Sequence[PreparedStep], passed: Sequence[Any]) -> list[int]:
        """Return the temporaries that are read, or returned, before surely all of that was written.

        Args:
            steps: The steps.
            passed: Their requests and the blocks, as `coverage` takes them.

        Raises:
            InvalidRequest: The request does not say rightly which given content is needed, or written as a whole.
        """
        first, written, clears = self._definition.first_temporary, Coverage(), dict[int, None]()
        needs, number = self._needs, 0
        for each, unwritten in walked(passed, written):
            is_step = isinstance(each, LibraryRequest)
            for view in unwritten:
                if view.slot >= first:
                    clears[view.slot - first] = None
                elif needs is not None and view.slot not in needs:
                    what = f"step {number} ({steps[number].name})" if is_step else f"a condition before step {number}"
                    raise errors.InvalidRequest(
                        f"{what} reads slot {view.slot}, which the program does not declare as needed"
                    )
            number += is_step
        self._check_settled(passed)
        for slot in self._fills:
            if not written.has_all(self._view(self._wires[slot])):
                raise errors.InvalidRequest(f"slot {slot} is not written as a whole")
        for wire in self._definition.returns:
            view = self._view(wire)
            if not written.has_all(view):
                clears[view.slot - first] = None
        return list(clears)

    def _check_settled(self, passed: Sequence[Any]) -> None:
        """Check what the request says of the order of writes and reads.

        Args:
            passed: The requests of the steps, and the blocks.

        Raises:
            InvalidRequest: A step reads a slot before all is written that the request says is.
        """
        if not self._settled:
            return
        first = self._definition.first_temporary
        reads = first_reads(passed, lambda view: view.slot if view.slot < first else None, self._settled)
        for slot, settled in reads.items():
            if early := set(self._settled.get(slot, ())).difference(settled):
                raise errors.InvalidRequest(f"slot {slot} is read before slots {sorted(early)} are written")

    @property
    def _wires(self) -> list[WireRef]:
        """Each slot as a whole."""
        definition = self._definition
        wires = [*definition.inputs, *definition.refs]
        return [program.slot(number, wire.layout) for number, wire in enumerate(wires)]

    def _copied(self) -> dict[int, Layout]:
        """Return the inputs that may be copied: small ones that no step writes, under any name."""
        found: dict[int, Layout] = {}
        written = {self._given[slot].memory for slot in self._writes if isinstance(self._given[slot], Operand)}
        for number, wire in enumerate(self._definition.inputs):
            given, layout = self._given[number], wire.layout
            if number in self._writes or layout.nbytes > COPIED_BYTES:
                continue
            if not isinstance(given, Operand):
                found[number] = layout._replace(offset=0)
            elif given.memory not in written:
                found[number] = layout._replace(offset=given.layout.offset % ALIGNED_BYTES)
        return found

    def _check_given(self, request: program.RunProgram) -> None:
        """Check that inputs and refs are like those that the program was recorded with."""
        definition = self._definition
        if len(request.inputs) != len(definition.inputs) or len(request.refs) != len(definition.refs):
            raise errors.InvalidRequest(
                f"the program has {len(definition.inputs)} inputs and {len(definition.refs)} refs; given were "
                f"{len(request.inputs)} and {len(request.refs)}"
            )
        for number, (wire, given) in enumerate(zip([*definition.inputs, *definition.refs], self._given, strict=True)):
            wanted = wire.layout
            if isinstance(given, Operand):
                found = given.layout._replace(offset=wanted.offset)
                exact = number >= len(definition.inputs)
                fits = (
                    program.anywhere(given.layout) == wanted
                    if exact
                    else found == Layout.contiguous(*found[:2], wanted.offset) == wanted
                )
            else:
                fits = hasattr(given, "dtype") and (str(given.dtype), tuple(given.shape)) == wanted[:2]
            if not fits:
                raise errors.InvalidRequest(f"slot {number} does not lie as the program was recorded with")

    def _step(self, number: int, step: program.ProgramStep) -> PreparedStep:
        try:
            if step.library not in STEPS and not (step.library == WORLD and self._libraries.has_world):
                raise errors.InvalidRequest(f"{step.library} has no requests that can be steps here")
            method = self._libraries.find_here(step.name)
            assert isinstance(method, LibraryMethod)
            request = method.decode_step(step.body, self._view)
            if request.answers or request.results():
                raise errors.InvalidRequest("it cannot be a step: it answers, or has no output")
            for view in request.written():
                if view.slot < self._definition.first_temporary and view.slot not in self._writes:
                    raise errors.InvalidRequest(
                        f"it writes slot {view.slot}, which is not among those that are written"
                    )
            return PreparedStep(step.name, method.step(request), request, self._whole(request), [])
        except errors.AtomrError as error:
            error.message = f"step {number} ({step.name:.64}): {error.message}"
            raise

    def _whole(self, request: LibraryRequest) -> dict[str, int] | None:
        """Return the slots of a step's arrays, if each is a whole slot and a field of its own."""
        definition, found = self._definition, dict[str, int]()
        wires = [*definition.inputs, *definition.refs, *definition.temporaries]
        for name, _, view in request.arrays():
            if view is None:
                continue
            slot, within = cast("SlotView", view).slot, cast("SlotView", view).within
            if name not in request.__struct_fields__ or within != wires[slot].layout._replace(offset=0):
                return None
            found[name] = slot
        return found

    def _view(self, wire: WireRef | ClientArray) -> SlotView:
        """Return the array of a slot that a step names."""
        assert isinstance(wire, WireRef)
        definition, slot, within = self._definition, wire.buffer, wire.layout
        first = definition.first_temporary
        if slot >= first + len(definition.temporaries):
            raise errors.InvalidRequest(f"there is no slot {slot}")
        if slot >= first:
            within.span_within(definition.temporaries[slot - first].layout.span[1])
            return SlotView(slot, within, ("temporary", slot), within)
        given = self._given[slot]
        if slot >= len(definition.inputs):
            if within != program.anywhere(given.layout):
                raise errors.InvalidRequest(f"slot {slot} lies in another way")
            return SlotView(slot, given.layout, given.memory, within.at(0))
        within.span_within(definition.inputs[slot].layout.span[1])
        if not isinstance(given, Operand):
            return SlotView(slot, within, ("input", slot), within)
        return SlotView(slot, placed(given.layout, within), given.memory, within)

    def _returned(self, wire: WireRef) -> tuple[int, Layout]:
        """Return a slot and the view of it that is returned."""
        view = self._view(wire)
        if view.slot < self._definition.first_temporary:
            raise errors.InvalidRequest(f"slot {view.slot} is the caller's; only temporaries are returned")
        return view.slot, view.within
