"""An actor that calls libraries itself: in `setup`, on the loop, and on its thread."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from atomr_mp_workers import Actor, Context, DeviceArray, method

N = 16


class Calculating(Actor):
    """Keeps a matrix that every caller's is multiplied by."""

    def setup(self, context: Context) -> None:
        """Compute on the device already, and record a program."""
        self._context, self._libraries = context, context.libraries
        generator = context.libraries.rng.generator(seed=4)
        draft = generator.uniform(size=(N, N), dtype="float64")
        self._half = context.keep(np.float64(0.5))
        self._weights = self._libraries.elementwise.multiply(draft, self._half)
        with context.libraries.program() as self._program:
            x = self._program.input("x", (N, N), "float64")
            product = self._program.blas.gemm(x, self._weights)
            self._program.returns(self._program.elementwise.maximum(product, self._half))

    @method
    def weights(self) -> DeviceArray:
        """Return the matrix itself."""
        array: DeviceArray = self._weights
        return array

    @method
    def product(self, x: DeviceArray) -> DeviceArray:
        """Multiply on the loop; the result is the caller's."""
        made: DeviceArray = self._libraries.blas.gemm(x, self._weights)
        return made

    @method(thread=True)
    def product_on_thread(self, x: DeviceArray) -> list[Any]:
        """Multiply on the actor's thread; return its name and the product."""
        return [threading.current_thread().name, self._libraries.blas.gemm(x, self._weights)]

    @method(thread=True)
    def run_on_thread(self, x: DeviceArray) -> DeviceArray:
        """Run the program on the actor's thread, which has plans of its own."""
        made: DeviceArray = self._program.run(x=x)
        return made

    @method(thread=True)
    def numbers(self, x: DeviceArray) -> list[Any]:
        """Bring a product to the host: all of it, every other row transposed, nothing, one element."""
        product = self._libraries.blas.gemm(x, self._weights)
        found = [product.numpy(), product[::-2].T.numpy(), product[:0].numpy(), product[2, 3].numpy()]
        assert all(type(each) is np.ndarray and each.flags.writeable and each.flags.c_contiguous for each in found)
        found[0] += 1.0
        return [*found, product.numpy()]

    @method
    def run(self, x: DeviceArray) -> DeviceArray:
        """Run the program."""
        made: DeviceArray = self._program.run(x=x)
        return made

    @method(writes=["x"])
    def scale(self, x: DeviceArray, alpha: float) -> None:
        """Write an argument."""
        self._libraries.blas.scal(x[0], alpha=alpha)

    @method
    def spoil(self, x: DeviceArray) -> None:
        """Try to write a read-only argument."""
        self._libraries.blas.scal(x[0], alpha=0.0)

    @method
    def norm(self, x: DeviceArray) -> float:
        """Return a number, for which the caller waits for the device."""
        number: float = self._libraries.blas.nrm2(x[0])
        return number

    @method
    def choose(self, weights: DeviceArray) -> DeviceArray:
        """Fail because of the data."""
        made: DeviceArray = self._libraries.rng.generator(seed=1).choice(weights, size=4)
        return made

    @method
    def imported(self) -> list[str]:
        """Return the imported modules of the runtime that only applications need."""
        return [name for name in ("atomr_mp.client", "atomr_mp.pool", "atomr_mp.device") if name in sys.modules]
