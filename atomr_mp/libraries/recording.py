"""What a program is recorded to: arrays and steps. Its libraries have this in the place of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.base import lengths
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blocks
from atomr_mp.protocol.libraries import program as messages
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.coverage import Coverage
from atomr_mp.protocol.libraries.world import WORLD
from atomr_mp.protocol.refs import Operand, WireRef
from atomr_mp.protocol.views import ArrayViews

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class ProgramArray(ArrayViews):
    """An array of a program, or a view of one. Its memory exists only during a run.

    Args:
        program: Stands for the program.
        slot: Number of the slot.
        layout: Its layout in the slot.
    """

    def __init__(self, program: object, slot: int, layout: Layout) -> None:
        self.layout = layout
        self.program: Final = program
        """Not the program itself, which has this array."""
        self.slot: Final = slot

    def __repr__(self) -> str:
        return f"<ProgramArray {self.dtype}{list(self.shape)} of a program>"

    @property
    def memory(self) -> object:
        """The name of the memory."""
        return id(self.program), self.slot

    def to_wire(self) -> WireRef:
        """Raise.

        Raises:
            InvalidRequest: No message has it but the program's, which has its slot.
        """
        raise errors.InvalidRequest(
            f"{self!r} exists only while the program runs: use it in the program's steps, or have it returned; the "
            "run's result is a ref"
        )

    def of_layout(self, layout: Layout) -> ProgramArray:
        """Return a view with another layout in its slot."""
        return ProgramArray(self.program, self.slot, layout)


class RecordedBlock:
    """A branch or a loop; or the second body of a branch.

    Args:
        kind: Which of them.
        condition: Its condition.
        most: How many rounds a loop does at most.
        begin: Number of its first step.
        results: The arrays that a loop writes at its end: its rounds, and whether it has reached the bound.
        branch: The branch whose second body it is.
    """

    def __init__(
        self,
        kind: blocks.Kind,
        condition: Operand,
        most: int,
        begin: int,
        results: Sequence[ProgramArray] = (),
        branch: RecordedBlock | None = None,
    ) -> None:
        self.kind: Final = kind
        self.condition: Final = condition
        self.most: Final = most
        self.begin: Final = begin
        self.results: Final = tuple(results)
        self.branch: Final = branch
        self.end = begin
        """Number of the step behind its last one, once it has ended."""
        self.otherwise = -1
        """Number of the first step of a branch's second body."""

    @property
    def method(self) -> str:
        """The method that has begun it, for messages."""
        return f"{self.kind}_" if self.branch is None else "else_"

    @property
    def body(self) -> str:
        """The name of its body in messages."""
        return f"the body of {'a' if self.kind == 'while' else 'an'} {self.method}"


class Recording:
    """The arrays and steps of one program.

    It knows neither the program nor its libraries, so that these are gone with their last reference, and with them the
    program's device or world.

    Args:
        ranks: How many ranks the program's world has, 0 outside of worlds.
        operand: Returns the operand of an array, if arrays are taken for refs.
    """

    def __init__(self, ranks: int, operand: Callable[[Any], Any] | None) -> None:
        self.ranks: Final = ranks
        self.operand: Final = operand
        self.program: Final = object()
        """Stands for the program in its arrays."""
        self.inputs: Final[list[Layout]] = []
        self.temporaries: Final[list[Layout]] = []
        self._bodies: Final[list[RecordedBlock | None]] = []
        """For each temporary the block in whose body it was made; None outside of blocks."""
        self.steps: Final[list[tuple[str, LibraryRequest]]] = []
        self.written: Final = Coverage()
        """What the steps so far have written."""
        self.blocks: Final[list[RecordedBlock]] = []
        self._open: Final[list[RecordedBlock]] = []
        """Blocks that have begun and not ended, outer ones first."""
        self._ended: RecordedBlock | None = None
        """The branch that has ended just now, and may have a second body."""
        self.announced = 0
        """How many blocks were made and have not begun."""
        self.is_over = False
        """Whether nothing more is recorded."""
        self._broken = ""
        """The mistake for which it cannot be finished; empty if there is none."""

    def input(self, layout: Layout) -> ProgramArray:
        """Return one more input.

        Raises:
            InvalidRequest: The program is recorded.
        """
        self._check_open()
        self.inputs.append(layout)
        return ProgramArray(self.program, -len(self.inputs), layout)

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike) -> ProgramArray:
        """Return a temporary.

        Raises:
            InvalidRequest: The program is recorded, or no such array can exist.
        """
        layout = Layout.contiguous(dtypes.name_for(dtype), lengths("shape", shape))
        self._check_open()
        self.temporaries.append(layout)
        self._bodies.append(self._open[-1] if self._open else None)
        return ProgramArray(self.program, len(self.temporaries) - 1, layout)

    def request(self, library: str, request: LibraryRequest, deadline_s: float | None) -> Any:
        """Record a checked step.

        Raises:
            InvalidRequest: The request cannot be a step.
        """
        self._check_open()
        if deadline_s is not None:
            raise errors.InvalidRequest("a step has no deadline of its own; give one to run()")
        if request.answers:
            raise errors.InvalidRequest(
                f"{library}.{request.name} answers with what only the device knows, which no step can; blas.inner "
                "leaves a number on the device"
            )
        if library == WORLD and self._open:
            raise errors.InvalidRequest(
                f"{library}.{request.name} is in {self._open[-1].body}: ranks whose conditions differ would wait for "
                "each other for ever; let it be a step outside"
            )
        if len(self.steps) >= messages.MAX_STEPS:
            raise errors.InvalidRequest(f"a program has at most {messages.MAX_STEPS} steps")
        for name, _, operand in request.arrays():
            if isinstance(operand, ProgramArray) and not self.has(operand):
                raise errors.InvalidRequest(
                    f"{library}.{request.name} uses {name}, an array of another program: it exists only while that one "
                    "runs; record an input here, and give it what that one returns"
                )
            self.check_there(operand, f"{library}.{request.name} uses {name}")
        for operand in self.written.unwritten(request):
            if isinstance(operand, ProgramArray) and operand.slot >= 0 and not self.written.has_some(operand):
                name = next(name for name, _, each in request.arrays() if each is operand)
                raise errors.InvalidRequest(
                    f"{library}.{request.name} reads {name}, a temporary that no earlier step has written: its content "
                    "is undefined; write it first, or record what it is to hold as an input"
                )
        made = {name: self.empty(layout.shape, layout.dtype) for name, layout in request.results().items()}
        if made:
            request = msgspec.structs.replace(request, **made)
            request.check()
        self.written.add(request)
        self.steps.append((library, request))
        self._ended = None
        outputs = list(made.values())
        return outputs[0] if len(outputs) == 1 else outputs or None

    def has(self, array: object) -> bool:
        """Return whether an array is of this program."""
        return isinstance(array, ProgramArray) and array.program is self.program

    # --- blocks -------------------------------------------------------------------------------------------------------

    def check_there(self, array: object, use: str) -> None:
        """Check that an array is not one that a body has made which has ended.

        Args:
            array: Any operand.
            use: Its use, as the beginning of a sentence.

        Raises:
            InvalidRequest: It is.
        """
        if not isinstance(array, ProgramArray) or array.slot < 0 or not self.has(array):
            return
        body = self._bodies[array.slot]
        if body is not None and body not in self._open:
            raise errors.InvalidRequest(
                f"{use}, an array that was made in {body.body}, which may not have been done; make it before "
                "(`p.empty`), and write it in the body"
            )

    def check_returned(self, array: ProgramArray) -> None:
        """Check that an array that a run is to return was not made in a body.

        Raises:
            InvalidRequest: It was.
        """
        body = self._bodies[array.slot]
        if body is not None:
            raise errors.InvalidRequest(
                f"{array!r} was made in {body.body}, which may not have been done; make it before (`p.empty`), and "
                "write it in the body"
            )

    def check_condition(self, condition: Any, method: str) -> None:
        """Check that an array can be the condition of the next block.

        Raises:
            InvalidRequest: It cannot.
        """
        self._check_open()
        blocks.check_condition(condition, method)
        if isinstance(condition, ProgramArray):
            if not self.has(condition):
                raise errors.InvalidRequest(f"the condition of {method} is an array of another program")
            self.check_there(condition, f"{method} depends on its condition")
            if condition.slot >= 0 and not self.written.has_some(condition):
                raise errors.InvalidRequest(
                    f"the condition of {method} is a temporary that no earlier step has written: its content is "
                    "undefined; write it first"
                )
        if len(self.blocks) >= blocks.MAX_BLOCKS:
            raise errors.InvalidRequest(f"a program has at most {blocks.MAX_BLOCKS} branches and loops")
        if len(self._open) >= blocks.MAX_DEPTH:
            raise errors.InvalidRequest(f"at most {blocks.MAX_DEPTH} branches and loops may lie in each other")

    def enter(self, kind: blocks.Kind, condition: Operand, most: int) -> RecordedBlock:
        """Begin the body of a branch or a loop.

        Raises:
            InvalidRequest: It cannot begin here.
        """
        self.check_condition(condition, f"{kind}_")
        results = [self.empty((), layout.dtype) for layout in (blocks.ROUNDS, blocks.REACHED) if kind == "while"]
        block = RecordedBlock(kind, condition, most, len(self.steps), results)
        self.blocks.append(block)
        self._open.append(block)
        self._ended = None
        self.written.enter()
        return block

    def check_second(self) -> RecordedBlock:
        """Return the branch that has ended just now, if it can have a second body.

        Raises:
            InvalidRequest: No branch has ended, or steps came since, or it has its second body.
        """
        self._check_open()
        if self._ended is None:
            raise errors.InvalidRequest("else_ follows the body of an if_ at once, with no step between them")
        return self._ended

    def enter_second(self, branch: RecordedBlock) -> RecordedBlock:
        """Begin the second body of a branch.

        Raises:
            InvalidRequest: It is not the branch that has ended just now.
        """
        if self.check_second() is not branch:
            raise errors.InvalidRequest("else_ follows the body of an if_ at once, and another one has come since")
        self._ended = None
        body = RecordedBlock("if", branch.condition, 1, len(self.steps), branch=branch)
        self._open.append(body)
        self.written.enter_second()
        return body

    def leave(self, block: RecordedBlock, *, failed: bool) -> None:
        """End a body of a branch, or that of a loop.

        Args:
            block: The block, or what `enter_second` has returned.
            failed: Whether an exception has ended the body.

        Raises:
            InvalidRequest: The body has no steps, or does not change what a loop depends on.
        """
        if failed:
            self._broken = self._broken or f"an exception has ended the body of its {block.method}"
            return
        self._check_open()
        if block is not self._open[-1]:
            raise self._refused("the body of a while_, if_ or else_ has ended before one that began in it")
        block.end = len(self.steps)
        if block.end == block.begin:
            raise self._refused(f"the body of {block.method} has no steps")
        if block.kind == "while" and not blocks.writes_to(self._written_in(block), block.condition):
            raise self._refused(
                "no step in the body of while_ writes its condition, so it would do all rounds or none; have a step "
                "write it (`out=`)"
            )
        if block.branch is not None:
            block.branch.otherwise, block.branch.end = block.begin, block.end
        self._open.pop()
        self._ended = block if block.kind == "if" and block.branch is None else None
        self.written.leave()
        if block.results:
            self.written.add(blocks.LoopResult(block.results))

    def finish(self) -> None:
        """Check that all that has begun has ended.

        Raises:
            InvalidRequest: It has not.
        """
        self._check_open()
        if self._open:
            raise self._refused(f"the body of its {self._open[-1].method} has not ended")
        if self.announced:
            raise self._refused("while_, if_ and else_ are for `with`: the steps of its block are the body")

    def _written_in(self, block: RecordedBlock) -> Iterator[Operand]:
        """Yield the arrays that the body of a block writes."""
        for _, request in self.steps[block.begin : block.end]:
            yield from request.written()
        for inner in self.blocks[self.blocks.index(block) + 1 :]:
            yield from inner.results

    def _refused(self, why: str) -> errors.InvalidRequest:
        """Note a mistake for which the program cannot be finished; return its error."""
        self._broken = why
        return errors.InvalidRequest(why)

    def _check_open(self) -> None:
        if self.is_over:
            raise errors.InvalidRequest("the program is recorded already; record another")
        if self._broken:
            raise errors.InvalidRequest(f"the program has a mistake, record it anew: {self._broken}")
