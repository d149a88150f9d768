"""Norms by cuDNN's graphs, whose engines are compiled: those of a batch, and those within each sample.

All numbers beside x are float32. A group norm is an instance norm of a view; its weights are another matter, since they
are of channels, not of groups. So the view is normalised in float32, and weighted with CuPy.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, Final, NamedTuple

import cupy
import numpy as np

from atomr_mp.protocol.libraries import dnn
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.cudnn.graphs import (
    ArrayPlace,
    Cudnn,
    CudnnGraph,
    GraphEngine,
    NoEngineError,
    constant,
    first_built,
)
from atomr_mp_workers.libraries.dnn.cudnn.views import is_last, packed
from atomr_mp_workers.libraries.dnn.numbers import along_channels, wide

DTYPES: Final = frozenset({"float16", "bfloat16", "float32"})
"""Element types of x."""

OPERATIONS: Final = {
    "batch": "batchnorm",
    "layer": "layernorm",
    "instance": "instancenorm",
    "group": "instancenorm",
    "rms": "rmsnorm",
}
"""Names of cuDNN's operations, by mode."""

EITHER_ORDER: Final = frozenset(
    {("batch_norm_training", "batch"), ("instance_norm", "instance"), ("norm_backward", "batch")}
)
"""Requests and modes that have engines for x with its channels last too.

Those of the backward of an instance norm gave other gradients of weight and bias each time: x is copied for it.
"""

RUNNING: Final = ("running_mean", "running_var")


class NormView(NamedTuple):
    """The arrays of a norm as cuDNN has them."""

    x: list[int]
    """Dimensions of x, and of what has its shape."""
    statistics: list[int]
    """Dimensions of means and inverse deviations."""
    affine: list[int]
    """Dimensions of weight and bias."""

    @classmethod
    def of(cls, request: Any) -> NormView:
        """Return the view of a request."""
        shape = request.x.shape
        if request.mode in {"layer", "rms"}:
            width = math.prod(request.normalized_shape)
            rows = math.prod(shape) // width
            return cls([rows, width, 1, 1], [rows, 1, 1, 1], [1, width, 1, 1])
        batch, channels, *space = shape
        if request.mode == "group":
            groups = request.num_groups
            space = [channels // groups, *space]
            channels = groups
        each = batch if request.mode != "batch" else 1
        x = [batch, channels, math.prod(space[:-1]), math.prod(space[-1:])]
        return cls(x, [each, channels, 1, 1], [1, channels, 1, 1])


class _NormPlan:
    """What plans of both directions share: the view, and the order in which x lies.

    Args:
        of: The library's handle.
        request: A request of its kind.

    Raises:
        NoEngineError: cuDNN does not do it.
    """

    def __init__(self, of: Cudnn, request: Any) -> None:
        self._cudnn: Final = of
        self._view: Final = NormView.of(request)
        if request.x.dtype not in DTYPES:
            raise NoEngineError("there are no engines for float64")
        if math.prod(self._view.x) < 2 * math.prod(self._view.statistics):
            raise NoEngineError("nothing is normalised together")
        self._places: dict[str, ArrayPlace] = {}
        orders = [False]
        if (request.name, request.mode) in EITHER_ORDER:
            last = is_last(request.x.layout)
            orders = [last, not last]
        self._graph: Final = first_built(functools.partial(self._made, request, last=last) for last in orders)

    def _made(self, request: Any, *, last: bool) -> CudnnGraph:
        """Return the graph, if x has its channels last or not."""
        raise NotImplementedError

    def _given(self, graph: CudnnGraph, request: Any, name: str, dims: list[int]) -> Any:
        """Return the tensor of numbers in float32; None of the request has a temporary."""
        self._places[name] = ArrayPlace.of(getattr(request, name, None), dtype="float32")
        return graph.given(name, dims, packed(dims), "float32")

    def _result(self, graph: CudnnGraph, request: Any, name: str, made: Any, dims: list[int]) -> None:
        """Have numbers in float32 written; None of the request has a temporary."""
        self._places[name] = ArrayPlace.of(getattr(request, name, None), dtype="float32")
        graph.result(made, name, dims, packed(dims), "float32")

    def _image(self, graph: CudnnGraph, request: Any, name: str, dtype: str, *, last: bool) -> Any:
        """Return the tensor of x, or of what has its shape."""
        self._places[name] = ArrayPlace.of(getattr(request, name), last=last, dtype=dtype)
        return graph.given(name, self._view.x, packed(self._view.x, last=last), dtype)

    def _image_result(self, graph: CudnnGraph, request: Any, made: Any, dtype: str, *, last: bool) -> None:
        self._places["out"] = ArrayPlace.of(request.out, last=last, dtype=dtype)
        graph.result(made, "out", self._view.x, packed(self._view.x, last=last), dtype)

    def _number_arrays(self, request: Any, *names: str) -> dict[str, Any]:
        """Return arrays to write to."""
        found = {}
        for name in names:
            operand = getattr(request, name, None)
            count = math.prod(self._view.affine if name in {"dweight", "dbias"} else self._view.statistics)
            place = self._places[name]
            found[name] = place.empty((count,)) if operand is None else place.write(operand)
        return found

    def _put(self, request: Any, arrays: dict[str, Any], *names: str) -> None:
        for name in names:
            operand = getattr(request, name, None)
            if operand is not None:
                self._places[name].put(operand, arrays[name])

    def _affine(self, operand: Any, name: str, neutral: float) -> Any:
        """Return weight or bias, or as often the number that changes nothing."""
        if operand is None:
            return cupy.full((math.prod(self._view.affine),), neutral, np.float32)
        return self._places[name].read(operand)


class NormPlan(_NormPlan):
    """A norm, with its statistics."""

    def __init__(self, of: Cudnn, request: Any) -> None:
        affine = (request.weight, getattr(request, "bias", None))
        self._by_cupy: Final = request.mode == "group" and affine != (None, None)
        """Whether weight and bias are applied with CuPy."""
        super().__init__(of, request)

    def __call__(self, request: Any) -> None:
        """Put a request on the stream."""
        affine = {"weight": request.weight, "bias": getattr(request, "bias", None)}
        given = dict.fromkeys(affine) if self._by_cupy else affine
        arrays = {"x": self._places["x"].read(request.x), "weight": self._affine(given["weight"], "weight", 1.0)}
        if request.mode != "rms":
            arrays["bias"] = self._affine(given["bias"], "bias", 0.0)
        statistics = ["invstd"] if request.mode == "rms" else ["mean", "invstd"]
        arrays |= self._number_arrays(request, *statistics)
        if request.mode == "batch":
            for name in RUNNING:
                operand = getattr(request, name)
                arrays[name] = self._affine(operand, name, 0.0)
                arrays[f"next_{name}"] = self._places[name].empty(arrays[name].shape)
        out = self._places["out"]
        arrays["out"] = out.empty(request.x.shape) if self._by_cupy else out.write(request.out)
        self._graph(arrays)
        if self._by_cupy:
            _weigh(request, arrays["out"])
        else:
            out.put(request.out, arrays["out"])
        self._put(request, arrays, *statistics)
        for name in RUNNING if request.mode == "batch" and request.running_mean is not None else ():
            array(getattr(request, name))[...] = arrays[f"next_{name}"]

    def _made(self, request: Any, *, last: bool) -> CudnnGraph:
        dtype = "float32" if self._by_cupy else request.x.dtype
        graph, view, mode = CudnnGraph(self._cudnn, dtype), self._view, request.mode
        given = {
            "input": self._image(graph, request, "x", dtype, last=last),
            "scale": self._given(graph, request, "weight", view.affine),
            "epsilon": graph.number(request.eps),
        }
        if mode != "rms":
            given["bias"] = self._given(graph, request, "bias", view.affine)
        if mode == "batch":
            for name in RUNNING:
                given[f"in_{name}"] = self._given(graph, request, name, view.affine)
            given["momentum"] = graph.number(request.momentum)
        else:
            given["norm_forward_phase"] = constant("norm_forward_phase", "TRAINING")
        y, *numbers = getattr(graph.of, OPERATIONS[mode])(**given)
        self._image_result(graph, request, y, dtype, last=last)
        names = ["invstd"] if mode == "rms" else ["mean", "invstd"]
        for name, made in zip(names, numbers[: len(names)], strict=True):
            self._result(graph, request, name, made, view.statistics)
        for name, made in zip(RUNNING, numbers[2:], strict=True) if mode == "batch" else ():
            graph.result(made, f"next_{name}", view.affine, packed(view.affine), "float32")
        return graph.build(["NONDETERMINISTIC"], compiled=True)


def _weigh(request: Any, values: Any) -> None:
    """Write normalised values, multiplied by weight and with bias, of each channel."""
    for operand, function in ((request.weight, cupy.multiply), (request.bias, cupy.add)):
        if operand is not None:
            values = function(values, along_channels(wide(operand), values.ndim))
    target = array(request.out)
    target[...] = values.astype(target.dtype, copy=False)


class NormBackwardPlan(_NormPlan):
    """The gradients of a norm."""

    def __init__(self, of: Cudnn, request: dnn.NormBackward) -> None:
        if request.mode == "group" and request.weight is not None:
            raise NoEngineError("the weights are not those of the view")
        super().__init__(of, request)

    def __call__(self, request: dnn.NormBackward) -> None:
        """Put a request on the stream."""
        gradients = ["dweight"] if request.mode == "rms" else ["dweight", "dbias"]
        arrays = {name: self._places[name].read(getattr(request, name)) for name in ("x", "dy", "invstd")}
        if request.mode != "rms":
            arrays["mean"] = self._places["mean"].read(request.mean)
        arrays["weight"] = self._affine(request.weight, "weight", 1.0)
        arrays |= self._number_arrays(request, *gradients)
        arrays["out"] = self._places["out"].write(request.out)
        self._graph(arrays)
        self._put(request, arrays, "out", *gradients)

    def _made(self, request: dnn.NormBackward, *, last: bool) -> CudnnGraph:
        dtype, mode, view = request.x.dtype, request.mode, self._view
        graph = CudnnGraph(self._cudnn, dtype)
        given = {
            "grad": self._image(graph, request, "dy", dtype, last=last),
            "input": self._image(graph, request, "x", dtype, last=last),
            "scale": self._given(graph, request, "weight", view.affine),
            "inv_variance": self._given(graph, request, "invstd", view.statistics),
        }
        if mode != "rms":
            given["mean"] = self._given(graph, request, "mean", view.statistics)
        options = {"has_dbias": False} if mode == "rms" else {}
        x, *numbers = getattr(graph.of, f"{OPERATIONS[mode]}_backward")(**given, **options)
        self._image_result(graph, request, x, dtype, last=last)
        for name, made in zip(("dweight", "dbias"), numbers, strict=True):
            if made is not None:
                self._result(graph, request, name, made, view.affine)
        return graph.build(["NONDETERMINISTIC"], compiled=True)


class GraphNorms(GraphEngine):
    """Norms of float32 and half precision, except that of a batch by given statistics."""

    plans: ClassVar = {
        **dict.fromkeys(("batch_norm_training", "layer_norm", "rms_norm", "instance_norm", "group_norm"), NormPlan),
        "norm_backward": NormBackwardPlan,
    }
