"""Plans of requests that cuDNN's classic calls do: pooling, softmax, activations, and norms by given numbers.

Arrays have to lie without gaps, row-major or in another order that all share; then each is a view of four dimensions,
or of five. cuDNN blends results itself, in the type that is computed in. What it does not do as is declared is left to
others: see the tables here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import cupy
import numpy as np

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, pooling
from atomr_mp_workers.libraries.base import Library, address, array, given
from atomr_mp_workers.libraries.dnn.cudnn.classic import ClassicCalls, ClassicHandle, CudnnError, loaded
from atomr_mp_workers.libraries.dnn.cudnn.recurrent_plans import backward_plan, forward_plan
from atomr_mp_workers.libraries.dnn.cudnn.views import ALIGNED_BYTES, View, are_last, common_order, flat, is_of_size
from atomr_mp_workers.libraries.dnn.engine import Enqueue
from atomr_mp_workers.libraries.factors import Factors

if TYPE_CHECKING:
    from atomr_mp_workers.device.cuda_streams import CudaStream

_LOG: Final = logging.getLogger("atomr_mp.worker")

MOST_SAMPLES: Final = 65535
"""Most samples of a norm: there are kernels with as many blocks in the second dimension of a grid."""

ON_DEVICE: Final = 3

MODES: Final = {"sigmoid": 0, "relu": 1, "tanh": 2, "silu": 6}
"""Activations that are cuDNN's too. Its elu is exp(x) - 1, which loses what a small x has. The gradient of its relu at
a NaN is 0."""

GRADIENTS_OF_ACTIVATIONS: Final = frozenset({"sigmoid", "tanh", "silu"})
GRADIENTS_OF_POOLING: Final = frozenset({"max", "avg"})
"""Those whose gradients it reckons as they are declared."""

HALF_BYTES: Final = 2
"""Of an element of half precision. Gradients that cuDNN reckons from a result want one that half precision has not
rounded: what is left of it may be small."""

BY_SAMPLE, BY_CHANNEL = 0, 1
"""cudnnSoftmaxMode_t: what is normalised together is all of a sample, or the channels at each of its places."""

LEAST_K, LEAST_BETA, MOST_CHANNELS = 1e-5, 0.01, 15
"""Bounds of cuDNN's normalisation by neighbouring channels. Of an even number it takes others than are declared."""


class ClassicEngine:
    """Does requests by classic calls.

    Args:
        library: Has the stream and the workspace.
    """

    def __init__(self, library: Library) -> None:
        self._library: Final = library
        self._cudnn: ClassicHandle | None = None
        self._is_missing = False

    def planned(self, request: Any) -> Enqueue | None:
        """Return the function that does requests like this one; None if cuDNN does not serve them.

        Raises:
            CudnnError: cuDNN has failed.
            OutOfMemory: There is no room for its workspace.
        """
        make = PLANS.get(request.name)
        if make is None or not is_of_size(request) or not scalar(getattr(request, "alpha", 1)):
            return None
        cudnn = self._found()
        if cudnn is None:
            return None
        try:
            return make(cudnn, self._library, request)
        except CudnnError as error:
            if error.is_refusal:
                return None
            raise

    def _found(self) -> ClassicHandle | None:
        """Return a handle, None if there is no cuDNN, which is logged once."""
        if self._cudnn is None and not self._is_missing:
            try:
                self._cudnn = ClassicHandle(ClassicCalls(loaded()), stream_of(self._library))
            except (OSError, AttributeError, CudnnError) as error:
                self._is_missing = True
                _LOG.info("cuDNN serves no classic calls: %s", error)
        return self._cudnn


def stream_of(library: Library) -> int:
    """Return CUDA's handle of a library's stream."""
    found: int = cast("CudaStream", library.stream).stream.ptr
    return found


class _Blending(NamedTuple):
    """What plans of blended requests share."""

    cudnn: ClassicHandle
    library: Library
    factors: Factors

    @classmethod
    def of(cls, cudnn: ClassicHandle, library: Library, request: Any) -> _Blending:
        """Return it for an element type."""
        return cls(cudnn, library, Factors(np.float64 if request.out.dtype == "float64" else np.float32))

    def call(self, name: str, how: Sequence[Any], request: Any, read: Sequence[Any], written: Sequence[Any]) -> None:
        """Call a function that blends.

        Args:
            name: Its name.
            how: Its first arguments, behind the handle.
            request: Has alpha and beta.
            read: Descriptors and addresses of arrays that are read.
            written: Those of the result.
        """
        (alpha, _), (beta, _) = kept = self.factors[request.alpha], self.factors[request.beta]
        self.cudnn.call(name, self.cudnn, *how, alpha, *read, beta, *written)
        del kept  # the numbers had to stay until now

    def plain(self, name: str, how: Sequence[Any], read: Sequence[Any], written: Sequence[Any]) -> None:
        """Call such a function whose result only replaces what was there."""
        (one, _), (zero, _) = kept = self.factors[1], self.factors[0]
        self.cudnn.call(name, self.cudnn, *how, one, *read, zero, *written)
        del kept

    def apart(self, out: Any, *operands: Any) -> list[int]:
        """Return where arrays are read, which lie as out does: a copy in the workspace for one that out replaces."""
        places = [address(each) for each in operands]
        if (there := address(out)) in places:
            copied = self.library.workspace(out.nbytes).address
            cupy.cuda.runtime.memcpyAsync(copied, there, out.nbytes, ON_DEVICE, stream_of(self.library))
            places = [copied if each == there else each for each in places]
        return places


def _activation(
    cudnn: ClassicHandle, library: Library, request: dnn.Activation | dnn.ActivationBackward
) -> Enqueue | None:
    layouts = [each.layout for _, _, each in request.arrays() if each is not None]
    backward = isinstance(request, dnn.ActivationBackward)
    if request.kind not in (GRADIENTS_OF_ACTIVATIONS if backward else MODES) or common_order(layouts) is None:
        return None
    if backward and request.x.layout.item_bytes == HALF_BYTES:
        return None
    of, how = _Blending.of(cudnn, library, request), cudnn.activation(MODES[request.kind])
    x = cudnn.tensor(request.x.dtype, *View.of(1, 1, 1, request.x.size))
    nbytes = request.x.nbytes

    def forward(request: Any) -> None:
        of.call("ActivationForward", [how], request, [x, address(request.x)], [x, address(request.out)])

    def back(request: Any) -> None:
        here, there = address(request.x), library.workspace(nbytes).address
        of.plain("ActivationForward", [how], [x, here], [x, there])
        read = [x, there, x, address(request.dy), x, here]
        of.call("ActivationBackward", [how], request, read, [x, address(request.out)])

    if backward:
        library.workspace(nbytes)
    return back if backward else forward


def _softmax(cudnn: ClassicHandle, library: Library, request: dnn.Softmax | dnn.SoftmaxBackward) -> Enqueue | None:
    first = request.x if isinstance(request, dnn.Softmax) else request.y
    order = common_order(each.layout for _, _, each in request.arrays() if each is not None)
    if order is None or (request.log and first is not getattr(request, "y", None)):
        return None  # its logarithm is x - (max + log Σ), which loses what is small beside a large number
    shape, dim = first.shape, {each % first.ndim for each in request.dim}
    among = [at for at, axis in enumerate(order) if axis in dim]
    if not among or among != list(range(among[0], among[-1] + 1)):
        return None  # nothing is divided by a sum, or what is does not lie together
    parts = order[: among[0]], order[among[0] : among[-1] + 1], order[among[-1] + 1 :]
    outer, middle, inner = (math.prod(shape[axis] for axis in part) for part in parts)
    view = cudnn.tensor(first.dtype, *View.of(outer, middle, 1, inner))
    way = BY_CHANNEL if inner > 1 else BY_SAMPLE
    of, how = _Blending.of(cudnn, library, request), (2 if request.log else 1, way)

    def forward(request: Any) -> None:
        (x,) = of.apart(request.out, request.x)
        of.call("SoftmaxForward", how, request, [view, x], [view, address(request.out)])

    def back(request: Any) -> None:
        y, dy = of.apart(request.out, request.y, request.dy)
        of.call("SoftmaxBackward", how, request, [view, y, view, dy], [view, address(request.out)])

    return forward if isinstance(request, dnn.Softmax) else back


def _pool(cudnn: ClassicHandle, library: Library, request: dnn.WindowPool | dnn.WindowPoolBackward) -> Enqueue | None:
    backward = isinstance(request, dnn.WindowPoolBackward)
    if backward and request.mode not in GRADIENTS_OF_POOLING:
        return None
    large, small = (
        request.x.layout,
        given(request.y if isinstance(request, dnn.WindowPoolBackward) else request.out).layout,
    )
    if request.mode == "max" and not backward:
        return None  # the least maximum is that of finite numbers, even where all are -inf
    last = are_last(each.layout for _, _, each in request.arrays() if each is not None)
    sweeps, space, places = pooling(request), list(large.shape[2:]), list(small.shape[2:])
    if len(sweeps) == 1:
        sweeps, space, places = [Sweep(1, 1, 1, 0, 0), *sweeps], [1, *space], [1, *places]
    if last is None or (last and len(space) > 2):
        return None
    if any((n + 2 * s.before - s.size) // s.stride + 1 != m for s, n, m in zip(sweeps, space, places, strict=True)):
        return None  # cuDNN pads both sides alike
    mode = 3 if request.mode == "max" else 1 if request.count_include_pad else 2
    how = cudnn.pooling(mode, *([getattr(each, name) for each in sweeps] for name in ("size", "before", "stride")))
    of = _Blending.of(cudnn, library, request)
    image, result = (
        cudnn.tensor(large.dtype, *View.of(*layout.shape[:2], *lengths, last=last))
        for layout, lengths in ((large, space), (small, places))
    )

    def forward(request: Any) -> None:
        of.call("PoolingForward", [how], request, [image, address(request.x)], [result, address(request.out)])

    def back(request: Any) -> None:
        read = [result, address(request.y), result, address(request.dy), image, address(request.x)]
        of.call("PoolingBackward", [how], request, read, [image, address(request.out)])

    return back if backward else forward


def _response_norm(
    cudnn: ClassicHandle, library: Library, request: dnn.ResponseNorm | dnn.ResponseNormBackward
) -> Enqueue | None:
    backward, half = isinstance(request, dnn.ResponseNormBackward), request.x.layout.item_bytes == HALF_BYTES
    if request.x.dtype == "bfloat16" or (backward and half) or request.k < LEAST_K or request.beta < LEAST_BETA:
        return None
    if request.size % 2 == 0 or request.size > MOST_CHANNELS:
        return None
    if are_last(each.layout for _, _, each in request.arrays() if each is not None) is not False:
        return None
    of = _Blending.of(cudnn, library, request)
    norm, how = cudnn.response_norm(request.size, request.alpha, request.beta, request.k), 0
    x, nbytes = cudnn.tensor(request.x.dtype, *View.of(*flat(request.x.layout))), request.x.nbytes

    def forward(request: Any) -> None:
        of.plain("LRNCrossChannelForward", [norm, how], [x, address(request.x)], [x, address(request.out)])

    def back(request: Any) -> None:
        here, there = address(request.x), library.workspace(nbytes).address
        of.plain("LRNCrossChannelForward", [norm, how], [x, here], [x, there])
        read = [x, there, x, address(request.dy), x, here]
        of.plain("LRNCrossChannelBackward", [norm, how], read, [x, address(request.out)])

    if backward:
        library.workspace(nbytes)
    return back if backward else forward


def _batch_norm(cudnn: ClassicHandle, _library: Library, request: dnn.BatchNorm) -> Enqueue | None:
    assert request.out is not None
    last = are_last((request.x.layout, request.out.layout))
    if last is None or request.x.shape[0] > MOST_SAMPLES:
        return None
    dtype = "float64" if request.x.dtype == "float64" else "float32"
    dims = flat(request.x.layout)
    x, channels = (
        cudnn.tensor(request.x.dtype, *View.of(*dims, last=last)),
        cudnn.tensor(dtype, *View.of(1, dims[1], 1, 1)),
    )
    factors, wide = Factors(dtypes.to_numpy(dtype)), dtypes.to_numpy(dtype)

    def forward(request: Any) -> None:
        (one, _), (zero, _) = kept = factors[1], factors[0]
        named = (request.weight, 1), (request.bias, 0), (request.running_mean, 0), (request.running_var, 1)
        vectors = [cupy.full(dims[1], fill, wide) if each is None else _dense(each, wide) for each, fill in named]
        cudnn.call(
            "BatchNormalizationForwardInference", cudnn, 1, one, zero, x, address(request.x), x, address(request.out),
            channels, *(each.data.ptr for each in vectors), request.eps,
        )  # fmt: skip
        del kept

    return forward


def _dense(operand: Any, dtype: Any) -> Any:
    """Return an array without gaps, of a type, that begins where cuDNN may read it: a copy if it does not itself."""
    found = cupy.ascontiguousarray(array(operand).astype(dtype, copy=False))
    return found.copy() if found.data.ptr % ALIGNED_BYTES else found


PLANS: Final[Mapping[str, Callable[[ClassicHandle, Library, Any], Enqueue | None]]] = {
    "activation": _activation,
    "activation_backward": _activation,
    "softmax": _softmax,
    "softmax_backward": _softmax,
    "pool": _pool,
    "pool_backward": _pool,
    "local_response_norm": _response_norm,
    "local_response_norm_backward": _response_norm,
    "batch_norm": _batch_norm,
    "rnn": forward_plan,
    "rnn_backward": backward_plan,
}
"""What makes the plan of a request, by its name; it returns None for one that is not served."""
