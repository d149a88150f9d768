"""Limits on what a client may ask of one front-end process. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import amounts

MOST_SEQUENCES: Final = 65_536
"""Most open sequences that may be allowed: each request of one looks through all."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of requests, checked before memory is taken. Each but `sequences` holds for one front-end process."""

    header_bytes: int = 32 * 2**10
    """Bytes of the request line and all headers."""
    json_bytes: int = 4 * 2**20
    """Bytes of a JSON body. Decoded, it may take some twenty times as much for a moment."""
    npy_bytes: int = 64 * 2**20
    """Bytes of a body that is one raw array."""
    raw_bytes: int = 64 * 2**20
    """Bytes of any other raw body, or of a form with all its files."""
    form_parts: int = 100
    """Fields and files of a form, or arguments in an address."""
    buffered_bytes: int = 256 * 2**20
    """Bytes of the bodies of all requests that are being read or answered."""
    unread_connection_bytes: int = 64 * 2**20
    """Bytes of answers that a client may leave unread and still call on the same connection."""
    unread_bytes: int = 256 * 2**20
    """Bytes of answers that all clients together may leave unread before further calls are refused."""
    json_containers: int = 200_000
    """Lists and objects in a JSON body: each takes far longer to decode than a number."""
    connections: int = 2048
    """Open connections, those in the middle of a TLS handshake among them."""
    streams: int = 512
    """Open streams, including those of watching pages."""
    sequences: int = 4096
    """Open sequences of the Open Inference Protocol, of all front ends together."""
    regions: int = 256
    """Registered regions of shared memory, of all front ends together."""
    region_idle_s: float = 86_400.0
    """How long a region is kept that no request uses."""
    header_s: float = 10.0
    """How long a client may take for a TLS handshake, and then to send a request's line and headers."""
    body_s: float = 60.0
    """How long a client may send nothing in the middle of a body."""
    stall_s: float = 30.0
    """How long a client may read nothing of an answer that waits for it before its connection is closed."""
    idle_s: float = 75.0
    """How long a connection without a request is kept: longer than a proxy's, so that the proxy closes first."""
    hang_s: float = 20.0
    """How long a front end may be deaf, at work on one request, before it is replaced."""
    deadline_s: float = 3600.0
    """The longest deadline that a request may ask for."""

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if name.endswith("_s"):
                amounts.duration(name, value, error=errors.ConfigurationError)
            else:
                most = MOST_SEQUENCES if name == "sequences" else amounts.MOST
                amounts.whole(name, value, 1, most, error=errors.ConfigurationError)


DEFAULT_LIMITS: Final = Limits()
