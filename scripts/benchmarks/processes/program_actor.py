"""An actor that does by itself what a program is measured with: products of small matrices, each of the one before."""

from __future__ import annotations

from atomr_mp_workers import Actor, Context, DeviceArray, method


class Chain(Actor):
    """Multiplies in one method, with NumPy or CuPy alone, or with the libraries."""

    def setup(self, context: Context) -> None:
        """Take the memory for the products, as large as the first request wants it."""
        self._context = context
        self._arrays: list[DeviceArray] = []

    @method(writes=["out"])
    def directly(self, a: DeviceArray, x: DeviceArray, out: DeviceArray, steps: int) -> None:
        """Multiply with the array module's own product; the last one is written to `out`."""
        matrix, last = a.array, x.array
        for each in [*self._between(x, steps - 1), out]:
            target = each.array
            matrix.dot(last, out=target)
            last = target

    @method
    def directly_to_new(self, a: DeviceArray, x: DeviceArray, steps: int) -> DeviceArray:
        """Multiply with the array module's own product; the last one is returned, in new memory."""
        out = self._context.empty(x.shape, x.dtype)
        self.directly(a, x, out, steps)
        return out

    @method(writes=["out"])
    def by_libraries(self, a: DeviceArray, x: DeviceArray, out: DeviceArray, steps: int) -> None:
        """Multiply with `context.libraries`."""
        gemm, last = self._context.libraries.blas.gemm, x
        for each in [*self._between(x, steps - 1), out]:
            gemm(a, last, each)
            last = each

    @method
    def nothing(self) -> None:
        """Return."""

    def _between(self, x: DeviceArray, count: int) -> list[DeviceArray]:
        """Return memory for the products that are dropped."""
        if len(self._arrays) != count:
            self._arrays = [self._context.empty(x.shape, x.dtype) for _ in range(count)]
        return self._arrays
