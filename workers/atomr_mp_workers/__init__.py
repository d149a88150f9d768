"""What runs inside a device's process, and the base class for the actors that users write.

An actor's module imports from here: `Actor`, `method`, and for annotations `Context`.
"""

from atomr_mp_workers.actor import Actor, Context, method

__all__ = ["Actor", "Context", "method"]
