"""Programs: many requests recorded once and run as one, made by `Device.program`.

    with device.program() as p:
        x = p.input("x", (64, 64), "float32")
        product = p.blas.gemm(x, weights)
        p.returns(p.elementwise.maximum(product, zero))

    result = p.run(x=array).result()

Recording sends nothing. Each run is one message, one set of borrows, one deadline and one stream. Steps are checked as
they are recorded, and again in the worker. The refs that steps use are constants of the program: they are checked at
each run, and a program with a stale ref cannot be run any more. A program may be run many times, from several threads.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.base import lengths
from atomr_mp.libraries.kernel_module import explain
from atomr_mp.libraries.program_blocks import Else, If, While
from atomr_mp.libraries.recording import ProgramArray, RecordedBlock, Recording
from atomr_mp.protocol import dtypes, values
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import STEPS, blocks
from atomr_mp.protocol.libraries import program as messages
from atomr_mp.protocol.libraries.coverage import first_reads
from atomr_mp.protocol.libraries.kernels import KernelLaunch
from atomr_mp.protocol.libraries.world import WORLD
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.refs import Operand, WireRef

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply
    from atomr_mp.libraries.base import LibraryDevice


class _Slot(Operand):
    """An array in the program's message.

    Args:
        number: The number of its slot there.
        layout: Its layout in the slot.
    """

    def __init__(self, number: int, layout: Layout) -> None:
        self.layout = layout
        self.number: Final = number

    @property
    def memory(self) -> object:
        """The name of the memory."""
        return self.number

    def to_wire(self) -> WireRef:
        """Return its form in the message."""
        return messages.slot(self.number, self.layout)


@checks_names
class Program:
    """A program: recorded within `with`, then run.

    The libraries are attributes, as on a device: `p.blas.gemm(…)` records a step. A method returns the output that was
    left out, a list if several were, None if none was. In a world, `p.world` has its collectives, see `WorldSteps`.

    Args:
        device: The device that it runs on; or what stands for all devices of a world.
    """

    def __init__(self, device: LibraryDevice) -> None:
        self._device = device
        self._operand: Final[Callable[[Any], Any] | None] = getattr(device, "operand", None)
        """Returns the operand of an array, if the device takes arrays for refs."""
        self._given: Final[Callable[[Any], Any] | None] = getattr(device, "given", self._operand)
        """The same for an input of a run, which may be a number."""
        self._recording: Final = Recording(getattr(device, "ranks", 0), self._operand)
        self._names: list[str] = []
        self._refs: list[Operand] = []
        self._returns: list[Operand] = []
        self._recorded: messages.RunProgram | None = None
        """A run without its inputs; None until it is recorded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a program has no {name!r}")
        there = (*STEPS, WORLD) if self._recording.ranks else STEPS
        if name not in there:
            hint = _HINTS.get(name, "")
            raise AttributeError(f"a program has no {name!r}{hint}; its libraries are: {', '.join(there)}")
        library = importlib.import_module(f"atomr_mp.libraries.{name}").Reference(self._recording)
        self.__dict__[name] = library
        return library

    # --- recording ----------------------------------------------------------------------------------------------------

    __reduce__ = refusal(f"{CONNECT}, and write the program there")

    def input(self, name: str, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike) -> ProgramArray:
        """Declare an input: each run is given an array or a ref for it, row-major and without gaps.

        It may be declared after steps, and in a body too.

        Raises:
            InvalidRequest: The name is taken, or is one of `run`'s own; or no such array can exist.
        """
        if type(name) is not str:
            raise errors.InvalidRequest(f"an input's name is a text; this is of type {type(name).__name__}")
        if name in _OWN_NAMES:
            raise errors.InvalidRequest(f"an input cannot be named {name!r}, as `run` has an argument of this name")
        if name in self._names:
            raise errors.InvalidRequest(f"the program has an input {name!r} already")
        array = self._recording.input(Layout.contiguous(dtypes.name_for(dtype), lengths("shape", shape)))
        self._names.append(name)
        return array

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike) -> ProgramArray:
        """Return a temporary, which steps write before others read it.

        A step that reads it where none has written is refused. Elements that no step has written are zero.
        """
        return self._recording.empty(shape, dtype)

    def if_(self, condition: Any) -> If:
        """Begin a branch: steps that are recorded within its `with` are done if the condition is true.

        They may write arrays that were made before. What they make does not leave the body. A body may have further
        branches and loops.

        Args:
            condition: A ref or an array of the program with one element, of bool or an integer type; true if it is not
                0 when the run comes here.

        Raises:
            InvalidRequest: It is no such array, or was not written yet. At the end of the body: that has no steps.
        """
        return If(self._recording, self._condition(condition))

    def else_(self) -> Else:
        """Begin the other body of the `if_` that has just ended: its steps are done if the condition was false.

            with p.if_(large):
                p.kernels.launch(halve, x, grid=1, block=32, inout=x)
            with p.else_():
                p.kernels.launch(double, x, grid=1, block=32, inout=x)

        The condition is looked at once, before either body. What both bodies write as a whole is written behind them.

        Raises:
            InvalidRequest: No `if_` has just ended, or a step has come since. At the end of the body: that has no
                steps.
        """
        return Else(self._recording)

    def while_(self, condition: Any, *, most: SupportsIndex) -> While:
        """Begin a loop: steps that are recorded within its `with` are done as long as the condition is true.

        That is looked at before each round. The object has `rounds` and `reached_most`, arrays that the loop writes
        when it ends. A run whose deadline passes, or that is cancelled, ends between two rounds; in an actor, by those
        of its method's request. Arrays keep their content from round to round, also those that the body makes.

        Args:
            condition: As that of `if_`; a step in the body writes it.
            most: How many rounds are done at most, from 1 on.

        Raises:
            InvalidRequest: As by `if_`, or `most` is no such number. At the end of the body: no step there writes the
                condition.
        """
        try:
            number = operator.index(most)
        except TypeError:
            number = 0
        if isinstance(most, bool) or not 1 <= number <= blocks.MAX_ROUNDS:
            raise errors.InvalidRequest(f"most is {most!r:.100}; it must be a whole number from 1 to 2**63 - 1")
        return While(self._recording, self._condition(condition), number)

    def _condition(self, value: Any) -> Any:
        """Return the operand of a condition, if it has one."""
        return value if self._operand is None or isinstance(value, bool | int | float) else self._operand(value)

    def returns(self, *arrays: Operand) -> None:
        """Name the arrays that a run returns: outputs and temporaries, or views of them.

        Raises:
            InvalidRequest: An array is neither; its owner can read it without having it returned.
        """
        for array in arrays:
            if not (self._recording.has(array) and isinstance(array, ProgramArray) and array.slot >= 0):
                raise errors.InvalidRequest(f"{array!r} is no output of this program's steps")
            self._recording.check_returned(array)
        self._returns += arrays

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, *, deadline_s: float | None = None, **inputs: Any) -> Reply:
        """Run the program; return at once.

        The reply's result is a ref to the returned array, a list of refs if several arrays are returned, None if none
        is. An input that is given as an array is copied, and the array is not written; in an actor, where arrays stand
        for refs, it is used where it lies.

        Args:
            deadline_s: See `Pool.call`.
            **inputs: An array or a ref for each input, by name; also a number for one without dimensions.

        Raises:
            InvalidRequest: An input is missing or unknown, or does not have its declared layout.
            GpuRefStale: A ref that it was recorded with is stale.
            PoisonRequest: This run has ended workers, and is refused. By the reply: the last of them just now.
        """
        if self._recorded is None:
            raise errors.InvalidRequest("the program is not recorded yet: run it after the with block")
        if set(inputs) != set(self._names):
            raise errors.InvalidRequest(
                f"the program's inputs are {', '.join(self._names) or 'none'}; given were {', '.join(inputs) or 'none'}"
            )
        if self._given is not None:
            inputs = {name: self._given(given) for name, given in inputs.items()}
        given = [
            _fitting(name, inputs[name], layout)
            for name, layout in zip(self._names, self._recording.inputs, strict=True)
        ]
        request = msgspec.structs.replace(self._recorded, inputs=given)
        try:
            reply: Reply = self._device.request("program", request, deadline_s)
        except errors.GpuRefStale as stale:
            self._name_module(stale)
            raise
        kernels = [step.kernel.title for _, step in self._recording.steps if isinstance(step, KernelLaunch)]
        if kernels and self._operand is None:
            title = " or ".join(dict.fromkeys(kernels))
            reply.explain = lambda error: explain(error, title, 0, None)
        return reply

    def _name_module(self, stale: errors.GpuRefStale) -> None:
        """Name the kernel whose module is stale, if one is."""
        for number, (_, step) in enumerate(self._recording.steps):
            module = step.kernel.module if isinstance(step, KernelLaunch) else None
            generation = getattr(module, "generation", 0)
            if isinstance(step, KernelLaunch) and 0 < generation < (stale.current or stale.generation + 1):
                stale.message = (
                    f"step {number} launches {step.kernel.title:.200}, whose module was loaded in generation "
                    f"{generation} of device {stale.device}, which has ended: call `renew()` of the module, and record "
                    "the program anew"
                )
                return

    # --- the definition -----------------------------------------------------------------------------------------------

    def _constants(self) -> dict[tuple[object, Layout], int]:
        """Keep the refs that the steps use, and return the slot of each."""
        refs: dict[tuple[object, Layout], int] = {}
        operands = [operand for _, request in self._recording.steps for _, _, operand in request.arrays()]
        for operand in (*operands, *(block.condition for block in self._recording.blocks)):
            if operand is not None and not isinstance(operand, ProgramArray):
                key = operand.memory, operand.layout
                if key not in refs:
                    refs[key] = len(self._recording.inputs) + len(refs)
                    self._refs.append(operand)
        return refs

    def _finish(self) -> None:
        """Number the slots, and encode the definition.

        Raises:
            InvalidRequest: It returns what no step has written, or is too large.
        """
        recording = self._recording
        recording.finish()
        for number, array in enumerate(self._returns):
            if not recording.written.has_some(array):
                raise errors.InvalidRequest(
                    f"the program returns {array!r} (number {number}), which no step has "
                    "written: its content is undefined"
                )
        refs, writes = self._constants(), dict[int, None]()

        def numbered(operand: Operand) -> _Slot:
            if not isinstance(operand, ProgramArray):
                return _Slot(refs[operand.memory, operand.layout], messages.anywhere(operand.layout))
            if not recording.has(operand):
                raise errors.InvalidRequest(f"{operand!r} is an array of another program")
            first = len(recording.inputs) + len(refs)
            return _Slot(-1 - operand.slot if operand.slot < 0 else first + operand.slot, operand.layout)

        steps = []
        for library, request in recording.steps:
            told = with_arrays(request, numbered)
            steps.append(messages.ProgramStep(library, request.name, values.encode(told)[0]))
            writes |= {each.number: None for each in told.written() if each.number < len(recording.inputs) + len(refs)}
        slots = len(recording.inputs) + len(refs) + len(recording.temporaries)
        if slots > messages.MAX_SLOTS:
            raise errors.InvalidRequest(f"the program has {slots} arrays; the limit is {messages.MAX_SLOTS}")
        found = [_block(each, numbered) for each in recording.blocks]
        definition = messages.Definition(
            [messages.slot(0, layout) for layout in recording.inputs],
            [messages.slot(0, messages.anywhere(ref.layout)) for ref in self._refs],
            [messages.slot(0, layout) for layout in recording.temporaries],
            steps,
            [numbered(each).to_wire() for each in self._returns],
            found,
        )
        encoded = messages.DEFINITIONS.encode(definition)
        if len(encoded) > messages.MAX_BYTES:
            raise errors.InvalidRequest(f"the program takes {len(encoded)} bytes; the limit is {messages.MAX_BYTES}")
        given: list[Operand] = [
            ProgramArray(recording.program, -1 - at, layout) for at, layout in enumerate(recording.inputs)
        ]
        given += self._refs

        def slot_of(operand: Operand) -> int | None:
            number = numbered(operand).number
            return number if number < len(given) else None

        passed = blocks.passages(
            [request for _, request in recording.steps],
            found,
            lambda number: recording.blocks[number].condition,
            lambda number: recording.blocks[number].results,
        )
        reads = first_reads([*passed], slot_of)
        self._recorded = messages.RunProgram(
            encoded,
            [],
            self._refs,
            sorted(writes),
            messages.digest(encoded),
            needs=sorted(reads),
            fills=tuple(slot for slot in sorted(writes) if recording.written.has_all(given[slot])),
            settled=tuple((slot, other) for slot, settled in reads.items() for other in settled),
            varies=bool(found),
        )
        recording.is_over = True


_HINTS: Final = {
    WORLD: ": a program of a world has collectives (`MadeWorld.program`)",
    "program": ": its bodies are branches and loops (`if_`, `while_`), and another program is recorded by itself",
}
"""What there is in the place of attributes that a program does not have."""

_OWN_NAMES: Final = frozenset({"self", "deadline_s"})
"""Arguments of `Program.run` that are no inputs."""


def _block(block: RecordedBlock, numbered: Callable[[Operand], _Slot]) -> blocks.StepBlock:
    """Return the form of a branch or loop in the message."""
    rounds, reached = (numbered(each).number for each in block.results) if block.results else (-1, -1)
    place, condition = (block.begin, block.end, block.most), numbered(block.condition).to_wire()
    return blocks.StepBlock(block.kind, condition, *place, rounds, reached, block.otherwise)


def _fitting(name: str, given: Any, layout: Layout) -> Any:
    """Return an input in the form in which it is sent.

    Raises:
        InvalidRequest: The input does not fit its declaration.
    """
    if not isinstance(given, Operand):
        import numpy as np

        given = np.asarray(given, order="C")  # ascontiguousarray would give a number a dimension
        found = dtypes.name_of(given.dtype), tuple(given.shape)
    else:
        found = given.dtype, given.shape
        if found == layout[:2] and not given.layout.is_contiguous():
            raise errors.InvalidRequest(f"input {name} has strides {given.strides}; it must be row-major without gaps")
    if found != layout[:2]:
        raise errors.InvalidRequest(
            f"input {name} is {found[0]} of shape {found[1]}; the program takes {layout.dtype} of shape {layout.shape}"
        )
    return given
