"""A ref: a client's hold on an array in a device's memory."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.memory.array_methods import ArrayMethods
from atomr_mp.client.memory.leases import Lease
from atomr_mp.client.memory.missing_methods import INSTEAD
from atomr_mp.client.memory.operands import held
from atomr_mp.client.memory.ref_memory import RefMemory
from atomr_mp.protocol import amounts, dtypes, token
from atomr_mp.protocol.codec import Bytes16, Codec, Message
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.memory import MAX_SHARE_S
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.refs import WireRef

if TYPE_CHECKING:
    import numpy as np


@checks_names
class GpuRef(ArrayMethods):
    """An array in a device's memory. Made by a device (`put`, `empty`, ...), by requests, and as a view of another.

    It is passed to requests like an array, and nothing of its content moves. Views made from it (indexing, `reshape`,
    `transpose`) are refs to the same memory. The memory lasts until the last of them is collected, or until one is
    freed (`free`, `with`), or until the device's worker ends: from then on the ref is stale. Thread-safe.

    Operators (`a + b`, `a @ b`, `a == 2`), reductions and other methods of NumPy's arrays are requests of libraries:
    each is sent and its answer waited for, and in a running event loop it is refused with `GpuRefInEventLoop`. Nothing
    is promoted, and what no request does is refused. A ref is hashed by identity, so it may be a key.

    `numpy`, `item`, `show`, `view`, `copy_to`, `fill`, `share`, and conversions to arrays block, in an event loop too;
    there, use `asyncio.to_thread` if that matters.
    """

    _wire: WireRef | None = None
    """Its wire form, once it was sent."""

    def __init__(self, buffers: RefMemory, lease: Lease, slab: int, layout: Layout, held: object = None) -> None:
        self.layout = layout
        self._buffers = buffers
        self.lease: Final = lease
        """This client's hold on the memory, shared with all views."""
        self.slab: Final = slab
        """Number of the slab in which it lies."""
        self._held: Final = held
        """An object that has to live as long as a request with this argument."""
        self._viewed: Any = None
        """The view behind CUDA's array interface."""

    # --- its facts -------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> object:
        """Name of the memory; equal for refs to the same buffer."""
        return self.lease.releases.token, self.lease.buffer

    @property
    def device(self) -> int:
        """Index of the device in the pool."""
        return self.lease.releases.device

    @property
    def generation(self) -> int:
        """The incarnation of the device that made the memory."""
        return self.lease.releases.generation

    @property
    def dtype(self) -> dtypes.ElementType:
        """Name of the element type: a text that is equal to NumPy's type of that name, and has its attributes.

        In dictionaries and sets it is found as a text; look for `numpy_dtype` in those of NumPy's types.
        """
        return dtypes.element_type(self.layout.dtype)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The element type, as NumPy has it; also in dictionaries and sets."""
        return dtypes.to_numpy(self.layout.dtype)

    def __getattr__(self, name: str) -> NoReturn:
        instead = INSTEAD.get(name)
        if instead is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        raise errors.GpuRefNoMethod(f"a ref has no `{name}`: {instead}")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a ref without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        layout, lease = self.layout, self.lease
        epoch, device, generation = token.unpack(lease.releases.token)
        strides = "" if layout.is_contiguous() else f", strides {layout.strides}"
        return (
            f"<GpuRef {self.dtype}{list(self.shape)}{strides}, device {device} generation {generation} "
            f"({self._buffers.state_of(lease)}), buffer {lease.buffer:#x}, slab {self.slab} + {layout.offset}, "
            f"pool {epoch.hex()[:8]}>"
        )

    def of_layout(self, layout: Layout) -> GpuRef:
        """Return a ref to the same memory, with another layout in its slab."""
        return GpuRef(self._buffers, self.lease, self.slab, layout)

    # --- its content -----------------------------------------------------------------------------------------------

    def numpy(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return a copy of the elements. Waits for requests that write them.

        Args:
            out: Target of the copy, of the same shape and element type; None for a new array.

        Raises:
            ValueError: `out` does not fit.
            BorrowConflict: A writable view of the memory is open.
            GpuRefReleased: The ref was freed.
            GpuRefStale: The ref's incarnation has ended.
        """
        return self._buffers.copy(self, out)

    def view(self, *, write: bool = False) -> Any:
        """Return the elements as an array, zero-copy. Waits for requests that write them, or use them if `write`.

        The array is NumPy's, or CuPy's if the memory is a GPU's. This process has to see that GPU, and gets a context
        of its own there.

        Requests that conflict with the view are refused with `BorrowConflict` until the array, and everything made from
        it without a copy, has been collected. It stays readable when the ref is freed, and when its incarnation ends.

        Args:
            write: Whether the array may be written. CuPy does not enforce it.

        Raises:
            Unsupported: CuPy or the driver is missing.
            GpuRefWrongDevice: This process does not see the GPU.
            BorrowConflict: Another view excludes this one.
            GpuRefSameProcess: This process is the device's own.
            GpuRefReleased: The ref was freed.
            GpuRefStale: The ref's incarnation has ended.
        """
        return self._buffers.view(self, write=write)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:  # noqa: FBT001 - NumPy's
        if copy is False:
            raise ValueError("an array of a ref is a copy; view() gives one without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA's array interface of a read-only view, see `view`, that lasts as long as this ref.

        Raises:
            AttributeError: The memory is not a GPU's.
        """
        if not self._buffers.on_gpu(self.device):
            raise AttributeError("the memory is not a GPU's")
        if self._viewed is None:
            self._viewed = self.view()
        interface: dict[str, Any] = dict(self._viewed.__cuda_array_interface__)
        return interface | {"data": (interface["data"][0], True)}

    @interrupts.defer_interrupts  # else the traceback of an interrupt might keep the view
    def __dlpack__(self, **wanted: Any) -> Any:
        """Return a capsule over a read-only view, see `view`; a `stream` is made to wait as DLPack says."""
        from atomr_mp.interop import dlpack

        return dlpack.export(self.view(), **wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the view's place: the processor's memory, or the index of a GPU that this process sees."""
        from atomr_mp.interop import dlpack

        uuid = self._buffers.uuid_of(self.device)
        return dlpack.on_gpu(uuid) if uuid else dlpack.CPU

    def copy_to(self, other: GpuRef) -> None:
        """Copy the elements into another ref of the same shape and element type, on any device of the pool. Blocks.

        Raises:
            InvalidRequest: Shapes or element types differ, or elements of `other` share memory.
            BorrowConflict: They overlap, or a view of either excludes it.
        """
        self._buffers.copy_on_device(self, other)

    def fill(self, value: complex) -> None:
        """Write a value into all elements. Blocks.

        Raises:
            InvalidRequest: It is no number, or the element type cannot hold it.
            BorrowConflict: A view of the memory is open.
        """
        if isinstance(cast("object", value), ArrayMethods):
            raise errors.GpuRefNoValue("fill() takes a number, not a GpuRef: `ref[...] = other` copies another ref")
        # Checked first: a fill that fails leaves no defined content.
        self._buffers.fill(self, held(self.layout.dtype, value))

    def accept(self) -> None:
        """Accept the buffer's content although a request that should have written it has failed. Blocks.

        Requests that read the buffer are then no longer refused with `GpuRefUndefined`. Use it if you know what the
        failed request has left there: a method that raised at its first line has written nothing.

        Raises:
            GpuRefReleased: The ref was freed.
            GpuRefStale: The ref's incarnation has ended.
        """
        self._buffers.accept(self)

    # --- its life --------------------------------------------------------------------------------------------------

    def share(self, for_s: float = 60.0) -> bytes:
        """Return bytes by which another client of the pool can claim a ref to the same elements, once. Blocks.

        The memory is kept meanwhile, even if this ref is freed or this client ends.

        Args:
            for_s: Seconds for which it can be claimed; at most an hour.
        """
        return self._buffers.share(self, amounts.duration("for_s", for_s, most=MAX_SHARE_S))

    def free(self) -> None:
        """Give the memory back now, or when the requests that were made with it have been answered.

        This ref and its views can then not be used any more. May be called twice.
        """
        self._buffers.free(self.lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.free()

    __reduce__ = refusal(f"send the bytes of `ref.share()`, {CONNECT}, and `claim` them there")

    def to_wire(self) -> WireRef:
        """Return the wire form.

        Raises:
            PoolLost: The pool has ended, or this process was forked from the ref's.
            GpuRefReleased: The ref was freed.
            GpuRefStale: The ref's incarnation has ended.
        """
        self._buffers.check(self.lease)
        wire = self._wire
        if wire is None:
            wire = self._wire = wire_of(self.lease, self.slab, self.layout)
        return wire

    # --- for `buffers` ---------------------------------------------------------------------------------------------

    def is_of(self, buffers: RefMemory) -> bool:
        """Whether it belongs to this client."""
        return self._buffers is buffers

    def holding(self, held: object) -> GpuRef:
        """Return the same ref, for one request: it keeps `held` until it is answered."""
        return GpuRef(self._buffers, self.lease, self.slab, self.layout, held)


class SharedRef(Message, frozen=True, tag="atomr-mp.ref"):
    """The content of the bytes from `GpuRef.share`, as msgpack."""

    ref: WireRef
    claim: Bytes16
    """Secret that admits the claim."""


def wire_of(lease: Lease, slab: int, layout: Layout) -> WireRef:
    """Return the wire form of a ref."""
    return WireRef(
        lease.releases.token,
        lease.buffer,
        slab,
        layout.dtype,
        layout.shape,
        layout.strides,
        layout.offset,
    )


def read_shared(shared: bytes, epoch: bytes) -> tuple[SharedRef, int, int]:
    """Return the wire form of a shared ref, and the device and generation that have it.

    Args:
        shared: The bytes from `GpuRef.share`.
        epoch: Epoch of the pool that claims it.

    Raises:
        InvalidRequest: This is no bytes object.
        ProtocolError: These are other bytes.
        PoolMismatch: The ref belongs to another pool.
    """
    if not isinstance(shared, bytes | bytearray | memoryview):
        raise errors.InvalidRequest(f"claim takes the bytes that GpuRef.share returned, not a {type(shared).__name__}")
    message = _SHARED.decode(shared)
    of_epoch, device, generation = token.unpack(message.ref.token)
    if of_epoch != epoch:
        raise errors.PoolMismatch(
            f"the shared ref is of pool {of_epoch.hex()[:8]}, this is {epoch.hex()[:8]}: another pool, or an earlier "
            "life of this one"
        )
    return message, device, generation


def write_shared(message: SharedRef) -> bytes:
    """Return the bytes of the shared content."""
    return _SHARED.encode(message)


_SHARED: Final[Codec[SharedRef]] = Codec(SharedRef, channel="sharing")
