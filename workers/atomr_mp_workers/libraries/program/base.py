"""Programs on every backend: prepared once for each definition and layout, then run step by step on one stream.

What is prepared is what does not change from run to run: the requests of the steps, decoded and checked, their plans,
and where the temporaries lie. A run takes memory for the temporaries, puts the arrays of its slots into the requests,
and has the libraries do them, one after the other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, cast

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.allocation import aligned
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import DECLARED, program
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import ClientArray, Operand, WireRef
from atomr_mp_workers.device.base import Stream
from atomr_mp_workers.device.streams import OneStream
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.method import LibraryMethod
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Later, Next


class SlotView(Operand):
    """An array of a slot, before it is there.

    Args:
        slot: Number of the slot.
        layout: How it lies: for a slot that the caller gives, where it lies in its memory.
        memory: What names the memory.
        within: How it lies in its slot.
    """

    def __init__(self, slot: int, layout: Layout, memory: object, within: Layout) -> None:
        self.slot: Final = slot
        self.layout = layout
        self.within: Final = within
        self._memory = memory

    @property
    def memory(self) -> object:
        """What names the memory: views of one slot have the same, and so have slots whose refs share a buffer."""
        return self._memory


class PreparedStep(NamedTuple):
    """A step that has been checked."""

    name: str
    method: LibraryMethod
    request: LibraryRequest
    plan: Any
    whole: dict[str, int] | None
    """The slots of its arrays by field, where each is a whole slot and a field of its own; None otherwise."""

    def actual(self, slots: list[DeviceArray]) -> LibraryRequest:
        """Return the request with the arrays of a run."""
        if self.whole is not None:
            return msgspec.structs.replace(self.request, **{name: slots[slot] for name, slot in self.whole.items()})
        return with_arrays(self.request, lambda view: _array(slots, cast("SlotView", view)))


class Prepared(NamedTuple):
    """A program that has been checked."""

    steps: list[PreparedStep]
    temporaries: list[Layout]
    """Where they lie in the memory of a run."""
    nbytes: int
    """Of the temporaries that are not returned."""
    apart: frozenset[int]
    """Temporaries that are returned, so that they have memory of their own."""
    returns: list[tuple[int, Layout]]


class ProgramLibrary(Library):
    """Runs programs, with libraries of its own that all work on its stream."""

    slow = frozenset({"run"})

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        own = dataclasses.replace(context, streams=OneStream(stream))
        self._libraries = Libraries(own)

    def prepare_run(self, request: program.RunProgram) -> Prepared:
        """Decode and check a program's steps, and make their plans; on a thread of its own.

        Raises:
            InvalidRequest: A step does not fit; the message names it.
        """
        try:
            definition = program.DEFINITIONS.decode(request.program)
        except errors.ProtocolError as error:
            raise errors.InvalidRequest(f"the program cannot be decoded: {error}") from error
        return _Preparation(definition, request, self._libraries).prepared()

    def run(self, request: program.RunProgram, plan: Prepared) -> Any:
        """Run a program."""
        store, holder = self.context.store, self.context.holder()
        slots = [
            cast("DeviceArray", each) if isinstance(each, Operand) else store.buffers.keep(holder, each)
            for each in (*request.inputs, *request.refs)
        ]
        slots += self._temporaries(plan)
        return _advanced(_running(plan, slots))

    def _temporaries(self, plan: Prepared) -> list[DeviceArray]:
        store, holder = self.context.store, self.context.holder()
        scratch = store.buffers.allocate(holder, "uint8", (plan.nbytes,)) if plan.nbytes else None
        found = []
        for number, layout in enumerate(plan.temporaries):
            if number in plan.apart or scratch is None:
                found.append(store.buffers.allocate(holder, layout.dtype, layout.shape))
            else:
                found.append(scratch.viewed(layout._replace(offset=scratch.layout.offset + layout.offset)))
        return found


class _Preparation:
    """The preparing of a program.

    Args:
        definition: The program.
        request: A request to run it.
        libraries: What its steps are requests of.
    """

    def __init__(self, definition: program.Definition, request: program.RunProgram, libraries: Libraries) -> None:
        self._definition = definition
        self._given = [*request.inputs, *request.refs]
        self._writes = frozenset(request.writes)
        self._libraries = libraries
        self._check_given(request)

    def prepared(self) -> Prepared:
        """Return the program, ready to run."""
        definition = self._definition
        steps = [self._step(number, step) for number, step in enumerate(definition.steps)]
        first = definition.first_temporary
        returns = [self._returned(wire) for wire in definition.returns]
        apart = frozenset(slot - first for slot, _ in returns)
        temporaries, end = [], 0
        for number, wire in enumerate(definition.temporaries):
            layout = Layout.contiguous(wire.dtype, wire.shape, 0 if number in apart else end)
            temporaries.append(layout)
            if number not in apart:
                end = aligned(end + layout.nbytes)
        return Prepared(steps, temporaries, end, apart, returns)

    def _check_given(self, request: program.RunProgram) -> None:
        """Check that inputs and refs are those that the program was recorded with."""
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
                    given.layout == wanted if exact else found == Layout.contiguous(*found[:2], wanted.offset) == wanted
                )
            else:
                fits = hasattr(given, "dtype") and (str(given.dtype), tuple(given.shape)) == wanted[:2]
            if not fits:
                raise errors.InvalidRequest(f"slot {number} does not lie as the program was recorded with")

    def _step(self, number: int, step: program.ProgramStep) -> PreparedStep:
        try:
            if step.library not in DECLARED:
                raise errors.InvalidRequest(f"{step.library} has no requests that can be steps")
            method = self._libraries.find(step.name)
            assert isinstance(method, LibraryMethod)
            request = method.decode_step(step.body, self._view)
            if request.answers or request.results():
                raise errors.InvalidRequest("it cannot be a step: it answers, or has no output")
            for view in request.written():
                if view.slot < self._definition.first_temporary and view.slot not in self._writes:
                    raise errors.InvalidRequest(
                        f"it writes slot {view.slot}, which is not among those that are written"
                    )
            return PreparedStep(step.name, method, request, method.step_plan(request), self._whole(request))
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
            if within != given.layout:
                raise errors.InvalidRequest(f"slot {slot} lies in another way")
            return SlotView(slot, within, given.memory, within._replace(offset=0))
        within.span_within(definition.inputs[slot].layout.span[1])
        if not isinstance(given, Operand):
            return SlotView(slot, within, ("input", slot), within)
        return SlotView(slot, _placed(given.layout, within), given.memory, within)

    def _returned(self, wire: WireRef) -> tuple[int, Layout]:
        """Return a slot and the view of it that is returned."""
        view = self._view(wire)
        if view.slot < self._definition.first_temporary:
            raise errors.InvalidRequest(f"slot {view.slot} is the caller's; only temporaries are returned")
        return view.slot, view.within


def _running(plan: Prepared, slots: list[DeviceArray]) -> Generator[None, None, Any]:
    """Do the steps; stop where the next part of one has to wait for what is on the stream. Returns the run's result."""
    laters: list[tuple[int, Later]] = []
    failed: Exception | None = None
    try:
        for number, step in enumerate(plan.steps):
            result = _named(number, step, functools.partial(_done, step, slots))
            while type(result) is Next:
                yield
                result = _named(number, step, result.enqueue)
            if type(result) is Later:
                laters.append((number, result))
    except Exception as error:
        if not laters:
            raise
        failed = error
    returned = [slots[slot].viewed(_placed(slots[slot].layout, within)) for slot, within in plan.returns]
    answer = returned[0] if len(returned) == 1 else returned or None
    return Later(lambda: _judged(plan.steps, laters, failed, answer)) if laters else answer


def _advanced(running: Generator[None, None, Any]) -> Any:
    """Go on until the run ends, or waits; return its result, or what goes on."""
    try:
        next(running)
    except StopIteration as ended:
        return ended.value
    return Next(lambda: _advanced(running))


def _done(step: PreparedStep, slots: list[DeviceArray]) -> Any:
    return step.method.step(step.actual(slots), step.plan)


def _named(number: int, step: PreparedStep, function: Callable[[], Any]) -> Any:
    """Do something for a step, whose errors name it."""
    try:
        return function()
    except errors.AtomrError as error:
        error.message = f"step {number} ({step.name}): {error.message}"
        if isinstance(error, errors.NumericalError):
            error.library = error.library or step.name.partition(".")[0]
            error.undefined = ""  # what it names is the step's, and later steps may have used it
        raise


def _judged(steps: list[PreparedStep], laters: list[tuple[int, Later]], failed: Exception | None, answer: Any) -> Any:
    """Return a run's answer, or raise what its first step that failed has come to.

    All are read, since each may give something back.

    Args:
        steps: The steps.
        laters: What the data of some have come to.
        failed: What a step behind all of these has raised.
        answer: What the run returns if none has failed.
    """
    for number, later in reversed(laters):
        try:
            _named(number, steps[number], later.read)
        except Exception as error:  # noqa: BLE001 - raised once all are read
            failed = error
    if failed is not None:
        raise failed
    return answer


def _array(slots: list[DeviceArray], view: SlotView) -> DeviceArray:
    """Return the array that a view of a slot is in a run."""
    array = slots[view.slot]
    return array.viewed(_placed(array.layout, view.within))


def _placed(slot: Layout, within: Layout) -> Layout:
    """Return where a view of a slot lies in the slot's memory."""
    return within._replace(offset=slot.offset + within.offset)
