"""The fingerprint of a request: a digest of its method and its arguments. Pure.

A ref names no content, and its memory is gone with its worker. A request of a library does the same, whatever content
its arrays have, so its fingerprint has the layouts of its refs. What a method of an actor does with content is unknown,
so its calls with refs have no fingerprint: bad content would speak against good.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from atomr_mp.protocol import dtypes, values
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES
from atomr_mp.protocol.libraries.program import by_digest
from atomr_mp.protocol.library_names import LIBRARIES
from atomr_mp.protocol.refs import REF, ClientArray, decode_ref
from atomr_mp.protocol.token import TOKEN_BYTES

if TYPE_CHECKING:
    import numpy as np

DIGEST_BYTES: Final = 16
RUN: Final = "program.run"


def is_of_library(method: str) -> bool:
    """Return whether a request is one of a library's, not of an actor's."""
    return method.partition(".")[0] in LIBRARIES


def fingerprint(method: str, arguments: object) -> bytes | None:
    """Return the digest of a request, `DIGEST_BYTES` long; None if it has refs and is of an actor's method.

    Equal arguments have equal digests, also where an array of one lies in shared memory and that of the other does not.

    Args:
        method: "Actor.method" or "library.request".
        arguments: A sequence by position, or a mapping by name.

    Raises:
        InvalidRequest: The arguments cannot be sent.
    """
    digest = hashlib.blake2b(method.encode(), digest_size=DIGEST_BYTES)
    if method == RUN:
        arguments = by_digest(arguments)
    large: list[_Large] = []

    def place(value: Any) -> _Large | None:
        if not hasattr(value, "nbytes"):
            return None
        digest.update(_bytes_of(value))
        large.append(_Large(value))
        return large[-1]

    body, frames, placed = values.encode(arguments, place)
    if len(placed) > len(large):
        if not is_of_library(method):
            return None
        body = _by_layout(body)
    digest.update(body)
    for frame in frames:
        digest.update(frame)
    return digest.digest()


def _by_layout(body: bytes) -> bytes:
    """Return a body in which refs are as if their arrays had been made anew: with layout and alignment alone.

    Refs of one buffer stay recognisable as such.
    """
    buffers: dict[tuple[bytes, int], int] = {}

    def extension(code: int, data: memoryview) -> msgspec.msgpack.Ext:
        if code != REF:
            return msgspec.msgpack.Ext(code, bytes(data))
        ref = decode_ref(bytes(data))
        return msgspec.structs.replace(
            ref,
            token=bytes(TOKEN_BYTES),
            buffer=buffers.setdefault((ref.token, ref.buffer), len(buffers)),
            slab=0,
            offset=ref.offset % ALIGNED_BYTES,
        ).extension

    return msgspec.msgpack.encode(msgspec.msgpack.Decoder(ext_hook=extension).decode(body))


class _Large:
    """Stands for an array whose bytes are in the digest already."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._wire: Final = ClientArray(0, 0, dtypes.name_of(array.dtype), array.shape, 0)

    def to_wire(self) -> ClientArray:
        """Return its element type and shape."""
        return self._wire


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    import numpy as np

    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
