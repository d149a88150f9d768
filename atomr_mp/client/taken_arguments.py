"""Arguments of a request that may be made later: taken at the call, so that the caller may write to them at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from atomr_mp.protocol import values
from atomr_mp.protocol.refs import ClientArray, WireRef

GivenArguments = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
"""Returns a request's arguments, by position and by name."""


def kept(args: tuple[Any, ...], kwargs: dict[str, Any]) -> GivenArguments:
    """Return a function that gives a request's arguments as they are now. They are copied only if need be.

    Raises:
        InvalidRequest: They cannot be sent.
    """
    if all(type(each) in _FIXED for each in (*args, *kwargs.values())):
        fixed = dict(kwargs)
        return lambda: (args, fixed)
    return TakenArguments(args, kwargs).given


_FIXED: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Types whose values never change."""


class TakenArguments:
    """A copy of a request's arguments, as they were at the call.

    Args:
        args: Those by position.
        kwargs: Those by name.

    Raises:
        InvalidRequest: They cannot be sent.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._large: Final[list[Any]] = []
        self._encoded: Final = [values.encode(each, self._copy) for each in (args, kwargs)]

    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, by position and by name. Arrays cannot be written to."""
        decoder = values.Decoder[Any](writable=False)
        args, kwargs = (decoder.decode(body, payload, self._resolve) for body, payload, _ in self._encoded)
        return tuple(args), kwargs

    def _copy(self, array: Any) -> _LargeArray | None:
        """Copy an array that is too large to lie in the body; None for one of a device, which NumPy cannot read."""
        numpy = sys.modules["numpy"]  # whoever holds an array has imported it
        if not isinstance(array, numpy.ndarray):
            return None
        self._large.append(numpy.array(array))
        return _LargeArray(len(self._large) - 1)

    def _resolve(self, wire: WireRef | ClientArray) -> object:
        if isinstance(wire, ClientArray):
            return self._large[wire.id]
        return next(ref for _, _, placed in self._encoded for ref in placed if ref.to_wire() == wire)


class _LargeArray(NamedTuple):
    """The copy of a large array, named as one in shared memory is."""

    number: int

    def to_wire(self) -> ClientArray:
        """Return its name."""
        return ClientArray(self.number, 0, "uint8", (0,), 0)
