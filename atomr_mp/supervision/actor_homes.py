"""Which devices have which actor, as clients learn it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from atomr_mp.protocol.messages.devices import ActorInfo


class KnownActors(NamedTuple):
    """The actors of one device."""

    names: list[str]
    """Those of its latest ready worker, or before that, those that it is to have."""
    infos: list[ActorInfo]
    """What its latest ready worker has reported of them; empty before that."""


def actors_of_pool(devices: Sequence[KnownActors], latest: int = 0) -> list[ActorInfo]:
    """Return each actor of a pool once, with the devices that have it.

    An actor whose devices have never been ready has no methods yet: calls of it wait.

    Args:
        devices: The actors of each device, by index.
        latest: The device that has told its actors last. If a reload has changed one, this is how it is described.
    """
    infos = {info.name: info for device in devices for info in device.infos}
    infos |= {info.name: info for info in devices[latest].infos}
    names = dict.fromkeys(name for device in devices for name in device.names)
    return [
        msgspec.structs.replace(
            infos.get(name) or ActorInfo(name, []),
            devices=[]
            if all(name in device.names for device in devices)
            else [index for index, device in enumerate(devices) if name in device.names],
        )
        for name in names
    ]
