"""Attention: a part of the samples, heads and queries at a time, so that few scores are in memory.

Lengths are masks: on a device nobody knows them before the work is done. What lies beyond them counts as 0, whatever it
holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.base import ArrayLibrary, Product
from atomr_mp_workers.libraries.dnn.numbers import full, store, wide
from atomr_mp_workers.libraries.scaling import widened

Array = npt.NDArray[Any]


class QueriesPart(NamedTuple):
    """Queries of some heads that share a head of keys, of some samples."""

    samples: slice
    heads: slice
    """Heads of the keys."""
    rows: slice
    """Queries of each head."""

    @property
    def queries(self) -> tuple[Any, ...]:
        """Their index in arrays of queries whose heads are divided by those of the keys."""
        return (self.samples, self.heads, slice(None), self.rows)

    @property
    def keys(self) -> tuple[Any, ...]:
        """The index of their keys."""
        return (self.samples, self.heads)


class Scores(NamedTuple):
    """The queries of a part with all of their keys."""

    part: QueriesPart
    product: Product
    """Multiplies matrices."""
    scores: Array
    """(samples, heads of keys, heads of queries for each, queries, keys); -inf where a key is left out."""
    factor: Any
    """The factor of each weight by dropout."""


class Attentions(ArrayLibrary):
    """Attention, and its gradients."""

    @np.errstate(all="ignore")
    def scaled_dot_product_attention(self, request: dnn.Attention) -> None:
        """Compute softmax(scale·query·keyᵀ + attn_mask)·value for each head."""
        query, key, value = _cleaned(request, "query", "key", "value")
        out = _divided(np.zeros(request.query.shape[:3] + value.shape[3:], value.dtype, like=value), key)
        lse = full(out.shape[:4], -math.inf, value.dtype, like=value)
        for part, product, scores, factor in self._parts(request, query, key):
            largest = scores.max(-1, keepdims=True)
            powers = np.exp(scores - np.where(largest == -math.inf, 0, largest))
            total = powers.sum(-1, keepdims=True)
            found = _by_rows(product, powers * factor, value[part.keys]) / total
            out[part.queries] = np.where(total == 0, 0, found)
            lse[part.queries] = (largest + np.log(total))[..., 0]
        store(request.out, out.reshape(request.query.shape[:3] + value.shape[3:]))
        if request.lse is not None:
            store(request.lse, lse.reshape(request.query.shape[:3]))

    @np.errstate(all="ignore")
    def scaled_dot_product_attention_backward(self, request: dnn.AttentionBackward) -> None:
        """Compute the gradients of attention by query, key and value."""
        query, key, value, dy = _cleaned(request, "query", "key", "value", "dy")
        lse, scale = _divided(wide(request.lse).astype(query.dtype, copy=False), key), query.dtype.type(_scale(request))
        by_query, by_key, by_value = (np.zeros_like(each) for each in (query, key, value))
        for part, product, scores, factor in self._parts(request, query, key):
            sums, gradient = lse[part.queries][..., None], dy[part.queries]
            left_out = (scores == -math.inf) | (sums == -math.inf)
            weights = np.where(left_out, 0, np.exp(scores - sums))
            by_value[part.keys] += _by_columns(product, weights * factor, gradient)
            by_weights = _by_rows(product, gradient, value[part.keys].swapaxes(-1, -2)) * factor
            by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True)) * scale
            by_query[part.queries] = _by_rows(product, by_scores, key[part.keys])
            by_key[part.keys] += _by_columns(product, by_scores, query[part.queries])
        store(request.dquery, by_query.reshape(request.query.shape))
        store(request.dkey, by_key)
        store(request.dvalue, by_value)

    def _parts(self, request: Any, query: Array, key: Array) -> Iterator[Scores]:
        """Return the scores part by part; none if there are none."""
        (samples, heads, each, queries, _), keys, scale = query.shape, key.shape[2], _scale(request)
        if 0 in {samples, heads, queries, keys}:
            return
        steps = []
        room = self.scores_at_once // (each * keys)
        for count in (queries, heads, samples):
            steps.append(max(1, min(count, room)))
            room //= count
        product = self.products(request)
        for part in _split((samples, heads, queries), steps[::-1]):
            scores = _by_rows(product, query[part.queries], key[part.keys].swapaxes(-1, -2)) * query.dtype.type(scale)
            if request.attn_mask is not None:
                scores += _mask(request.attn_mask, part, heads)
            for meets in _meet(request, part, query, keys):
                scores = np.where(meets, scores, -math.inf)
            yield Scores(part, product, scores, self._factor_of_weights(request, part, scores, (heads, queries)))

    def _factor_of_weights(self, request: Any, part: QueriesPart, scores: Array, counts: tuple[int, int]) -> Any:
        """Return the factor of each weight of a part by dropout: 0, or 1 / (1 - p)."""
        if not request.dropout_p:
            return 1
        heads, queries = counts
        each, rows, keys = scores.shape[2:]
        first = (part.samples.start * heads + part.heads.start) * each
        found = np.empty(scores.shape, bool, like=scores)
        # All queries of some heads lie together; some queries of a single one of the keys' heads do so head by head.
        of_head = [(found, first * queries)]
        if rows < queries:
            of_head = [(found[:, :, at], (first + at) * queries + part.rows.start) for at in range(each)]
        for bits, begin in of_head:
            made = self.kept(request.dropout_p, request.seed, request.offset + begin * keys, bits.size)
            bits[...] = made.reshape(bits.shape)
        return np.where(found, scores.dtype.type(1 / (1 - request.dropout_p or 1)), 0)


def _split(counts: tuple[int, int, int], steps: list[int]) -> Iterator[QueriesPart]:
    samples, heads, rows = (
        [slice(begin, min(count, begin + step)) for begin in range(0, count, step)]
        for count, step in zip(counts, steps, strict=True)
    )
    for sample in samples:
        for head in heads:
            for row in rows:
                yield QueriesPart(sample, head, row)


def _cleaned(request: Any, *names: str) -> Iterator[Array]:
    """Return arrays as they are computed with, 0 beyond the lengths; those of queries with their heads divided."""
    key = array(request.key)
    for name in names:
        values = wide(getattr(request, name))
        of_keys = name in {"key", "value"}
        lengths = request.key_lengths if of_keys else request.query_lengths
        if lengths is not None:
            there = np.arange(values.shape[2], like=values) < array(lengths)[:, None]
            values = np.where(there[:, None, :, None], values, 0)
        yield values if of_keys else _divided(values, key)


def _divided(values: Array, key: Array) -> Array:
    """Return a view of an array of queries whose heads are those of keys, and of queries for each of these."""
    samples, heads, *rest = values.shape
    return values.reshape(samples, key.shape[1], heads // key.shape[1], *rest)


def _by_rows(product: Product, one: Array, other: Array) -> Array:
    """Return the products of each head's matrix with the one that the keys' heads have."""
    samples, heads, each, rows, inner = one.shape
    found: Array = product(one.reshape(samples, heads, each * rows, inner), other)
    return found.reshape(samples, heads, each, rows, other.shape[-1])


def _by_columns(product: Product, one: Array, other: Array) -> Array:
    """Return the sum over the queries of heads that share a head of keys."""
    samples, heads, each, rows, _ = one.shape
    left, right = (values.reshape(samples, heads, each * rows, values.shape[-1]) for values in (one, other))
    found: Array = product(left.swapaxes(-1, -2), right)
    return found


def _scale(request: Any) -> float:
    return request.scale if request.scale is not None else 1 / math.sqrt(request.query.shape[-1])


def _mask(operand: Any, part: QueriesPart, heads: int) -> Array:
    """Return the mask of a part, as it is broadcast to its scores."""
    mask = array(operand)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    samples, of_queries, *rest = mask.shape
    mask = mask.reshape(samples, heads if of_queries > 1 else 1, max(1, of_queries // heads), *rest)
    index = (part.samples, part.heads, slice(None), part.rows)
    at = tuple(at if n > 1 else slice(None) for at, n in zip(index, mask.shape[:4], strict=True))
    found: Array = widened(mask[at])
    return found


def _meet(request: Any, part: QueriesPart, like: Array, keys: int) -> Iterator[Array]:
    """Return masks of the keys that queries take, as they are broadcast to scores."""
    queries = request.query.shape[2]
    rows = np.arange(part.rows.start, part.rows.stop, like=like)[:, None]
    columns = np.arange(keys, like=like)
    lengths = []
    for operand, most in ((request.query_lengths, queries), (request.key_lengths, keys)):
        if operand is None:
            lengths.append(most)
        else:
            given = array(operand)[part.samples].astype(np.int64)
            lengths.append(np.minimum(np.maximum(given, 0), most)[:, None, None, None, None])
    if request.query_lengths is not None:
        yield rows < lengths[0]
    if request.key_lengths is not None:
        yield columns < lengths[1]
    behind = rows - columns
    if request.align == "bottom_right":
        behind = behind + (lengths[1] - lengths[0])
    if request.is_causal:
        yield behind >= 0
    if request.window is not None:
        yield np.abs(behind) < request.window
