"""What a program is recorded to: arrays and steps. Its libraries have this in the place of a device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.base import lengths
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Index, Layout
from atomr_mp.protocol.libraries import program as messages
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.coverage import Coverage
from atomr_mp.protocol.refs import Operand, WireRef

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@checks_names
class ProgramArray(Operand):
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

    def __getitem__(self, index: Index | tuple[Index, ...]) -> ProgramArray:
        return self._view(self.layout.indexed(index))

    def reshape(self, *shape: int) -> ProgramArray:
        """Return a view of another shape; see `GpuRef.reshape`."""
        return self._view(self.layout.reshaped(shape))

    def transpose(self, *axes: int) -> ProgramArray:
        """Return a view with the dimensions in another order; see `GpuRef.transpose`."""
        return self._view(self.layout.transposed(axes or None))

    @property
    def T(self) -> ProgramArray:  # noqa: N802 - as in NumPy
        """The transpose."""
        return self.transpose()

    def as_strided(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> ProgramArray:
        """Return a view of any shape and strides; see `GpuRef.as_strided`."""
        return self._view(self.layout.strided(shape, strides, operator.index(offset)))

    def _view(self, layout: Layout) -> ProgramArray:
        return ProgramArray(self.program, self.slot, layout)


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
        self.steps: Final[list[tuple[str, LibraryRequest]]] = []
        self.written: Final = Coverage()
        """What the steps so far have written."""
        self.is_over = False
        """Whether nothing more is recorded."""

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
        if len(self.steps) >= messages.MAX_STEPS:
            raise errors.InvalidRequest(f"a program has at most {messages.MAX_STEPS} steps")
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
        outputs = list(made.values())
        return outputs[0] if len(outputs) == 1 else outputs or None

    def has(self, array: object) -> bool:
        """Return whether an array is of this program."""
        return isinstance(array, ProgramArray) and array.program is self.program

    def _check_open(self) -> None:
        if self.is_over:
            raise errors.InvalidRequest("the program is recorded already; record another")
