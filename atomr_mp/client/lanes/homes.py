"""Where requests may go whose actor only some devices have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import ActorInfo
from atomr_mp.protocol.words import these_devices

Home: TypeAlias = tuple[int, ...]
"""The devices that have an actor, in order."""

Homes: TypeAlias = Mapping[str, Home]
"""The home of each actor that not all devices have."""


def homes_of(actors: Iterable[ActorInfo]) -> Homes:
    """Return the homes of a pool's actors."""
    return {actor.name: tuple(actor.devices) for actor in actors if actor.devices}


def home_for(homes: Homes, method: str, device: int | None) -> Home | None:
    """Return the devices that a request may go to; None for any.

    Args:
        homes: The homes of the pool's actors.
        method: "Actor.method".
        device: The device that it names, or that its refs are of; None for none.

    Raises:
        InvalidRequest: Its actor is not on this device.
    """
    actor = method.partition(".")[0]
    home = homes.get(actor)
    if home is not None and device is not None and device not in home:
        raise errors.InvalidRequest(
            f"{method} cannot run on device {device}: the actor {actor} is on {these_devices(home)} alone; name one of "
            "these by device=, or none"
        )
    return home
