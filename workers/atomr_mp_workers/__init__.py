"""What runs inside a device's process, and the base class for the actors that users write.

An actor's module imports from here: `Actor`, `method`, and for annotations `Context` and `DeviceArray`.
"""

from atomr_mp_workers.actor import Actor, Context, method
from atomr_mp_workers.arrays import DeviceArray

__all__ = ["Actor", "Context", "DeviceArray", "method"]
