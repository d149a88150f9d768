"""What a parent tells its front ends when it starts them. Pure, but for the descriptor it travels in."""

from __future__ import annotations

import os
from typing import Self

import msgspec

from atomr_mp.serve.http.limits import Limits


class FrontEndPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a front-end process serves. It has secrets, so it travels in memory and not on a command line."""

    parent_pid: int
    run_dir: str
    """The pool's."""
    tokens: list[str]
    token_file: str | None
    allowed_hosts: list[str] | None
    """None for any."""
    own_user_only: bool
    """The socket is a unix socket: the peer has to be a process of this user, or root's."""
    tls_certificate: str | None
    tls_key: str | None
    drain_delay_s: float
    drain_timeout_s: float
    debug: bool
    access_log: bool
    limits: Limits
    slots: int
    """How many front ends share the memory of the counters."""

    def to_descriptor(self) -> int:
        """Return a descriptor from which it can be read, any number of times."""
        descriptor = os.memfd_create("atomr-mp-serve")
        os.write(descriptor, msgspec.json.encode(self))
        return descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Self:
        """Read it, and close the descriptor."""
        try:
            return msgspec.json.decode(os.pread(descriptor, os.fstat(descriptor).st_size, 0), type=cls)
        finally:
            os.close(descriptor)
