"""Limits the descriptors that the supervisor keeps for others, and checks them. An edge: it asks the kernel."""

from __future__ import annotations

import fcntl
import os
import resource
from typing import Final

from atomr_mp import errors

RESERVED_DESCRIPTORS: Final = 256
"""Descriptors that are reserved for future workers and for files; at most half of the kernel's limit."""


def check_room(descriptor: int) -> None:
    """Check that a descriptor which was just made for a client may be kept, and does not cut into the reserve.

    Raises:
        Overloaded: There is no room for it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel gives the lowest free number.
    if limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED_DESCRIPTORS, limit // 2):
        raise errors.Overloaded(
            "the supervisor has as many sessions and slabs as its limit of open files admits; close some, or raise "
            "the limit"
        )


def check_memory(descriptor: int, nbytes: int) -> None:
    """Check that a descriptor is memory of this size for ever, so that its sender cannot make its readers fault.

    Raises:
        InvalidRequest: It is something else.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise errors.InvalidRequest("the slab's file descriptor is no memfd") from error
    if seals & _SIZE_SEALS != _SIZE_SEALS:
        raise errors.InvalidRequest("the slab's memfd is not sealed against shrinking and growing")
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise errors.InvalidRequest("the slab's file descriptor cannot be read")
    size = os.fstat(descriptor).st_size
    if size != nbytes or not nbytes:
        raise errors.InvalidRequest(f"the slab's memfd has {size} bytes, announced were {nbytes}; there must be some")


_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
