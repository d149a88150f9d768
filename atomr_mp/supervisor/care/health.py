"""Reacts to the driver's reports of the GPUs; keeps the process running that gets them."""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.messages.health import FROM_HEALTH, FromHealth, GpuLink, GpuMemory
from atomr_mp.supervision.health import GpuHealth, Judgement, Measure
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

MODULE: Final = "atomr_mp.helpers.gpu_monitor"

AGAIN_S: Final = 5.0
"""Delay of the process's next start after its end; each further one is twice as long, until it has reported."""

AGAIN_MAX_S: Final = 300.0

SILENT_S: Final = 60.0
"""After this time without a report the driver counts as silent."""

PACKET_BYTES: Final = 4096


class HealthWatch:
    """Watches the pool's GPUs. What a GPU's health calls for is done to all of its devices.

    Args:
        loop: The supervisor's loop.
        helpers: Start processes.
        devices: The pool's devices.
        uuids: The GPUs, by position; none on the host backend.
    """

    def __init__(
        self, loop: Loop, helpers: Helpers, devices: Sequence[SupervisedDevice], uuids: Mapping[int, str]
    ) -> None:
        self._loop = loop
        self._helpers = helpers
        self._devices = devices
        self._uuids = uuids
        self._health = {gpu: GpuHealth() for gpu in uuids}
        self._notes: dict[int, str] = {}
        self._taken: dict[int, dict[int, int]] = {}
        """The GPU memory of processes, by GPU and pid, as last reported."""
        self.links: Final[dict[tuple[int, int], GpuLink]] = {}
        """How GPUs reach each other, by pair."""
        self._heard_s = loop.own_s
        self._again_s = AGAIN_S
        self._ours: socket.socket | None = None

    def start(self) -> None:
        """Start the process, if there is a GPU."""
        if not self._uuids:
            return
        self.close()
        try:
            self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            _LOG.warning("the GPUs' health is not watched: %s", error)
            self._start_again()
            return
        self._ours.setblocking(False)
        self._loop.watch(self._ours.fileno(), select.EPOLLIN, self._on_report)
        gpus = [f"{gpu}={uuid}" for gpu, uuid in self._uuids.items()]
        try:
            self._helpers.start(MODULE, [str(theirs.fileno()), *gpus], [theirs.fileno()], self._ended)
        except OSError as error:
            _LOG.warning("the GPUs' health is not watched: %s", error)
            self._start_again()
        finally:
            theirs.close()

    def close(self) -> None:
        """Listen no more."""
        if self._ours is not None:
            self._loop.forget(self._ours.fileno())
            self._ours.close()
            self._ours = None

    def notes(self, gpu: int) -> list[str]:
        """Return an operator's note on a GPU."""
        if gpu not in self._uuids:
            return []
        notes = [self._notes[gpu]] if gpu in self._notes else []
        silent_s = self._loop.own_s - self._heard_s
        if silent_s > SILENT_S:
            notes.append(f"the driver has told nothing of the GPU's health for {silent_s:.0f} s; does `nvidia-smi`?")
        return notes

    def taken_bytes(self, device: int, pid: int) -> int | None:
        """Return the GPU memory of a device's process, as reported some seconds ago; None if the driver is silent."""
        if self._loop.own_s - self._heard_s > SILENT_S:
            return None
        return self._taken.get(self._devices[device].gpu, {}).get(pid)

    def _on_report(self, _events: int) -> None:
        while self._ours is not None:
            try:
                packet = self._ours.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._loop.forget(self._ours.fileno())
                return
            self._heard_s, self._again_s = self._loop.own_s, AGAIN_S
            try:
                report = FROM_HEALTH.decode(packet)
            except errors.ProtocolError:
                _LOG.exception("a report of the GPUs' health is dropped")
                continue
            self._take(report)

    def _take(self, report: FromHealth) -> None:
        if report.gpu not in self._health:
            return
        match report:
            case GpuMemory():
                self._taken[report.gpu] = {each.pid: each.taken_bytes for each in report.processes}
            case GpuLink():
                self.links[report.gpu, report.other] = report
            case _:
                judgement = self._health[report.gpu].take(report)
                if judgement is not None:
                    self._act(report.gpu, judgement)

    def _act(self, gpu: int, judgement: Judgement) -> None:
        self._notes[gpu] = judgement.text
        if judgement.measure is Measure.RECOVER:
            del self._notes[gpu]
        for device in self._devices:
            if device.gpu == gpu:
                _act_on(device, judgement)

    def _ended(self, status: int) -> None:
        _LOG.warning("the process that watches the GPUs' health has ended with status %d", status)
        self._start_again()

    def _start_again(self) -> None:
        self._loop.call_later(self._again_s, self.start)
        self._again_s = min(2 * self._again_s, AGAIN_MAX_S)


def _act_on(device: SupervisedDevice, judgement: Judgement) -> None:
    """Do to a device what its GPU's health calls for."""
    measure, text = judgement
    active = device.roles.active
    device.log.note("gpu", text, measure=measure, pid=active.pid if active else None)
    match measure:
        case Measure.DRAIN if device.life.state is State.READY:
            device.replace("health", text)
        case Measure.RETIRE | Measure.QUARANTINE:
            device.quarantine.fall_sick(text, at_once=measure is Measure.QUARANTINE)
        case Measure.RECOVER:
            device.quarantine.recover(text)
        case _:
            pass
