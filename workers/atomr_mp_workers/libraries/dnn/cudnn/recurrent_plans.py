"""Plans of recurrent networks that cuDNN's classic calls run.

cuDNN takes row-major arrays, all of one type. Others are copied to such ones, half precision to float32: cuDNN would
round its states at each step. So nothing but sizes and options decides whether it serves a network, and a backward
finds the reserve of a forward that cuDNN has run too.

Its backward takes the states of its cells from y, whatever the reserve holds. Those of tanh and relu decide what their
gradients are, so that a y of half precision is not what it gets: it gets that of another run.

It does not serve sequences of different lengths: from cuDNN 8.9.1 on it wants to know lengths on the host, and ignores
those on the device. Nor dropout between layers, for which it draws other random bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cupy
import numpy as np

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import GATES, MARK_BYTES, Rnn
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.dnn.cudnn.classic import TYPES, ClassicHandle, CudnnDescriptor
from atomr_mp_workers.libraries.dnn.cudnn.views import ALIGNED_BYTES
from atomr_mp_workers.libraries.dnn.engine import Enqueue
from atomr_mp_workers.libraries.dnn.verdicts import Verdicts

WORD_BYTES: Final = 8
"""Bytes of a mark."""

HALF_BYTES: Final = 2
"""Bytes of an element of half precision."""

MOST_STEPS: Final = 65535
"""cuDNN takes no more."""

MOST_SEQUENCES, MOST_LAYERS = 65535, 64
"""A plan tells cuDNN each sequence's length, and asks for each weight's place."""

CELLS: Final = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}
STANDARD, TWO_BIASES, LINEAR, PADDED = 0, 2, 0, 1
DEFAULT_MATH, PLAIN_MATH = 0, 3
"""cudnnMathType_t: with tensor cores as cuDNN likes, which makes tf32 of float32; and without."""
ADDED: Final = 0
"""cudnnWgradMode_t: gradients by weights are added to what is there."""


def forward_plan(cudnn: ClassicHandle, library: Library, request: dnn.RnnForward) -> Enqueue | None:
    """Return the function that runs networks like this one."""
    network = _Network.of(cudnn, library, request)
    if network is None:
        return None
    training = request.save_reserve and network.fits(request.reserve)
    sizes = network.prepared(training=training)
    word = _mark(request)

    def forward(request: Any) -> None:
        given = [network.read(each) for each in (request.x, request.weights, request.h0, request.c0)]
        made = [network.written(each) for each in (request.out, request.hn, request.cn)]
        reserve = network.reserve(request.reserve, sizes.reserve) if training else None
        network.run(sizes, given, made, reserve)
        for operand, values in zip((request.out, request.hn, request.cn), made, strict=True):
            _put(operand, values)
        if request.save_reserve:
            whole = array(request.reserve)
            whole[:WORD_BYTES] = _spelled(word)
            if reserve is not None:
                _put_at(whole[MARK_BYTES : MARK_BYTES + sizes.reserve], reserve)

    return forward


def backward_plan(cudnn: ClassicHandle, library: Library, request: dnn.RnnBackward) -> Enqueue | None:
    """Return the function that computes gradients of networks like this one; NaNs without its reserve."""
    network = _Network.of(cudnn, library, request)
    if network is None:
        return None
    kept, sizes = network.fits(request.reserve), network.prepared(training=True)
    word, verdicts = _mark(request), Verdicts()

    def backward(request: Any) -> Any:
        mark = array(request.reserve)[:WORD_BYTES]
        right = (mark == _spelled(word)).all()
        verdict = verdicts.demand(right, request.undefined)
        mark[...] = cupy.where(right, mark.dtype.type(0), mark)
        given = x, weights, h0, c0 = [
            network.read(each) for each in (request.x, request.weights, request.h0, request.c0)
        ]
        y, dy, dhn, dcn = (network.read(each) for each in (request.y, request.dy, request.dhn, request.dcn))
        dx, dweights = network.written(request.dx, x.shape), network.written(request.dweights, weights.shape)
        dh0, dc0 = network.written(request.dh0), network.written(request.dc0)
        if kept:
            reserve = network.reserve(request.reserve, sizes.reserve, read=True)
        else:
            reserve, y = cupy.empty(sizes.reserve, np.uint8), cupy.empty(y.shape, y.dtype)
            network.run(sizes, given, [y, None, None], reserve)
        memory = sizes.work, library.workspace(sizes.work).address, sizes.reserve, _at(reserve)
        cudnn.call(
            "RNNBackwardData_v8", cudnn, network.desc, None, network.y, _at(y), _at(dy), network.x, _at(dx),
            network.state, _at(h0), _at(dhn), _at(dh0), network.state, _at(c0), _at(dcn), _at(dc0),
            network.weight_bytes, _at(weights), *memory,
        )  # fmt: skip
        nothing = 0.0 / right.astype(dweights.dtype)  # by 0 it is NaN, and so is what it is added to
        dweights[...] = nothing
        cudnn.call(
            "RNNBackwardWeights_v8", cudnn, network.desc, ADDED, None, network.x, _at(x), network.state, _at(h0),
            network.y, _at(y), network.weight_bytes, _at(dweights), *memory,
        )  # fmt: skip
        _put(request.dweights, dweights)
        for operand, values in ((request.dx, dx), (request.dh0, dh0), (request.dc0, dc0)):
            if operand is not None:
                target = array(operand)
                target[...] = (values + nothing).astype(target.dtype, copy=False)
        return verdict

    return backward


def _serves(request: Any) -> bool:
    """Return whether cuDNN may be asked: all sequences have all steps, and nothing is dropped between layers."""
    drops = request.dropout_p and request.num_layers > 1
    steps, sequences, _ = request.x.shape
    fits = steps <= MOST_STEPS and sequences <= MOST_SEQUENCES and request.num_layers <= MOST_LAYERS
    return request.lengths is None and not drops and fits


class _Sizes(NamedTuple):
    """Bytes that a run takes."""

    work: int
    reserve: int


class _Network:
    """A network on sequences of some sizes, described to cuDNN.

    Args:
        cudnn: The handle.
        library: Has the workspace.
        request: A request for it.
    """

    def __init__(self, cudnn: ClassicHandle, library: Library, request: Any) -> None:
        t, b, inputs = request.x.shape
        self._cudnn: Final = cudnn
        self._library: Final = library
        self._rnn: Final = Rnn.of(request, inputs)
        name = "float64" if request.x.dtype == "float64" else "float32"
        self._is_half: Final = request.x.layout.item_bytes == HALF_BYTES
        self._dtype: Final = np.dtype(dtypes.to_numpy(name))
        self.weight_bytes: Final = self._rnn.size * self._dtype.itemsize
        rnn, dtype = self._rnn, TYPES[name]
        math_type = DEFAULT_MATH if name == "float64" or request.allow_tf32 else PLAIN_MATH
        self._dropout: Final = cudnn.no_dropout()
        self.desc: Final[CudnnDescriptor] = cudnn.network(
            STANDARD, CELLS[rnn.mode], TWO_BIASES, rnn.directions - 1, LINEAR, dtype, dtype, math_type,
            inputs, rnn.hidden_size, rnn.hidden_size, rnn.layers, self._dropout, PADDED,
        )  # fmt: skip
        self.x: Final = cudnn.sequences(name, t, b, inputs)
        self.y: Final = cudnn.sequences(name, t, b, rnn.directions * rnn.hidden_size)
        states = rnn.layers * rnn.directions, b, rnn.hidden_size
        self.state: Final = cudnn.tensor(name, states, (b * rnn.hidden_size, rnn.hidden_size, 1))

    @classmethod
    def of(cls, cudnn: ClassicHandle, library: Library, request: Any) -> _Network | None:
        """Return that of a request, None if cuDNN does not run it as it is declared."""
        found = cls(cudnn, library, request) if _serves(request) else None
        return found if found is not None and found.has_our_weights() else None

    def has_our_weights(self) -> bool:
        """Return whether all weights lie where the protocol has them."""
        rnn, cudnn, item = self._rnn, self._cudnn, self._dtype.itemsize
        if cudnn.weight_bytes(self.desc) != self.weight_bytes:
            return False
        begin, gates, parts = self._library.workspace(1).address, GATES[rnn.mode], list(rnn.parts())
        for layer in range(rnn.layers * rnn.directions):
            for gate in range(2 * gates):
                kind, number = divmod(gate, gates)
                (at, shape), (bias_at, _) = parts[4 * layer + kind], parts[4 * layer + 2 + kind]
                at += number * rnn.hidden_size * shape[1]
                bias_at += number * rnn.hidden_size
                matrix, bias = cudnn.weight(self.desc, layer, gate, begin, self.weight_bytes)
                if matrix != (at * item, [1, rnn.hidden_size, shape[1]]) or bias[0] != bias_at * item:
                    return False
        return True

    def prepared(self, *, training: bool) -> _Sizes:
        """Return how many bytes a run takes, and have the workspace grow to its part."""
        work, reserve = self._cudnn.spaces(self.desc, self.x, training=training)
        self._library.workspace(work)
        return _Sizes(work, reserve if training else 0)

    def fits(self, reserve: Any) -> bool:
        """Return whether there is room for cuDNN's reserve in ours, behind the mark.

        Where there is none, or y will have been rounded, ours has the mark alone: a backward runs the network again.
        """
        if self._is_half and self._rnn.mode in {"tanh", "relu"}:
            return False
        return MARK_BYTES + self._cudnn.spaces(self.desc, self.x, training=True)[1] <= int(reserve.nbytes)

    def run(self, sizes: _Sizes, given: Sequence[Any], made: Sequence[Any], reserve: Any) -> None:
        """Run it.

        Args:
            sizes: As `prepared` has returned them.
            given: Inputs, weights and the first states, None for zeros.
            made: Where outputs and the last states are written, None for nowhere.
            reserve: Memory for cuDNN's reserve, None if it trains nothing.
        """
        (x, weights, h0, c0), (out, hn, cn) = map(_at, given), map(_at, made)
        self._cudnn.call(
            "RNNForward", self._cudnn, self.desc, reserve is not None, None, self.x, x, self.y, out,
            self.state, h0, hn, self.state, c0, cn, self.weight_bytes, weights,
            sizes.work, self._library.workspace(sizes.work).address, sizes.reserve, _at(reserve),
        )  # fmt: skip

    # --- memory -------------------------------------------------------------------------------------------------------

    def read(self, operand: Any) -> Any:
        """Return an array as cuDNN takes it: the operand's own, or a copy; None if there is none."""
        if operand is None:
            return None
        found = cupy.ascontiguousarray(array(operand).astype(self._dtype, copy=False))
        return found.copy() if found.data.ptr % ALIGNED_BYTES else found

    def written(self, operand: Any, shape: tuple[int, ...] | None = None) -> Any:
        """Return an array for cuDNN to write to, see `_put`; without an operand, new memory of a shape, if given."""
        if operand is None:
            return None if shape is None else cupy.empty(shape, self._dtype)
        found = array(operand)
        fits = found.dtype == self._dtype and found.flags.c_contiguous and found.data.ptr % ALIGNED_BYTES == 0
        return found if fits else cupy.empty(found.shape, self._dtype)

    def reserve(self, operand: Any, nbytes: int, *, read: bool = False) -> Any:
        """Return memory for cuDNN's reserve: in ours, or a copy if it may not begin there."""
        found = array(operand)[MARK_BYTES : MARK_BYTES + nbytes]
        if found.data.ptr % ALIGNED_BYTES == 0:
            return found
        return found.copy() if read else cupy.empty(nbytes, np.uint8)


def _put(operand: Any, values: Any) -> None:
    """Copy what cuDNN has written to the operand, unless it is there."""
    if operand is not None:
        _put_at(array(operand), values)


def _put_at(target: Any, values: Any) -> None:
    if target.data.ptr != values.data.ptr:
        target[...] = values.astype(target.dtype, copy=False)


def _at(values: Any) -> int | None:
    """Return where an array begins."""
    found: int | None = None if values is None else values.data.ptr
    return found


def _mark(request: Any) -> int:
    """Return the mark of a forward by cuDNN, which is that of backwards that fit it, as a word."""
    facts = "cuDNN", Rnn.of(request, request.x.shape[2]), request.x.shape, str(request.x.dtype), request.allow_tf32
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=WORD_BYTES).digest(), "little")


def _spelled(word: int) -> Any:
    """Return a word's bytes on the device, which makes them itself."""
    shifts = cupy.arange(0, 8 * WORD_BYTES, 8, np.uint64)
    return cupy.right_shift(np.uint64(word), shifts).astype(np.uint8)
