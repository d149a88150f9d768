"""Devices of a world whose processes are the test's: the messages to these, and the order of the reports of an end."""

from __future__ import annotations

import gc
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import EventLog
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.identity import Identity
from atomr_mp.process.spawn import ExitCause
from atomr_mp.protocol.board import BOARD_BYTES
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.protocol.world import is_over
from atomr_mp.protocol.world.memory import STOP_BYTES
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervision.settings import PoolSettings, WorldSettings
from atomr_mp.supervision.standby import Turns
from atomr_mp.supervisor.device.death import HungRequest
from atomr_mp.supervisor.device.device import PoolServices, SupervisedDevice
from atomr_mp.supervisor.device.quarantine import StuckOnGpu
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.processes import process_factory
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.supervisor.worlds.worlds import Worlds
from atomr_mp_workers.wire.control import ControlChannel
from tests.support import DEADLINE_S, open_descriptors

PID = 2**22


class Process:
    """Takes the place of a worker's process: its end of the control channel is the test's."""

    def __init__(self, device: int, generation: int, **_: object) -> None:
        self.device = device
        self.generation = generation
        self.pid = PID + 100 * device + generation
        self.identity = Identity(self.pid, 1, "")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.channel = ControlChannel(theirs.detach())
        self.pidfd = os.eventfd(0, os.EFD_CLOEXEC)
        self.thread = os.eventfd(0, os.EFD_CLOEXEC)
        self.board = memoryview(bytearray(BOARD_BYTES))
        self.cause: ExitCause | None = None
        self.stop: memoryview | None = None
        """The world's stop word, once it was received."""

    def kill(self) -> None:
        """End."""
        if self.pidfd >= 0:
            os.eventfd_write(self.pidfd, 1)

    def begin_to_end(self) -> None:
        """Be killed: a thread ends at once, the process later."""
        self.cause = ExitCause(signal=9)
        os.eventfd_write(self.thread, 1)

    def hang_up_and_end(self) -> None:
        """Be killed, so that the channel has ended before anybody looks at the threads."""
        self.begin_to_end()
        self.channel.close()

    def open_threads(self) -> list[int]:
        """Return what tells of the ends of two threads."""
        return [os.dup(self.thread), os.dup(self.thread)]

    def dying(self) -> ExitCause | None:
        """Return how it ends, if it has begun to."""
        return self.cause

    def running(self) -> bool:
        """Return whether it runs."""
        return self.cause is None

    def freeze(self) -> None:
        """Do nothing: it goes on until it is killed."""

    def frozen(self) -> bool:
        """Return that it goes on."""
        return False

    def reap(self) -> ExitCause:
        """Say how it ended."""
        os.close(self.pidfd)
        self.pidfd = -1
        return self.cause or ExitCause(signal=9)

    def close(self) -> None:
        """Release it."""
        self.control.close()
        self.channel.close()
        os.close(self.thread)

    def received(self) -> list[control.FromSupervisor]:
        """Return the messages that have come; take the stop word."""
        found = []
        while (message := self.channel.receive_waiting()) is not None:
            found.append(message)
            if isinstance(message, control.WorldFile):
                descriptor = self.channel.take_descriptor()
                assert descriptor is not None
                if message.kind is control.WorldFileKind.STOP:
                    memory = mmap.mmap(descriptor, STOP_BYTES, prot=mmap.PROT_READ)
                    self.stop = memoryview(memory).cast("Q")
                os.close(descriptor)
        return found


class Rig:
    """Two devices, the world over them, and the story that clients hear."""

    def __init__(
        self, run_dir: Any, log: EventLog, monkeypatch: pytest.MonkeyPatch, *, mailboxes: bool = False
    ) -> None:
        settings = PoolSettings(
            backend="host",
            gpus="2",
            actors=["models:Mlp"],
            worlds={"tp": WorldSettings(devices=[0, 1], actors=["Mlp"])},
        )
        plan = make_plan(settings)
        self.processes: dict[int, Process] = {}
        """The latest of each device."""
        self.all: list[Process] = []
        monkeypatch.setattr(process_factory, "spawn", self._spawn)
        self.loop = Loop()
        self.story: list[str] = []
        self.infos: list[WorldInfo] = []
        sessions = Mock(reports_due_s=0.0)
        sessions.introductions.return_value = []
        sessions.incarnation_stopped.side_effect = lambda *_, **__: self._told("stopped")
        sessions.incarnation_ended.side_effect = lambda *_: self._told("ended")
        self.devices: list[SupervisedDevice] = []
        plans = [msgspec.structs.replace(each, mailboxes=mailboxes) for each in plan.worlds]
        self.worlds = Worlds(plans, self.devices, self.loop, tell=self._changed, note=Mock())
        self.factory = ProcessFactory(plan, self.loop, run_dir, log)
        services = PoolServices(
            self.loop,
            run_dir,
            log,
            bytes(16),
            sessions,
            ResidentKeeper("host", 0, [], log),
            self.factory,
            Turns(1),
            self.worlds,
        )
        self.devices += [
            SupervisedDevice(plan, each, services, StuckOnGpu(), ended=lambda: None, changed=self.worlds.look)
            for each in plan.devices
        ]

    def _spawn(self, **facts: Any) -> Process:
        made = self.processes[facts["device"]] = Process(**facts)
        self.all.append(made)
        return made

    def _told(self, what: str) -> None:
        self.story.append(what)

    def _changed(self, info: WorldInfo) -> None:
        if info.state is WorldState.ABORTING:
            stop = self.processes[0].stop
            assert stop is not None
            assert is_over(stop, info.epoch)
        self.infos.append(info)
        self.story.append(info.state)

    def until(self, condition: Callable[[], object]) -> None:
        """Run the loop until something is so."""
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until_s, self.story
            self.loop._stopped = False
            self.loop.call_later(0.001, self.loop.stop)
            self.loop.run()

    def ready(self, device: int) -> list[control.FromSupervisor]:
        """Let the latest process of a device be ready; return what it was sent before."""
        process = self.processes[device]
        messages = process.received()
        process.channel.send(control.Ready([]))
        self.until(lambda: self.devices[device].life.state is State.READY)
        return messages

    def form(self) -> None:
        """Let both processes join the epoch that forms."""
        for process in self.processes.values():
            joins = [each for each in process.received() if isinstance(each, control.JoinEpoch)]
            assert len(joins) == 1
            process.channel.send(control.EpochJoined(0, joins[0].epoch))
        self.until(lambda: self.worlds.infos[0].state is WorldState.READY)

    def close(self) -> None:
        """End all."""
        for device in self.devices:
            device.stop()
            device.kill()
        self.until(lambda: not any(device.roles.all for device in self.devices))
        self.worlds.free()
        for device in self.devices:
            device.output.close()
        self.factory.close()
        self.loop.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Make two devices with a world that is ready."""
    (tmp_path / "models.py").write_text("", encoding="utf-8")
    with RunDirectory.create(tmp_path / "run") as run_dir, EventLog(run_dir.events) as log:
        made = Rig(run_dir, log, monkeypatch)
        for device in made.devices:
            device.start()
        for index in (0, 1):
            made.ready(index)
        made.form()
        made.story.clear()
        made.infos.clear()
        yield made
        made.close()


def test_a_process_is_introduced_to_its_worlds_before_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files need no other process. All descriptors are closed at the end."""
    before = len(open_descriptors())
    with RunDirectory.create(tmp_path / "run") as run_dir, EventLog(run_dir.events) as log:
        rig = Rig(run_dir, log, monkeypatch)
        rig.devices[1].start()
        messages = rig.ready(1)
        kinds = [type(each) for each in messages]
        assert kinds[:6] == [control.WorldFile] * 4 + [control.WorldOffered, control.Start]
        assert control.JoinEpoch not in kinds
        offered = messages[4]
        assert isinstance(offered, control.WorldOffered)
        assert (offered.rank, offered.size, offered.generation, offered.actors) == (1, 2, 1, ["Mlp"])
        rig.close()
        for process in rig.all:
            process.stop = None
    assert len(open_descriptors()) <= before + 1  # the mapping of the stop word, until it is collected


def test_a_process_that_cannot_have_files_is_not_started(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device has an unplanned end that says why; then it is tried again."""
    monkeypatch.setattr(os, "eventfd", Mock(side_effect=OSError(24, "Too many open files")))
    rig.processes[1].begin_to_end()
    rig.processes[1].kill()
    rig.until(lambda: "no files can be made for its worlds: Too many open files" in str(rig.devices[1].restarts.lost))
    monkeypatch.undo()
    monkeypatch.setattr(process_factory, "spawn", rig._spawn)
    rig.until(lambda: rig.processes[1].generation > 1)


Way = Callable[[Rig], object]


def _active(rig: Rig) -> Incarnation:
    """Return the active incarnation of the second device."""
    found = rig.devices[1].roles.active
    assert found is not None
    return found


WAYS: dict[str, tuple[Way, str]] = {
    "a thread ends": (lambda rig: rig.processes[1].begin_to_end(), "killed by SIGKILL"),
    "its threads end while it hangs up": (
        lambda rig: rig.processes[1].hang_up_and_end(),
        "killed by SIGKILL",
    ),
    "it has ended": (lambda rig: rig.processes[1].kill(), "killed by SIGKILL"),
    "it hangs up": (lambda rig: rig.processes[1].channel.close(), "ended"),
    "it fails": (
        lambda rig: rig.processes[1].channel.send(control.Fault(ErrorInfo.of(errors.SetupFailed("no more")))),
        "no more",
    ),
    "it hangs": (
        lambda rig: rig.devices[1].deaths.hung(_active(rig), errors.WorkerHung("stuck"), HungRequest("", "", "")),
        "stuck",
    ),
    "it breaks the protocol": (
        lambda rig: rig.processes[1].channel.send(control.EpochJoined(9, 1)),
        "the worker broke the protocol: device 1 is in no world with the number 9",
    ),
    "it hands over a mailbox where there are none": (
        lambda rig: rig.processes[1].channel.send(control.WorldMailbox(0), 0),
        "the worker broke the protocol: members of world tp have no mailboxes",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_clients_hear_of_the_epoch_s_end_before_that_of_the_incarnation(rig: Rig, way: str) -> None:
    """Whatever shows it first; the other member is asked to leave, and the next epoch has the next process."""
    act, why = WAYS[way]
    act(rig)
    rig.until(lambda: rig.story)
    assert rig.story[0] == WorldState.ABORTING
    info = rig.infos[0]
    assert (info.epoch, info.rank, info.generations) == (1, 1, [])
    assert why in info.reason
    departs = [each for each in rig.processes[0].received() if isinstance(each, control.DepartEpoch)]
    assert departs == [control.DepartEpoch(0, 1, 1, info.reason)]
    rig.processes[0].channel.send(control.EpochLeft(0, 1))
    rig.until(lambda: rig.processes[1].generation == 2 and rig.worlds.infos[0].state is WorldState.WAITING)
    assert "ended" in rig.story
    assert rig.worlds.infos[0].reason == "rank 1 (device 1) is starting: its worker starts"
    rig.ready(1)
    rig.form()
    assert rig.worlds.infos[0].generations == [1, 2]
    assert len(rig.worlds.descriptors) == 3


def test_mailboxes_go_from_process_to_process_and_one_that_gets_lost_costs_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All descriptors are closed at the end, also that of a second mailbox, which breaks the protocol."""
    gc.collect()
    before = len(open_descriptors())
    with RunDirectory.create(tmp_path / "run") as run_dir, EventLog(run_dir.events) as log:
        rig = Rig(run_dir, log, monkeypatch, mailboxes=True)
        for device in rig.devices:
            device.start()
        rig.processes[0].channel.send(control.WorldMailbox(0), 0)
        rig.processes[1].channel.send(control.WorldMailbox(0))
        rig.until(lambda: rig.processes[1].generation == 2)
        why = "its worker made a mailbox whose file descriptor has not come (world tp)"
        assert why in str(rig.devices[1].restarts.lost)
        rig.processes[1].channel.send(control.WorldMailbox(0), 0)
        mine = [control.WorldFile(0, 0, 1, control.WorldFileKind.MAILBOX)]
        assert [each for each in rig.ready(1) if each in mine] == mine
        mine = [control.WorldFile(0, 1, 2, control.WorldFileKind.MAILBOX)]
        assert [each for each in rig.ready(0) if each in mine] == mine
        rig.form()
        rig.processes[0].channel.send(control.WorldMailbox(0), 0)
        rig.until(lambda: rig.processes[0].generation == 2)
        assert "one mailbox" in str(rig.devices[0].restarts.lost)
        rig.close()
        for process in rig.all:
            process.stop = None
    gc.collect()
    assert len(open_descriptors()) == before


def test_the_epoch_of_a_worker_that_drains_is_closed_before_it_is_told_to_finish(rig: Rig) -> None:
    """It runs what was published while it still serves; clients hold their calls, and see who has asked for it."""
    rig.devices[0].replace("restart", "an operator asked for a restart")
    rig.until(lambda: rig.story)
    first, second = rig.processes[0].received()
    assert first == control.CloseEpoch(0, 1)
    assert (rig.story[0], rig.infos[0].reason) == (WorldState.CLOSING, "its worker is replaced (restart)")
    assert isinstance(second, control.Drain)
    assert rig.processes[1].received() == [first]


def test_a_member_that_is_late_is_killed_and_its_end_counts(rig: Rig) -> None:
    """Its requests are not blamed for it."""
    rig.processes[0].channel.send(control.EpochBroken(0, 1, "has not begun a call within 10 s", 1, late=True))
    rig.until(lambda: rig.processes[1].generation == 2)
    assert rig.story[0] == WorldState.ABORTING
    assert rig.infos[0].reason == "has not begun a call within 10 s"
    assert rig.devices[1].restarts.count == 1
    assert rig.devices[0].restarts.count == 0
    lost = rig.devices[1].restarts.lost
    assert isinstance(lost, errors.DeviceUnavailable)
    assert "its worker is late: has not begun a call within 10 s (world tp)" in lost.message
