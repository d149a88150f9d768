"""Limits the descriptors that the supervisor keeps for others, and checks them. An edge: it asks the kernel."""

from __future__ import annotations

import fcntl
import os
import resource
from typing import Final

from atomr_mp import errors

RESERVED_DESCRIPTORS: Final = 256
"""Descriptors that are reserved for operators, future workers and files; at most half of the kernel's limit."""

OPERATORS_PART: Final = 4
"""Operators' sessions may take one in so many of them."""

WANTED_DESCRIPTORS: Final = 2**16
"""Limit of open files that a supervisor sets for itself and its children, if the hard limit admits it."""


def raise_limit() -> None:
    """Raise this process's limit of open files, for itself and for what it starts.

    Shells and services begin with 1,024, for programs that use select(2), and leave it to others to ask for more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_room(descriptor: int, *, operator: bool = False) -> None:
    """Check that a descriptor which was just made for a client may be kept, and does not cut into the reserve.

    Args:
        descriptor: The descriptor.
        operator: It is for a session that asks and orders, or may be; for those some of the reserve is kept.

    Raises:
        Overloaded: There is no room for it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    reserved = min(RESERVED_DESCRIPTORS, limit // 2)
    kept = reserved // OPERATORS_PART
    # The kernel gives the lowest free number.
    if descriptor >= limit - reserved + (kept if operator else 0):
        raise errors.Overloaded(
            f"the supervisor may have {limit} open files, and sessions and slabs of clients take as many as they may: "
            f"{reserved} are kept for workers and operators. Close some, or start the pool under a higher limit "
            "(`ulimit -n`, LimitNOFILE= of a service)"
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
