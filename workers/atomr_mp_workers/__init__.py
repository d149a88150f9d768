"""The code that runs inside a device's process, and the base class for users' actors.

An actor's module imports from here: `Actor`, `method`, `Batch`, `by_shape` and `Steps` for methods that
take many requests at a time, `host_kernel` for functions in place of kernels, and for annotations `Context`,
`DeviceArray`, `Live`, `LiveStream`, `OwnWorld` and `UploadedFile`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomr_mp_workers.actor import Actor, Batch, Context, Steps, by_shape, method
    from atomr_mp_workers.host_kernels import host_kernel
    from atomr_mp_workers.live import Live, LiveStream
    from atomr_mp_workers.memory.arrays import DeviceArray
    from atomr_mp_workers.uploaded_file import UploadedFile
    from atomr_mp_workers.worlds.exchange.world import OwnWorld

__all__ = [
    "Actor",
    "Batch",
    "Context",
    "DeviceArray",
    "Live",
    "LiveStream",
    "OwnWorld",
    "Steps",
    "UploadedFile",
    "by_shape",
    "host_kernel",
    "method",
]

_MODULES = {
    "DeviceArray": "memory.arrays",
    "Live": "live",
    "LiveStream": "live",
    "OwnWorld": "worlds.exchange.world",
    "UploadedFile": "uploaded_file",
    "host_kernel": "host_kernels",
}
"""Modules of the names that are not in `actor`."""


def __getattr__(name: str) -> Any:
    # A worker's own modules are imported by `__main__`, after this one.
    import importlib

    if name in __all__:
        return getattr(importlib.import_module(f"atomr_mp_workers.{_MODULES.get(name, 'actor')}"), name)
    raise AttributeError(f"module 'atomr_mp_workers' has no attribute {name!r}")
