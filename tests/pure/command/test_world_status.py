"""Worlds in a pool's status, and in the account that `doctor` compares."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from atomr_mp.cli import status as command
from atomr_mp.helpers import metrics_server
from atomr_mp.operator import doctor
from atomr_mp.operator.pool_status import WorldStatus, status_of
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState, WorldInfo, WorldState
from atomr_mp.protocol.messages.health import GpuLink
from atomr_mp.protocol.messages.operators import Status, WorkerStatus
from atomr_mp.supervisor.worlds.files import NAME


def test_a_status_has_a_line_for_each_world(capsys: pytest.CaptureFixture[str]) -> None:
    """Its state, its epoch and devices, and why it is not ready; of names with brackets too."""
    reason = "rank 1 (device 3) is tripped: [bold] 4 unplanned ends"
    worlds = [
        WorldInfo(0, "tp", [0, 1], ["Mlp", "Head"], WorldState.READY, 3, [1, 2]),
        WorldInfo(1, "pp", [2, 3], ["Stage"], WorldState.WAITING, 7, [], reason, 1),
    ]
    shown = status_of(Status(0, "p", "host", "1", 1, 0.0, 0, False, 1, 0, [], worlds=worlds), Path("/run"), 9.0)
    assert shown.worlds[1] == WorldStatus(
        name="pp", devices=[2, 3], actors=["Stage"], state=WorldState.WAITING, epoch=7, reason=reason
    )
    command._print(shown)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("world ")]
    assert lines == [
        "world tp (Mlp, Head on devices 0 and 1) is ready, epoch 3",
        f"world pp (Stage on devices 2 and 3) is waiting, epoch 7: {reason}",
    ]


@pytest.mark.parametrize(
    ("links", "lines"),
    [
        ([], []),
        ([GpuLink(0, 1, access=True, nvlink=True)], ["the GPUs reach each other over NVLink"]),
        ([GpuLink(0, 1, access=False, nvlink=False)], ["the GPUs do not reach each other"]),
        (
            [GpuLink(0, 1, access=True, nvlink=True), GpuLink(0, 2, access=True, nvlink=True)],
            ["the GPUs reach each other over NVLink"],
        ),
        (
            [GpuLink(0, 1, access=True, nvlink=True), GpuLink(0, 2, access=True, nvlink=False)],
            ["GPUs 0 and 1 reach each other over NVLink", "GPUs 0 and 2 reach each other over PCIe"],
        ),
        (
            [GpuLink(0, 1, access=True, nvlink=True), GpuLink(0, 2, access=False, nvlink=True)],
            ["GPUs 0 and 1 reach each other over NVLink", "GPUs 0 and 2 do not reach each other"],
        ),
    ],
)
def test_a_status_says_how_gpus_reach_each_other(
    capsys: pytest.CaptureFixture[str], links: list[GpuLink], lines: list[str]
) -> None:
    """In one line if all do so alike."""
    shown = status_of(Status(0, "p", "cuda", "1", 1, 0.0, 0, False, 1, 0, [], links=links), Path("/run"), 9.0)
    assert [each.gpus for each in shown.gpu_links] == [[each.gpu, each.other] for each in links]
    command._print(shown)
    assert [line for line in capsys.readouterr().out.splitlines() if "reach" in line] == lines


def test_a_status_says_that_the_pool_is_being_reloaded(capsys: pytest.CaptureFixture[str]) -> None:
    """And what cannot be written, where a device's state is the worse of the two."""
    told = msgspec.structs.replace(status(device=DeviceState.LOST), reloading=True, unwritable="the disk is full")
    command._print(status_of(told, Path("/run"), 9.0))
    out = capsys.readouterr().out
    assert "the pool is being reloaded, one device at a time\n" in out
    assert "the disk is full: workers' output and events are lost" in out


READY = WorldInfo(0, "tp", [0], ["Mlp"], WorldState.READY, 3, [1])
WAITING = WorldInfo(1, "pp", [0], ["Stage"], WorldState.WAITING, 3, [], "its members were set up with different code")


def status(*worlds: WorldInfo, device: DeviceState = DeviceState.READY, stopping: bool = False) -> Status:
    """Return the status of a pool of one device."""
    worker = WorkerStatus(DeviceInfo(0, "cpu", device, 1, "", True, 9, 0, ""), 0, 0, 0, 0, 0, 0.0, 0.0, 0)
    return Status(0, "p", "host", "1", 1, 0.0, 0, stopping, 1, 0, [worker], worlds=list(worlds))


@pytest.mark.parametrize(
    ("told", "state", "reason"),
    [
        (status(READY), "healthy", ""),
        (status(READY, WAITING), "degraded", "world pp is waiting"),
        (status(msgspec.structs.replace(WAITING, made=True)), "healthy", ""),
        (status(WAITING, device=DeviceState.STOPPED), "down", ""),
        (status(WAITING, stopping=True), "down", "the pool stops"),
    ],
)
def test_a_pool_with_a_world_that_is_not_ready_is_degraded(told: Status, state: str, reason: str) -> None:
    """One that a session has made is that session's."""
    shown = status_of(told, Path("/run"), 9.0)
    assert (shown.state, shown.reason) == (state, reason)


@pytest.mark.parametrize(("state", "expected"), [("waiting", "unwell"), ("forming", "unwell"), ("closing", "ok")])
def test_the_doctor_finds_a_world_that_serves_nobody(state: str, expected: str) -> None:
    """A planned end is none."""
    shown = status_of(status(msgspec.structs.replace(WAITING, state=WorldState(state))), Path("/run"), 9.0)
    [found] = doctor._world(shown.worlds[0])
    assert found.state == expected
    assert "so its calls wait: " in found.what
    assert "different code" in found.what
    [refused] = doctor._world(shown.worlds[0], {0, 7})  # a member's circuit is open, and nobody waits for it
    assert "so its calls are refused at once: " in refused.what


def test_metrics_tell_which_worlds_are_ready() -> None:
    """Of the pool's own, with the number of their epochs."""
    made = msgspec.structs.replace(READY, name="made-2", made=True)
    ready, epochs = metrics_server.world_metrics([READY, WAITING, made])
    assert (ready.name, epochs.name) == ("atomr_mp_world_ready", "atomr_mp_world_epochs")
    assert [(each.labels, each.value) for each in ready.samples] == [({"world": "tp"}, 1), ({"world": "pp"}, 0)]
    assert [(each.name, each.value) for each in epochs.samples] == [("atomr_mp_world_epochs_total", 3)] * 2


def test_the_memory_of_worlds_is_no_slab() -> None:
    """Doctor looks for the owners of slabs, and these have others."""
    assert process_tags.owner(f"{NAME}-tp-d0-g1") is None
    assert process_tags.owner(f"{NAME}-tp-stop") is None
