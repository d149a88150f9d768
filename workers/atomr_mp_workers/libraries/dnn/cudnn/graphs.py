"""Graphs of cuDNN, by its frontend: how they are described, built and run.

Arrays that do not lie as a graph has them are copied to temporaries that do. The frontend and cuDNN are optional.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary, WeakMethod, finalize

import cupy
import numpy as np

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import Library, alignment, array
from atomr_mp_workers.libraries.dnn.cudnn.classic import CudnnError
from atomr_mp_workers.libraries.dnn.cudnn.views import ALIGNED_BYTES, is_of_size, lies
from atomr_mp_workers.libraries.holding import hold

try:
    import cudnn
except (ImportError, OSError):  # it is not installed, or its library cannot be loaded
    cudnn = None

if TYPE_CHECKING:
    from atomr_mp_workers.device.cuda_streams import CudaStream

_LOG: Final = logging.getLogger("atomr_mp.worker")

TYPES: Final = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE", "int32": "INT32"}
"""Names of element types in `cudnn.data_type`."""

Enqueue = Callable[[Any], None]
"""Does a request like the one that it was made for."""


class NoEngineError(Exception):
    """cuDNN has no engine for a graph with the wanted properties."""


class ArrayPlace(NamedTuple):
    """How an array of a graph lies: packed, row-major or with the channels last."""

    dtype: str
    last: bool
    """Whether the second dimension varies fastest, which is that of channels."""
    direct: bool
    """Whether the operand lies so itself; else a temporary does."""

    @classmethod
    def of(cls, operand: Operand | None, *, last: bool = False, dtype: str | None = None) -> ArrayPlace:
        """Return the place of an operand in such an order, and of its element type or another; None has a temporary."""
        if operand is None:
            return cls(dtype or "float32", last, direct=False)
        layout: Layout = operand.layout
        direct = dtype in {None, layout.dtype} and alignment(layout) >= ALIGNED_BYTES and lies(layout, last=last)
        return cls(dtype or layout.dtype, last, direct)

    def read(self, operand: Any) -> Any:
        """Return an operand's array, or a temporary with its content."""
        if self.direct:
            return array(operand)
        found, values = self.empty(operand.shape), array(operand)
        found[...] = values.astype(found.dtype) if values.dtype != found.dtype else values
        return found

    def write(self, operand: Any) -> Any:
        """Return the array to write an operand's content to; `put` brings it there."""
        return array(operand) if self.direct else self.empty(operand.shape)

    def put(self, operand: Any, values: Any) -> None:
        """Copy what has been written to its operand, unless it is there."""
        if not self.direct:
            target = array(operand)
            target[...] = values.astype(target.dtype) if values.dtype != target.dtype else values

    def empty(self, shape: Sequence[int]) -> Any:
        """Return a temporary of a shape."""
        dtype = dtypes.to_numpy(self.dtype)
        if not self.last:
            return cupy.empty(tuple(shape), dtype)
        batch, channels, *space = shape
        return cupy.empty((batch, *space, channels), dtype).transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


class PlanWorkspace(Protocol):
    """Memory that kernels work in."""

    @property
    def address(self) -> int:
        """Where it begins."""


class Cudnn:
    """A handle of cuDNN.

    Args:
        stream: The stream that its work is put on, as CUDA's handle.
        workspace: Returns at least so many bytes.
    """

    def __init__(self, stream: int, workspace: Callable[[int], PlanWorkspace]) -> None:
        self.handle: Final[Any] = cudnn.create_handle()
        finalize(self, cudnn.destroy_handle, self.handle).atexit = False
        cudnn.set_stream(self.handle, stream)
        self.workspace: Final = workspace
        self._trials: Final = threading.Lock()

    @classmethod
    def of(cls, library: Library) -> Cudnn:
        """Return the handle of a library, on its stream and with its workspace; it does not keep the library."""
        found = WeakMethod(library.workspace)

        def workspace(nbytes: int) -> PlanWorkspace:
            of_library = found()
            assert of_library is not None
            return of_library(nbytes)

        return cls(cast("CudaStream", library.stream).stream.ptr, workspace)

    @contextlib.contextmanager
    def trial(self) -> Iterator[Cudnn]:
        """Have another handle, for work of the calling thread on its own stream. Its workspace is full of NaNs.

        Raises:
            NoEngineError: The thread's work is recorded to a graph, so that nothing can be tried.
        """
        stream = cupy.cuda.get_current_stream()
        if stream.is_capturing():
            raise NoEngineError("nothing can be tried while a graph is recorded")
        with self._trials:
            cudnn.set_stream(self._trial.handle, stream.ptr)
            yield self._trial

    @functools.cached_property
    def _trial(self) -> Cudnn:
        return Cudnn(cupy.cuda.get_current_stream().ptr, _PoisonedWorkspace)


class _PoisonedWorkspace:
    """Workspace for once."""

    def __init__(self, nbytes: int) -> None:
        self._memory: Final = cupy.empty((max(nbytes, 1),), np.uint8)
        self._memory.fill(0xFF)

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self._memory.data.ptr)


_of_libraries: Final[WeakKeyDictionary[Library, Cudnn | None]] = WeakKeyDictionary()


def cudnn_of(library: Library) -> Cudnn | None:
    """Return a library's handle of cuDNN; None if it is not installed, or unfit for this GPU, which is logged once."""
    if library not in _of_libraries:
        try:
            _of_libraries[library] = None if cudnn is None else Cudnn.of(library)
            why = "its frontend is not installed"
        except RuntimeError as error:
            _of_libraries[library], why = None, str(error)
        if _of_libraries[library] is None:
            _LOG.info("cuDNN serves no graphs: %s", why)
    return _of_libraries[library]


class CudnnGraph:
    """A graph of cuDNN's operations, which knows its arrays by name.

    Args:
        of: The library's handle.
        dtype: The element type of its arrays, by default; float64 is computed as such, all else in float32.
    """

    def __init__(self, of: Cudnn, dtype: str) -> None:
        compute = _type("float64" if dtype == "float64" else "float32")
        self._cudnn: Final = of
        self.of: Final[Any] = cudnn.pygraph(
            io_data_type=_type(dtype), intermediate_data_type=compute, compute_data_type=compute, handle=of.handle
        )
        self.wide: Final = compute
        """The type that is computed in."""
        self._tensors: Final[dict[str, Any]] = {}
        self._numbers: Final[list[tuple[Any, Any]]] = []
        """Tensors of numbers in host memory, and these."""
        self._fixed: dict[int, int] = {}
        self._uids: dict[str, int] = {}
        self._workspace_bytes = 0
        self.engine = ""
        """Name of its engine, with its settings: `eng4_k2=16`."""
        self._run: Callable[[dict[int, int], int], None] | None = None

    def given(self, name: str, dims: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
        """Return the tensor of an array that is read."""
        made = self._tensors[name] = self.of.tensor(
            dim=list(dims), stride=list(strides), data_type=_type(dtype), name=name
        )
        return made

    def number(self, value: float) -> Any:
        """Return a tensor that is a number of float32, in host memory."""
        memory = np.full((1, 1, 1, 1), value, np.float32)
        made = self.of.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=_type("float32"), is_pass_by_value=True)
        self._numbers.append((made, memory))
        return made

    def result(self, made: Any, name: str, dims: Sequence[int], strides: Sequence[int], dtype: str) -> None:
        """Have a tensor written to an array."""
        made.set_output(True).set_data_type(_type(dtype)).set_dim(list(dims)).set_stride(list(strides))
        self._tensors[name] = made

    def build(
        self, unwanted: Iterable[str], *, compiled: bool, fits: Callable[[str], bool] = lambda _: True
    ) -> CudnnGraph:
        """Choose an engine, and build its plan.

        It holds the interpreter's lock: some ms; an engine that is compiled takes 0.1 to 1.4 s.

        Args:
            unwanted: Numerical notes of engines that must not be chosen.
            compiled: Whether the engine may be compiled now.
            fits: Returns whether an engine may be chosen, by its name with its settings.

        Raises:
            NoEngineError: There is none.
            OutOfMemory: There is no room for its workspace.
        """
        try:
            self.of.validate()
            self.of.build_operation_graph()
            self.of.create_execution_plans([constant("heur_mode", "A"), constant("heur_mode", "FALLBACK")])
            self.of.deselect_numeric_notes([constant("numerical_note", name) for name in unwanted])
            if not compiled:
                self.of.deselect_behavior_notes([constant("behavior_note", "RUNTIME_COMPILATION")])
            self.of.check_support()
            names = [self.of.get_plan_name_at_index(index) for index in range(self.of.get_execution_plan_count())]
        except _refusals() as error:
            raise NoEngineError(str(error)) from error
        self.engine = self._built(index for index, name in enumerate(names) if fits(name))
        self._uids = {name: tensor.get_uid() for name, tensor in self._tensors.items()}
        self._fixed = {tensor.get_uid(): memory.ctypes.data for tensor, memory in self._numbers}
        self._workspace_bytes = self.of.get_workspace_size()
        self._cudnn.workspace(self._workspace_bytes)
        self._run = _runner(self.of, self._cudnn.handle)
        return self

    def _built(self, indices: Iterable[int]) -> str:
        """Build the first plan that can be built, in the order of the heuristics; return the name of its engine."""
        why = "there is none"
        for index in indices:
            try:
                self.of.build_plan_at_index(index)
            except _refusals() as error:
                why = str(error)
                continue
            if getattr(self.of, "selected_engine", None) is None:  # else it is the frontend's own, and not cuDNN's
                return str(self.of.get_plan_name_at_index(index))
        raise NoEngineError(why)

    def __call__(self, arrays: Mapping[str, Any]) -> None:
        """Put it on the stream.

        Args:
            arrays: Of the device, by name; they lie as was described.

        Raises:
            CudnnError: It could not be put there.
        """
        assert self._run is not None
        hold(self)
        addresses = {uid: arrays[name].data.ptr for name, uid in self._uids.items()}
        workspace = self._cudnn.workspace(self._workspace_bytes)
        try:
            self._run(self._fixed | addresses, workspace.address)
        except RuntimeError as error:
            raise CudnnError("cudnnBackendExecute", 0, str(error)) from error


def _runner(graph: Any, handle: Any) -> Callable[[dict[int, int], int], None]:
    """Return the function that runs a graph, given addresses by number and that of the workspace.

    The frontend's own function takes a third of the time of the public one. It is the graph's, or since 1.28 that of
    the graph which it wraps.
    """
    execute = getattr(getattr(graph, "_lowered_graph", graph), "_execute", None)
    if execute is None:
        return lambda addresses, workspace: graph.execute(addresses, workspace, handle=handle)
    number = getattr(handle, "backend_handle", handle)
    return lambda addresses, workspace: execute(addresses, workspace, number)


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions with which the frontend refuses a graph, or an engine."""
    return cudnn.cudnnGraphNotSupportedError, NotImplementedError, RuntimeError, ValueError


def constant(kind: str, name: str) -> Any:
    """Return a member of one of the frontend's enumerations."""
    return getattr(getattr(cudnn, kind), name)


def _type(dtype: str) -> Any:
    return constant("data_type", TYPES[dtype])


class GraphEngine:
    """Base of engines that do requests by graphs.

    Args:
        library: Has the stream and the workspace.
    """

    plans: ClassVar[Mapping[str, Callable[[Cudnn, Any], Enqueue]]]
    """Makes the plan of a request, by its name; raises `NoEngineError` for one that is not served."""

    def __init__(self, library: Library) -> None:
        self._library: Final = library

    def planned(self, request: Any) -> Enqueue | None:
        """Return the function that does requests like this one; None if cuDNN does not serve them.

        Raises:
            OutOfMemory: There is no room for its workspace.
        """
        make = type(self).plans.get(request.name)
        if make is None or not is_of_size(request):
            return None
        of = cudnn_of(self._library)
        try:
            return None if of is None else make(of, request)
        except NoEngineError:
            return None


def first_built(makers: Iterable[Callable[[], CudnnGraph]]) -> CudnnGraph:
    """Return the first graph for which there is an engine.

    Raises:
        NoEngineError: There is none.
    """
    for make in makers:
        try:
            return make()
        except NoEngineError:
            continue
    raise NoEngineError
