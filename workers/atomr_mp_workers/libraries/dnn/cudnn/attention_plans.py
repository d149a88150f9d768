"""Attention by cuDNN's graphs, whose engines are compiled, in half precision.

Weights are rounded to the element type before they are multiplied with values, as tensor cores take them. What a query
without a key gives is not defined by cuDNN, so that CuPy writes it: 0, and a logarithm of -inf. Where the masks of a
request leave no query without a key, there is nothing to write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import cupy
import numpy as np

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.base import HALF
from atomr_mp_workers.libraries.base import alignment, array
from atomr_mp_workers.libraries.dnn.cudnn.graphs import (
    ArrayPlace,
    Cudnn,
    CudnnGraph,
    GraphEngine,
    NoEngineError,
    constant,
)
from atomr_mp_workers.libraries.dnn.cudnn.views import ALIGNED_BYTES, packed
from atomr_mp_workers.libraries.dnn.numbers import wide

LEAST: Final = {"float16": -65504.0, "bfloat16": -1e30}
"""Numbers in place of -inf in masks. No weight is left of a score with them, and a difference of two is no NaN."""

WHOLE: Final = 8
"""Elements of a head are a multiple of this."""


class _AttentionPlan:
    """What plans of both directions share: masks, and where arrays lie.

    Args:
        of: The library's handle.
        request: A request of its kind.

    Raises:
        NoEngineError: cuDNN does not do it.
    """

    def __init__(self, of: Cudnn, request: Any) -> None:
        if request.query.dtype not in HALF:
            raise NoEngineError("there are no engines that compute in more than half precision")
        if request.query.shape[3] % WHOLE or request.value.shape[3] % WHOLE:
            raise NoEngineError("the lengths of heads are not multiples of eight")
        if request.dropout_p:
            raise NoEngineError("the random bits would be others")
        self._has_lengths: Final = request.query_lengths is not None or request.key_lengths is not None
        self._may_lack_keys: Final = self._has_lengths or request.attn_mask is not None
        """Whether data decide if a query has a key."""
        if not self._has_lengths and _some_lack_keys(request):
            raise NoEngineError("some queries have no key")
        self._dtype: Final[str] = request.query.dtype
        self._graph: Final = CudnnGraph(of, self._dtype)
        self._places: Final[dict[str, ArrayPlace]] = {}

    def _given(self, request: Any, name: str) -> Any:
        """Return the tensor of an array that is read."""
        operand = getattr(request, name)
        return self._graph.given(name, operand.shape, self._strides(name, operand), self._dtype)

    def _result(self, request: Any, name: str, made: Any) -> None:
        """Have a tensor written to an array."""
        operand = getattr(request, name)
        self._graph.result(made, name, operand.shape, self._strides(name, operand), self._dtype)

    def _strides(self, name: str, operand: Any) -> list[int]:
        """Note where an array lies, which is anyhow with packed heads, and return its strides."""
        layout, dense = operand.layout, packed(operand.shape)
        steps = [
            step // layout.item_bytes if n > 1 else want
            for n, step, want in zip(layout.shape, layout.strides, dense, strict=True)
        ]
        whole = all(
            step > 0 and step % WHOLE == 0 for n, step in zip(layout.shape[:3], steps[:3], strict=True) if n > 1
        )
        cleared = self._may_lack_keys and name in {"y", "dy"}
        direct = whole and steps[3] == 1 and alignment(layout) >= ALIGNED_BYTES and not cleared
        self._places[name] = ArrayPlace(self._dtype, last=False, direct=direct)
        return steps if direct else dense

    def _options(self, request: Any) -> dict[str, Any]:
        """Return arguments of the operation for scale and masks."""
        (batch, _, queries, d), keys = request.query.shape, request.key.shape[2]
        options: dict[str, Any] = {"attn_scale": 1 / math.sqrt(d) if request.scale is None else request.scale}
        if request.is_causal or request.window is not None:
            bottom = request.align == "bottom_right" and (queries != keys or self._has_lengths)
            options["diagonal_alignment"] = constant("diagonal_alignment", "BOTTOM_RIGHT" if bottom else "TOP_LEFT")
            window = queries + keys if request.window is None else min(request.window, queries + keys)
            options["diagonal_band_right_bound"] = 0 if request.is_causal else window - 1
            if request.window is not None:
                options["diagonal_band_left_bound"] = window
        if request.attn_mask is not None:
            dims = [*_four(request.attn_mask.shape)[:2], queries, keys]
            options["bias"] = self._graph.given("attn_mask", dims, packed(dims), self._dtype)
        if self._has_lengths:
            options["use_padding_mask"] = True
            for name, argument in (("query_lengths", "seq_len_q"), ("key_lengths", "seq_len_kv")):
                dims = [batch, 1, 1, 1]
                options[argument] = self._graph.given(name, dims, packed(dims), "int32")
        return options

    def _masks(self, request: Any) -> dict[str, Any]:
        """Return the arrays of masks: what cuDNN takes in their place."""
        found: dict[str, Any] = {}
        queries, keys = request.query.shape[2], request.key.shape[2]
        if request.attn_mask is not None:
            mask = wide(request.attn_mask).reshape(_four(request.attn_mask.shape))
            found["attn_mask"] = ArrayPlace(self._dtype, last=False, direct=False).empty(
                (*mask.shape[:2], queries, keys)
            )
            found["attn_mask"][...] = cupy.maximum(mask, np.float32(LEAST[self._dtype])).astype(
                found["attn_mask"].dtype
            )
        if self._has_lengths:
            for name, most in (("query_lengths", queries), ("key_lengths", keys)):
                found[name] = _lengths(getattr(request, name), most, request.query.shape[0])
        return found

    def _read(self, request: Any, *names: str) -> dict[str, Any]:
        return {name: self._places[name].read(getattr(request, name)) for name in names}


class AttentionPlan(_AttentionPlan):
    """The forward."""

    def __init__(self, of: Cudnn, request: dnn.Attention) -> None:
        super().__init__(of, request)
        tensors = {name[0]: self._given(request, name) for name in ("query", "key", "value")}  # as cuDNN calls them
        saves = request.lse is not None
        made, sums = self._graph.of.sdpa(**tensors, generate_stats=saves, **self._options(request))
        self._result(request, "out", made)
        if request.lse is not None:
            self._places["lse"] = ArrayPlace.of(request.lse)
            dims = [*request.lse.shape, 1]
            self._graph.result(sums, "lse", dims, packed(dims), "float32")
        self._graph.build([], compiled=True)

    def __call__(self, request: dnn.Attention) -> None:
        """Put a request on the stream."""
        outputs = {"out": request.out, "lse": request.lse} if request.lse is not None else {"out": request.out}
        written = {name: self._places[name].write(operand) for name, operand in outputs.items()}
        self._graph(self._read(request, "query", "key", "value") | self._masks(request) | written)
        if self._may_lack_keys:
            lacks = _lacks_keys(request)
            _clear(written["out"], lacks[..., None])
            if request.lse is not None:
                written["lse"][...] = cupy.where(lacks, np.float32(-math.inf), written["lse"])
        for name, operand in outputs.items():
            self._places[name].put(operand, written[name])


class AttentionBackwardPlan(_AttentionPlan):
    """The gradients."""

    def __init__(self, of: Cudnn, request: dnn.AttentionBackward) -> None:
        super().__init__(of, request)
        self._places["lse"] = ArrayPlace.of(request.lse)
        dims = [*request.lse.shape, 1]
        sums = self._graph.given("lse", dims, packed(dims), "float32")
        names = {"q": "query", "k": "key", "v": "value", "o": "y", "dO": "dy"}
        tensors = {short: self._given(request, name) for short, name in names.items()}
        made = self._graph.of.sdpa_backward(
            **tensors, stats=sums, use_deterministic_algorithm=True, **self._options(request)
        )
        for name, each in zip(("dquery", "dkey", "dvalue"), made, strict=True):
            self._result(request, name, each)
        self._graph.build([], compiled=True)

    def __call__(self, request: dnn.AttentionBackward) -> None:
        """Put a request on the stream."""
        arrays = self._read(request, "query", "key", "value", "y", "dy", "lse") | self._masks(request)
        if self._may_lack_keys:  # their weights are 0 then, and nothing that their rows hold is a NaN
            lacks = arrays["lse"] == -math.inf
            arrays["lse"] = cupy.where(lacks, np.float32(math.inf), arrays["lse"])
            for name in ("y", "dy"):
                _clear(arrays[name], lacks[..., None])
        names = ("dquery", "dkey", "dvalue")
        written = {name: self._places[name].write(getattr(request, name)) for name in names}
        self._graph(arrays | written)
        if self._may_lack_keys:
            _clear(written["dquery"], lacks[..., None])
        if request.key_lengths is not None:
            beyond = cupy.arange(request.key.shape[2]) >= arrays["key_lengths"][:, None]
            for name in ("dkey", "dvalue"):
                _clear(written[name], beyond[:, None, :, None])
        for name in names:
            self._places[name].put(getattr(request, name), written[name])


def _some_lack_keys(request: Any) -> bool:
    """Return whether the order of queries and keys leaves a query without a key, whatever the mask.

    The number of keys of a query rises, stays, and falls: it is least for the first or the last.
    """
    queries, keys = request.query.shape[2], request.key.shape[2]
    return any(high <= low for low, high in (_bounds(request, row, queries, keys) for row in (0, queries - 1)))


def _bounds(request: Any, row: int, queries: int, keys: int) -> tuple[int, int]:
    """Return the first key of a query, and the one behind its last."""
    at = row + (keys - queries if request.align == "bottom_right" else 0)
    low, high = 0, keys
    if request.window is not None:
        low, high = max(low, at - request.window + 1), min(high, at + request.window)
    if request.is_causal:
        high = min(high, at + 1)
    return low, high


def _lacks_keys(request: Any) -> Any:
    """Return which queries have no key, as an array that is broadcast to (b, hq, sq)."""
    (batch, _, most, _), longest = request.query.shape, request.key.shape[2]
    rows = cupy.arange(most, dtype=np.int32)
    queries, keys = (
        _lengths(operand, length, batch)[:, None]
        for operand, length in ((request.query_lengths, most), (request.key_lengths, longest))
    )
    at = rows + (keys - queries if request.align == "bottom_right" else 0)
    low, high = 0 * at, 0 * at + keys
    if request.window is not None:
        width = min(request.window, most + longest)
        low, high = cupy.maximum(low, at - width + 1), cupy.minimum(high, at + width)
    if request.is_causal:
        high = cupy.minimum(high, at + 1)
    beyond = (rows >= queries)[:, None, :]
    if request.attn_mask is None:
        return beyond | (high <= low)[:, None, :]
    columns = cupy.arange(longest, dtype=np.int32)
    taken = (columns >= low[..., None]) & (columns < high[..., None])
    mask = wide(request.attn_mask).reshape(_four(request.attn_mask.shape))
    return beyond | ~(taken[:, None] & (mask != -math.inf)).any(-1)


def _lengths(operand: Any, most: int, batch: int) -> Any:
    """Return lengths within an array's, which is taken where there are none."""
    if operand is None:
        return cupy.full((batch,), most, np.int32)
    return cupy.clip(array(operand), 0, most).astype(np.int32)


def _four(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape with four dimensions."""
    return (*(1,) * (4 - len(shape)), *shape)


def _clear(values: Any, where: Any) -> None:
    """Write 0 to some elements of half precision."""
    bits = values.view(np.uint16)
    bits[...] = cupy.where(where, np.uint16(0), bits)


class GraphAttentions(GraphEngine):
    """Attention in half precision, without dropout."""

    plans: ClassVar = {
        "scaled_dot_product_attention": AttentionPlan,
        "scaled_dot_product_attention_backward": AttentionBackwardPlan,
    }
