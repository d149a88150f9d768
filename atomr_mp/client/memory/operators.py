"""The operators of refs: each is a declared request of a library that is sent at once, and its answer waited for.

Nothing is computed in this process, and nothing is promoted: what no request does is an error that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, Self

from atomr_mp import errors
from atomr_mp.client.callers import calling_loop
from atomr_mp.client.memory.operands import (
    is_any,
    is_number,
    is_of_numpy,
    no_function,
    no_operand,
    number_as,
    refuse_in_loop,
    request_of,
    shown,
)
from atomr_mp.client.memory.ref_memory import BufferRef
from atomr_mp.protocol.declaration.arguments import arrays_of
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import Operand

REFLECTED: Final = {
    "add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
    "equal": "__eq__", "not_equal": "__ne__",
    "less": "__gt__", "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__",
}  # fmt: skip
"""The operator of a ref that is meant where a number of NumPy's stands on the left of it, by NumPy's function."""


def _missing(symbol: str) -> Callable[..., NoReturn]:
    """Return an operator that no library has a request for."""

    def refuse(_ref: object, *_others: object) -> NoReturn:
        raise errors.Unsupported(
            f"no library has a request for `{symbol}` of refs: compute it in an actor's method, or on a copy, "
            "`ref.numpy()`"
        )

    return refuse


class ArrayOperators(BufferRef):
    """The operators of a ref.

    The other operand is a ref on the same device with the same element type, or a number that this type can hold. Each
    operator waits for its answer, and raises its error; in a running event loop it is refused.
    """

    # --- arithmetic ------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Self:
        return self._with(other, "+", "add")

    def __radd__(self, other: Any) -> Self:
        return self._with(other, "+", "add", swapped=True)

    def __iadd__(self, other: Any) -> Self:
        return self._with(other, "+=", "add", in_place=True)

    def __sub__(self, other: Any) -> Self:
        return self._with(other, "-", "subtract")

    def __rsub__(self, other: Any) -> Self:
        return self._with(other, "-", "subtract", swapped=True)

    def __isub__(self, other: Any) -> Self:
        return self._with(other, "-=", "subtract", in_place=True)

    def __mul__(self, other: Any) -> Self:
        return self._with(other, "*", "multiply")

    def __rmul__(self, other: Any) -> Self:
        return self._with(other, "*", "multiply", swapped=True)

    def __imul__(self, other: Any) -> Self:
        return self._with(other, "*=", "multiply", in_place=True)

    def __truediv__(self, other: Any) -> Self:
        return self._with(other, "/", "divide")

    def __rtruediv__(self, other: Any) -> Self:
        return self._with(other, "/", "divide", swapped=True)

    def __itruediv__(self, other: Any) -> Self:
        return self._with(other, "/=", "divide", in_place=True)

    def __matmul__(self, other: Any) -> Self:
        if not isinstance(other, ArrayOperators):
            raise errors.GpuRefNoValue(no_operand("@", other))
        self._check_beside(other, "@")
        self.defined("@", "tensor", "einstein_sum")
        from atomr_mp.client.memory import products

        library, request, shape = products.product(self, other)
        made = self.answered("@", request, library, "blas.gemm", "tensor.einsum")
        return made.of_layout(made.layout.reshaped(shape))

    def __rmatmul__(self, other: Any) -> NoReturn:
        raise errors.GpuRefNoValue(no_operand("@", other))

    def __neg__(self) -> Self:
        return self._alone("-", "negative")

    def __pos__(self) -> Self:
        return self._alone("+", "copy")

    def __abs__(self) -> Self:
        return self._alone("abs()", "absolute")

    __pow__ = __rpow__ = __ipow__ = _missing("**")
    __mod__ = __rmod__ = __imod__ = _missing("%")
    __floordiv__ = __rfloordiv__ = __ifloordiv__ = _missing("//")
    __divmod__ = __rdivmod__ = _missing("divmod()")
    __and__ = __rand__ = __iand__ = _missing("&")
    __or__ = __ror__ = __ior__ = _missing("|")
    __xor__ = __rxor__ = __ixor__ = _missing("^")
    __lshift__ = __rlshift__ = __ilshift__ = _missing("<<")
    __rshift__ = __rrshift__ = __irshift__ = _missing(">>")
    __invert__ = _missing("~")
    __imatmul__ = _missing("@=")

    # --- comparisons -----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return NotImplemented if is_any(other) else self._with(other, "==", "equal")

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return NotImplemented if is_any(other) else self._with(other, "!=", "not_equal")

    __hash__ = Operand.__hash__

    def __lt__(self, other: Any) -> Self:
        return self._with(other, "<", "less")

    def __le__(self, other: Any) -> Self:
        return self._with(other, "<=", "less_equal")

    def __gt__(self, other: Any) -> Self:
        return self._with(other, ">", "greater")

    def __ge__(self, other: Any) -> Self:
        return self._with(other, ">=", "greater_equal")

    # --- what looks for values in this process ---------------------------------------------------------------------

    def __bool__(self) -> bool:
        if self.size != 1:
            raise errors.GpuRefNoValue(
                f"a ref of {self.size} elements is neither true nor false: ask `ref is not None`, or read it: "
                "`ref.numpy()`"
            )
        self.refuse_in_loop("bool()")
        return bool(self.item())

    def __contains__(self, value: object) -> NoReturn:
        raise errors.GpuRefNoValue(f"whether a ref has {shown(value)} cannot be asked here: `value in ref.numpy()`")

    def _no_number(self) -> NoReturn:
        raise errors.GpuRefNoValue("a ref is no number of this process: `ref.item()` reads its one element")

    __float__ = __int__ = __complex__ = _no_number

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # NumPy asks here also for its numbers on the left of an operator. None instead of this method would leave such
        # operators to the ref, and the rest to an error of NumPy's that says nothing.
        reflected = REFLECTED.get(ufunc.__name__)
        if reflected and method == "__call__" and not options and inputs[1] is self and is_of_numpy(inputs[0]):
            return getattr(self, reflected)(inputs[0])
        raise errors.GpuRefNoValue(no_function(ufunc))

    def __array_function__(self, function: Any, _types: Any, _arguments: Any, _options: Any) -> NoReturn:
        raise errors.GpuRefNoValue(no_function(function))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _with(self, other: Any, symbol: str, name: str, *, swapped: bool = False, in_place: bool = False) -> Self:
        """Send a request of `elementwise` on this and another operand, and return its result, or this if in place."""
        request = self.defined(symbol, "elementwise", name)
        operand = self._operand(other, symbol, f"elementwise.{name}")
        if in_place and operand.memory == self.memory and self.layout.has_elements_of(operand.layout):
            operand = self
        x, y = (operand, self) if swapped else (self, operand)
        out = self if in_place else None
        made = self.answered(symbol, request(x=x, y=y, out=out), "elementwise", f"elementwise.{name}")
        return self if in_place else made

    def _alone(self, symbol: str, name: str, **parameters: Any) -> Self:
        """Send a request of `elementwise` on this operand alone, and return its result."""
        request = self.defined(symbol, "elementwise", name)
        return self.answered(symbol, request(x=self, **parameters), "elementwise", f"elementwise.{name}")

    def answered(self, what: str, request: LibraryRequest, library: str, *instead: str) -> Self:
        """Send a request of a library, and return its result; in a running event loop check it, and refuse to wait.

        Args:
            what: The operator or method, for the error's message.
            request: The request.
            library: The library.
            instead: Requests that can be awaited in its place, see `refuse_in_loop`.
        """
        if calling_loop() is not None:  # of two mistakes the one is told that is left when the other has been mended
            for _, _, operand in arrays_of(request):
                if operand is not None:
                    operand.to_wire()
            request.check()
            refuse_in_loop(what, *instead)
        made: Self = self._buffers.request(request, self.device, library=library)
        return made

    def refuse_in_loop(self, what: str, *instead: str) -> None:
        """Refuse to wait in a running event loop for what has been checked, unless the ref itself cannot be used.

        Raises:
            GpuRefInEventLoop: An event loop runs in this thread.
        """
        if calling_loop() is not None:
            self.to_wire()
            refuse_in_loop(what, *instead)

    def defined(self, symbol: str, library: str, name: str) -> Callable[..., LibraryRequest]:
        """Return a request that is defined for these elements.

        Raises:
            InvalidRequest: It is not.
        """
        found = request_of(library, name)
        if self.dtype not in found.types["T"]:
            raise errors.InvalidRequest(
                f"{symbol} of {self.dtype} is not defined, only of {', '.join(found.types['T'])}: nothing is promoted; "
                "`ref.astype(…)` converts"
            )
        return found

    def _operand(self, other: Any, symbol: str, instead: str) -> Operand:
        """Return an operand for a value: a ref as it is, for a number a ref to it, which a request makes.

        Raises:
            InvalidRequest: The value is neither, or its type is another.
            GpuRefWrongDevice: The ref is on another device.
            GpuRefInEventLoop: It is a number, and an event loop runs in this thread.
        """
        if isinstance(other, ArrayOperators):
            self._check_beside(other, symbol)
            return other
        if not is_number(other):
            raise errors.GpuRefNoValue(no_operand(symbol, other))
        number = number_as(self.layout.dtype, other, symbol)
        self.refuse_in_loop(symbol, instead)
        made: Operand = self._buffers.request(memory.Full([], self.layout.dtype, number), self.device)
        return made

    def _check_beside(self, other: ArrayOperators, symbol: str) -> None:
        """Check that another ref has the same element type, and lies on the same device.

        Raises:
            InvalidRequest: It has another element type.
            GpuRefWrongDevice: It is on another device.
        """
        if other.is_of(self._buffers) and other.device != self.device:
            raise errors.GpuRefWrongDevice(
                f"{symbol} of refs on device {self.device} and on device {other.device}: copy one, "
                "`ref.copy_to(pool.device(…).empty(ref.shape, ref.dtype))`",
                device=other.device,
            )
        if other.dtype != self.dtype:
            raise errors.InvalidRequest(
                f"{symbol} of {self.dtype} and {other.dtype}: nothing is promoted; `ref.astype(…)` converts"
            )
