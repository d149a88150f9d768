"""Logs each answer, if that is wanted."""

from __future__ import annotations

import logging

from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.server_log import tell


def log_answer(exchange: Exchange, took_ns: int) -> None:
    """Log an answer: the outcome is "ok", or the code of the error that has ended it, whatever its status."""
    device = f"device {exchange.device}" if exchange.device >= 0 else "no device"
    took_ms = round(took_ns / 1e6, 3)
    path = exchange.path[:200]
    tell(
        logging.INFO,
        "request",
        f"{exchange.id} {exchange.method} {path} {exchange.status} {exchange.code} {took_ms:.1f} ms, {device}, "
        f"{exchange.read_bytes} bytes in, {exchange.sent_bytes} out",
        id=exchange.id,
        verb=exchange.method,
        path=path,
        status=exchange.status,
        outcome=exchange.code,
        method=exchange.called or None,
        device=exchange.device if exchange.device >= 0 else None,
        generation=exchange.generation or None,
        took_ms=took_ms,
        bytes_in=exchange.read_bytes,
        bytes_out=exchange.sent_bytes,
        parts=exchange.parts,
    )
