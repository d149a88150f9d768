"""Recurrent networks step by step, all sequences at once.

A sequence that has ended keeps its state, and one that goes backwards has its first state until its last step. The
backward computes the forward anew, so that only a mark is left in the reserve.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import MARK_BYTES, Rnn
from atomr_mp_workers.libraries.base import array
from atomr_mp_workers.libraries.dnn.base import ArrayLibrary, Product
from atomr_mp_workers.libraries.dnn.cells import Cell
from atomr_mp_workers.libraries.dnn.numbers import full, store, wide

Array = npt.NDArray[Any]

WORD_BYTES: Final = 8
"""Bytes of the mark that the arrays of a network make; behind the room for marks are the lengths."""


class LayerRun(NamedTuple):
    """The run of a layer in one direction."""

    weights: tuple[Array, ...]
    """w_ih, w_hh, b_ih and b_hh."""
    inputs: Array
    """(t, b, inputs)."""
    order: range
    """The steps, in the order of the run."""
    before: list[tuple[Array, Array]]
    """The states before each step of the run."""
    gates: list[tuple[Array, ...]]
    """The gates of each step of the run."""


class NetworkRun(NamedTuple):
    """The run of a network."""

    out: Array
    last: tuple[Array, Array]
    """The last states, each (layers·directions, b, hidden_size)."""
    tracks: list[LayerRun]
    """One for each direction of each layer."""
    factors: list[Any]
    """The factor of each layer's inputs by dropout."""


class Recurrence(ArrayLibrary):
    """Recurrent networks, their gradients, and the packing of their weights."""

    def rnn_pack(self, request: dnn.RnnPack) -> None:
        """Pack weights."""
        out, rnn = array(request.out), Rnn.of(request, request.input_size)
        for operand, (begin, _) in zip(request.weights, rnn.parts(), strict=True):
            values = array(operand)
            out[begin : begin + values.size] = values.reshape(-1)

    @np.errstate(all="ignore")
    def rnn(self, request: dnn.RnnForward) -> None:
        """Run a network over sequences."""
        run = self._run(request)
        for operand, values in ((request.out, run.out), (request.hn, run.last[0]), (request.cn, run.last[1])):
            if operand is not None:
                store(operand, values)
        if request.reserve is not None:
            reserve = array(request.reserve)
            reserve[:WORD_BYTES], lengths = mark(request, reserve), _lengths(request, reserve)
            reserve[MARK_BYTES : MARK_BYTES + lengths.size] = lengths

    @np.errstate(all="ignore")
    def rnn_backward(self, request: dnn.RnnBackward) -> Any:
        """Compute the gradients of a network by its inputs, weights and first states; NaNs without its reserve."""
        reserve = array(request.reserve)
        word, lengths = reserve[:WORD_BYTES], _lengths(request, reserve)
        right = (word == mark(request, word)).all() & (reserve[MARK_BYTES : MARK_BYTES + lengths.size] == lengths).all()
        verdict = self.demand(right, request.undefined)
        word[...] = np.where(right, 0, word)
        rnn, active = _of(request), _active(request)
        by_states = [_states(rnn, each, request.x) for each in (request.dhn, request.dcn)]
        by_weights = np.zeros(rnn.size, wide(request.weights).dtype, like=reserve)
        product = self.products(request)
        run, parts, gradient = self._run(request), list(_viewed(rnn, by_weights)), wide(request.dy)
        for layer in reversed(range(rnn.layers)):
            shares = np.split(gradient, rnn.directions, axis=2)
            gradient = np.zeros_like(run.tracks[layer * rnn.directions].inputs)
            for way, share in enumerate(shares):
                at = layer * rnn.directions + way
                gradient += _back(
                    product, rnn, run.tracks[at], active, share, [each[at] for each in by_states], parts[at]
                )
            gradient *= run.factors[layer]
        results = (gradient, by_weights, *by_states)
        for operand, values in zip((request.dx, request.dweights, request.dh0, request.dc0), results, strict=True):
            if operand is not None:
                store(operand, np.where(right, values, math.nan))
        return verdict

    def _run(self, request: Any) -> NetworkRun:
        product, rnn, active = self.products(request), _of(request), _active(request)
        x, weights = np.where(active, wide(request.x), 0), list(_viewed(rnn, wide(request.weights)))
        last = _states(rnn, request.h0, request.x), _states(rnn, request.c0, request.x)
        tracks: list[LayerRun] = []
        factors: list[Any] = []
        for layer in range(rnn.layers):
            factors.append(self._factor_of_outputs(request, layer - 1, x) if layer and request.dropout_p else 1)
            x = x * factors[-1]
            outputs = []
            for way in range(rnn.directions):
                at = len(tracks)
                order = range(len(x) if x.shape[1] else 0)[:: -1 if way else 1]
                track = LayerRun(weights[at], x, order, [], [])
                track, output = _forward(product, rnn, track, active, [each[at] for each in last])
                tracks.append(track)
                outputs.append(output)
            x = np.concatenate(outputs, axis=2)
        return NetworkRun(x, last, tracks, factors)

    def _factor_of_outputs(self, request: Any, before: int, x: Array) -> Array:
        """Return the factor of a layer's inputs by dropout: 0, or 1 / (1 - p)."""
        bits = self.kept(request.dropout_p, request.seed, request.offset + before * x.size, x.size).reshape(x.shape)
        return np.where(bits, x.dtype.type(1 / (1 - request.dropout_p or 1)), 0)


def _of(request: Any) -> Rnn:
    return Rnn.of(request, request.x.shape[2])


def mark(request: Any, like: Array) -> Array:
    """Return the mark of a forward, which is that of backwards that fit it.

    Args:
        request: The forward, or a backward.
        like: An array of the backend; a device makes the mark itself.
    """
    facts = (
        _of(request),
        request.x.shape,
        str(request.x.dtype),
        float(request.dropout_p),
        request.seed,
        request.offset,
    )
    word = int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=WORD_BYTES).digest(), "little")
    shifts = np.arange(0, 8 * WORD_BYTES, 8, dtype=np.uint64, like=like)
    found: Array = np.right_shift(np.uint64(word), shifts).astype(np.uint8)
    return found


def _lengths(request: Any, reserve: Array) -> Array:
    """Return how many steps each sequence has, as bytes for the reserve: as many as it has room for."""
    t, b, _ = request.x.shape
    found = full((b,), t, np.int32, like=reserve)
    if request.lengths is not None:
        found = np.minimum(np.maximum(array(request.lengths), 0), found)
    return found.view(np.uint8)[: len(reserve) - MARK_BYTES]


def _active(request: Any) -> Array:
    """Return whether each sequence has each step, (t, b, 1)."""
    t, b, _ = request.x.shape
    if request.lengths is None:
        return full((t, b, 1), value=True, dtype=bool, like=array(request.x))
    lengths = array(request.lengths)
    found: Array = (np.arange(t, like=lengths)[:, None] < lengths)[..., None]
    return found


def _viewed(rnn: Rnn, packed: Array) -> Iterator[tuple[Array, ...]]:
    """Return the weights of each direction of each layer, as views of packed ones."""
    views = (packed[begin : begin + math.prod(shape)].reshape(shape) for begin, shape in rnn.parts())
    for first in views:
        yield (first, *itertools.islice(views, 3))


def _states(rnn: Rnn, operand: Any, x: Any) -> Array:
    """Return states, 0 where they are left out; a copy."""
    shape = rnn.layers * rnn.directions, x.shape[1], rnn.hidden_size
    if operand is None:
        return np.zeros(shape, np.float64 if x.dtype == "float64" else np.float32, like=array(x))
    return wide(operand).copy()


def _forward(product: Product, rnn: Rnn, track: LayerRun, active: Array, states: list[Array]) -> tuple[LayerRun, Array]:
    """Run a layer in one direction, and put its last states in the place of its first ones; return its outputs too."""
    cell, (w_ih, w_hh, b_ih, b_hh) = Cell(rnn.mode), track.weights
    shares = _rows(product, track.inputs, w_ih.T) + b_ih
    h, c = (each.copy() for each in states)
    found = np.zeros((*shares.shape[:2], rnn.hidden_size), shares.dtype, like=shares)
    for at in track.order:
        track.before.append((h, c))
        step, on = cell.step(shares[at], product(h, w_hh.T) + b_hh, h, c), active[at]
        track.gates.append(step.gates)
        h, c, found[at] = np.where(on, step.h, h), np.where(on, step.c, c), np.where(on, step.h, 0)
    states[0][...], states[1][...] = h, c
    return track, found


def _back(
    product: Product,
    rnn: Rnn,
    track: LayerRun,
    active: Array,
    gradient: Array,
    by_states: list[Array],
    by_weights: tuple[Array, ...],
) -> Array:
    """Return the gradient of a layer in one direction by its inputs.

    Args:
        product: Multiplies matrices.
        rnn: The network's sizes.
        track: The layer's run.
        active: The steps that there are.
        gradient: That by the layer's outputs.
        by_states: Those by its last states; those by its first ones are put in their place.
        by_weights: Where the gradients by its weights are added.
    """
    cell, (w_ih, w_hh, _, _) = Cell(rnn.mode), track.weights
    h, c = by_states
    by_shares = np.zeros((*track.inputs.shape[:2], rnn.gates), track.inputs.dtype, like=track.inputs)
    for at, before, gates in zip(reversed(track.order), reversed(track.before), reversed(track.gates), strict=True):
        on = active[at]
        found = cell.back(gates, *before, np.where(on, h + gradient[at], 0), np.where(on, c, 0))
        h, c = np.where(on, found.h + product(found.hidden, w_hh), h), np.where(on, found.c, c)
        by_shares[at] = found.inputs
        by_weights[1][...] += product(found.hidden.T, before[0])
        by_weights[3][...] += found.hidden.sum(0)
    by_states[0][...], by_states[1][...] = h, c
    by_weights[0][...] += product(_flat(by_shares).T, _flat(track.inputs))
    by_weights[2][...] += by_shares.sum((0, 1))
    return _rows(product, by_shares, w_ih)


def _flat(values: Array) -> Array:
    """Return all steps of all sequences as the rows of a matrix."""
    t, b, n = values.shape
    return values.reshape(t * b, n)


def _rows(product: Product, values: Array, matrix: Array) -> Array:
    """Return each step of each sequence, multiplied by a matrix."""
    return product(_flat(values), matrix).reshape(*values.shape[:2], matrix.shape[1])
