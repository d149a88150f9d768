"""A stand-in for cuDNN's frontend on the host's memory: what the engines ask for is proved without a GPU.

A graph does what cuDNN's documentation says of its operations, in double precision. What is not defined there is
garbage: results of queries without a key, and of those beyond a sample's length. It checks what an engine has to give:
dimensions, addresses as aligned as kernels take them, the order of the calls that build a graph.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, Final, Self
from unittest import mock

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol import dtypes
from tests.cases.dnn_cases import correlated, gradients
from tests.fakes.fake_cublas import STREAM, _memory
from tests.fakes.fake_cutensor import Addressed, _empty

Array = npt.NDArray[Any]

GARBAGE: Final = 7.0
WORKSPACE_BYTES: Final = 4096
THREAD_STREAM: Final = 7
"""The stream of the thread that makes plans."""
ENGINE_NUMBERS: Final = (1, 11, 4, 5, 6, 7)
ENGINES: Final = len(ENGINE_NUMBERS)
NAMES: Final = {
    "HALF": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "INT32": "int32",
}
"""Element types by cuDNN's names."""


class NotSupportedError(RuntimeError):
    """As the frontend raises it."""


def _enum(name: str, *members: str) -> Any:
    return enum.Enum(name, {member: member for member in members})


class FakeCudnn(ModuleType):
    """The frontend, with one handle.

    Args:
        style: How graphs are run: "wrapped" as by 1.28, "plain" as by those before it, "public" if neither is there.
        refuses: Returns whether there is no engine for a graph.
        faults: The fault of each engine that has one, by the engine's number; see `FAULTS`.
    """

    data_type = _enum("data_type", *NAMES)
    numerical_note = _enum(
        "numerical_note",
        *("TENSOR_CORE", "REDUCED_PRECISION_REDUCTION", "FFT", "NONDETERMINISTIC"),
        *("WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13"),
    )
    behavior_note = _enum("behavior_note", "RUNTIME_COMPILATION")
    heur_mode = _enum("heur_mode", "A", "FALLBACK")
    norm_forward_phase = _enum("norm_forward_phase", "TRAINING")
    diagonal_alignment = _enum("diagonal_alignment", "TOP_LEFT", "BOTTOM_RIGHT")
    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815 - the frontend's

    def __init__(
        self,
        style: str = "wrapped",
        refuses: Callable[[FakeGraph], bool] = lambda _graph: False,
        faults: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__("cudnn")
        self.style: Final = style
        self.refuses: Final = refuses
        self.faults: Final = faults
        self.is_failing = False
        """Whether graphs cannot be run."""
        self.streams: Final[dict[int, int]] = {}
        """Those of the handles, by their numbers; 0 before one is set."""
        self.built: Final[list[FakeGraph]] = []
        """Graphs on the library's stream."""
        self.ran: Final[list[list[str]]] = []
        """Names of the operations of each graph that has run there."""
        self.used: Final[list[int]] = []
        """The engines of these."""
        self.tried: Final[list[str]] = []
        """Names of the engines that have run on another stream."""
        self._handles: Final = itertools.count(81)

    @property
    def handles(self) -> int:
        """How many there are."""
        return len(self.streams)

    def create_handle(self) -> Any:
        """Make a handle."""
        number = next(self._handles)
        self.streams[number] = 0
        return SimpleNamespace(backend_handle=number) if self.style == "wrapped" else number

    def destroy_handle(self, handle: Any) -> None:
        """Drop it."""
        del self.streams[self.number_of(handle)]

    def set_stream(self, handle: Any, stream: int) -> None:
        """Have work put on a stream."""
        self.streams[self.number_of(handle)] = stream

    def number_of(self, handle: Any) -> int:
        """Return the number of a handle, which exists."""
        number: int = handle.backend_handle if self.style == "wrapped" else handle
        assert number in self.streams
        return number

    def pygraph(self, *, handle: Any, **types: Any) -> FakeGraph:
        """Make a graph."""
        assert types["compute_data_type"] is types["intermediate_data_type"]
        return FakeGraph(self, NAMES[types["io_data_type"].value], self.number_of(handle))


class FakeTensor:
    """A tensor of a graph; one that an operation gives is virtual until it is an output."""

    def __init__(self, number: int, dim: list[int], stride: list[int], dtype: Any, *, by_value: bool = False) -> None:
        assert len(dim) == len(stride)
        assert min([1, *dim, *stride]) > 0
        self.number: Final = number
        self.dim, self.stride, self.dtype, self.by_value = dim, stride, dtype, by_value
        self.is_output = False

    def set_output(self, wanted: bool) -> Self:  # noqa: FBT001 - the frontend's
        """Have it written."""
        self.is_output = wanted
        return self

    def set_data_type(self, dtype: Any) -> Self:
        """Set the element type."""
        self.dtype = dtype
        return self

    def set_dim(self, dim: list[int]) -> Self:
        """Set the dimensions."""
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Self:
        """Set the strides."""
        assert min(stride) > 0
        self.stride = stride
        return self

    def get_uid(self) -> int:
        """Return its number."""
        return self.number

    def at(self, address: int) -> Array:
        """Return the tensor at an address."""
        dtype = NAMES[self.dtype.value]
        item = dtypes.item_bytes(dtype)
        if not self.by_value:
            assert address % 16 == 0
        reach = 1 + sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True))
        memory = _memory(address, reach, dtype)
        strides = [step * item for step in self.stride]
        return np.ndarray(self.dim, memory.dtype, memory.view(np.uint8).data, 0, strides)


class FakeGraph:
    """A graph: its tensors, and operations that are functions of arrays."""

    def __init__(self, cudnn: FakeCudnn, dtype: str, handle: int) -> None:
        self.cudnn: Final = cudnn
        self.handle: Final = handle
        self.engine = -1
        """Number of the engine whose plan was built."""
        self.dtype: Final = dtype
        self.names: Final[list[str]] = []
        self.notes: Final[set[str]] = set()
        """Notes of engines that are not wanted."""
        self.options: dict[str, Any] = {}
        """Arguments of the last operation that are no tensors."""
        self.selected_engine = None
        self._tensors: Final[list[FakeTensor]] = []
        self._steps: Final[list[tuple[Callable[..., Any], dict[str, Any], list[FakeTensor]]]] = []
        self._numbers: Final = itertools.count(1)
        self._stage = 0
        if cudnn.style == "wrapped":
            self._lowered_graph = SimpleNamespace(_execute=self._do)
        elif cudnn.style == "plain":
            self._execute = self._do

    def tensor(self, *, dim: list[int], stride: list[int], data_type: Any, **more: Any) -> FakeTensor:
        """Describe a tensor that is given."""
        made = FakeTensor(next(self._numbers), dim, stride, data_type, by_value=more.get("is_pass_by_value", False))
        self._tensors.append(made)
        return made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return what adds an operation."""
        if name not in OPERATIONS:
            raise AttributeError(name)
        operation, count = OPERATIONS[name]

        def add(*positional: FakeTensor, **named: Any) -> Any:
            given = dict(zip(POSITIONAL.get(name, ()), positional, strict=False)) | named
            made = [FakeTensor(next(self._numbers), [], [], self.cudnn.data_type.FLOAT) for _ in range(count)]
            self.names.append(name)
            self.options = {key: value for key, value in given.items() if not isinstance(value, FakeTensor)}
            self._tensors.extend(made)
            self._steps.append((operation, given, made))
            if name == "rmsnorm_backward":
                assert given["has_dbias"] is False
                return [*made, None]
            return made[0] if count == 1 else made

        return add

    @property
    def is_mixed(self) -> bool:
        """Whether an output has another element type than the inputs."""
        return any(each.is_output and NAMES[each.dtype.value] != self.dtype for each in self._tensors)

    # --- building -----------------------------------------------------------------------------------------------------

    def _to(self, stage: int) -> None:
        assert self._stage == stage - 1
        self._stage = stage

    def validate(self) -> None:
        """Check the description."""
        self._to(1)
        assert len({each.number for each in self._tensors}) == len(self._tensors)

    def build_operation_graph(self) -> None:
        """Make the graph known to cuDNN."""
        self._to(2)

    def create_execution_plans(self, modes: list[Any]) -> None:
        """Ask the heuristics."""
        self._to(3)
        assert [each.value for each in modes] == ["A", "FALLBACK"]

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        """Leave out engines."""
        assert self._stage == 3
        self.notes.update(each.value for each in notes)

    deselect_behavior_notes = deselect_numeric_notes

    def check_support(self) -> None:
        """Look whether there is an engine. Norms and attention have only some that are compiled."""
        self._to(4)
        compiled = not self.names[0].startswith("conv")
        if self.cudnn.refuses(self) or (compiled and "RUNTIME_COMPILATION" in self.notes):
            raise NotSupportedError("no engine")

    def get_execution_plan_count(self) -> int:
        """Return how many plans there are."""
        assert self._stage == 4
        return ENGINES

    def get_plan_name_at_index(self, index: int) -> str:
        """Return the name of a plan: the first has a number that others begin with."""
        return f"eng{ENGINE_NUMBERS[index]}_k2={self._tensors[0].dim[0]}"

    def build_plan_at_index(self, index: int) -> None:
        """Build a plan."""
        self._to(5)
        self.engine = index
        if self.cudnn.faults.get(index) == "refused":
            self._stage = 4
            raise NotSupportedError("no plan")
        if self.is_of_library:
            self.cudnn.built.append(self)

    @property
    def is_of_library(self) -> bool:
        """Whether it runs on the library's stream, and not on that of the thread that makes plans."""
        stream = self.cudnn.streams[self.handle]
        assert stream in {STREAM, THREAD_STREAM}
        return stream == STREAM

    def get_workspace_size(self) -> int:
        """Return a size."""
        assert self._stage == 5
        return WORKSPACE_BYTES

    # --- running ------------------------------------------------------------------------------------------------------

    def execute(self, addresses: dict[int, int], workspace: int, *, handle: Any) -> None:
        """Run it, as is public."""
        assert self.cudnn.style == "public"
        self._do(addresses, workspace, self.cudnn.number_of(handle))

    def _do(self, addresses: dict[int, int], workspace: int, handle: int) -> None:
        assert handle == self.handle
        assert workspace % 16 == 0
        if self.cudnn.is_failing:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        if self.is_of_library:
            self.cudnn.ran.append(self.names)
            self.cudnn.used.append(self.engine)
        else:
            self.cudnn.tried.append(self.get_plan_name_at_index(self.engine))
            assert _memory(workspace, WORKSPACE_BYTES // 4, "float32")[-1] != 0
        values: dict[int, Array] = {}
        made = {each.number for _, _, tensors in self._steps for each in tensors}
        wanted = {each.number for each in self._tensors if each.is_output or each.number not in made}
        assert set(addresses) == wanted
        for tensor in self._tensors:
            if tensor.number not in made:
                values[tensor.number] = tensor.at(addresses[tensor.number]).astype(np.float64)
        for operation, given, tensors in self._steps:
            arrays = {
                name: values[value.number] if isinstance(value, FakeTensor) else value for name, value in given.items()
            }
            found = operation(SimpleNamespace(**arrays), tensors[0].dim)
            for tensor, value in zip(tensors, found, strict=True):
                values[tensor.number] = value
                if tensor.is_output:
                    target = tensor.at(addresses[tensor.number])
                    FAULTS[self.cudnn.faults.get(self.engine, "")](target, value.reshape(target.shape))


# --- engines ----------------------------------------------------------------------------------------------------------


def _right(target: Array, values: Array) -> None:
    target[...] = values


def _wrong(target: Array, values: Array) -> None:
    """Write all but the last element, which has a fault of one part in eight."""
    target[...] = values
    target[(-1,) * target.ndim] = target[(-1,) * target.ndim] * 0.875 + 0.125


def _unwritten(target: Array, values: Array) -> None:
    """Leave the last of the first dimension, or all."""
    target[: len(target) - 1] = values[: len(target) - 1]


def _unsteady(target: Array, values: Array) -> None:
    """Add a rounding to the first element, every other time."""
    values = values.astype(target.dtype)
    if next(_times) % 2:
        first = values.reshape(-1)[:1].astype(np.float64)
        values.reshape(-1)[:1] = first + np.where(first < 0, -1, 1) * 2 * abs(first) * np.finfo(np.float16).eps
    target[...] = values


def _failing(_target: Array, _values: Array) -> None:
    raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")


_times: Final = itertools.count()

FAULTS: Final[dict[str, Callable[[Array, Array], None]]] = {
    "": _right,
    "wrong": _wrong,
    "unwritten": _unwritten,
    "unsteady": _unsteady,
    "failing": _failing,
}
"""How engines write results; one that is "refused" cannot be built."""

# --- operations -------------------------------------------------------------------------------------------------------


def _way(of: Any, channels: int, share: int) -> Any:
    sides = [side for pair in zip(of.pre_padding, of.post_padding, strict=True) for side in pair]
    return SimpleNamespace(stride=of.stride, dilation=of.dilation, padding=sides, groups=channels // share)


def _fprop(of: Any, _dim: list[int]) -> Any:
    return [correlated(_way(of, of.image.shape[1], of.weight.shape[1]), of.image, of.weight)]


def _dgrad(of: Any, dim: list[int]) -> Any:
    way = _way(of, dim[1], of.filter.shape[1])
    return [gradients(way, np.zeros(dim), of.filter, of.loss)[0]]


def _wgrad(of: Any, dim: list[int]) -> Any:
    way = _way(of, of.image.shape[1], dim[1])
    return [gradients(way, of.image, np.zeros(dim), of.loss)[1]]


def _forward(axes: tuple[int, ...], *, centred: bool = True) -> Callable[[Any, list[int]], Any]:
    def norm(of: Any, _dim: list[int]) -> Any:
        mean = of.input.mean(axes, keepdims=True) if centred else np.zeros(1)
        variance = ((of.input - mean) ** 2).mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(variance + of.epsilon)
        y = (of.input - mean) * inverse * of.scale
        if not centred:
            return [y, inverse]
        found = [y + of.bias, mean, inverse]
        if axes[0] == 0:
            count, share = of.input.size // mean.size, of.momentum
            pairs = ((of.in_running_mean, mean), (of.in_running_var, variance * count / (count - 1)))
            found += [(1 - share) * old + share * new for old, new in pairs]
        return found

    return norm


def _backward(axes: tuple[int, ...], *, centred: bool = True) -> Callable[[Any, list[int]], Any]:
    def norm(of: Any, _dim: list[int]) -> Any:
        normal = (of.input - (of.mean if centred else 0)) * of.inv_variance
        gradient = of.grad * of.scale
        left = gradient - normal * (gradient * normal).mean(axes, keepdims=True)
        if centred:
            left = left - gradient.mean(axes, keepdims=True)
        rest = tuple(at for at, n in enumerate(of.scale.shape) if n == 1)
        found = [left * of.inv_variance, (of.grad * normal).sum(rest, keepdims=True)]
        return [*found, of.grad.sum(rest, keepdims=True)] if centred else found

    return norm


def _scores(of: Any) -> tuple[Array, Array, Array, int]:
    """Return scores, -inf where a key is left out, which queries have one, those of padding, and the heads' share."""
    (b, hq, sq, _), (_, hk, sk, _) = of.q.shape, of.k.shape
    each = hq // hk
    scores = of.attn_scale * of.q @ np.repeat(of.k, each, 1).swapaxes(2, 3)
    if hasattr(of, "bias"):
        scores = scores + of.bias
    queries, keys = np.full((b, 1, 1, 1), sq), np.full((b, 1, 1, 1), sk)
    if getattr(of, "use_padding_mask", False):
        queries, keys = of.seq_len_q.astype(int), of.seq_len_kv.astype(int)
        assert ((queries >= 0) & (queries <= sq) & (keys >= 0) & (keys <= sk)).all()
    rows, columns = np.arange(sq)[:, None], np.arange(sk)
    taken = np.broadcast_to(columns < keys, (b, 1, sq, sk)).copy()
    if hasattr(of, "diagonal_alignment"):
        bottom = of.diagonal_alignment.value == "BOTTOM_RIGHT"
        at = rows + (keys - queries if bottom else 0)
        taken &= columns <= at + of.diagonal_band_right_bound
        if hasattr(of, "diagonal_band_left_bound"):
            taken &= columns + of.diagonal_band_left_bound > at
    beyond = np.broadcast_to(rows >= queries, (b, 1, sq, 1))
    return np.where(taken, scores, -math.inf), np.asarray(taken.any(3, keepdims=True)), beyond, each


def _sdpa(of: Any, _dim: list[int]) -> Any:
    scores, some, beyond, each = _scores(of)
    garbage = ~some | beyond | (scores < -1e4).all(3, keepdims=True)
    largest = np.where(garbage, 0, scores.max(3, keepdims=True))
    powers = np.where(garbage, GARBAGE, np.exp(scores - largest))
    total = powers.sum(3, keepdims=True)
    out = powers / total @ np.repeat(of.v, each, 1)
    sums = np.where(garbage, GARBAGE, largest + np.log(total))
    return [np.where(garbage, math.nan, out), sums]


def _sdpa_backward(of: Any, _dim: list[int]) -> Any:
    assert of.use_deterministic_algorithm
    scores, _, beyond, each = _scores(of)
    assert np.isfinite(of.dO).all()
    b, hk, sk, _ = of.k.shape
    weights = np.exp(scores - of.stats)
    by_weights = of.dO @ np.repeat(of.v, each, 1).swapaxes(2, 3)
    by_scores = weights * (by_weights - (of.dO * of.o).sum(3, keepdims=True)) * of.attn_scale

    def of_keys(values: Array) -> Array:
        found: Array = values.reshape(b, hk, each, sk, -1).sum(2)
        if getattr(of, "use_padding_mask", False):
            found = np.where(np.arange(sk)[:, None] >= of.seq_len_kv, math.nan, found)
        return found

    by_query = np.where(beyond, math.nan, by_scores @ np.repeat(of.k, each, 1))
    return [by_query, of_keys(by_scores.swapaxes(2, 3) @ of.q), of_keys(weights.swapaxes(2, 3) @ of.dO)]


POSITIONAL: Final = {"conv_fprop": ("image", "weight")}

OPERATIONS: Final[dict[str, tuple[Callable[[Any, list[int]], Any], int]]] = {
    "conv_fprop": (_fprop, 1),
    "conv_dgrad": (_dgrad, 1),
    "conv_wgrad": (_wgrad, 1),
    "bias": (lambda of, _: [of.input + of.bias], 1),
    "relu": (lambda of, _: [np.maximum(of.input, 0)], 1),
    "batchnorm": (_forward((0, 2, 3)), 5),
    "batchnorm_backward": (_backward((0, 2, 3)), 3),
    "layernorm": (_forward((1, 2, 3)), 3),
    "layernorm_backward": (_backward((1, 2, 3)), 3),
    "instancenorm": (_forward((2, 3)), 3),
    "instancenorm_backward": (_backward((2, 3)), 3),
    "rmsnorm": (_forward((1, 2, 3), centred=False), 2),
    "rmsnorm_backward": (_backward((1, 2, 3), centred=False), 2),
    "sdpa": (_sdpa, 2),
    "sdpa_backward": (_sdpa_backward, 3),
}
"""Functions of the arrays and options of operations, and how many arrays they give."""


class FakeCupy(ModuleType):
    """NumPy, whose arrays tell their addresses."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.has_room, self.records = True, False
        """Whether there is memory; whether a graph is being recorded."""
        stream = SimpleNamespace(ptr=THREAD_STREAM, is_capturing=lambda: self.records)
        self.cuda: Final = SimpleNamespace(get_current_stream=lambda: stream)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return memory."""
        if not self.has_room:
            raise MemoryError
        return _empty(shape, dtype)

    def ElementwiseKernel(self, *_given: Any, **_named: Any) -> None:  # noqa: N802 - as CuPy's
        """Make no kernel: graphs launch none."""

    def __getattr__(self, name: str) -> Any:
        """Return a function of NumPy's."""
        function = getattr(np, name)
        return lambda *of, **named: np.asarray(function(*of, **named)).view(Addressed)


def installed(cudnn: FakeCudnn | None, cupy: FakeCupy | None = None) -> AbstractContextManager[Any]:
    """Return a context in which the stand-ins are imported; without a frontend for None."""
    return mock.patch.dict("sys.modules", {"cupy": cupy or FakeCupy("cupy"), "cudnn": cudnn})
