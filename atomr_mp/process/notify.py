"""A supervisor's notifications to systemd, datagrams as in sd_notify(3). An edge; without systemd it does nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What a service manager tells the one process that may speak for its service."""


class Notifier:
    """Tells the service manager.

    Args:
        environment: Has `VARIABLES` if there is a service manager. They are removed: processes that this one starts
            must not speak for it.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address, watchdog_us, watched = (environment.pop(name, "") for name in VARIABLES)
        self.watchdog_s = 0.0
        """Longest time between calls of `alive`, in seconds; 0 for no limit."""
        if self._address and watchdog_us.isdecimal() and watched in {"", str(os.getpid())}:
            self.watchdog_s = int(watchdog_us) / 1e6
        self._said = ""

    def ready(self, status: str) -> None:
        """Report that the service is up, or up again."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that it reloads; `ready` follows."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "the pool stops") -> None:
        """Report that it is stopping."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Report its status in words; the same text is sent once."""
        if text != self._said:
            self._send(f"STATUS={text}")
        self._said = text

    def alive(self) -> None:
        """Report that its loop turns."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        # A manager that does not listen, or whose queue is full, is not worth a supervisor's life or time.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto("\n".join(lines).encode(), address)
