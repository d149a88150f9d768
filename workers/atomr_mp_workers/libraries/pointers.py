"""Puts the factors of a call into host memory, or on the device, for libraries that take their addresses.

Such a library reads either all factors of a call on the host, before it returns, or all of them on the device, when
the call's kernels run (its pointer mode). Where an array is given for one of them, numbers beside it are put into
memory of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp.protocol.declaration.factors import Factor, Scalar
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import address, array
from atomr_mp_workers.libraries.factors import FACTORS_KEPT, Factors
from atomr_mp_workers.libraries.holding import hold, holding

NUMBERS: Final = frozenset({int, float, tuple})


class Pointers:
    """Addresses of factors, for the time of a call: `with pointers as (alpha, beta)`.

    Args:
        addresses: Where they are.
        kept: What keeps them there until the call returns.
        set_mode: Has the library read factors on the device, or on the host again; None if they are on the host.
    """

    __slots__ = ("_addresses", "_kept", "_set_mode")

    def __init__(self, addresses: list[int], kept: object, set_mode: Callable[[bool], None] | None) -> None:
        self._addresses = addresses
        self._kept = kept
        self._set_mode = set_mode

    @property
    def on_device(self) -> bool:
        """Whether they are in memory of the device."""
        return self._set_mode is not None

    def __enter__(self) -> list[int]:
        if self._set_mode is not None:
            self._set_mode(True)
        return self._addresses

    def __exit__(self, *_raised: object) -> None:
        if self._set_mode is not None:
            self._set_mode(False)


class FactorPointers:
    """The factors of the calls of one library on one stream.

    Args:
        set_mode: Has the library read factors on the device from now on, or on the host again, as is usual.
    """

    def __init__(self, set_mode: Callable[[bool], None]) -> None:
        self._set_mode: Final = set_mode
        self._made: dict[tuple[str, Scalar], Any] = {}
        """Numbers in memory of the device, by type and value; filled on the stream, as later calls are."""

    def of(self, *pairs: tuple[Factors, Any]) -> Pointers:
        """Return where factors are.

        Args:
            pairs: Numbers of each factor's type in host memory, and the factor: a number, an operand, or an array that
                the caller has made of one.
        """
        for _, value in pairs:
            if type(value) not in NUMBERS:
                break
        else:
            found = [factors[value] for factors, value in pairs]
            return Pointers([at for at, _ in found], found, None)
        there = [self._there(factors.dtype, value) for factors, value in pairs]
        return Pointers([at for at, _ in there], there, self._set_mode)

    def _there(self, dtype: np.dtype[Any], value: Any) -> tuple[int, Any]:
        """Return where a factor is on the device, and what keeps it there."""
        if isinstance(value, Operand):
            return address(value), value
        if type(value) in NUMBERS:
            value = self._filled(dtype, value)
        return value.data.ptr, value

    def _filled(self, dtype: np.dtype[Any], value: Scalar) -> Any:
        """Return a number in memory of the device. It is kept, unless a graph is recorded: only that would fill it."""
        key = dtype.name, value
        made = self._made.get(key)
        if made is None:
            made = cupy.full((), scalar(value), dtype)
            if holding() is None:
                if len(self._made) >= FACTORS_KEPT:
                    self._made.clear()
                self._made[key] = made
        hold(made)
        return made


def on_device(factor: Operand) -> Any:
    """Return an array in place of a factor, without dimensions, to compute with."""
    return array(factor).reshape(())


def is_array(factor: Factor) -> bool:
    """Return whether a factor is on the device."""
    return type(factor) not in NUMBERS
