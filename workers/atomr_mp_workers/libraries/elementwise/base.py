"""Elementwise arithmetic on every backend: NumPy's functions, or CuPy's of the same names."""

from __future__ import annotations

from typing import Any

from atomr_mp.protocol.libraries import elementwise
from atomr_mp.protocol.libraries.base import HALF
from atomr_mp_workers.libraries.base import Library, array


class ElementwiseLibrary(Library):
    """Arithmetic on arrays of one module.

    A request's function has the request's name in the module.
    """

    module: Any
    """NumPy or CuPy."""

    def _two(self, request: Any) -> None:
        self._do(request, array(request.x), array(request.y))

    def _one(self, request: Any) -> None:
        self._do(request, array(request.x))

    add = subtract = multiply = divide = minimum = maximum = _two
    equal = not_equal = less = less_equal = greater = greater_equal = _two
    negative = sqrt = absolute = _one

    def where(self, request: elementwise.Where) -> None:
        """Take elements of x where condition is true, else of y."""
        array(request.out)[...] = self.module.where(array(request.condition), array(request.x), array(request.y))

    def cast(self, request: elementwise.Cast) -> None:
        """Convert elements to another type."""
        x, out = array(request.x), array(request.out)
        if x.dtype.kind == "c" and out.dtype.kind not in "cb":
            x = x.real
        out[...] = x.astype(out.dtype)

    def copy(self, request: elementwise.ElementCopy) -> None:
        """Copy elements."""
        array(request.out)[...] = array(request.x)

    def _do(self, request: Any, *arrays: Any) -> None:
        out, function = array(request.out), getattr(self.module, request.name)
        if request.x.dtype in HALF:  # rounded once, even where the type has no arithmetic of its own
            out[...] = function(*(each.astype("float32") for each in arrays))
        else:
            function(*arrays, out=out)
