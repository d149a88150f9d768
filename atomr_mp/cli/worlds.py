"""What commands tell of worlds: their lines in `status`, and what holds those that take no calls yet."""

from __future__ import annotations

import sys
import time
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from atomr_mp.protocol.words import these_devices

if TYPE_CHECKING:
    from atomr_mp.operator.pool_status import WorldStatus
    from atomr_mp.operator.session import OperatorSession

READY_S: Final = 2.0
"""How long a command waits for worlds after their devices are ready: an epoch forms within milliseconds as a rule."""

LOOK_S: Final = 0.1
"""Time between two looks."""


def world_line(world: WorldStatus) -> str:
    """Return the line about a world."""
    of = f"{', '.join(world.actors)} on {these_devices(world.devices)}"
    why = f": {world.reason}" if world.reason else ""
    waits = f"; {world.waits}" if world.waits else ""
    return f"world {world.name} ({of}) is {world.state.value}, epoch {world.epoch}{why}{waits}"


def tell_held(observer: OperatorSession, devices: Container[int]) -> None:
    """Write a line about each of the pool's worlds on some of these devices that takes no calls within `READY_S`."""
    from atomr_mp.operator.pool_status import status_of
    from atomr_mp.protocol.messages.devices import WorldState

    until_s = time.monotonic() + READY_S
    while True:
        answer = observer.status()
        shown = status_of(answer, None, time.time()).worlds
        held = [
            world
            for world, info in zip(shown, answer.worlds, strict=True)
            if not info.made and info.state is not WorldState.READY and any(each in devices for each in info.devices)
        ]
        if not held or time.monotonic() >= until_s:
            break
        time.sleep(LOOK_S)
    for world in held:
        sys.stdout.write(f"{world_line(world)}\n")
