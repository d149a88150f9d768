"""Reads a pool's metrics from a unix socket, a program: whenever a line comes; leaves when its input ends.

Argument: the socket's path.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Final

REQUEST: Final = b"GET /metrics HTTP/1.0\r\n\r\n"
PATIENCE_S: Final = 30.0


def main() -> None:
    """Read once, say so, and go on."""
    path = sys.argv[1]
    until = time.monotonic() + PATIENCE_S
    while b"atomr_mp_requests_total" not in _read(path):  # its process is started beside the workers
        if time.monotonic() > until:
            return
        time.sleep(0.05)
    print("ready", flush=True)
    for _ in sys.stdin:
        _read(path)


def _read(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            connection.sendall(REQUEST)
            with connection.makefile("rb") as answer:
                return answer.read()
        except OSError:
            return b""


if __name__ == "__main__":
    main()
