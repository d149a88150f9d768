"""Convolutions by cuDNN's graphs: in one to three dimensions, with their gradients.

A window that moves along one dimension is laid over an image of height 1. Bias and relu are part of the graph where
cuDNN has an engine for that; all else that follows the products is done with CuPy, in float32 or float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.libraries.base import HALF, scalar
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, sweeps_of
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.activations import ACTIVATIONS
from atomr_mp_workers.libraries.dnn.cudnn.graphs import (
    ArrayPlace,
    Cudnn,
    CudnnGraph,
    GraphEngine,
    NoEngineError,
    is_last,
    packed,
)
from atomr_mp_workers.libraries.dnn.numbers import along_channels, blend, wide

ROLES: Final = {
    "conv": ("x", "weight", "out"),
    "conv_transpose": ("out", "weight", "x"),
    "conv_input": ("out", "weight", "dy"),
    "conv_weight": ("x", "out", "dy"),
}
"""The arrays of requests that are an image, a window's weights, and the products at the window's places."""

FUSED: Final = frozenset({"identity", "relu"})
"""Activations that graphs may have."""

UNWANTED: Final = (
    "NONDETERMINISTIC",
    "REDUCED_PRECISION_REDUCTION",
    "FFT",
    "WINOGRAD",
    "WINOGRAD_TILE_4x4",
    "WINOGRAD_TILE_6x6",
    "WINOGRAD_TILE_13x13",
)
"""Notes of engines whose bits vary, that add up in half precision, or compute products in transformed images: these
lose some of float32's bits, and a NaN spreads to elements whose window does not meet it."""


class ConvolutionPlan:
    """Graphs of a convolution.

    Args:
        of: The library's handle.
        request: A request of its kind.

    Raises:
        NoEngineError: cuDNN does not do it as it is wanted.
    """

    def __init__(self, of: Cudnn, request: Any) -> None:
        if is_zero(request.alpha):
            raise NoEngineError("there is nothing to compute")
        self._roles: Final = ROLES[request.name]
        image, window, response = (getattr(request, name) for name in self._roles)
        self._sweeps: Final = sweeps_of(request, window.shape[2:])
        if any(max(sweep.before, sweep.behind) >= sweep.reach for sweep in self._sweeps):
            raise NoEngineError("the window may lie on padding alone")
        self._cudnn: Final = of
        self._last: Final = is_last((response if request.out is image else image).layout)
        dtype = request.out.dtype
        at_once = self._complete(request) if is_zero(request.beta) else None
        self._at_once: Final = at_once
        """Does all of a request whose alpha is 1 and beta 0; None if there is no such engine."""
        products = at_once if dtype not in HALF and not _acts(request) else None
        self._products: Final = products or self._wide(request)
        """Computes the products, in float32 or float64."""

    def __call__(self, request: Any) -> None:
        """Put a request on the stream."""
        if self._at_once is not None and scalar(request.alpha) == 1:
            graph, places = self._at_once
            values = self._run(graph, places, request, places["out"].write(request.out))
            places["out"].put(request.out, values)
        else:
            graph, places = self._products
            _finish(request, self._run(graph, places, request, places["out"].empty(request.out.shape)))

    @staticmethod
    def _run(graph: CudnnGraph, places: dict[str, ArrayPlace], request: Any, out: Any) -> Any:
        """Have products written to an array, and return it."""
        read = {name: place.read(getattr(request, name)) for name, place in places.items() if name != "out"}
        graph(read | {"out": out})
        return out

    def _complete(self, request: Any) -> tuple[CudnnGraph, dict[str, ArrayPlace]] | None:
        """Return a graph that computes the result itself, and where its arrays lie; None if there is no engine."""
        if _acts(request) and (request.name != "conv" or request.activation not in FUSED):
            return None
        try:
            return self._made(request, request.out.dtype, complete=True)
        except NoEngineError:
            return None

    def _wide(self, request: Any) -> tuple[CudnnGraph, dict[str, ArrayPlace]]:
        """Return a graph of the products in float32 or float64, and where its arrays lie.

        Half precision that cuDNN has no such engine for is read as float32. Tensor cores take all of its bits.
        """
        dtype = request.out.dtype
        if dtype in HALF:
            try:
                return self._made(request, dtype, out="float32")
            except NoEngineError:
                dtype = "float32"
        return self._made(request, dtype)

    def _made(
        self, request: Any, dtype: str, *, out: str | None = None, complete: bool = False
    ) -> tuple[CudnnGraph, dict[str, ArrayPlace]]:
        """Return a graph and where its arrays lie.

        Args:
            request: Of its kind.
            dtype: The element type of what it reads.
            out: That of its result, by default the same.
            complete: Whether bias and activation are a part of it.

        Raises:
            NoEngineError: There is no engine for it.
        """
        graph = CudnnGraph(self._cudnn, dtype)
        places: dict[str, ArrayPlace] = {}
        tensors: dict[str, Any] = {}
        for name in self._roles:
            operand = getattr(request, name)
            places[name] = ArrayPlace.of(operand, last=self._last, dtype=out or dtype if name == "out" else dtype)
            if name != "out":
                tensors[name] = graph.given(name, *self._lain(operand.shape), dtype)
        made = self._operation(graph, tensors)
        if complete and _acts(request):
            made.set_data_type(graph.wide)
            if request.bias is not None:
                places["bias"] = ArrayPlace.of(request.bias, dtype=dtype)
                dims = [1, request.bias.shape[0], *(1,) * max(2, len(self._sweeps))]
                made = graph.of.bias(name="with_bias", input=made, bias=graph.given("bias", dims, packed(dims), dtype))
            if request.activation == "relu":
                made.set_data_type(graph.wide)
                made = graph.of.relu(input=made)
        graph.result(made, "out", *self._lain(request.out.shape), places["out"].dtype)
        exact = request.out.dtype == "float32" and not request.allow_tf32
        return graph.build((*UNWANTED, "TENSOR_CORE") if exact else UNWANTED, compiled=False), places

    def _operation(self, graph: CudnnGraph, tensors: dict[str, Any]) -> Any:
        """Add the products, and return their tensor."""
        sweeps = [Sweep(1, 1, 1, 0, 0), *self._sweeps] if len(self._sweeps) == 1 else self._sweeps
        way = {
            "pre_padding": [sweep.before for sweep in sweeps],
            "post_padding": [sweep.behind for sweep in sweeps],
            "stride": [sweep.stride for sweep in sweeps],
            "dilation": [sweep.dilation for sweep in sweeps],
        }
        image, window, response = (tensors.get(name) for name in self._roles)
        if response is None:
            return graph.of.conv_fprop(image, window, **way)
        if image is None:
            return graph.of.conv_dgrad(loss=response, filter=window, **way)
        return graph.of.conv_wgrad(image=image, loss=response, **way)

    def _lain(self, shape: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return dimensions and strides of an array, with a height of 1 for a window along one dimension."""
        dims = [*shape[:2], *([1] if len(shape) == 3 else []), *shape[2:]]
        return dims, packed(dims, last=self._last)


def _finish(request: Any, products: Any) -> None:
    """Blend products with what the result held, add the bias, and write what the activation makes of that."""
    values = blend(request, lambda: products)
    if getattr(request, "bias", None) is not None:
        values = values + along_channels(wide(request.bias), values.ndim)
    target = array(request.out)
    target[...] = ACTIVATIONS[getattr(request, "activation", "identity")](values).astype(target.dtype, copy=False)


def _acts(request: Any) -> bool:
    """Return whether a bias or an activation follows the products."""
    return getattr(request, "bias", None) is not None or getattr(request, "activation", "identity") != "identity"


class GraphConvolutions(GraphEngine):
    """Convolutions and their gradients, of all element types."""

    plans: ClassVar = dict.fromkeys(ROLES, ConvolutionPlan)
