"""Devices: what the runtime needs of memory and streams. `base` says what, `host` does it without a GPU."""

from __future__ import annotations

from atomr_mp import errors
from atomr_mp_workers.device.base import Device


def open_device(backend: str) -> Device:
    """Return the device of this process.

    Raises:
        ConfigurationError: There is no such backend.
    """
    if backend == "host":
        from atomr_mp_workers.device.host import HostDevice

        return HostDevice()
    raise errors.ConfigurationError(f"there is no backend {backend!r}")
