"""Asks the driver how the GPUs are used, with a bounded wait. An edge."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from atomr_mp import errors
from atomr_mp.process.gpus import nvml

NVML_S: Final = 2.0
"""How long one waits for the driver."""


class Driver:
    """Asks the driver how the GPUs are used, at most one thread at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: dict[str, nvml.GpuUsage] = {}

    def usage(self, timeout_s: float = NVML_S) -> dict[str, nvml.GpuUsage]:
        """Return the usage that NVML reports in time, by UUID; empty if there is none, or an earlier call is stuck."""
        if self._thread is not None and self._thread.is_alive():
            return {}
        self._found = {}
        thread = threading.Thread(target=self._ask, name="nvml", daemon=True)
        thread.start()
        self._thread = thread
        thread.join(timeout_s)
        return self._found

    def _ask(self) -> None:
        with contextlib.suppress(errors.ConfigurationError):
            self._found = nvml.usage()
