"""Tensor maps among the arguments of launches, as `DeviceKernels.tensor_map` makes them. Pure."""

from __future__ import annotations

from typing import Any, Final

from atomr_mp.protocol.libraries.tensor_maps import TensorMapOf


class TensorMap:
    """A tensor map: an argument of a launch, by which its kernel has boxes of an array copied.

    It may be used for many launches. The map is encoded for each, at the address that the array has then.

    Args:
        array: The array.
        form: What the map says of it, without its number.
    """

    def __init__(self, array: Any, form: TensorMapOf) -> None:
        self.array: Final = array
        self.form: Final = form

    def __repr__(self) -> str:
        return f"<TensorMap of {self.array!r} with boxes of {self.form.box}>"
