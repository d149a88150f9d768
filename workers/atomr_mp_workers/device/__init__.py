"""Devices: the memory and the streams of the runtime. `base` is the interface, `host` implements it without a GPU."""

from __future__ import annotations

import contextlib

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install
from atomr_mp_workers.device.base import WorkerDevice


def prepare_device(backend: str) -> None:
    """Prepare `open_device` as far as that takes nothing of the device; errors are left for it to report."""
    if backend == "cuda":
        with contextlib.suppress(Exception):
            from atomr_mp_workers.device import cuda

            cuda.prepare()


def open_device(backend: str, completion: str = "adaptive") -> WorkerDevice:
    """Return the device of this process.

    Args:
        backend: "host" or "cuda".
        completion: Strategy to learn of the end of work, one of `completions.STRATEGIES`.

    Raises:
        ConfigurationError: There is no such backend, or its packages are not installed.
        SetupFailed: There is no such device here.
    """
    if backend == "host":
        from atomr_mp_workers.device.host import HostDevice

        return HostDevice()
    if backend == "cuda":
        try:
            from atomr_mp_workers.device.cuda import CudaDevice
        except ImportError as error:
            raise errors.ConfigurationError(
                f"the cuda backend needs CuPy, which cannot be imported: {error}; {how_to_install('cupy')}"
            ) from error
        return CudaDevice(completion)
    raise errors.ConfigurationError(f"there is no backend {backend!r}")
