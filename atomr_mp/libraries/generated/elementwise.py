"""Requests of elementwise as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atomr_mp.libraries.base import LibraryReference, element_type
from atomr_mp.protocol.libraries import elementwise
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply


class ElementwiseRequests(LibraryReference):
    """Arithmetic, element by element, with NumPy's names and broadcasting.

    The arrays of a request have the same element type: nothing is promoted, so `cast` first. Shapes are broadcast as
    NumPy does; an array without dimensions stands for a number. Half precision is computed in float32, and rounded
    once; integers wrap around. An output may be an input itself, element for element.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "elementwise"

    def add(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x + y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Add(x=x, y=y, out=out), deadline_s)

    def subtract(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x - y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Subtract(x=x, y=y, out=out), deadline_s)

    def multiply(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x·y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Multiply(x=x, y=y, out=out), deadline_s)

    def divide(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x / y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Divide(x=x, y=y, out=out), deadline_s)

    def minimum(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute the smaller of x and y; a NaN if either is one.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Minimum(x=x, y=y, out=out), deadline_s)

    def maximum(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute the larger of x and y; a NaN if either is one.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Maximum(x=x, y=y, out=out), deadline_s)

    def equal(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x == y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Equal(x=x, y=y, out=out), deadline_s)

    def not_equal(
        self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None
    ) -> Reply:
        """Compute x != y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.NotEqual(x=x, y=y, out=out), deadline_s)

    def less(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x < y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Less(x=x, y=y, out=out), deadline_s)

    def less_equal(
        self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None
    ) -> Reply:
        """Compute x <= y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.LessEqual(x=x, y=y, out=out), deadline_s)

    def greater(self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute x > y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Greater(x=x, y=y, out=out), deadline_s)

    def greater_equal(
        self, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None
    ) -> Reply:
        """Compute x >= y.

        Args:
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of x and y, broadcast.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.GreaterEqual(x=x, y=y, out=out), deadline_s)

    def negative(self, x: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute -x.

        Args:
            x: Read; shape (*dims).
            out: Written; shape (*dims). May be x itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Negative(x=x, out=out), deadline_s)

    def sqrt(self, x: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute the square root of x; a NaN for a negative number.

        Args:
            x: Read; shape (*dims).
            out: Written; shape (*dims). May be x itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Sqrt(x=x, out=out), deadline_s)

    def absolute(self, x: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Compute |x|, a real number for a complex one.

        Args:
            x: Read; shape (*dims).
            out: Written; shape (*dims). May be x itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Absolute(x=x, out=out), deadline_s)

    def where(
        self, condition: Operand, x: Operand, y: Operand, out: Operand | None = None, *, deadline_s: float | None = None
    ) -> Reply:
        """Take elements of x where condition is true, else of y.

        Args:
            condition: Read; any shape.
            x: Read; any shape.
            y: Read; any shape.
            out: Written; the shape of condition, x and y, broadcast. May be x or y itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Where(condition=condition, x=x, y=y, out=out), deadline_s)

    def cast(
        self, x: Operand, out: Operand | None = None, *, dtype: DTypeLike, deadline_s: float | None = None
    ) -> Reply:
        """Convert elements to another type, as NumPy's `astype` does; of complex numbers the real part, but for bool.

        Args:
            x: Read; shape (*dims).
            out: Written; shape (*dims).
            dtype: The element type of the result.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.Cast(x=x, dtype=element_type(dtype), out=out), deadline_s)

    def copy(self, x: Operand, out: Operand | None = None, *, deadline_s: float | None = None) -> Reply:
        """Copy elements; strides may differ.

        Args:
            x: Read; shape (*dims).
            out: Written; shape (*dims). May be x itself.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(elementwise.ElementCopy(x=x, out=out), deadline_s)
