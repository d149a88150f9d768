"""The memory library on the host backend, with NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.arrays import DeviceArray
from atomr_mp_workers.libraries.memory.base import Memory


class HostMemory(Memory):
    """Elements are NumPy's."""

    def copy(self, request: memory.Copy) -> None:
        """Copy elements, whatever their strides."""
        assert isinstance(request.source, DeviceArray)
        assert isinstance(request.target, DeviceArray)
        np.copyto(request.target.array, request.source.array)

    def _fill(self, array: Any, value: Any) -> None:
        assert isinstance(array, DeviceArray)
        number = scalar(value)
        if type(number) is complex and not array.dtype.startswith("complex"):
            raise errors.InvalidRequest(f"an array of {array.dtype} cannot hold {number}")
        if array.dtype.startswith(("int", "uint")):
            number = _integer(array.dtype, number)
        array.array[...] = number


def _integer(dtype: str, number: complex) -> int:
    limits = np.iinfo(dtype)
    whole = int(number.real)
    if number != whole or not limits.min <= whole <= limits.max:
        raise errors.InvalidRequest(f"an array of {dtype} cannot hold {number}")
    return whole


Implementation: Final = HostMemory
