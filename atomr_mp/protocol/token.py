"""The generation token: names one incarnation of one device in one life of one pool. Pure.

Every data message carries it as 22 bytes that are compared as a whole, so the check costs one memcmp; only when it
fails are the parts looked at, to say what is wrong.
"""

from __future__ import annotations

import struct
from typing import Final

from atomr_mp import errors

_LAYOUT: Final = struct.Struct(">16sHI")

TOKEN_BYTES: Final = _LAYOUT.size


def pack(epoch: bytes, device: int, generation: int) -> bytes:
    """Return the token of a device's incarnation.

    Args:
        epoch: 16 random bytes, one life of the supervisor.
        device: Index of the device in the pool.
        generation: Counts the device's incarnations from 1.
    """
    return _LAYOUT.pack(epoch, device, generation)


def unpack(token: bytes) -> tuple[bytes, int, int]:
    """Return (epoch, device, generation) of a token."""
    return _LAYOUT.unpack(token)


def refusal(token: bytes, current: bytes) -> errors.RequestError | None:
    """Return why `token` is not `current`, or None if it is."""
    if token == current:
        return None
    if len(token) != TOKEN_BYTES:
        return errors.PoolMismatch(f"a generation token has {TOKEN_BYTES} bytes, got {len(token)}")
    epoch, device, generation = _LAYOUT.unpack(token)
    here_epoch, here_device, here_generation = _LAYOUT.unpack(current)
    if epoch != here_epoch:
        return errors.PoolMismatch("the token is of another pool, or of an earlier life of this one; connect again")
    if device != here_device:
        return errors.PoolMismatch(f"the token is of device {device}, this is device {here_device}")
    return errors.StaleGeneration(
        f"the token is of generation {generation} of device {device}, which is now at generation {here_generation}",
        device=device,
        generation=generation,
        current=here_generation,
    )
