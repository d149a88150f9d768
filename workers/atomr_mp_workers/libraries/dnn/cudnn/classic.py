"""cuDNN's classic calls, by ctypes: functions of its C library that do what its graphs refuse.

cuDNN 9 calls most of them deprecated, and has them all. They check little of what they are given.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

TYPES: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t by the names of element types."""

ROW_MAJOR: Final = 0
"""cudnnRNNDataLayout_t: (steps, sequences, width), with room for all steps of each sequence."""

_P, _I, _N, _D = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_double

_SPACES: Final = [_N, _P, _N, _P]
"""Sizes and addresses of two pieces of memory."""

SIGNATURES: Final[dict[str, list[Any]]] = {
    "Create": [_P],
    "SetStream": [_P, _P],
    **{
        f"{verb}{kind}Descriptor": [_P]
        for verb in ("Create", "Destroy")
        for kind in ("Tensor", "Pooling", "Activation", "LRN", "Dropout", "RNN", "RNNData")
    },
    "SetTensorNdDescriptor": [_P, _I, _I, _P, _P],
    "GetTensorNdDescriptor": [_P, _I, _P, _P, _P, _P],
    "SetPoolingNdDescriptor": [_P, _I, _I, _I, _P, _P, _P],
    "PoolingForward": [_P, _P, _P, _P, _P, _P, _P, _P],
    "PoolingBackward": [_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P],
    "SoftmaxForward": [_P, _I, _I, _P, _P, _P, _P, _P, _P],
    "SoftmaxBackward": [_P, _I, _I, _P, _P, _P, _P, _P, _P, _P, _P],
    "SetActivationDescriptor": [_P, _I, _I, _D],
    "ActivationForward": [_P, _P, _P, _P, _P, _P, _P, _P],
    "ActivationBackward": [_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P],
    "SetLRNDescriptor": [_P, ctypes.c_uint, _D, _D, _D],
    "LRNCrossChannelForward": [_P, _P, _I, _P, _P, _P, _P, _P, _P],
    "LRNCrossChannelBackward": [_P, _P, _I, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P],
    "BatchNormalizationForwardInference": [_P, _I, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _D],
    "SetDropoutDescriptor": [_P, _P, ctypes.c_float, _P, _N, ctypes.c_ulonglong],
    "SetRNNDescriptor_v8": [_P, *[_I] * 8, *[ctypes.c_int32] * 4, _P, ctypes.c_uint32],
    "SetRNNDataDescriptor": [_P, _I, _I, _I, _I, _I, _P, _P],
    "GetRNNWeightSpaceSize": [_P, _P, _P],
    "GetRNNWeightParams": [_P, _P, ctypes.c_int32, _N, _P, ctypes.c_int32, _P, _P, _P, _P],
    "GetRNNTempSpaceSizes": [_P, _P, _I, _P, _P, _P],
    "RNNForward": [_P, _P, _I, _P, *[_P] * 4, *[_P] * 6, _N, _P, *_SPACES],
    "RNNBackwardData_v8": [_P, _P, _P, *[_P] * 5, *[_P] * 8, _N, _P, *_SPACES],
    "RNNBackwardWeights_v8": [_P, _P, _I, _P, *[_P] * 6, _N, _P, *_SPACES],
}
"""Types of the arguments of functions that return a status, by their names behind "cudnn"; as cuDNN 9's headers say."""

BAD_PARAM, NOT_SUPPORTED, INTERNAL = 2000, 3000, 4000
"""The least statuses of some kinds."""


class CudnnError(Exception):
    """A call of cuDNN's that has failed.

    Args:
        function: Its name.
        status: cuDNN's.
        text: cuDNN's name for that.
    """

    def __init__(self, function: str, status: int, text: str) -> None:
        super().__init__(f"{function}: {text}")
        self.status: Final = status

    @property
    def is_refusal(self) -> bool:
        """Whether cuDNN does not do such a thing, and nothing has failed."""
        return BAD_PARAM <= self.status < INTERNAL


def loaded() -> Any:
    """Return the library: that of NVIDIA's or torch's wheels, or else of the system.

    Raises:
        OSError: There is none.
    """
    from cuda import pathfinder

    try:
        return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cudnn").abs_path)
    except RuntimeError:  # it is not where wheels are, or this version of the package does not know it
        return ctypes.CDLL("libcudnn.so.9")


class ClassicCalls:
    """The functions of the library, which threads call in turns: one makes plans, another runs them.

    Args:
        library: As `loaded` has returned it.

    Raises:
        AttributeError: The library has not all functions.
    """

    def __init__(self, library: Any) -> None:
        self._lock: Final = threading.Lock()
        """Guards the handle."""
        self._functions: Final = {name: _function(library, name) for name in SIGNATURES}
        self._text: Final = library.cudnnGetErrorString
        self._text.restype, self._text.argtypes = ctypes.c_char_p, [_I]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function, without the interpreter's lock. Any thread.

        Args:
            name: Its name behind "cudnn".
            arguments: Numbers, addresses, handles and descriptors.

        Raises:
            CudnnError: It has failed.
        """
        with self._lock:
            status = self._functions[name](*arguments)
        if status:
            raise CudnnError(f"cudnn{name}", status, self._text(status).decode(errors="replace"))

    def destroyer(self, kind: str) -> Callable[[object], object]:
        """Return the function that destroys descriptors. It takes no lock, since memory is collected at any time."""
        found: Callable[[object], object] = self._functions[f"Destroy{kind}Descriptor"]
        return found


class ClassicHandle:
    """A handle of cuDNN, whose work is put on a stream. It stays until the process ends.

    Args:
        calls: The library's functions.
        stream: CUDA's handle of the stream.

    Raises:
        CudnnError: It does not work with this GPU and driver.
    """

    def __init__(self, calls: ClassicCalls, stream: int) -> None:
        self._calls: Final = calls
        self.call: Final = calls.call
        made = _P()
        self.call("Create", ctypes.byref(made))
        self._as_parameter_: Final = made
        """The handle, for `call`."""
        self.call("SetStream", made, stream)

    # --- descriptors --------------------------------------------------------------------------------------------------

    def tensor(self, dtype: str, dims: Sequence[int], strides: Sequence[int]) -> CudnnDescriptor:
        """Describe an array; lengths and strides are elements."""
        how = TYPES[dtype], len(dims), integers(dims), integers(strides)
        return CudnnDescriptor(self._calls, "Tensor", "SetTensorNdDescriptor", *how)

    def pooling(
        self, mode: int, window: Sequence[int], padding: Sequence[int], stride: Sequence[int]
    ) -> CudnnDescriptor:
        """Describe a pooling that hands on NaNs."""
        ways = map(integers, (window, padding, stride))
        return CudnnDescriptor(self._calls, "Pooling", "SetPoolingNdDescriptor", mode, 1, len(window), *ways)

    def activation(self, mode: int) -> CudnnDescriptor:
        """Describe an activation that hands on NaNs."""
        return CudnnDescriptor(self._calls, "Activation", "SetActivationDescriptor", mode, 1, 1.0)

    def response_norm(self, size: int, alpha: float, beta: float, k: float) -> CudnnDescriptor:
        """Describe a normalisation by neighbouring channels."""
        return CudnnDescriptor(self._calls, "LRN", "SetLRNDescriptor", size, alpha, beta, k)

    def no_dropout(self) -> CudnnDescriptor:
        """Describe a dropout of nothing, which networks ask for."""
        return CudnnDescriptor(self._calls, "Dropout", "SetDropoutDescriptor", self._as_parameter_, 0.0, None, 0, 0)

    def network(self, *how: Any) -> CudnnDescriptor:
        """Describe a recurrent network, by the arguments of cudnnSetRNNDescriptor_v8."""
        return CudnnDescriptor(self._calls, "RNN", "SetRNNDescriptor_v8", *how)

    def sequences(self, dtype: str, steps: int, count: int, width: int) -> CudnnDescriptor:
        """Describe sequences of the same length, (steps, count, width) and row-major."""
        lengths = integers([steps] * count)
        how = TYPES[dtype], ROW_MAJOR, steps, count, width, lengths, None
        return CudnnDescriptor(self._calls, "RNNData", "SetRNNDataDescriptor", *how)

    # --- what is told of networks -------------------------------------------------------------------------------------

    def weight_bytes(self, network: CudnnDescriptor) -> int:
        """Return how many bytes the weights of a network take."""
        found = _N()
        self.call("GetRNNWeightSpaceSize", self, network, ctypes.byref(found))
        return found.value

    def spaces(self, network: CudnnDescriptor, sequences: CudnnDescriptor, *, training: bool) -> tuple[int, int]:
        """Return how many bytes of workspace and of reserve a network takes for sequences."""
        work, reserve = _N(), _N()
        self.call("GetRNNTempSpaceSizes", self, network, training, sequences, ctypes.byref(work), ctypes.byref(reserve))
        return work.value, reserve.value

    def weight(
        self, network: CudnnDescriptor, layer: int, gate: int, begin: int, nbytes: int
    ) -> tuple[tuple[int, list[int]], tuple[int, list[int]]]:
        """Return for a matrix and its bias the first byte within the weights, and the lengths.

        Args:
            network: The network.
            layer: The direction of a layer: that of the first layer forward, then backward, then of the second.
            gate: The gate of the input, or behind all of them those of the state.
            begin: An address for the weights, which nothing is read from.
            nbytes: Bytes of all weights.
        """
        found = [(CudnnDescriptor(self._calls, "Tensor"), _P()) for _ in range(2)]
        places = [each for desc, address in found for each in (desc, ctypes.byref(address))]
        self.call("GetRNNWeightParams", self, network, layer, nbytes, begin, gate, *places)
        (matrix, at), (bias, bias_at) = found
        return ((at.value or 0) - begin, self._dims(matrix)), ((bias_at.value or 0) - begin, self._dims(bias))

    def _dims(self, tensor: CudnnDescriptor) -> list[int]:
        """Return the lengths of a tensor of three dimensions."""
        dtype, count, dims, strides = _I(), _I(), integers([0] * 3), integers([0] * 3)
        self.call("GetTensorNdDescriptor", tensor, 3, ctypes.byref(dtype), ctypes.byref(count), dims, strides)
        return list(dims)


class CudnnDescriptor:
    """A descriptor of cuDNN's, which is destroyed with this.

    Args:
        calls: The library's functions.
        kind: What it describes, as the names of functions have it.
        setter: The function that sets it; by default another object does.
        how: Its other arguments.

    Raises:
        CudnnError: cuDNN takes no such arguments.
    """

    def __init__(self, calls: ClassicCalls, kind: str, setter: str = "", *how: Any) -> None:
        made = _P()
        calls.call(f"Create{kind}Descriptor", ctypes.byref(made))
        self._as_parameter_: Final = made
        self._destroy: Final = calls.destroyer(kind)
        if setter:
            calls.call(setter, self._as_parameter_, *how)

    def __del__(self) -> None:
        if hasattr(self, "_destroy"):
            self._destroy(self)


def integers(values: Sequence[int]) -> Any:
    """Return numbers as an array of C."""
    return (ctypes.c_int * len(values))(*values)


def _function(library: Any, name: str) -> Any:
    found = getattr(library, f"cudnn{name}")
    found.restype, found.argtypes = _I, SIGNATURES[name]
    return found
