"""The code that runs inside a device's process, and the base class for users' actors.

An actor's module imports from here: `Actor`, `method`, `Batch`, `by_shape` and `Steps` for methods that
take many requests at a time, and for annotations `Context`, `DeviceArray`, `Live`, `LiveStream` and `UploadedFile`.
"""

from atomr_mp_workers.actor import Actor, Batch, Context, Steps, by_shape, method
from atomr_mp_workers.live import Live, LiveStream
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.uploaded_file import UploadedFile

__all__ = [
    "Actor",
    "Batch",
    "Context",
    "DeviceArray",
    "Live",
    "LiveStream",
    "Steps",
    "UploadedFile",
    "by_shape",
    "method",
]
