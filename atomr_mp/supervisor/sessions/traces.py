"""The trace of the pool: its rings, made here, and whose session has asked for it. The supervisor keeps no ring."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.interop.sealed import make_sealed
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control, operators, session
from atomr_mp.protocol.timeline import RING_BYTES
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.transport.descriptors import Descriptor

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

NAME: Final = "atomr-mp-trace"
"""Name of the rings' memory."""

GRACE_S: Final = 2.0
"""How long a trace may go on after its time, if its session does not end it."""

MOST_RINGS: Final = 512
"""Most rings of one trace: of 64 devices with standbys, or of those whose workers end all the time."""

Send = Callable[[session.FromSupervisor, Descriptor | None], None]
"""Sends a message to the session that traces; the descriptor is owned from there on."""


class PoolTraces:
    """Has one trace at a time, for one session.

    Args:
        loop: The supervisor's loop.
        devices: The pool's devices.
        tell_all: Sends a message to all clients.
    """

    def __init__(
        self,
        loop: Loop,
        devices: Sequence[SupervisedDevice],
        tell_all: Callable[[session.FromSupervisor], None],
    ) -> None:
        self._loop = loop
        self._devices = devices
        self._tell_all = tell_all
        self._session = 0
        """Number of the session that traces, 0 if none does."""
        self._send: Send | None = None
        self._timer: Timer | None = None
        self._until_s = 0.0
        self._rings = 0

    @property
    def is_on(self) -> bool:
        """Whether the pool is traced."""
        return bool(self._session)

    def begin(self, number: int, request: operators.TraceRequest, send: Send) -> None:
        """Begin a trace, and answer; refuse it while there is another."""
        if self._session:
            left_s = max(self._until_s - time.monotonic(), 0.1)
            refused = errors.Overloaded(
                f"the pool is traced already, for {left_s:.1f} s more; one trace runs at a time, so try again then",
                retry_after_s=round(left_s, 1),
            )
            send(session.Answer(request.id, ErrorInfo.of(refused)), None)
            return
        self._session, self._send, self._rings = number, send, 0
        self._until_s = time.monotonic() + request.seconds
        self._timer = self._loop.call_later(request.seconds + GRACE_S, self._end)
        begun_ns = time.monotonic_ns()
        for device in self._devices:
            for worker in device.roles.all:
                for message, ring in self.introductions(device.index):
                    worker.tell(message, ring)
        self._tell_all(session.TraceChanged(on=True))
        if self._session == number:  # it may have ended meanwhile, since its client does not read
            send(operators.TraceBegun(request.id, begun_ns), None)
        _LOG.info("the pool is traced for %g s", request.seconds)

    def introductions(self, device: int) -> Iterator[tuple[control.FromSupervisor, Descriptor]]:
        """Yield the message that has a process of a device record, with its ring, if the pool is traced."""
        if not self._session or self._send is None:
            return
        if self._rings >= MOST_RINGS:
            _LOG.warning("a process of device %d is not in the trace, which has %d rings", device, self._rings)
            return
        try:
            ring = Descriptor(make_sealed(NAME, RING_BYTES))
        except errors.OutOfMemory as error:
            _LOG.warning("a process of device %d is not in the trace: %s", device, error)
            return
        self._rings += 1
        self._send(operators.TraceRing(self._rings, device), ring.share())
        yield control.Trace(on=True), ring

    def session_ended(self, number: int) -> None:
        """End the trace if it is this session's."""
        if number == self._session:
            self._end()

    def _end(self) -> None:
        self._session, self._send = 0, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for device in self._devices:
            for worker in device.roles.all:
                worker.tell(control.Trace(on=False))
        self._tell_all(session.TraceChanged(on=False))
