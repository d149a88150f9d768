"""The base class of the libraries' actors, and their context."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

from atomr_mp.protocol.board import GRAPH_WORDS, PLAN_WORDS, PlanCounts
from atomr_mp.protocol.declaration.factors import Factor
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES, LibraryRequest, Rest, scalar
from atomr_mp.protocol.library_names import ENGINES
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.device.base import Stream, WorkerDevice
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.libraries.holding import hold
from atomr_mp_workers.libraries.plans import LibraryPlan
from atomr_mp_workers.libraries.scaling import multiply
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store

if TYPE_CHECKING:
    from atomr_mp_workers.memory.arrays import DeviceArray
    from atomr_mp_workers.memory.workspaces import Workspace

ENGINE_WORD: Final = PlanCounts._fields.index("engine")


class ProgramWorld(Protocol):
    """The collectives of a world, as `OwnWorld` has them."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def in_graphs(self) -> bool:
        """Whether CUDA graphs may hold collectives."""

    def all_reduce(self, x: Any, op: str, *, factor: Any, out: Any) -> Any:
        """Reduce to all ranks."""

    def reduce(self, x: Any, root: int, op: str, *, factor: Any, out: Any) -> Any:
        """Reduce to one rank."""

    def reduce_scatter(self, x: Any, op: str, *, factor: Any, out: Any) -> Any:
        """Reduce, and give each rank its part."""

    def all_gather(self, x: Any, *, out: Any) -> Any:
        """Give all arrays to all ranks."""

    def broadcast(self, x: Any, root: int, *, out: Any) -> Any:
        """Give one rank's array to all."""

    def all_to_all(self, x: Any, *, out: Any) -> Any:
        """Give each rank a part of each array."""

    def sendrecv(self, x: Any, to: int | None, from_: int | None, *, out: Any) -> Any:
        """Send an array to one rank, and receive that of another."""


@dataclass(frozen=True)
class LibraryContext:
    """The parts of the process that a library may use."""

    backend: str
    device: WorkerDevice
    store: Store
    streams: StreamAllocator
    holder: Callable[[], Holder]
    """Returns the holder of the current request, on the thread that does it."""
    wake: Callable[[], None]
    """Has the loop look for ended work. Any thread."""
    figures: Callable[[str], MutableSequence[int]] = lambda _library: [0] * PLAN_WORDS
    """Returns the words in which a library's plans are counted."""

    graphs: MutableSequence[int] = field(default_factory=lambda: [0] * GRAPH_WORDS)
    """The words in which graphs of programs are counted, as `board.GraphCounts`."""
    world: ProgramWorld | None = None
    """The world whose collectives programs may have as steps; None outside of worlds."""

    def served_by(self, library: str, engine: str) -> None:
        """Show which engine serves a library, one of `library_names.ENGINES`."""
        self.figures(library)[ENGINE_WORD] = ENGINES.index(engine)


class Library:
    """Base of the libraries' actors: a method for each request does its work, and nothing else.

    The envelope does the rest: the request has been checked, its arrays are borrowed, outputs that were left out are
    allocated, and earlier uses of its memory have ended. A method returns the caller's result: None, a plain value or
    arrays, or a `Later` of one of these. It puts its work on the stream, and waits for nothing. If its next work
    depends on the device's results, it returns `Next`.

    A library may keep *plans*: objects that a request needs and a later request like it can use again. A method
    `prepare_NAME` makes the plan of a request NAME, whose method then takes it as a second argument. A plan that takes
    long to make (`slow`) is made on a thread of its own, while the request is parked.

    A method `begin_NAME` begins work of a single request elsewhere, and returns its future: the request is parked until
    that has ended, and its method takes the future's result as a second argument. Nothing else waits meanwhile.

    Args:
        context: The context for libraries.
        stream: The stream that its requests run on, in order.
    """

    xp: ClassVar[Any]
    """NumPy or CuPy, for a library whose requests leave triangles or units for their `rest`."""
    unsupported: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Element types that this backend does not have, by request."""
    slow: ClassVar[frozenset[str]] = frozenset()
    """Requests whose plans take long to make."""

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        self.context: Final = context
        self.stream: Final = stream
        self.is_open = type(self).open is Library.open
        """Whether `open` has been called, and has ended."""
        self._opening: Final = threading.Lock()

    def open(self) -> None:
        """Make handles and the like, which takes long, and the memory that they work in; by default nothing.

        The thread that makes plans calls this once, while the library's first requests are parked; for the libraries of
        programs before the first step that needs them. What could not be made is made by the request that needs it,
        which gets the error. For an actor's own requests, outside of programs, all is made so.
        """

    def open_here(self) -> None:
        """Open it on the calling thread, unless that was done; never raises."""
        with self._opening:
            if not self.is_open:
                LibraryPlan().make(self.open)
                self.is_open = True

    def rest(self, request: Any) -> Any:
        """Do the rest of an idle request, see `LibraryRequest.is_idle`, in place of its method; return its answer."""
        rest = request.rest
        if request.answers:
            zero = array(request.x).dtype.type(0).item()
            return zero.real if rest is Rest.REAL_ZERO else zero
        for operand in () if rest is Rest.UNCHANGED else request.written():
            values = array(operand)
            if rest is Rest.SCALED:
                self._scale(values, request.beta, request.triangle_of(operand))
            elif rest is not Rest.UNIT:
                values.fill(rest is Rest.ONES)
            elif values.size:
                values[...] = self.xp.eye(*values.shape[-2:], dtype=values.dtype)
        return None

    def _scale(self, values: Any, factor: Factor, triangle: str | None) -> None:
        """Multiply an array, or its triangle; by a number of 0 without reading, so that a NaN is gone."""
        if triangle:
            scaled, below = values.copy(), self.xp.tri(len(values), dtype=bool)
            self._scale(scaled, factor, None)
            self.xp.copyto(values, scaled, where=below if triangle == "L" else below.T)
        elif isinstance(factor, Operand) and self.context.device.asynchronous:
            multiply(values, array(factor).reshape(()))
        elif not (value := number(factor)):
            values.fill(0)
        elif value != 1:
            multiply(values, value)

    def trials(self, holder: Holder) -> Iterable[LibraryRequest]:  # noqa: ARG002 - for those that have some
        """Return requests that prepare a standby for its first request: they make handles and the like.

        Args:
            holder: The holder of their arrays, whose memory is given back when they are done.
        """
        return ()

    def workspace(self, nbytes: int) -> DeviceArray:
        """Return at least so many bytes of workspace for the next work on the stream.

        They belong to the stream: the next request overwrites them. A graph that is recorded keeps them. `prepare_NAME`
        takes them too, so that the memory is made off the loop.

        Raises:
            OutOfMemory: There is no room.
        """
        memory = self._workspace.take(nbytes)
        hold(memory)
        return memory

    def fixed_workspace(self) -> DeviceArray:
        """Return `FIXED_BYTES` of the stream's workspace at a fixed address, for handles that get the address once.

        Raises:
            OutOfMemory: There is no room.
        """
        return self._workspace.fixed()

    @functools.cached_property
    def _workspace(self) -> Workspace:
        return self.context.store.workspaces.of(self.stream)


def given(operand: Operand | None) -> DeviceArray:
    """Return an operand as an array of this device, which every operand is here: left-out outputs are allocated."""
    return cast("DeviceArray", operand)


def array(operand: Operand | None) -> Any:
    """Return an operand's elements as an array of this backend's, zero-copy."""
    return operand.array  # type: ignore[union-attr]  # as `given` says; a call less


def address(operand: Operand | None) -> int:
    """Return the address of the element of index zero."""
    return operand.address  # type: ignore[union-attr,no-any-return]  # likewise


def number(factor: Factor) -> Any:
    """Return the number that a factor is; of an array in host memory the one that it holds now."""
    return factor.array.item() if isinstance(factor, Operand) else scalar(factor)  # type: ignore[attr-defined]


def alignment(layout: Layout) -> int:
    """Return the largest power of two, up to 256, that the address of an array is a multiple of."""
    offset = layout.offset % ALIGNED_BYTES or ALIGNED_BYTES
    return offset & -offset
