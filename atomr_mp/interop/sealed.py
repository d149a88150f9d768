"""EDGE: memfds that keep their size, as all shared host memory is. Without NumPy."""

from __future__ import annotations

import fcntl
import os
from typing import Final

from atomr_mp import errors

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Seals that a memfd must have before it is mapped: an access beyond the end of a file kills the process."""


def make_sealed(name: str, nbytes: int) -> int:
    """Return the descriptor of a new memfd that keeps its size.

    Raises:
        OutOfMemory: There is none to be had.
    """
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise errors.OutOfMemory(f"no memfd can be made: {error}", requested_bytes=nbytes) from error
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(descriptor)
        raise errors.OutOfMemory(f"no memfd of {nbytes} bytes: {error}", requested_bytes=nbytes) from error
    return descriptor


def check_sealed(descriptor: int, nbytes: int) -> None:
    """Check a descriptor before it is mapped.

    Raises:
        ProtocolError: It is no memfd of this size, or not sealed in its size.
    """
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # not of a file system that has seals
        sealed = False
    size = os.fstat(descriptor).st_size
    if not sealed or size != nbytes or not nbytes:
        raise errors.ProtocolError(
            f"a slab must be a memfd of exactly {nbytes} bytes, sealed in its size; this one has {size} bytes and "
            f"is {'' if sealed else 'not '}sealed"
        )
