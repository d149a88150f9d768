"""A stand-in for cuDNN's classic calls on the host's memory: what the CUDA actor asks for is proved without a GPU.

Its functions are C's, with the arguments that the actor declares, and do what cuDNN's documentation says of them. Where
that is silent they do what was seen of the library: a network's lengths on the device are ignored, and its backward
overwrites the reserve.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol import dtypes
from tests.cases.dnn_cases import GATES, network, network_gradients
from tests.fakes.fake_cublas import STREAM, _memory

Array = npt.NDArray[Any]

TYPES: Final = {0: "float32", 1: "float64", 2: "float16", 9: "bfloat16"}
CELLS: Final = ("relu", "tanh", "lstm", "gru")
BAD_PARAM, NOT_SUPPORTED, BROKEN = 2000, 3000, 5000
HANDLE: Final = "handle"
WORK_BYTES: Final = 4096
ALIGNED: Final = 16

ACTIVATIONS: Final[dict[int, Callable[[Array], Array]]] = {
    0: lambda x: 1 / (1 + np.exp(-x)),
    1: lambda x: np.maximum(x, 0),
    2: np.tanh,
    6: lambda x: x / (1 + np.exp(-x)),
}
DERIVATIVES: Final[dict[int, Callable[[Array, Array], Array]]] = {
    0: lambda _x, y: y * (1 - y),
    1: lambda _x, y: y > 0,  # and 0 at a NaN
    2: lambda _x, y: 1 - y * y,
    6: lambda x, y: y + (1 - y) / (1 + np.exp(-x)),
}
"""By x and the result."""


class FakeCudnn:
    """The library.

    Args:
        signatures: Types of its functions' arguments, as the actor declares them.
    """

    def __init__(self, signatures: Mapping[str, list[Any]]) -> None:
        self._signatures: Final = signatures
        self.objects: Final[dict[int, Any]] = {}
        """Descriptors by number: their kind, and what has been set."""
        self.ran: Final[list[str]] = []
        self.wrong: Final[list[str]] = []
        """What the actor has done wrong."""
        self.statuses: Final[dict[str, int]] = {}
        """Functions that fail, and how."""
        self.networks: Final[list[tuple[int, int, int]]] = []
        """What networks are computed in: the types of elements and sums, and the use of tensor cores."""
        self.more_reserve = 0
        self.biases_first = False
        self.runs: Final[dict[int, dict[str, Any]]] = {}
        """Networks' runs by the word that their reserve begins with."""
        self._numbers: Final = itertools.count(1001)
        self._functions: Final[dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a function as ctypes finds it."""
        if name == "cudnnGetErrorString":
            return _Text()
        short = name.removeprefix("cudnn")
        if short not in self._signatures:
            raise AttributeError(name)
        if short not in self._functions:
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *self._signatures[short])
            self._functions[short] = kind(lambda *given: self._called(short, given))
        return self._functions[short]

    def _called(self, name: str, given: tuple[Any, ...]) -> int:
        if name in self.statuses:
            return self.statuses[name]
        try:
            if name.startswith(("Create", "Destroy", "Set")):
                self._described(name, given)
            else:
                self.ran.append(name)
                ROUTINES[name](self, given)
        except Exception:  # noqa: BLE001 - it cannot get through C
            self.wrong.append(traceback.format_exc())
            return BROKEN
        return 0

    def _described(self, name: str, given: tuple[Any, ...]) -> None:
        if name.startswith("Create"):
            number = next(self._numbers)
            self.objects[number] = [name.removeprefix("Create").removesuffix("Descriptor") or HANDLE, None]
            _word(given[0]).value = number
        elif name.startswith("Destroy"):
            kind, _ = self.objects.pop(given[0])
            assert name == f"Destroy{kind}Descriptor"
        elif name == "SetStream":
            assert (self.objects[given[0]][0], given[1]) == (HANDLE, STREAM)
        else:
            kind = self.objects[given[0]][0]
            assert name.startswith(f"Set{kind}")
            self.objects[given[0]][1] = READERS[kind](self, given[1:])

    def of(self, number: int, kind: str) -> Any:
        """Return what a descriptor tells."""
        found, told = self.objects[number]
        assert found == kind
        return told

    def at(self, tensor: int, address: int) -> Array:
        """Return the array that a tensor describes, at an address."""
        dtype, dims, strides = self.of(tensor, "Tensor")
        assert address % ALIGNED == 0
        item = dtypes.item_bytes(dtype)
        reach = 1 + sum((n - 1) * step for n, step in zip(dims, strides, strict=True))
        memory = _memory(address, reach, dtype)
        return np.ndarray(dims, memory.dtype, memory.view(np.uint8).data, 0, [step * item for step in strides])

    def read(self, tensor: int, address: int) -> Array:
        """Return its elements, in double precision."""
        return self.at(tensor, address).astype(np.float64)

    def blend(self, alpha: int, beta: int, values: Array, tensor: int, address: int) -> None:
        """Write alpha·values + beta·what is there."""
        target = self.at(tensor, address)
        kind = "float64" if target.dtype == np.float64 else "float32"
        first, second = (float(_memory(each, 1, kind)[0]) for each in (alpha, beta))
        target[...] = first * values + (second * target.astype(np.float64) if second else 0)


class _Text:
    restype: Any = None
    argtypes: Any = None

    def __call__(self, status: int) -> bytes:
        return b"CUDNN_STATUS_%d" % status


def installed() -> AbstractContextManager[Any]:
    """Return a context in which `import cupy` finds NumPy's arrays, which tell their addresses."""
    cupy: Any = ModuleType("cupy")
    functions = {name: getattr(np, name) for name in ("full", "arange", "ascontiguousarray", "right_shift", "where")}
    for name, function in ({"empty": _rubbish} | functions).items():
        setattr(cupy, name, _on_gpu(function))
    cupy.ElementwiseKernel = lambda *_given, **_named: _told  # of those, `kernels.TOLD` alone is launched
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(memcpyAsync=_copy), alloc_pinned_memory=_Pinned)
    return mock.patch.dict("sys.modules", {"cupy": cupy})


class GpuArray(np.ndarray[Any, Any]):
    """An array with an address, as CuPy has it."""

    @property
    def data(self) -> Any:
        """Where it lies."""
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, **_named: Any) -> None:
        """Refuse to copy it to the host, which no graph may do."""
        raise AssertionError("D2H transfers are disallowed")

    def copy(self, order: Any = "C") -> Any:
        """Return a copy that begins where all may."""
        made = _rubbish(self.shape, self.dtype).view(GpuArray)
        assert order == "C"
        made[...] = self
        return made

    def all(self, *_given: Any, **_named: Any) -> Any:
        """Return an array without dimensions, as CuPy does."""
        return np.asarray(np.all(np.asarray(self))).view(GpuArray)


def _told(right: Any, place: Any) -> None:
    ctypes.c_uint64.from_address(int(place)).value = bool(right)


def _on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: np.asarray(function(*given)).view(GpuArray)


def _rubbish(shape: Any, dtype: Any) -> Array:
    """Return memory that begins at a multiple of 256."""
    item = np.dtype(dtype).itemsize
    memory = np.full(item * int(np.prod(shape)) + 256, 0xFF, np.uint8)
    at = -memory.ctypes.data % 256
    return np.ndarray(shape, dtype, memory.data, at)


def _copy(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    assert (kind, stream) == (3, STREAM)
    ctypes.memmove(target, source, nbytes)


def _Pinned(nbytes: int) -> Any:  # noqa: N802 - it makes an object
    memory = (ctypes.c_char * nbytes)()
    memory.ptr = ctypes.addressof(memory)  # type: ignore[attr-defined]
    return memory


def _word(address: int) -> Any:
    return ctypes.c_uint64.from_address(address)


# --- descriptors ------------------------------------------------------------------------------------------------------


def _tensor(_cudnn: FakeCudnn, given: Any) -> Any:
    kind, count, dims, strides = given
    lengths, steps = (_memory(each, count, "int32").tolist() for each in (dims, strides))
    assert 3 <= count <= 5
    assert min(*lengths, *steps) > 0
    return TYPES[kind], lengths, steps


def _pooling(_cudnn: FakeCudnn, given: Any) -> Any:
    mode, nans, count, *places = given
    window, padding, stride = (_memory(each, count, "int32").tolist() for each in places)
    assert nans == 1
    assert mode in {1, 2, 3}
    assert count in {2, 3}
    assert all(pad < n for pad, n in zip(padding, window, strict=True))
    return mode, window, padding, stride


def _activation(_cudnn: FakeCudnn, given: Any) -> Any:
    mode, nans, factor = given
    assert (nans, factor) == (1, 1.0)
    return mode


def _response_norm(_cudnn: FakeCudnn, given: Any) -> Any:
    size, _, beta, k = given
    assert size % 2 == 1
    assert size <= 16
    assert k >= 1e-5
    assert beta >= 0.01
    return given


def _network_of(cudnn: FakeCudnn, given: Any) -> Any:
    algorithm, mode, biases, both, into, dtype, computed, math_type, i, h, projected, layers, dropout, flags = given
    assert (algorithm, biases, into, flags) == (0, 2, 0, 1)
    assert cudnn.of(dropout, "Dropout")[1:] == (0.0, None, 0, 0)
    assert dtype == computed
    assert projected == h
    name = TYPES[dtype]
    assert name in {"float32", "float64"}
    cudnn.networks.append((dtype, computed, math_type))
    return SimpleNamespace(
        mode=CELLS[mode], hidden_size=h, num_layers=layers, bidirectional=bool(both), i=i, dtype=name
    )


def _sequences(_cudnn: FakeCudnn, given: Any) -> Any:
    dtype, layout, steps, count, width, lengths, filled = given
    assert (layout, filled) == (0, None)
    assert _memory(lengths, count, "int32").tolist() == [steps] * count
    return TYPES[dtype], (steps, count, width)


READERS: Final[dict[str, Callable[[FakeCudnn, Any], Any]]] = {
    "Tensor": _tensor,
    "Pooling": _pooling,
    "Activation": _activation,
    "LRN": _response_norm,
    "Dropout": lambda _cudnn, given: given,
    "RNN": _network_of,
    "RNNData": _sequences,
}

# --- functions --------------------------------------------------------------------------------------------------------


def _activate(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, alpha, x, x_at, beta, y, y_at = given
    assert cudnn.objects[x][1] == cudnn.objects[y][1]
    cudnn.blend(alpha, beta, ACTIVATIONS[cudnn.of(desc, "Activation")](cudnn.read(x, x_at)), y, y_at)


def _by_activation(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, alpha, y, y_at, dy, dy_at, x, x_at, beta, dx, dx_at = given
    found = DERIVATIVES[cudnn.of(desc, "Activation")](cudnn.read(x, x_at), cudnn.read(y, y_at))
    cudnn.blend(alpha, beta, cudnn.read(dy, dy_at) * found, dx, dx_at)


def _softmax(cudnn: FakeCudnn, given: Any) -> None:
    _, algorithm, mode, alpha, x, x_at, beta, y, y_at = given
    assert algorithm == 1, "a logarithm has the bits that a large number leaves it"
    assert x_at != y_at
    values, axes = cudnn.read(x, x_at), _together(mode)
    powers = np.exp(values - values.max(axes, keepdims=True))
    cudnn.blend(alpha, beta, powers / powers.sum(axes, keepdims=True), y, y_at)


def _by_softmax(cudnn: FakeCudnn, given: Any) -> None:
    _, algorithm, mode, alpha, y, y_at, dy, dy_at, beta, dx, dx_at = given
    assert dx_at not in {y_at, dy_at}
    values, by, axes = cudnn.read(y, y_at), cudnn.read(dy, dy_at), _together(mode)
    if algorithm == 2:
        found = by - np.exp(values) * by.sum(axes, keepdims=True)
    else:
        found = values * (by - (values * by).sum(axes, keepdims=True))
    cudnn.blend(alpha, beta, found, dx, dx_at)


def _together(mode: int) -> tuple[int, ...]:
    """Return the dimensions that softmax normalises together: all of a sample, or its channels."""
    return ((1, 2, 3), (1,))[mode]


def _windows(cudnn: FakeCudnn, desc: int, shape: Sequence[int], places: Sequence[int]) -> Any:
    """Return for each place its index, the part of the image there, and how many elements the window has."""
    mode, window, padding, stride = cudnn.of(desc, "Pooling")
    ways = list(zip(shape[2:], window, padding, stride, strict=True))
    assert [(n + 2 * pad - w) // step + 1 for n, w, pad, step in ways] == list(places[2:])
    for place in np.ndindex(*places[2:]):
        begins = [at * step - pad for at, (_, _, pad, step) in zip(place, ways, strict=True)]
        part = tuple(slice(max(0, begin), min(n, begin + w)) for begin, (n, w, _, _) in zip(begins, ways, strict=True))
        yield mode, (..., *place), (..., *part), math.prod(window)


def _pool(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, alpha, x, x_at, beta, y, y_at = given
    image, found = cudnn.read(x, x_at), np.zeros(cudnn.of(y, "Tensor")[1])
    axes = tuple(range(2, image.ndim))
    for mode, there, here, count in _windows(cudnn, desc, image.shape, found.shape):
        part = image[here]
        inside = math.prod(part.shape[2:])
        assert mode != 3, "the maximum of -inf alone is not -inf"
        found[there] = part.sum(axes) / (count if mode == 1 else inside)
    cudnn.blend(alpha, beta, found, y, y_at)


def _by_pool(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, alpha, y, y_at, dy, dy_at, x, x_at, beta, dx, dx_at = given
    image, maxima, by = cudnn.read(x, x_at), cudnn.read(y, y_at), cudnn.read(dy, dy_at)
    found = np.zeros(image.shape)
    for mode, there, here, count in _windows(cudnn, desc, image.shape, by.shape):
        part = image[here]
        shape = (*part.shape[:2], -1)
        share = by[there][..., None]
        if mode == 3:
            flat = part.reshape(shape)
            assert np.array_equal(flat.max(2), maxima[there])
            given_to = np.arange(flat.shape[2]) == flat.argmax(2)[..., None]
            found[here] += (share * given_to).reshape(part.shape)
        else:
            found[here] += np.broadcast_to(
                share / (count if mode == 1 else math.prod(part.shape[2:])), part.reshape(shape).shape
            ).reshape(part.shape)
    cudnn.blend(alpha, beta, found, dx, dx_at)


def _scaled(norm: Any, x: Array) -> Array:
    size, alpha, _, k = norm
    total, count = np.zeros(x.shape), x.shape[1]
    for channel in range(count):
        near = slice(max(0, channel - size // 2), min(count, channel + size // 2 + 1))
        total[:, channel] = k + alpha / size * (x[:, near] ** 2).sum(1)
    return total


def _respond(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, mode, alpha, x, x_at, beta, y, y_at = given
    assert mode == 0
    norm, values = cudnn.of(desc, "LRN"), cudnn.read(x, x_at)
    cudnn.blend(alpha, beta, values * _scaled(norm, values) ** -norm[2], y, y_at)


def _by_response(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, _, alpha, y, y_at, dy, dy_at, x, x_at, beta, dx, dx_at = given
    norm, values, result = cudnn.of(desc, "LRN"), cudnn.read(x, x_at), cudnn.read(y, y_at)
    by, scale, found = cudnn.read(dy, dy_at), _scaled(norm, values), np.zeros(values.shape)
    size, weight, power, _ = norm
    for channel in range(values.shape[1]):
        near = slice(max(0, channel - size // 2), channel + size // 2 + 1)
        share = (by[:, near] * result[:, near] / scale[:, near]).sum(1)
        found[:, channel] = by[:, channel] * scale[:, channel] ** -power
        found[:, channel] -= 2 * weight * power / size * values[:, channel] * share
    cudnn.blend(alpha, beta, found, dx, dx_at)


def _normalise(cudnn: FakeCudnn, given: Any) -> None:
    _, mode, alpha, beta, x, x_at, y, y_at, channels, *places, eps = given
    assert mode == 1
    weight, bias, mean, variance = (cudnn.read(channels, each) for each in places)
    values = (cudnn.read(x, x_at) - mean) / np.sqrt(variance + eps) * weight + bias
    cudnn.blend(alpha, beta, values, y, y_at)


def _tell_dims(cudnn: FakeCudnn, given: Any) -> None:
    tensor, most, dtype, count, dims, strides = given
    name, lengths, steps = cudnn.of(tensor, "Tensor")
    assert len(lengths) == most
    _memory(dtype, 1, "int32")[0] = next(number for number, each in TYPES.items() if each == name)
    _memory(count, 1, "int32")[0] = len(lengths)
    _memory(dims, most, "int32")[:] = lengths
    _memory(strides, most, "int32")[:] = steps


# --- networks ---------------------------------------------------------------------------------------------------------


def _sizes(rnn: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return the elements of a gate's bias, and for each direction of each layer the inputs of its two matrices."""
    ways = 1 + rnn.bidirectional
    layers = [(ways * rnn.hidden_size if layer else rnn.i, rnn.hidden_size) for layer in range(rnn.num_layers)]
    return rnn.hidden_size, [each for each in layers for _ in range(ways)]


def _weights(rnn: Any) -> int:
    h, layers = _sizes(rnn)
    return GATES[rnn.mode] * h * sum(i + r + 2 for i, r in layers)


def _tell_weights(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, size = given
    rnn = cudnn.of(desc, "RNN")
    _word(size).value = _weights(rnn) * dtypes.item_bytes(rnn.dtype)


def _tell_weight(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, layer, nbytes, begin, gate, matrix, matrix_at, bias, bias_at = given
    rnn = cudnn.of(desc, "RNN")
    item, (h, layers), gates = dtypes.item_bytes(rnn.dtype), _sizes(rnn), GATES[rnn.mode]
    assert nbytes == _weights(rnn) * item
    kind, number = divmod(gate, gates)
    before = sum(gates * h * (i + r) for i, r in layers[:layer]) + kind * gates * h * layers[layer][0]
    at = before + number * h * layers[layer][kind]
    all_matrices = sum(gates * h * (i + r) for i, r in layers)
    biases = (2 * layer + kind) * gates * h + number * h
    if cudnn.biases_first:
        at, biases = at + 2 * gates * h * len(layers), biases - all_matrices
    _word(matrix_at).value = begin + at * item
    _word(bias_at).value = begin + (all_matrices + biases) * item
    cudnn.objects[matrix][1] = rnn.dtype, [1, h, layers[layer][kind]], [1, 1, 1]
    cudnn.objects[bias][1] = rnn.dtype, [1, h, 1], [1, 1, 1]


def _spaces(cudnn: FakeCudnn, rnn: Any, sequences: tuple[int, int, int]) -> tuple[int, int]:
    cells = sequences[0] * sequences[1] * len(_sizes(rnn)[1]) * rnn.hidden_size
    return WORK_BYTES, cells * (GATES[rnn.mode] + 1) * dtypes.item_bytes(rnn.dtype) + cudnn.more_reserve


def _tell_spaces(cudnn: FakeCudnn, given: Any) -> None:
    _, desc, training, sequences, work, reserve = given
    found = _spaces(cudnn, cudnn.of(desc, "RNN"), cudnn.of(sequences, "RNNData")[1])
    _word(work).value, _word(reserve).value = found[0], found[1] if training else 0


def _dense(rnn: Any, shape: Sequence[int], address: int | None) -> Array | None:
    if address is None:
        return None
    assert address % ALIGNED == 0
    return _memory(address, math.prod(shape), rnn.dtype).reshape(shape)


def _begun(cudnn: FakeCudnn, desc: int, x: int, y: int, state: int, work: tuple[int, int]) -> Any:
    """Return a network and the shapes of its sequences, outputs and states."""
    rnn = cudnn.of(desc, "RNN")
    (dtype, inputs), (other, outputs) = cudnn.of(x, "RNNData"), cudnn.of(y, "RNNData")
    states = [len(_sizes(rnn)[1]), inputs[1], rnn.hidden_size]
    assert cudnn.of(state, "Tensor")[:2] == (rnn.dtype, states)
    assert dtype == other == rnn.dtype
    assert work[0] == WORK_BYTES
    _memory(work[1], WORK_BYTES, "uint8")[:] = 0xFF
    return rnn, inputs, outputs, states


def _request_of(rnn: Any) -> Any:
    return SimpleNamespace(**vars(rnn), dropout_p=0.0, seed=0, offset=0)


def _given(**arrays: Array | None) -> dict[str, Array]:
    return {name: np.array(each, np.float64) for name, each in arrays.items() if each is not None}


def _run(cudnn: FakeCudnn, given: Any) -> None:
    (
        _, desc, training, lengths, x, x_at, y, y_at, h, hx, hy, c, cx, cy, weight_bytes, weights, work_bytes, work,
        reserve_bytes, reserve,
    ) = given  # fmt: skip
    rnn, inputs, outputs, states = _begun(cudnn, desc, x, y, h, (work_bytes, work))
    assert (lengths, h) == (None, c)
    assert weight_bytes == _weights(rnn) * dtypes.item_bytes(rnn.dtype)
    dense = _given(
        x=_dense(rnn, inputs, x_at),
        weights=_dense(rnn, (_weights(rnn),), weights),
        h0=_dense(rnn, states, hx),
        c0=_dense(rnn, states, cx),
    )
    found = network(_request_of(rnn), dense)
    for name, shape, address in (("out", outputs, y_at), ("hn", states, hy), ("cn", states, cy)):
        target = _dense(rnn, shape, address)
        if target is not None:
            target[...] = found[name]
    if training:
        assert reserve_bytes == _spaces(cudnn, rnn, inputs)[1]
        _memory(reserve, reserve_bytes, "uint8")[:] = 0xA5
        word = next(cudnn._numbers)
        cudnn.runs[word] = dense | {"y": found["out"]}
        _word(reserve).value = word


def _back(cudnn: FakeCudnn, given: Any) -> None:
    (
        _, desc, lengths, y, y_at, dy, x, dx, h, hx, dhy, dhx, c, cx, dcy, dcx, _, weights, work_bytes, work,
        reserve_bytes, reserve,
    ) = given  # fmt: skip
    rnn, inputs, outputs, states = _begun(cudnn, desc, x, y, h, (work_bytes, work))
    assert (lengths, h) == (None, c)
    assert reserve_bytes == _spaces(cudnn, rnn, inputs)[1]
    run = cudnn.runs.pop(_word(reserve).value, None)
    if run is None:
        return  # as cuDNN does: what is there is wrong
    assert (hx is None, cx is None) == ("h0" not in run, "c0" not in run)
    shape = run["weights"].shape
    np.testing.assert_array_equal(_dense(rnn, shape, weights), run["weights"])
    dense = run | _given(dy=_dense(rnn, outputs, dy), dhn=_dense(rnn, states, dhy), dcn=_dense(rnn, states, dcy))
    given_y = _dense(rnn, outputs, y_at)
    assert given_y is not None
    if rnn.mode in {"tanh", "relu"}:  # the states that the gradients depend on; from a rounded y those are rough
        np.testing.assert_allclose(given_y, run["y"], 1e-6, 1e-7)
    found = network_gradients(_request_of(rnn), dense)
    for name, lengths_of, address in (("x", inputs, dx), ("h0", states, dhx), ("c0", states, dcx)):
        target = _dense(rnn, lengths_of, address)
        if target is not None:
            target[...] = found[name]
    word = next(cudnn._numbers)
    _memory(reserve, reserve_bytes, "uint8")[:] = 0x5A
    cudnn.runs[word] = {"dweights": found["weights"]}
    _word(reserve).value = word


def _by_weights(cudnn: FakeCudnn, given: Any) -> None:
    (
        _, desc, adds, lengths, x, _, h, _, y, _, weight_bytes, dweights, work_bytes, work, _, reserve,
    ) = given  # fmt: skip
    rnn, *_ = _begun(cudnn, desc, x, y, h, (work_bytes, work))
    assert (adds, lengths) == (0, None)
    run = cudnn.runs.pop(_word(reserve).value, None)
    if run is not None:
        target = _dense(rnn, (weight_bytes // dtypes.item_bytes(rnn.dtype),), dweights)
        assert target is not None
        target += run["dweights"].astype(target.dtype)


ROUTINES: Final[Mapping[str, Callable[[FakeCudnn, Any], None]]] = {
    "ActivationForward": _activate,
    "ActivationBackward": _by_activation,
    "SoftmaxForward": _softmax,
    "SoftmaxBackward": _by_softmax,
    "PoolingForward": _pool,
    "PoolingBackward": _by_pool,
    "LRNCrossChannelForward": _respond,
    "LRNCrossChannelBackward": _by_response,
    "BatchNormalizationForwardInference": _normalise,
    "GetTensorNdDescriptor": _tell_dims,
    "GetRNNWeightSpaceSize": _tell_weights,
    "GetRNNWeightParams": _tell_weight,
    "GetRNNTempSpaceSizes": _tell_spaces,
    "RNNForward": _run,
    "RNNBackwardData_v8": _back,
    "RNNBackwardWeights_v8": _by_weights,
}
