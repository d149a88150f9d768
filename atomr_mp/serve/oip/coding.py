"""Compressed bodies, with a bound on what they become. Pure."""

from __future__ import annotations

import zlib
from typing import Final

from atomr_mp.serve.http.accept import weight
from atomr_mp.serve.problems import Problem

WINDOWS: Final = {b"gzip": 31, b"deflate": 15}
"""zlib's name for the form of each coding; HTTP's deflate is zlib's."""

LEVEL: Final = 1
"""The fastest: tensors of numbers hardly get smaller by more work."""


def decoded(body: bytes, coding: bytes, most_bytes: int) -> bytes:
    """Return a body without its `Content-Encoding`.

    Args:
        body: The body.
        coding: The header's value; empty for none.
        most_bytes: Most bytes of the result.

    Raises:
        Problem: 415, there is no such coding here; 400, the body is not of it; 413, the result is too large.
    """
    name = coding.strip().lower()
    if name in (b"", b"identity"):
        return body
    window = WINDOWS.get(name)
    if window is None:
        shown = coding[:40].decode("latin-1")
        raise Problem(
            415, "unsupported_media_type", f"the Content-Encoding {shown!r} is not read; gzip and deflate are"
        )
    machine = zlib.decompressobj(window)
    try:
        found = machine.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise Problem(400, "bad_request", f"the body is no {name.decode()}: {error}") from error
    if len(found) > most_bytes:
        why = f"the body has more than {most_bytes} bytes once it is decompressed"
        raise Problem(413, "too_large", why, facts={"limit_bytes": most_bytes})
    if not machine.eof or machine.unused_data:
        raise Problem(400, "bad_request", f"the body is not one whole {name.decode()} stream")
    return found


def coding_for(accept: bytes) -> bytes:
    """Return the coding that a client wants of an answer, by its `Accept-Encoding`; empty for none."""
    if not accept:
        return b""
    qualities = {each: weight(accept, each).quality for each in WINDOWS}
    best = max(qualities, key=qualities.__getitem__)
    return best if qualities[best] else b""


def encoded(body: bytes, coding: bytes) -> bytes:
    """Return a body in a coding."""
    machine = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOWS[coding])
    return machine.compress(body) + machine.flush()
