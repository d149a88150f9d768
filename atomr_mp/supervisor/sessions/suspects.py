"""Clients' reports of requests that ran when workers ended, and the verdicts for all clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import operators, session, suspects
from atomr_mp.supervision.suspicion import SUSPECTED_S, Death, Docket, End
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop

WHERE: Final = 8
"""Most ends that are shown of a request in quarantine; it may have run at more ends before it was found."""

Tell = Callable[[suspects.Suspicions, int], None]
"""Sends a message to all clients, or to the one of a number."""


@checks.owned(by_maker=True)
class Suspects:
    """The pool's docket.

    Args:
        limit: See `Docket`.
        loop: The supervisor's loop.
        devices: The devices, whose ends by a quarantined request are forgiven.
        tell: Sends to clients.
    """

    def __init__(
        self,
        limit: int,
        loop: Loop,
        devices: Sequence[SupervisedDevice],
        tell: Tell,
    ) -> None:
        self._docket = Docket(limit)
        self._loop = loop
        self._devices = devices
        self._tell = tell

    @property
    def known(self) -> list[suspects.Suspicion]:
        """The verdicts on requests."""
        return self._docket.known()

    @property
    def quarantined(self) -> list[operators.QuarantinedRequest]:
        """The refused requests, for an operator."""
        began = time.time() - time.monotonic()
        return [
            operators.QuarantinedRequest(
                request,
                began + since_s,
                len(ends),
                [operators.EndedIncarnation(device, generation) for device, generation in ends[-WHERE:]],
            )
            for request, since_s, ends in self._docket.quarantined()
        ]

    @property
    def reports_due_s(self) -> float:
        """Longest wait, in seconds, for reports by which ends may be forgiven; 0 if none is due."""
        return self._docket.reports_due_s(time.monotonic())

    def ended(self, end: End, death: Death) -> None:
        """A worker has ended, maybe by one of its requests."""
        released = self._docket.ended(end, death, time.monotonic())
        for each in released:
            self._note_admitted(
                each.request,
                each.ends,
                "an unexplained signal has struck elsewhere, so those here are no proof:",
            )
        self._announce(released)

    def hear(self, number: int, message: suspects.Suspect | suspects.Acquit) -> None:
        """Receive a client's report."""
        match message:
            case suspects.Suspect():
                now_s = time.monotonic()
                changed = self._docket.suspect((message.device, message.generation), message.requests, now_s)
                for each in changed:
                    if each.verdict is suspects.Verdict.QUARANTINED:
                        self._quarantine(each)
                if changed:
                    self._loop.call_later(SUSPECTED_S, lambda: self._announce(self._docket.expire(time.monotonic())))
                self._announce(changed)
                self._tell(suspects.Suspicions([], message.id), number)
                for device in self._devices:
                    device.restarts.reported()
            case suspects.Acquit(request):
                self._announce(self._docket.acquit(request))

    def admit(self, message: operators.AdmitRequest) -> session.Answer:
        """Carry out an operator's order to let a request back in."""
        request = message.request
        ends = {each.request: each.ends for each in self._docket.quarantined()}.get(request)
        if ends is None:
            error = errors.InvalidRequest(
                f"{request.method} with the arguments of fingerprint {request.fingerprint.hex()} is not in quarantine"
            )
            return session.Answer(message.id, ErrorInfo.of(error))
        self._note_admitted(request, len(ends), "an operator:")
        self._announce(self._docket.admit(request))
        return session.Answer(message.id)

    def clear(self) -> None:
        """Admit all again, since the actors' code has changed."""
        self._announce(self._docket.clear())

    def _note_admitted(self, request: suspects.RequestKey, ends: int, who: str) -> None:
        device, generation = self._docket.last_end(request)
        why = (
            f"{who} {request.method} with the arguments of fingerprint {request.fingerprint.hex()} is admitted again; "
            f"it has ended {_workers(ends)}"
        )
        self._devices[device].log.note("request_admitted", why, generation=generation)

    def _quarantine(self, found: suspects.Suspicion) -> None:
        request = found.request
        why = (
            f"its end is not counted: {request.method} with the arguments of fingerprint {request.fingerprint.hex()} "
            f"has ended {_workers(found.ends)}, at last when nothing else ran there; it is refused until the actors "
            "are reloaded, or an operator lets it in (`atomr-mp admit`)"
        )
        for device, generation in sorted(self._docket.ends(request)):
            self._devices[device].restarts.forgive(generation, why)

    def _announce(self, changed: list[suspects.Suspicion]) -> None:
        if changed:
            self._tell(suspects.Suspicions(changed), 0)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"
