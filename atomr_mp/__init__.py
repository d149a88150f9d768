"""A runtime that hosts GPU work in isolated processes and keeps it answering when a GPU context dies.

`start` runs a pool for as long as the application lives; `connect` joins one that runs already. Both give a `Pool`.
`on_devices` names the devices of an actor that not all have. `Pool.world` gives a `World`: several devices, called as
one.
Errors are in `atomr_mp.errors`. Actors are written against `atomr_mp_workers`.

Imports point one way; the contracts in pyproject.toml have the layers. The code inside a device's process is another
package, `atomr_mp_workers`; this one knows it by name only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomr_mp.version import __version__ as __version__

if TYPE_CHECKING:
    from atomr_mp.client.memory.refs import GpuRef
    from atomr_mp.client.reply import Reply
    from atomr_mp.client.reply_stream import ReplyStream
    from atomr_mp.device import Device
    from atomr_mp.pool import Pool
    from atomr_mp.startup.connect import connect
    from atomr_mp.startup.start import start
    from atomr_mp.startup.targets import on_devices
    from atomr_mp.world import World

__all__ = ["Device", "GpuRef", "Pool", "Reply", "ReplyStream", "World", "connect", "on_devices", "start"]

_MODULES = {
    "Device": "device",
    "GpuRef": "client.memory.refs",
    "Reply": "client.reply",
    "ReplyStream": "client.reply_stream",
    "World": "world",
    "connect": "startup.connect",
    "on_devices": "startup.targets",
    "start": "startup.start",
}
"""Modules of the names that are not in `pool`."""


def __getattr__(name: str) -> Any:
    # The workers and the supervisor import parts of this package and must not pay for the client's.
    import importlib

    if name in __all__:
        return getattr(importlib.import_module(f"atomr_mp.{_MODULES.get(name, 'pool')}"), name)
    raise AttributeError(f"module 'atomr_mp' has no attribute {name!r}")
