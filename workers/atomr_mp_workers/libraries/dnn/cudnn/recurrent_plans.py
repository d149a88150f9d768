"""Plans of recurrent networks that cuDNN's classic calls run.

cuDNN takes row-major arrays, all of one type. Others are copied to such ones, half precision to float32: cuDNN would
round its states at each step. So nothing but sizes and options decides whether it serves a network, and a backward
finds the reserve of a forward that cuDNN has run too.

It does not serve sequences of different lengths: from cuDNN 8.9.1 on it wants to know lengths on the host, and ignores
those on the device. Nor dropout between layers, for which it draws other random bits.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import GATES, MARK_BYTES, Rnn
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.libraries.dnn.cudnn.classic import TYPES, ClassicHandle, CudnnDescriptor
from atomr_mp_workers.libraries.dnn.engine import Enqueue
from atomr_mp_workers.libraries.dnn.verdicts import Verdicts

ALIGNED_BYTES: Final = 16
"""Arrays begin at multiples of this: kernels read so much at a time."""

WORD_BYTES: Final = 8
"""Bytes of a mark."""

MOST_STEPS: Final = 65535
"""cuDNN takes no more."""

CELLS: Final = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}
STANDARD, TWO_BIASES, LINEAR, PADDED = 0, 2, 0, 1
DEFAULT_MATH, PLAIN_MATH = 0, 3
"""cudnnMathType_t: with tensor cores as cuDNN likes, which makes tf32 of float32; and without."""
ADDED: Final = 0
"""cudnnWgradMode_t: gradients by weights are added to what is there."""


def forward_plan(cudnn: ClassicHandle, library: Library, request: dnn.RnnForward) -> Enqueue | None:
    """Return the function that runs networks like this one."""
    if not _serves(request):
        return None
    network = _Network(cudnn, library, request)
    if not network.has_our_weights() or (request.save_reserve and not network.fits(request.reserve)):
        return None
    training = request.save_reserve
    work_bytes, reserve_bytes = network.spaces(training=training)
    library.workspace(work_bytes)
    word = _mark(request)

    def forward(request: Any) -> None:
        x, weights, h0, c0 = map(network.read, (request.x, request.weights, request.h0, request.c0))
        out, hn, cn = map(network.written, (request.out, request.hn, request.cn))
        reserve = network.reserve(request.reserve, reserve_bytes) if training else None
        cudnn.call(
            "RNNForward", cudnn, network.desc, training, None, network.x, _at(x), network.y, _at(out),
            network.state, _at(h0), _at(hn), network.state, _at(c0), _at(cn), network.weight_bytes, _at(weights),
            work_bytes, library.workspace(work_bytes).address, reserve_bytes, _at(reserve),
        )  # fmt: skip
        for operand, values in ((request.out, out), (request.hn, hn), (request.cn, cn)):
            _put(operand, values)
        if training:
            whole = array(request.reserve)
            _put_at(whole[MARK_BYTES : MARK_BYTES + reserve_bytes], reserve)
            whole[:WORD_BYTES] = _spelled(word)

    return forward


def backward_plan(cudnn: ClassicHandle, library: Library, request: dnn.RnnBackward) -> Enqueue | None:
    """Return the function that computes gradients of networks like this one; NaNs without its reserve."""
    if not _serves(request):
        return None
    network = _Network(cudnn, library, request)
    if not network.has_our_weights() or not network.fits(request.reserve):
        return None
    work_bytes, reserve_bytes = network.spaces(training=True)
    library.workspace(work_bytes)
    word, verdicts = _mark(request), Verdicts()

    def backward(request: Any) -> Any:
        mark = array(request.reserve)[:WORD_BYTES]
        right = (mark == _spelled(word)).all()
        verdict = verdicts.demand(right, request.undefined)
        mark[...] = cupy.where(right, mark.dtype.type(0), mark)
        x, weights, y, dy = map(network.read, (request.x, request.weights, request.y, request.dy))
        h0, c0, dhn, dcn = map(network.read, (request.h0, request.c0, request.dhn, request.dcn))
        dx, dweights = network.written(request.dx, x.shape), network.written(request.dweights, weights.shape)
        dh0, dc0 = network.written(request.dh0), network.written(request.dc0)
        reserve, work = network.reserve(request.reserve, reserve_bytes, read=True), library.workspace(work_bytes)
        memory = work_bytes, work.address, reserve_bytes, _at(reserve)
        cudnn.call(
            "RNNBackwardData_v8", cudnn, network.desc, None, network.y, _at(y), _at(dy), network.x, _at(dx),
            network.state, _at(h0), _at(dhn), _at(dh0), network.state, _at(c0), _at(dcn), _at(dc0),
            network.weight_bytes, _at(weights), *memory,
        )  # fmt: skip
        nothing = cupy.where(right, 0.0, math.nan).astype(dweights.dtype)
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
    return request.lengths is None and not drops and request.x.shape[0] <= MOST_STEPS


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

    def spaces(self, *, training: bool) -> tuple[int, int]:
        """Return how many bytes of workspace and of reserve it takes."""
        work, reserve = self._cudnn.spaces(self.desc, self.x, training=training)
        return work, reserve if training else 0

    def fits(self, reserve: Any) -> bool:
        """Return whether there is room for cuDNN's reserve in ours, behind the mark."""
        return MARK_BYTES + self.spaces(training=True)[1] <= int(reserve.nbytes)

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
