"""An array in this device's memory, as requests and actors see it, and the block of memory that it lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import WireRef
from atomr_mp.protocol.views import ArrayViews
from atomr_mp_workers.device.base import SlabMemory
from atomr_mp_workers.memory.borrows import Borrows

if TYPE_CHECKING:
    import numpy as np


class DeviceArray(ArrayViews):
    """An array in device memory: the array of a ref, or one that an actor has made with `Context.empty`.

    Its memory lives as long as it, or any array that was made from it.

    Args:
        block: The memory.
        layout: How the array lies in its slab.
        writable: Whether it may be written through `array`.
        array: The array itself, if it has been made already.
    """

    __slots__ = ("_made", "block", "by_address", "layout", "value", "writable")

    def __init__(self, block: Block, layout: Layout, *, writable: bool = False, array: Any = None) -> None:
        self.block: Final = block
        self.layout = layout
        self.writable = writable
        self._made: Any = array
        """The array, once it was asked for: making it takes several times as long as its `view()`."""
        self.by_address: DeviceArray | None = None
        """The same array in the process's address space, once a library was given it in this process."""
        self.value = False
        """Whether it is sent as an array, not as a ref."""

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} in {self.block}>"

    @property
    def memory(self) -> object:
        """The name of the memory."""
        return self.block.key

    @property
    def attached(self) -> Any:
        """An object that a library keeps as long as the buffer lives, and finds by a ref to it; None at first."""
        return self.block.attached

    @attached.setter
    def attached(self, value: Any) -> None:
        self.block.attached = value

    @property
    def address(self) -> int:
        """Address of its first element, the one of index zero, in this process's address space or its device's."""
        return self.block.memory.address + self.layout.offset

    @property
    def array(self) -> Any:
        """The array itself, zero-copy: NumPy's on the host backend. Not writable unless borrowed for writing."""
        if self.writable:
            made = self._made
            if made is None:
                made = self._made = self._over(self.layout)
            return made.view()
        layout, array = self.block.last_read
        if layout is not self.layout:
            array = self._over(self.layout)
            self.block.last_read = self.layout, array
        return array.view()

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements in the host's memory, row-major, on each backend; the caller owns it.

        On a GPU it waits for the calling method's stream.
        """
        copied: np.ndarray[Any, Any] = self.block.memory.read(self.block.bytes, self._within(self.layout))
        return copied

    @property
    def elements(self) -> Any:
        """All elements of the span as an array of one dimension, gaps included; begins at the lowest."""
        low, high = self.layout.span
        count = (high - low) // self.layout.item_bytes
        return self._over(Layout(self.dtype, (count,), (self.layout.item_bytes,), low))

    def to_wire(self) -> WireRef:
        """Return the ref that means this array.

        Raises:
            GpuRefWrongDevice: The memory is another device's.
        """
        block, layout = self.block, self.layout
        if block.foreign:
            raise errors.GpuRefWrongDevice(
                f"{self!r} is another device's memory and cannot be a result; copy it", device=block.device
            )
        return WireRef(
            block.token,
            block.id,
            block.slab_number,
            layout.dtype,
            layout.shape,
            layout.strides,
            layout.offset,
            self.value,
        )

    def of_layout(self, layout: Layout) -> DeviceArray:
        """Return an array of any layout in the same buffer; the caller has checked that it stays within the buffer."""
        return DeviceArray(self.block, layout, writable=self.writable)

    def _over(self, layout: Layout) -> Any:
        return self.block.memory.array(self.block.bytes, self._within(layout), writable=self.writable)

    def _within(self, layout: Layout) -> Layout:
        return Layout(layout.dtype, layout.shape, layout.strides, layout.offset - self.block.offset)


class Block:
    """Memory that arrays lie in: a buffer of ours, or a part of another device's slab."""

    __slots__ = (
        "attached",
        "borrows",
        "bytes",
        "device",
        "foreign",
        "id",
        "last_read",
        "memory",
        "nbytes",
        "offset",
        "slab_number",
        "token",
    )

    def __init__(
        self,
        memory: SlabMemory,
        part: Any,
        *,
        token: bytes,
        device: int,
        buffer: int,
        slab_number: int,
        offset: int,
        nbytes: int,
        foreign: bool,
    ) -> None:
        self.memory: Final = memory
        self.bytes: Final = part
        """An array of the block's bytes; it holds the owner that keeps them from being used otherwise."""
        self.token: Final = token
        self.device: Final = device
        self.id: Final = buffer
        self.slab_number: Final = slab_number
        self.offset: Final = offset
        """The block's offset in the slab."""
        self.nbytes: Final = nbytes
        self.foreign: Final = foreign
        self.attached: Any = None
        self.borrows: Final = Borrows()
        self.last_read: tuple[Layout | None, Any] = None, None
        """The layout of the last read, and its array: making one takes several times as long as its `view()`, which the
        arrays of every backend have."""

    def __repr__(self) -> str:
        return f"buffer {self.id:#x} of device {self.device}, slab {self.slab_number}"

    @property
    def key(self) -> object:
        """The name of the memory."""
        return self.token, self.id
