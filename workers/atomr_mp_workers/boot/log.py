"""The form of a worker's log lines: time, level, device, generation and request."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

from atomr_mp_workers.requests.request import current_request

_PLAIN: Final = (
    "%(at)s %(levelname)s device=%(device)d generation=%(generation)d%(place)s%(request)s %(name)s: %(message)s"
)


def start_logging() -> None:
    """Write log lines to standard error, the worker's log, before the process knows its device."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Formatter(0, 0))


def name_device(device: int, generation: int, place: str = "") -> None:
    """Begin each further line with the device, the generation, and the device's place where its GPU has several."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, Formatter):
            handler.setFormatter(Formatter(device, generation, place))


class Formatter(logging.Formatter):
    """Puts the device, its generation, and the request that the thread runs in front of the message.

    Args:
        device: Index of the device.
        generation: The incarnation's.
        place: Its GPU and worker, with a space in front; empty if both have one number.
    """

    converter = time.gmtime  # type: ignore[assignment]  # as the documentation of logging has it

    def __init__(self, device: int, generation: int, place: str = "") -> None:
        super().__init__(_PLAIN)
        self._place = place
        self._device = device
        self._generation = generation

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        request = current_request()
        record.at = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03}Z"
        record.device, record.generation = self._device, self._generation
        record.place = self._place
        record.request = ""
        if request is not None:
            record.request = f" method={request.method.name} request={request.id} session={request.peer.session.number}"
        return super().format(record)
