"""The fingerprint of a request: a digest of its method and its arguments. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from atomr_mp.protocol import dtypes, values
from atomr_mp.protocol.libraries.program import by_digest
from atomr_mp.protocol.refs import ClientArray

if TYPE_CHECKING:
    import numpy as np

DIGEST_BYTES: Final = 16
RUN: Final = "program.run"


def fingerprint(method: str, arguments: object) -> bytes | None:
    """Return the digest of a request, `DIGEST_BYTES` long; None if it has refs, which name no content.

    Equal arguments have equal digests, also where an array of one lies in shared memory and that of the other does not.

    Args:
        method: "Actor.method".
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
        return None
    digest.update(body)
    for frame in frames:
        digest.update(frame)
    return digest.digest()


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
