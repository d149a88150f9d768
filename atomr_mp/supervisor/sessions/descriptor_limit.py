"""How many file descriptors clients may cost the supervisor. An edge: it asks the kernel for the limit."""

from __future__ import annotations

import resource
from typing import Final

from atomr_mp import errors

RESERVED_DESCRIPTORS: Final = 256
"""What clients leave for workers that are to be started and for files; at most half of what the kernel allows."""


def check_room(descriptor: int) -> None:
    """Check that a descriptor which was just made for a client may be kept, and is none of the reserve.

    Raises:
        Overloaded: There is no room for it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel gives the lowest number that is free.
    if limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED_DESCRIPTORS, limit // 2):
        raise errors.Overloaded(
            "the supervisor has as many sessions and slabs as its limit of open files admits; close some, or raise "
            "the limit"
        )
