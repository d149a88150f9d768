"""Logs each answer, if that is wanted."""

from __future__ import annotations

import logging

from atomr_mp.serve.served_request import ServedRequest
from atomr_mp.serve.server_log import tell


def log_answer(served: ServedRequest, took_ns: int) -> None:
    """Log an answer: the outcome is "ok", or the code of the error that has ended it, whatever its status."""
    device = f"device {served.device}" if served.device >= 0 else "no device"
    took_ms = round(took_ns / 1e6, 3)
    path = served.path[:200]
    tell(
        logging.INFO,
        "request",
        f"{served.id} {served.method} {path} {served.status} {served.code} {took_ms:.1f} ms, {device}, "
        f"{served.read_bytes} bytes in, {served.sent_bytes} out",
        id=served.id,
        verb=served.method,
        path=path,
        status=served.status,
        outcome=served.code,
        method=served.called or None,
        device=served.device if served.device >= 0 else None,
        generation=served.generation or None,
        took_ms=took_ms,
        bytes_in=served.read_bytes,
        bytes_out=served.sent_bytes,
        parts=served.parts,
    )
