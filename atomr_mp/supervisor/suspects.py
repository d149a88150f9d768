"""What clients say of requests that ran when workers ended, and what all of them are told of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from atomr_mp.protocol import session
from atomr_mp.supervision.suspicion import SUSPECTED_S, Docket, End
from atomr_mp.supervisor.loop import Loop

if TYPE_CHECKING:
    from atomr_mp.supervisor.device import Device

Tell = Callable[[session.Suspicions, int], None]
"""Sends a message to all clients, or with a number to one."""


class Suspects:
    """The pool's docket.

    Args:
        limit: See `Docket`.
        loop: The supervisor's loop.
        devices: Return the devices, whose ends are forgiven that a quarantined request has brought about.
        tell: Sends to clients.
    """

    def __init__(
        self,
        limit: int,
        loop: Loop,
        devices: Callable[[], Sequence[Device]],
        tell: Tell,
    ) -> None:
        self._docket = Docket(limit)
        self._loop = loop
        self._devices = devices
        self._tell = tell

    @property
    def known(self) -> list[session.Suspicion]:
        """What is held of requests."""
        return self._docket.known()

    def ended(self, end: End, running: int) -> None:
        """A worker has ended, by what may have been one of so many requests."""
        self._docket.ended(end, running)

    def hear(self, number: int, message: session.Suspect | session.Acquit) -> None:
        """Take in what a client says."""
        match message:
            case session.Suspect():
                now_s = time.monotonic()
                changed = self._docket.suspect((message.device, message.generation), message.requests, now_s)
                for each in changed:
                    if each.verdict is session.Verdict.QUARANTINED:
                        self._quarantine(each)
                if changed:
                    self._loop.call_later(SUSPECTED_S, lambda: self._announce(self._docket.expire(time.monotonic())))
                self._announce(changed)
                self._tell(session.Suspicions([], message.id), number)
            case session.Acquit(request):
                self._announce(self._docket.acquit(request))

    def clear(self) -> None:
        """Admit all again: the actors' code is another."""
        self._announce(self._docket.clear())

    def _quarantine(self, found: session.Suspicion) -> None:
        request = found.request
        why = (
            f"its end is not counted: {request.method} with the arguments of fingerprint {request.fingerprint.hex()} "
            f"has ended {found.ends} worker{'' if found.ends == 1 else 's'}, at last when nothing else ran there; it "
            "is refused until the actors are reloaded"
        )
        devices = self._devices()
        for device, generation in sorted(self._docket.ends(request)):
            devices[device].forgive(generation, why)

    def _announce(self, changed: list[session.Suspicion]) -> None:
        if changed:
            self._tell(session.Suspicions(changed), 0)
