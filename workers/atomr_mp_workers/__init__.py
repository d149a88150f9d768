"""What runs inside a device's process, and the base class for the actors that users write.

An actor's module imports from here: `Actor`, `method`, `Batch` and `by_shape` for methods that
take many requests at a time, and for annotations `Context` and `DeviceArray`.
"""

from atomr_mp_workers.actor import Actor, Batch, Context, by_shape, method
from atomr_mp_workers.memory.arrays import DeviceArray

__all__ = ["Actor", "Batch", "Context", "DeviceArray", "by_shape", "method"]
