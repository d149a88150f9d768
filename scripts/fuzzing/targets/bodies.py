"""Values in calls and answers, with arrays in frames and in shared memory; and the layouts of refs."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final

import msgspec
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol import token, values
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import ClientArray, Operand, WireRef
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.ref_opener import RefOpener
from fuzzing.target import Target

TOKEN: Final = token.pack(bytes(16), 0, 1)
FOREIGN: Final = token.pack(bytes(16), 1, 1)
SLAB_BYTES: Final = 8192
FIRST: Final = 64
"""Where the buffer begins in its slab."""
BUFFER_BYTES: Final = 4096
DTYPES: Final = ("float32", "int8", "complex128", "bool", "uint16", "float16")


class SentRef(Operand):
    """A ref, or an array in a client's memory, as a value of a message.

    Args:
        wire: Its form in the message.
    """

    def __init__(self, wire: WireRef | ClientArray) -> None:
        self._wire = wire

    def to_wire(self) -> Any:
        """Return its form in the message."""
        return self._wire


def some_value(rng: random.Random, depth: int = 2) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Return a value that crosses."""
    match rng.randrange(10 if depth else 8):
        case 0:
            return rng.choice((None, True, False))
        case 1:
            return rng.choice((0, -1, 2**63, -(2**63), 7))
        case 2:
            return rng.choice((0.5, 1e300, -0.0))
        case 3:
            return rng.choice(("", "text", "ä" * 40))
        case 4:
            return rng.randbytes(rng.randint(0, 9))
        case 5 | 6:
            shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 3))] if rng.random() < 0.8 else [3000]
            return np.zeros(shape, rng.choice(DTYPES))
        case 7:
            return SentRef(rng.choice((wire_ref(rng), client_array(rng))))
        case 8:
            return [some_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        case _:
            return {rng.choice(("a", 1, None, 0.5)): some_value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def wire_ref(rng: random.Random) -> WireRef:
    """Return a ref with a layout that may be."""
    dtype = rng.choice(DTYPES)
    layout = Layout.contiguous(dtype, [rng.randint(0, 5) for _ in range(rng.randint(0, 3))], 64)
    if layout.shape and layout.shape[0] and rng.random() < 0.5:
        layout = layout.indexed(slice(None, None, rng.choice((-1, 2, -2))))
    return WireRef(TOKEN, 1, 1, dtype, layout.shape, layout.strides, layout.offset, rng.random() < 0.5)


def client_array(rng: random.Random) -> ClientArray:
    """Return an array in a client's memory."""
    return ClientArray(5, 1, rng.choice(DTYPES), tuple(rng.randint(0, 5) for _ in range(rng.randint(0, 3))), 64)


class Bodies(Target):
    """A body with its frames: [body, frames]."""

    name = "bodies"

    def make(self, rng: random.Random) -> bytes:
        """Return a value."""
        body, frames, _ = values.encode(some_value(rng))
        return msgspec.msgpack.encode([body, list(map(bytes, frames))])

    def check(self, data: bytes) -> None:
        """Decode it to several types; send on what came."""
        found = split(data)
        if found is None:
            return
        for decoder in (_ANY, _LISTS, _MAPS):
            with contextlib.suppress(errors.RequestError):
                value = decoder.decode(*found, _layout)
                values.encode(value)


def split(data: bytes) -> tuple[bytes, list[memoryview]] | None:
    """Return a body and its frames, None if the input is not of that form."""
    try:
        body, frames = _SPLIT.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return body, [memoryview(frame) for frame in frames]


def _layout(wire: WireRef | ClientArray) -> object:
    layout = wire.layout
    _use(layout)
    return layout.shape


def _use(layout: Layout) -> None:
    """Use a layout as clients and workers do."""
    low, high = layout.span
    if not (low <= high and layout.nbytes >= 0 and layout.size >= 0):
        raise AssertionError(f"{layout} spans {low} to {high}")
    layout.is_contiguous()
    layout.overlaps(Layout.contiguous("int8", (8,), 64))
    layout.transposed()
    with contextlib.suppress(errors.AtomrError, ValueError, IndexError):
        layout.indexed((..., slice(None, None, -1)))
    with contextlib.suppress(errors.AtomrError, ValueError):
        layout.reshaped((-1,))


class Refs(Target):
    """A ref in a request: refused, or read without a byte outside its buffer."""

    name = "refs"

    def __init__(self) -> None:
        memory = HostDevice().make_slab(SLAB_BYTES)
        block = Block(
            memory,
            memory.bytes(None, FIRST, BUFFER_BYTES),
            token=TOKEN,
            device=0,
            buffer=1,
            slab_number=1,
            offset=FIRST,
            nbytes=BUFFER_BYTES,
            foreign=False,
        )
        holder = Holder(1)
        holder.leases[1] = block, 1
        holder.client_slabs[1] = memory
        holder.foreign_slabs[1, 1, 1] = memory
        self._holder = holder
        self._first = memory.address + FIRST
        self.resolve = RefOpener(TOKEN).resolver(holder)

    def make(self, rng: random.Random) -> bytes:
        """Return a ref, to this device or another, or an array in a client's memory."""
        ref = rng.choice((wire_ref(rng), wire_ref(rng), client_array(rng)))
        if isinstance(ref, WireRef) and rng.random() < 0.3:
            ref = msgspec.structs.replace(ref, token=FOREIGN)
        return msgspec.msgpack.encode(ref.extension)

    def check(self, data: bytes) -> None:
        """Decode it as an argument, and read each element."""
        with contextlib.suppress(errors.RequestError):
            found = _ANY.decode(data, (), self.resolve)
            if isinstance(found, DeviceArray):
                _use(found.layout)
                elements = found.array
                low, high = np.lib.array_utils.byte_bounds(elements)
                if found.block.id == 1 and not found.block.foreign and elements.size:
                    assert self._first <= low <= high <= self._first + BUFFER_BYTES, (low, high)
                found = elements
            if isinstance(found, np.ndarray) and found.nbytes < SLAB_BYTES:
                found.copy()
        self._holder.resolved.clear()
        self._holder.returned.clear()


_ANY: Final = values.Decoder[Any]()
_LISTS: Final[values.Decoder[Any]] = values.Decoder(list[Any])
_MAPS: Final[values.Decoder[Any]] = values.Decoder(dict[str, np.ndarray])
_SPLIT: Final = msgspec.msgpack.Decoder(tuple[bytes, list[bytes]])
