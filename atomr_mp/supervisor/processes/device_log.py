"""Writes one device's events into the event log, and onto the screen."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Final

from atomr_mp.process.files.events import EventLog, Scalar
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import DevicePlan

_LOG = logging.getLogger("atomr_mp.supervisor")


class DeviceLog:
    """The events of a device.

    Args:
        device: The device.
        generation: Returns the generation of an event that names none.
        loop: The supervisor's loop.
        events: The pool's event log.
    """

    def __init__(self, device: DevicePlan, generation: Callable[[], int], loop: Loop, events: EventLog) -> None:
        self._facts: Final = device.facts
        self.title: Final = device.title
        """The device, as logs name it."""
        self._generation = generation
        self._loop = loop
        self._events = events

    def note(self, event: str, text: str, generation: int | None = None, **facts: Scalar) -> None:
        """Write an event into the log, and onto the screen when the loop has time."""
        if generation is None:
            generation = self._generation()
        self._loop.call_afterwards(functools.partial(_LOG.info, "%s generation %d: %s", self.title, generation, text))
        self._events.append(
            {
                "time": time.time(),
                "event": event,
                **self._facts,
                "generation": generation,
                "text": text,
                **facts,
            }
        )
