"""Tensor maps as the driver encodes them, at the addresses that their arrays have in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.libraries import tensor_maps
from atomr_mp.protocol.libraries.tensor_maps import TensorMapOf
from atomr_mp_workers.memory.arrays import DeviceArray

SINCE: Final = 90
"""Compute capability of the first devices with tensor maps, times ten."""

_NAME: Final = b"cuTensorMapEncodeTiled"
_VERSION: Final = 12000
"""The version of CUDA whose form of the function is called."""

_DEVICE: Final = 2
"""CU_MEMORYTYPE_DEVICE."""
_ALIGNED_BYTES: Final = 128
"""More than the driver asks for; what CUDA 13's headers align maps to."""

_LONGS: Final = ctypes.POINTER(ctypes.c_uint64)
_INTS: Final = ctypes.POINTER(ctypes.c_uint32)
_FUNCTION: Final = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    _LONGS,
    _LONGS,
    _INTS,
    _INTS,
    *[ctypes.c_int] * 4,
)


class MapEncoder:
    """Encodes tensor maps.

    The driver's function is called by its address: the form that cuda-bindings gives it has written the map to memory
    that is not aligned, which can end the process (cuda-python's pull request 1692).

    Args:
        driver: The bindings of the driver.
        checked: Returns the results of a driver's call, or raises its error.
    """

    def __init__(self, driver: Any, checked: Any) -> None:
        self._driver: Final = driver
        address, _ = checked(driver.cuGetProcAddress(_NAME, _VERSION, 0))
        if not address:
            raise errors.Unsupported("the driver of this device has no tensor maps: they came with CUDA 12")
        self._function: Final = _FUNCTION(int(address))

    def encoded(self, array: DeviceArray, form: TensorMapOf) -> bytes:
        """Return a map of an array, which `check_map` has accepted. Waits for nothing.

        Raises:
            InvalidRequest: The driver refuses it, or its memory is none of the device's.
        """
        self._check_address(array.address, form)
        given = tensor_maps.encoding(array.layout, form)
        room = ctypes.create_string_buffer(tensor_maps.BYTES + _ALIGNED_BYTES)
        place = -(-ctypes.addressof(room) // _ALIGNED_BYTES) * _ALIGNED_BYTES
        status = self._function(
            place,
            given.data_type,
            len(given.lengths),
            array.address,
            _array(ctypes.c_uint64, given.lengths),
            _array(ctypes.c_uint64, given.strides),
            _array(ctypes.c_uint32, given.box),
            _array(ctypes.c_uint32, given.element_strides),
            given.interleave,
            given.swizzle,
            given.l2_promotion,
            given.oob_fill,
        )
        if status:
            raise errors.InvalidRequest(f"the driver refuses it with status {status}: {form}")
        return ctypes.string_at(place, tensor_maps.BYTES)

    def _check_address(self, address: int, form: TensorMapOf) -> None:
        """Check what the driver does not: a map of other memory ends the context when a kernel uses it."""
        unit = tensor_maps.unit_of(form.interleave)
        if address % unit:
            raise errors.InvalidRequest(f"its array lies at {address:#x}, which is no multiple of {unit}: copy it")
        attribute = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        status, kind = self._driver.cuPointerGetAttribute(attribute, address) if address else (1, 0)
        if int(status) or int(kind) != _DEVICE:
            raise errors.InvalidRequest(
                f"its array lies at {address:#x}, which is no memory of the device: copy it there"
            )


def _array(kind: Any, values: Sequence[int]) -> Any:
    """Return numbers as an array of C, with one more so that it has an address without any."""
    return (kind * (len(values) + 1))(*values)
