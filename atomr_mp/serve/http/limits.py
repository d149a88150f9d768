"""Limits on what a client may ask of one front-end process. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of requests, checked before memory is taken. Each holds for one front-end process."""

    header_bytes: Positive = 32 * 2**10
    """Bytes of the request line and all headers."""
    json_bytes: Positive = 4 * 2**20
    """Bytes of a JSON body. Decoded, it may take some twenty times as much for a moment."""
    npy_bytes: Positive = 64 * 2**20
    """Bytes of a body that is one raw array."""
    buffered_bytes: Positive = 256 * 2**20
    """Bytes of the bodies of all requests that are being read or answered."""
    unread_connection_bytes: Positive = 64 * 2**20
    """Bytes of answers that a client may leave unread and still call on the same connection."""
    unread_bytes: Positive = 256 * 2**20
    """Bytes of answers that all clients together may leave unread before further calls are refused."""
    json_containers: Positive = 200_000
    """Lists and objects in a JSON body: each takes far longer to decode than a number."""
    connections: Positive = 2048
    """Open connections, those in the middle of a TLS handshake among them."""
    streams: Positive = 512
    """Open streams, including those of watching pages."""
    header_s: Seconds = 10.0
    """How long a client may take for a TLS handshake, and then to send a request's line and headers."""
    body_s: Seconds = 60.0
    """How long a client may send nothing in the middle of a body."""
    stall_s: Seconds = 30.0
    """How long a client may read nothing of an answer that waits for it before its connection is closed."""
    idle_s: Seconds = 75.0
    """How long a connection without a request is kept: longer than a proxy's, so that the proxy closes first."""
    hang_s: Seconds = 20.0
    """How long a front end may be deaf, at work on one request, before it is replaced."""
    deadline_s: Seconds = 3600.0
    """The longest deadline that a request may ask for."""


DEFAULT_LIMITS: Final = Limits()
