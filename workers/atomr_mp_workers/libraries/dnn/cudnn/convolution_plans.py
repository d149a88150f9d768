"""Convolutions by cuDNN's graphs: in one to three dimensions, with their gradients.

A window that moves along one dimension is laid over an image of height 1. Bias and relu are part of the graph where
cuDNN has an engine for that; all else that follows the products is done with CuPy, in float32 or float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import matmul
from typing import Any, ClassVar, Final

import cupy
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.libraries.base import HALF, scalar
from atomr_mp.protocol.libraries.dnn_shapes import Sweep, sweeps_of
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.activations import ACTIVATIONS
from atomr_mp_workers.libraries.dnn.convolutions import collect, correlate, scatter
from atomr_mp_workers.libraries.dnn.cudnn.classic import CudnnError
from atomr_mp_workers.libraries.dnn.cudnn.graphs import (
    ArrayPlace,
    Cudnn,
    CudnnGraph,
    GraphEngine,
    NoEngineError,
)
from atomr_mp_workers.libraries.dnn.cudnn.trying import double, draw, engine_of, is_close, warn
from atomr_mp_workers.libraries.dnn.cudnn.views import is_last, packed
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

MOST_TRIALS: Final = 4
"""Engines that are tried for a graph."""

MOST_TAPS: Final = 4096
"""Elements of the largest window: what an engine gives is compared with a product of matrices for each."""

TRIAL_BYTES: Final = 2**28
"""Memory for a trial, where a sample takes no more."""

BYTES_PER_ELEMENT: Final = 16
"""Memory for a trial by the elements of the arrays: as they are read, and in float64."""


class ConvolutionPlan:
    """Graphs of a convolution.

    For some sizes there are engines that give wrong numbers, without an error. So an engine is tried before it is used:
    its results for drawn numbers are compared with what CuPy gives in float64.

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
        if math.prod(window.shape[2:]) > MOST_TAPS:
            raise NoEngineError("to try an engine would take long")
        along = zip(self._sweeps, image.shape[2:], response.shape[2:], strict=True)
        if any(sum(1 for _ in sweep.taps(*lengths)) < sweep.size for sweep, *lengths in along):
            raise NoEngineError("an element of the window lies on padding alone: its gradient would not be written")
        self._cudnn: Final = of
        self._last: Final = is_last((response if request.out is image else image).layout)
        dtype = request.out.dtype
        is_plain = dtype not in HALF and not _acts(request)
        products = self._wide(request) if is_plain else None
        self._at_once: Final = (products or self._complete(request)) if is_zero(request.beta) else None
        """Does all of a request whose alpha is 1 and beta 0; None if there is no such engine."""
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
        """Return a graph whose engine has been tried, and where its arrays lie.

        Args:
            request: As it is.
            dtype: The element type that is read.
            out: The element type that is written, by default the same.
            complete: Whether bias and activation are part of the graph.

        Raises:
            NoEngineError: No engine is right, or there is no room to try one.
        """
        described = functools.partial(self._described, request, dtype, out=out, complete=complete and _acts(request))
        shapes = {name: getattr(request, name).shape for name in self._roles}
        wrong: set[str] = set()
        while len(wrong) < MOST_TRIALS:
            graph, places = described(self._cudnn, shapes, lambda name: engine_of(name) not in wrong)
            fault = self._fault(request, graph.engine, described)
            if fault is None:
                return graph, places
            warn(f"engine {graph.engine} of cuDNN's {fault} for {_text(request)}: it is not used")
            wrong.add(engine_of(graph.engine))
        raise NoEngineError("no engine that was tried is right")

    def _described(
        self,
        request: Any,
        dtype: str,
        of: Cudnn,
        shapes: dict[str, tuple[int, ...]],
        fits: Callable[[str], bool],
        *,
        out: str | None,
        complete: bool,
    ) -> tuple[CudnnGraph, dict[str, ArrayPlace]]:
        """Return a graph on a handle for arrays of some shapes, and where they lie."""
        graph = CudnnGraph(of, dtype)
        places: dict[str, ArrayPlace] = {}
        tensors: dict[str, Any] = {}
        for name in self._roles:
            operand = getattr(request, name)
            places[name] = ArrayPlace.of(operand, last=self._last, dtype=out or dtype if name == "out" else dtype)
            if name != "out":
                tensors[name] = graph.given(name, *self._lain(shapes[name]), dtype)
        made = self._operation(graph, tensors)
        if complete:
            made.set_data_type(graph.wide)
            if request.bias is not None:
                places["bias"] = ArrayPlace.of(request.bias, dtype=dtype)
                dims = [1, request.bias.shape[0], *(1,) * max(2, len(self._sweeps))]
                made = graph.of.bias(name="with_bias", input=made, bias=graph.given("bias", dims, packed(dims), dtype))
            if request.activation == "relu":
                made.set_data_type(graph.wide)
                made = graph.of.relu(input=made)
        graph.result(made, "out", *self._lain(shapes["out"]), places["out"].dtype)
        unwanted = UNWANTED if _is_rounded(request) else (*UNWANTED, "TENSOR_CORE")
        return graph.build(unwanted, compiled=False, fits=fits), places

    def _fault(self, request: Any, engine: str, described: functools.partial[Any]) -> str | None:
        """Try an engine on drawn numbers, and say what is wrong with it; None if nothing is.

        As many samples are tried as have room in `TRIAL_BYTES`, but at least one. For fewer than there are, it is the
        same engine with the settings that the heuristics name first for so many.

        Raises:
            NoEngineError: There is no room, or a graph is being recorded.
        """
        shapes = self._tried_shapes(request)
        whole = all(shape == getattr(request, name).shape for name, shape in shapes.items())

        def fits(name: str) -> bool:
            return name == engine if whole else engine_of(name) == engine_of(engine)

        with self._cudnn.trial() as of:
            try:
                graph, places = described(of, shapes, fits)
                return self._fault_of(request, graph, places, shapes, complete=described.keywords["complete"])
            except NoEngineError:
                return "cannot be tried"
            except (MemoryError, errors.OutOfMemory) as error:
                raise NoEngineError("there is no room to try it") from error

    def _fault_of(
        self,
        request: Any,
        graph: CudnnGraph,
        places: dict[str, ArrayPlace],
        shapes: dict[str, tuple[int, ...]],
        *,
        complete: bool,
    ) -> str | None:
        """Run a graph twice, on results full of other numbers, and compare what it gives."""
        arrays = {}
        for seed, (name, place) in enumerate(places.items()):
            arrays[name] = place.empty(shapes.get(name) or getattr(request, name).shape)
            if name != "out":
                draw(arrays[name], request.out.dtype, seed)
        out, found = arrays["out"], []
        for content in (math.nan, 3.0):
            out[...] = cupy.full((1,), content, np.float32).astype(out.dtype)
            try:
                graph(arrays)
            except CudnnError as error:
                return f"fails ({error})"
            found.append(double(out))
        given = {name: double(each) for name, each in arrays.items() if name != "out"}
        exact, count = self._exact(request, given, shapes)
        if "bias" in given:
            exact = exact + along_channels(given["bias"], exact.ndim)
        if complete and request.activation == "relu":
            exact = np.maximum(exact, 0)
        if not is_close(found[0], exact, places["out"].dtype, count, tf32=request.allow_tf32):
            return "gives wrong numbers"
        return None if bool((found[0] == found[1]).all()) else "gives other numbers each time"

    def _exact(self, request: Any, given: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> tuple[Any, int]:
        """Return the products in float64, and how many are added up for an element."""
        space, groups = shapes["out"][2:], request.groups
        if request.name == "conv_weight":
            dy = given["dy"]
            return collect(matmul, given["x"], dy, self._sweeps, space, groups), dy.size // dy.shape[1]
        weight, other = given["weight"], given["dy" if request.name == "conv_input" else "x"]
        if request.name == "conv":
            return correlate(matmul, other, weight, self._sweeps, space, groups), weight.size // len(weight)
        return scatter(matmul, other, weight, self._sweeps, space, groups), weight.size // (weight.shape[1] * groups)

    def _tried_shapes(self, request: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a request's arrays with as many samples as are tried."""
        shapes = {name: getattr(request, name).shape for name in self._roles}
        image, window, response = (shapes[name] for name in self._roles)
        room = TRIAL_BYTES // BYTES_PER_ELEMENT - math.prod(window)
        count = min(image[0], max(1, room // (math.prod(image[1:]) + math.prod(response[1:]))))
        return {name: shape if name == self._roles[1] else (count, *shape[1:]) for name, shape in shapes.items()}

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


def _is_rounded(request: Any) -> bool:
    """Return whether the factors of products may lose bits on tensor cores; half precision has no more."""
    return request.out.dtype != "float32" or bool(request.allow_tf32)


def _text(request: Any) -> str:
    """Return a request as a warning has it."""
    arrays = [f"{name} {each.dtype} {each.shape}" for name, _, each in request.arrays() if each is not None]
    names = ("stride", "padding", "dilation", "groups")
    return ", ".join(
        [f"{request.name}: {arrays[0]}", *arrays[1:], *(f"{each} {getattr(request, each)}" for each in names)]
    )


def _acts(request: Any) -> bool:
    """Return whether a bias or an activation follows the products."""
    return getattr(request, "bias", None) is not None or getattr(request, "activation", "identity") != "identity"


class GraphConvolutions(GraphEngine):
    """Convolutions and their gradients, of all element types."""

    plans: ClassVar = dict.fromkeys(ROLES, ConvolutionPlan)
