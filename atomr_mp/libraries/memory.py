"""`device.memory`: fills and copies the memory of refs, by requests that need not be waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from atomr_mp.libraries.base import LibraryReference
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import to_scalar
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class Memory(LibraryReference):
    """Requests on existing buffers. They run in order with all other requests that use the same buffers."""

    library: ClassVar[str] = "memory"

    def fill(self, array: Operand, value: complex, *, deadline_s: float | None = None) -> Reply:
        """Write one value into every element of `array`.

        Raises:
            InvalidRequest: The element type cannot hold the value.
        """
        number: Scalar = to_scalar(value)
        if isinstance(array, Operand):  # else the request says what it must be
            number = dtypes.sendable(array.dtype, number)
        return self._request(memory.Fill(array, number), deadline_s)

    def copy(self, source: Operand, target: Operand, *, deadline_s: float | None = None) -> Reply:
        """Copy every element of `source` to its place in `target`, on the device that has the target.

        Args:
            source: Has the target's shape and element type; its strides and its device may differ.
            target: Is written; must not overlap the source.
            deadline_s: See `Pool.call`.

        Raises:
            InvalidRequest: Shapes or element types differ.
            BorrowConflict: They overlap.
        """
        return self._request(memory.Copy(source, target), deadline_s)


Reference: Final = Memory
