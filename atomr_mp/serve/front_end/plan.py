"""A parent's plan for its front ends. Pure, except for the descriptor that carries it."""

from __future__ import annotations

import os
from typing import Self

import msgspec

from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.raised import LogErrors
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.oip.settings import ModelSetting
from atomr_mp.serve.server_log import LogFormat


class FrontEndPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A front-end process's settings. It has secrets, so it travels in memory and not on a command line."""

    parent_pid: int
    run_dir: str
    """The pool's run directory."""
    tokens: list[str]
    token_file: str | None
    allowed_hosts: list[str] | None
    """Allowed names in `Host`; None for any."""
    middleware: list[str]
    """Functions that surround the application; the first is the outermost."""
    cors_origins: list[str]
    """Origins of web pages that may ask."""
    own_user_only: bool
    """Whether the socket is a unix socket, whose clients must be processes of this user or of root."""
    grpc_address: str
    """An IP address and a port for gRPC, which the parent keeps for its front ends; empty for none."""
    grpc_uds: str
    """The path of a unix socket for gRPC; empty for none."""
    shared_memory: bool
    """Whether clients may have tensors in shared memory."""
    tls_certificate: str | None
    tls_key: str | None
    drain_delay_s: float
    drain_timeout_s: float
    debug: bool
    access_log: bool
    log_format: LogFormat
    log_errors: LogErrors
    limits: Limits
    models: dict[str, ModelSetting]
    """Models that are described, by name."""
    slots: int
    """How many front ends share the memory of the counters."""

    def to_descriptor(self) -> int:
        """Return a descriptor from which the plan can be read, any number of times."""
        descriptor = os.memfd_create("atomr-mp-serve")
        os.write(descriptor, msgspec.json.encode(self))
        return descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Self:
        """Read a plan, and close its descriptor."""
        try:
            return msgspec.json.decode(os.pread(descriptor, os.fstat(descriptor).st_size, 0), type=known(cls))
        finally:
            os.close(descriptor)
