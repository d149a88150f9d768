"""Random numbers on the CUDA backend: cuRAND's words, and kernels that make numbers from them.

cuRAND makes words only, so that each number takes a fixed share of words: every law can begin anywhere, with any count.
If the output has no gaps, its words are made in its own memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import cupy
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.libraries import rng
from atomr_mp_workers.libraries.base import Library, LibraryContext, array
from atomr_mp_workers.libraries.rng import kernels, laws
from atomr_mp_workers.libraries.rng.generators import Generators
from atomr_mp_workers.libraries.slots import Slots
from atomr_mp_workers.requests.request import Later

if TYPE_CHECKING:
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.device.cuda_streams import CudaStream

ALIGNED_BYTES: Final = 16
"""Alignment of the addresses that cuRAND may write at."""


class CudaRng(Library):
    """Random numbers in device memory."""

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._generators: Generators | None = None
        self._slots: Final = Slots()

    def open(self) -> None:
        """Load cuRAND, and make a generator of the usual kind."""
        self._of_stream().make_spare(rng.Source().kind)

    def bits(self, request: rng.Bits) -> None:
        """Draw whole numbers whose every bit is random."""
        out = array(request.out)
        word = self._words(request, out, out.dtype.itemsize)
        if word.data.ptr != out.data.ptr:
            out[...] = word

    def uniform(self, request: rng.Uniform) -> None:
        """Draw from the uniform law."""
        self._draw(kernels.UNIFORM, request, request.low, request.high - request.low)

    def normal(self, request: rng.Normal) -> None:
        """Draw from the normal law."""
        self._draw(kernels.NORMAL, request, request.loc, request.scale)

    def lognormal(self, request: rng.Lognormal) -> None:
        """Draw numbers whose logarithm follows the normal law."""
        self._draw(kernels.LOGNORMAL, request, request.mean, request.sigma)

    def exponential(self, request: rng.Exponential) -> None:
        """Draw from the exponential law."""
        self._draw(kernels.EXPONENTIAL, request, 0.0, request.scale)

    def cauchy(self, request: rng.Cauchy) -> None:
        """Draw from Cauchy's law."""
        self._draw(kernels.CAUCHY, request, request.loc, request.scale)

    def prepare_poisson(self, request: rng.Poisson) -> _Table:
        """Return the table of the law."""
        return _Table(*laws.poisson_table(request.lam))

    def poisson(self, request: rng.Poisson, plan: _Table) -> None:
        """Draw counts from Poisson's law."""
        out = array(request.out)
        if out.size:
            out[...] = plan.low + cupy.searchsorted(plan.on_device(), self._units(request, out))

    def choice(self, request: rng.Choice) -> Later:
        """Draw indices by weight."""
        out, p = array(request.out), array(request.p).astype(np.float64)
        table = cupy.cumsum(p)
        if out.size:
            out[...] = cupy.searchsorted(table, self._units(request, out) * table[-1])
        right = (p >= 0).all() & (table[-1] > 0) & cupy.isfinite(table[-1])
        return self._verdict(right)

    def gamma(self, request: rng.Gamma) -> None:
        """Draw from the gamma law."""
        self._reject(kernels.GAMMA, request, request.shape, request.scale)

    def beta(self, request: rng.Beta) -> None:
        """Draw from the beta law."""
        self._reject(kernels.BETA, request, request.a, request.b)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _draw(self, kernel: Any, request: Any, a: float, b: float) -> None:
        """Make numbers from one word each."""
        out = array(request.out)
        if out.size:
            kernel(self._words(request, out, out.dtype.itemsize), a, b, out)

    def _units(self, request: Any, out: Any) -> Any:
        """Return uniform numbers in double precision, in the shape of the output."""
        units = cupy.empty(out.shape)
        return kernels.UNIFORM(self._words(request, units, 8), 0.0, 1.0, units)

    @staticmethod
    def _reject(kernel: Any, request: Any, a: float, b: float) -> None:
        """Make numbers by rejection, each from its position."""
        out, source = array(request.out), request.source
        if not out.size:
            return
        made = out if out.flags.c_contiguous else cupy.empty(out.shape, out.dtype)
        kernel(a, b, np.uint64(source.seed), np.uint64(source.offset), made)
        if made is not out:
            out[...] = made

    def _verdict(self, right: Any) -> Later:
        """Return a `Later` that raises if the device has found the weights invalid."""
        slot = self._slots.take()
        right.astype(np.uint64).get(out=slot.memory[:8].view(np.uint64).reshape(()), blocking=False)

        def read() -> None:
            if not self._slots.read(slot, np.dtype(np.uint64)):
                raise errors.NumericalError(rng.BAD_WEIGHTS, undefined="out")

        return Later(read)

    # --- words --------------------------------------------------------------------------------------------------------

    def _words(self, request: Any, out: Any, item_bytes: int) -> Any:
        """Return a word of 32 or 64 bits for each element of an array, in the array's memory if possible."""
        source: rng.Source = request.source
        dtype = np.dtype(f"u{item_bytes}")
        if not out.size:
            return cupy.empty(out.shape, dtype)
        if source.is_quasi:
            return self._points(request, out.shape, dtype)
        fits = out.dtype.itemsize == item_bytes and out.flags.c_contiguous and out.data.ptr % ALIGNED_BYTES == 0
        words = out.view(dtype) if fits else cupy.empty(out.shape, dtype)
        self._make(request, words.data.ptr, out.size * item_bytes // 4)
        return words

    def _points(self, request: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return quasi-random points: cuRAND makes the first coordinate of all points, then the next."""
        source: rng.Source = request.source
        made = cupy.empty((source.dimensions, rng.taken(request)), np.dtype(f"u{source.word_bits // 8}"))
        self._make(request, made.data.ptr, made.size)
        word = made.T.reshape(shape)
        if dtype.itemsize < made.itemsize:
            word = word >> np.uint64(32)
        elif dtype.itemsize > made.itemsize:
            word = word.astype(dtype) << np.uint64(32) | np.uint64(2**31)
        return word.astype(dtype, copy=False)

    def _make(self, request: Any, address: int, count: int) -> None:
        self._of_stream().generate(request.source, address, count, rng.taken(request))

    def _of_stream(self) -> Generators:
        if self._generators is None:
            self._generators = Generators(cast("CudaStream", self.stream).stream.ptr)
        return self._generators


class _Table:
    """The table of a law.

    Args:
        low: The smallest count.
        table: The probabilities.
    """

    def __init__(self, low: int, table: Any) -> None:
        self.low: Final = low
        self._table = table
        self._copy: Any = None

    def on_device(self) -> Any:
        """Return the probabilities on the device, where they stay from the first use on."""
        if self._copy is None:
            self._copy = cupy.asarray(self._table)
        return self._copy


Implementation: Final = CudaRng
