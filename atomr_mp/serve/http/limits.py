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
    connections: Positive = 2048
    streams: Positive = 512
    """Open streams, including those of watching pages."""
    header_s: Seconds = 10.0
    """How long a client may take to send a request's line and headers."""
    body_s: Seconds = 60.0
    """How long a client may take to send the body."""
    stall_s: Seconds = 30.0
    """How long a client may leave an answer unread before its connection is closed."""
    idle_s: Seconds = 75.0
    """How long a connection without a request is kept: longer than a proxy's, so that the proxy closes first."""
    deadline_s: Seconds = 3600.0
    """The longest deadline that a request may ask for."""


DEFAULT_LIMITS: Final = Limits()
