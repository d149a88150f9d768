"""Attention on the host backend: a part of the queries of some heads at a time, so that few scores are in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.dnn.numbers import wide
from atomr_mp_workers.libraries.dnn.pointwise import kept

Array = npt.NDArray[Any]

AT_ONCE: Final = 2**20
"""Most scores in memory, unless a single query has more."""


class Scores(NamedTuple):
    """Queries of the heads that share a head of keys, with all of their keys."""

    queries: Any
    """Index in arrays of queries."""
    keys: Any
    """Index in arrays of keys."""
    scores: Array
    """(heads, queries, keys); -inf where a key is left out."""
    factor: Any
    """The factor of each weight by dropout."""


class Attentions(Library):
    """Attention, and its gradients."""

    @np.errstate(all="ignore")
    def scaled_dot_product_attention(self, request: dnn.Attention) -> None:
        """Compute softmax(scale·query·keyᵀ + attn_mask)·value for each head."""
        out, lse, value = array(request.out), None if request.lse is None else array(request.lse), wide(request.value)
        out[...] = 0
        if lse is not None:
            lse[...] = -math.inf
        for part in _parts(request):
            scores = part.scores
            largest = scores.max(-1, keepdims=True)
            powers = np.exp(scores - np.where(largest == -math.inf, 0, largest))
            total = powers.sum(-1, keepdims=True)
            found = (powers * part.factor) @ value[part.keys] / total
            out[part.queries] = np.where(total == 0, 0, found)
            if lse is not None:
                lse[part.queries] = (largest + np.log(total))[..., 0]

    @np.errstate(all="ignore")
    def scaled_dot_product_attention_backward(self, request: dnn.AttentionBackward) -> None:
        """Compute the gradients of attention by query, key and value."""
        query, key, value, dy = (wide(each) for each in (request.query, request.key, request.value, request.dy))
        lse, scale = wide(request.lse).astype(query.dtype), _scale(request)
        by_query, by_key, by_value = (np.zeros_like(each) for each in (query, key, value))
        for part in _parts(request):
            sums, gradient = lse[part.queries][..., None], dy[part.queries]
            weights = np.where(sums == -math.inf, 0, np.exp(part.scores - sums))
            by_value[part.keys] += _product(weights * part.factor, gradient)
            by_weights = (gradient @ value[part.keys].T) * part.factor
            by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True)) * query.dtype.type(scale)
            by_query[part.queries] = by_scores @ key[part.keys]
            by_key[part.keys] += _product(by_scores, query[part.queries])
        for operand, values in ((request.dquery, by_query), (request.dkey, by_key), (request.dvalue, by_value)):
            array(operand)[...] = values


def _product(one: Array, other: Array) -> Array:
    """Return the sum over heads and queries of products."""
    heads, queries, keys = one.shape
    found: Array = one.reshape(heads * queries, keys).T @ other.reshape(heads * queries, other.shape[-1])
    return found


def _parts(request: Any) -> Iterator[Scores]:
    """Return the scores part by part; none of queries and keys beyond the lengths."""
    query, key, scale = wide(request.query), wide(request.key), _scale(request)
    (batch, heads, most, _), (_, shared, longest, _) = query.shape, key.shape
    each = heads // shared
    mask = (
        None if request.attn_mask is None else np.broadcast_to(wide(request.attn_mask), (batch, heads, most, longest))
    )
    for sample in range(batch):
        queries = _length(request.query_lengths, sample, most)
        keys = _length(request.key_lengths, sample, longest)
        at_once = max(1, AT_ONCE // (each * max(keys, 1)))
        for head, first in itertools.product(range(shared if keys else 0), range(0, queries, at_once)):
            rows = slice(first, min(queries, first + at_once))
            own, there = (sample, slice(head * each, (head + 1) * each), rows), (sample, head, slice(keys))
            scores = query[own] @ key[there].T * query.dtype.type(scale)
            if mask is not None:
                scores += mask[*own, slice(keys)]
            scores[:, ~_meet(request, rows, keys, keys - queries)] = -math.inf
            yield Scores(own, there, scores, _factor(request, own, scores, (heads, most, longest)))


def _scale(request: Any) -> float:
    return request.scale if request.scale is not None else 1 / math.sqrt(request.query.shape[-1])


def _length(lengths: Any, sample: int, most: int) -> int:
    return most if lengths is None else max(0, min(most, int(array(lengths)[sample])))


def _meet(request: Any, rows: slice, keys: int, more: int) -> Array:
    """Return which queries take which keys, if there are so many more keys than queries."""
    shift = more if request.align == "bottom_right" else 0
    behind = np.arange(rows.start + shift, rows.stop + shift)[:, None] - np.arange(keys)
    found = np.ones(behind.shape, bool)
    if request.is_causal:
        found &= behind >= 0
    if request.window is not None:
        found &= np.abs(behind) < request.window
    return found


def _factor(request: Any, own: tuple[int, slice, slice], scores: Array, shape: tuple[int, int, int]) -> Any:
    """Return the factor of each weight of a part by dropout: 0, or 1 / (1 - p)."""
    if not request.dropout_p:
        return 1
    sample, own_heads, rows = own
    heads, queries, keys = shape
    found = np.empty(scores.shape, bool)
    for number, head in enumerate(range(own_heads.start, own_heads.stop)):
        begin = ((sample * heads + head) * queries + rows.start) * keys
        count = scores.shape[1] * keys
        bits = kept(request.dropout_p, request.seed, request.offset + begin, count)
        found[number] = bits.reshape(-1, keys)[:, : scores.shape[2]]
    return np.where(found, scores.dtype.type(1 / (1 - request.dropout_p or 1)), 0)
