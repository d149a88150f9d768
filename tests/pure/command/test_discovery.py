"""How GPUs are found by NVML, and their places in a pool's plan. The driver is a fake."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from atomr_mp import cli, errors
from atomr_mp.cli import start
from atomr_mp.process.gpus import hardware, nvml
from atomr_mp.protocol.codec import MAX_DEVICES
from atomr_mp.startup import planning
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.placement import ComputeMode, Gpu
from atomr_mp.supervision.settings import Backend, PoolSettings, WorldSettings
from atomr_mp.supervisor.plan import Plan
from tests.fakes import fake_nvml
from tests.fakes.fake_nvml import GIB, Card, FakeNvml

HARDWARE: Final = "2 on the PCI bus: 0000:01:00.0, 0000:02:00.0"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    """A machine with two GPUs, their driver, and CuPy, which must not be imported."""
    fake = FakeNvml(Card("GPU-aa11", used_bytes=3 * GIB, pids=(12, 7)), Card("GPU-bb22"))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(planning, "nvidia_hardware", lambda: HARDWARE)
    monkeypatch.setattr(hardware, "nvidia_hardware", lambda: HARDWARE)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "cupy.py").write_text("raise AssertionError('CuPy was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return fake


def refusal(**settings: Any) -> str:
    """Return why settings are refused."""
    with pytest.raises(errors.ConfigurationError) as refused:
        make_plan(PoolSettings(**settings))
    return str(refused.value)


# --- what NVML tells -------------------------------------------------------------------------------------------------


def test_gpus_are_read_with_what_matters(driver: FakeNvml) -> None:
    """The library is left as it was found."""
    found = nvml.survey()
    assert (found.driver, found.cuda) == ("580.65.06", (13, 0))
    assert found.gpus[0] == Gpu(
        uuid="GPU-aa11", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, used_bytes=3 * GIB, pids=(7, 12)
    )
    assert driver.inits == 0


def test_use_is_told_by_uuid(driver: FakeNvml) -> None:
    """Slices have a UUID too, and tell no utilisation."""
    slices = (Card("MIG-1", memory_bytes=10 * GIB, busy_percent=None), None)
    driver.cards = (Card("GPU-aa11", busy_percent=37), Card("GPU-cc33", slices=slices))
    assert nvml.usage() == {
        "GPU-aa11": nvml.GpuUsage(0.37, GIB // 2, 80 * GIB),
        "MIG-1": nvml.GpuUsage(None, GIB // 2, 10 * GIB),
    }
    assert driver.inits == 0


def test_who_takes_memory_is_told_by_uuid_with_how_much_where_that_is_known(driver: FakeNvml) -> None:
    """Users are sorted by pid. A GPU that does not tell its users has none."""
    driver.cards[0].taken = {7: GIB}
    driver.cards[1].pids = None
    assert nvml.processes() == {"GPU-aa11": [(7, GIB), (12, 0)], "GPU-bb22": []}


def test_slices_are_read_and_empty_slots_are_not(driver: FakeNvml) -> None:
    """They have the compute mode of their GPU."""
    one, two = (Card(f"MIG-{n}", "H100 MIG 1g.10gb", 10 * GIB) for n in (1, 2))
    driver.cards = (Card("GPU-aa11", mode=ComputeMode.EXCLUSIVE_PROCESS, slices=(one, None, two)),)
    (found,) = nvml.survey().gpus
    assert [(each.uuid, each.memory_bytes) for each in found.devices] == [("MIG-1", 10 * GIB), ("MIG-2", 10 * GIB)]
    assert {each.compute_mode for each in found.devices} == {ComputeMode.EXCLUSIVE_PROCESS}


def test_a_gpu_in_mig_mode_without_slices_cannot_be_used(driver: FakeNvml) -> None:
    """CUDA would not show it."""
    driver.cards = (Card("GPU-aa11", slices=(None,)), Card("GPU-bb22"))
    assert "in MIG mode and without slices" in refusal()
    assert [device.uuid for device in make_plan(PoolSettings(gpus="GPU-bb")).devices] == ["GPU-bb22"]


def test_what_a_gpu_does_not_tell_is_left_out(driver: FakeNvml) -> None:
    """Memory that it shares with the machine, and processes of others in a container."""
    driver.cards = (Card("GPU-aa11", memory_bytes=None, pids=None),)
    (found,) = nvml.survey().gpus
    assert (found.memory_bytes, found.used_bytes, found.pids) == (0, 0, ())


def test_a_lost_gpu_keeps_its_index_and_says_so(driver: FakeNvml) -> None:
    """The others can be used."""
    driver.cards = (Card("", lost=True), Card("GPU-bb22"))
    lost, well = nvml.survey().gpus
    assert lost.problem == f"NVML reports: error {fake_nvml.GPU_IS_LOST}"
    assert not well.problem
    assert [device.uuid for device in make_plan(PoolSettings(gpus="1,")).devices] == ["GPU-bb22"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (fake_nvml.DRIVER_NOT_LOADED, "driver is not loaded"),
        (fake_nvml.LIBRARY_NOT_FOUND, "libnvidia-ml.so.1"),
        (fake_nvml.LIB_RM_VERSION_MISMATCH, "differ in version"),
        (fake_nvml.NO_PERMISSION, "no permission for /dev/nvidiactl"),
        (fake_nvml.UNKNOWN, "NVML reports: error 999"),
    ],
)
def test_a_driver_that_fails_is_an_error_with_its_reason(driver: FakeNvml, value: int, why: str) -> None:
    """There is no silent fall back to the CPU, and the option for it is named."""
    driver.refuses = value
    for backend in ("auto", "cuda"):
        told = refusal(backend=backend)
        assert told.startswith(f"NVIDIA hardware was found ({HARDWARE}), but ")
        assert why in told
        assert "`--backend host`" in told


def test_a_driver_without_gpus_is_an_error(driver: FakeNvml) -> None:
    """All GPUs may have fallen off the bus."""
    driver.cards = ()
    assert "runs no GPU" in refusal()


def test_nvidia_ml_py_that_is_missing_is_named(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extras that bring it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py, by which the driver is asked, is not installed" in refusal()
    assert driver.inits == 0


def test_a_driver_that_hangs_is_left_behind(driver: FakeNvml) -> None:
    """Its caller goes on; the thread that hangs keeps no process from ending."""
    hangs: list[threading.Thread] = []
    arrived, let_go = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.append(threading.current_thread())
        arrived.set()
        let_go.wait()

    driver.before_init = hang
    try:
        with pytest.raises(errors.ConfigurationError, match=r"has not answered within 0.01 s"):
            nvml.survey(0.01)
        assert arrived.wait(10), "NVML was not asked"
        assert hangs[0].daemon
    finally:
        let_go.set()
        for thread in hangs:
            thread.join()
    assert driver.inits == 0


# --- what is planned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_a_device_is_planned_for_each_gpu(driver: FakeNvml, backend: Backend) -> None:
    """The plan has the devices that CUDA will see, and four fifths of the memory. It crosses processes whole."""
    plan = make_plan(PoolSettings(backend=backend))
    assert plan.backend == "cuda"
    assert [(device.index, device.uuid) for device in plan.devices] == [(0, "GPU-aa11"), (1, "GPU-bb22")]
    assert plan.devices[1].environment == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-bb22,GPU-aa11",
    }
    assert [device.execution.memory_bytes for device in plan.devices] == [64 * GIB, 64 * GIB]
    assert [len(device.notes) for device in plan.devices] == [1, 0]
    assert Plan.from_descriptor(plan.to_descriptor()) == plan
    assert driver.inits == 0


def test_the_engine_of_a_world_is_chosen_by_how_its_gpus_reach_each_other(driver: FakeNvml) -> None:
    """A driver that does not tell it leaves the choice as it is; NCCL takes a GPU for each rank."""
    world = WorldSettings(devices=[0, 1], actors=["Mlp"], engine="auto")
    settings: dict[str, Any] = {"actors": ["models:Mlp"], "worlds": {"tp": world}}

    def engine(**more: Any) -> str:
        return make_plan(PoolSettings(**settings, **more)).worlds[0].engine

    assert engine() == "mailboxes"
    driver.cards[1].reaches = frozenset({0})
    assert engine() == "nccl"
    assert engine(gpus="1", workers_per_gpu=2) == "mailboxes"
    driver.cards[1].reaches = None
    assert engine() == "mailboxes"
    assert driver.inits == 0
    settings["worlds"] = {"tp": msgspec.structs.replace(world, engine="nccl")}
    assert engine() == "nccl"
    assert "takes one rank on a GPU" in refusal(**settings, gpus="1", workers_per_gpu=2)


def test_memory_that_is_set_holds_for_every_gpu(driver: FakeNvml) -> None:
    """Without a setting, a GPU that shares the machine's memory counts as having all of it."""
    assert [device.execution.memory_bytes for device in make_plan(PoolSettings(memory_bytes=GIB)).devices] == [GIB, GIB]
    driver.cards = (Card("GPU-aa11", memory_bytes=None),)
    (shared,) = make_plan(PoolSettings()).devices
    assert 0 < shared.execution.memory_bytes < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_users_cuda_visible_devices_holds(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker sees a hidden GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (device,) = make_plan(PoolSettings()).devices
    assert device.environment["CUDA_VISIBLE_DEVICES"] == "GPU-bb22"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides every GPU" in refusal()
    assert driver.inits == 0


def test_the_host_backend_never_asks_the_driver(driver: FakeNvml) -> None:
    """It runs on machines with GPUs too, however their driver is."""
    driver.before_init = lambda: pytest.fail("the driver was asked")
    plan = make_plan(PoolSettings(backend="host", gpus="2"))
    assert [(device.name, device.uuid, device.environment) for device in plan.devices] == [
        ("host:0", "", {}),
        ("host:1", "", {}),
    ]


@pytest.mark.parametrize(("version", "extra"), [(12080, "cuda12"), (13000, "cuda13"), (14010, "cuda13")])
def test_cupy_that_is_missing_is_named_with_the_extra_for_the_driver(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch, version: int, extra: str
) -> None:
    """It is looked for, and not imported."""
    driver.cuda_version = version
    make_plan(PoolSettings())
    monkeypatch.setattr(hardware, "find_spec", lambda _name: None)
    assert f"run `pip install 'atomr-mp[{extra}]'`" in refusal()


def test_a_driver_that_is_too_old_is_refused(driver: FakeNvml) -> None:
    """There is no CuPy for it."""
    driver.cuda_version = 11040
    assert "supports CUDA 11.4 only; 12.0 is needed at least" in refusal()


def test_a_container_with_only_the_tools_of_the_driver_is_told_what_it_lacks(
    driver: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    """NVML answers there, and CUDA is not there; the GPUs are shown all the same."""
    driver.cuda_version = None
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in refusal()
    assert cli.main(["version"]) == 0
    shown = capsys.readouterr().out
    assert "cuda backend: not available: libcuda.so.1" in shown
    assert "NVIDIA driver 580.65.06\nGPU 0: " in shown


def test_more_slices_than_a_pool_can_have_are_refused(driver: FakeNvml) -> None:
    """Fewer can be asked for by number."""
    slices = tuple(Card(f"MIG-{n}") for n in range(MAX_DEVICES + 1))
    driver.cards = (Card("GPU-aa11", slices=slices),)
    assert f"at most {MAX_DEVICES} devices" in refusal()
    assert len(make_plan(PoolSettings(gpus=str(MAX_DEVICES))).devices) == MAX_DEVICES


def test_without_hardware_there_is_no_cuda_backend(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` takes the host backend then, without asking."""
    monkeypatch.setattr(planning, "nvidia_hardware", lambda: "")
    assert make_plan(PoolSettings()).backend == "host"
    assert "the cuda backend was asked for" in refusal(backend="cuda")
    assert driver.inits == 0


# --- what an operator is told ----------------------------------------------------------------------------------------


def test_start_says_what_should_be_known_of_a_gpu(driver: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    """Below the one line, and only if there is something."""
    start._announce(make_plan(PoolSettings()))
    first, note = capsys.readouterr().err.splitlines()
    assert first.startswith("starting the cuda backend with 2 devices")
    assert note == (
        "device 0 (NVIDIA H100 80GB HBM3 GPU-aa11): when the pool was started, others used it (pid 7, 12); 3.0 of 80.0 "
        "GiB were taken"
    )
    assert driver.inits == 0


def test_version_shows_the_driver_and_the_gpus(
    driver: FakeNvml, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs have the indices that `--gpus` takes."""
    driver.cards = (*driver.cards, Card("", lost=True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.splitlines()[4:] == [
        "cuda backend: available",
        "NVIDIA driver 580.65.06, CUDA 13.0",
        "GPU 0: NVIDIA H100 80GB HBM3 GPU-aa11 (80.0 GiB)",
        "GPU 1: NVIDIA H100 80GB HBM3 GPU-bb22 (80.0 GiB)",
        "GPU 2: GPU 2, NVML reports: error 15",
        "CUDA_VISIBLE_DEVICES=1: only these can be used, and are counted from 0",
    ]


def test_version_says_why_there_is_no_cuda_backend(driver: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver that fails is no error of this command."""
    driver.refuses = fake_nvml.DRIVER_NOT_LOADED
    assert cli.main(["version"]) == 0
    assert "cuda backend: not available: the NVIDIA driver is not loaded" in capsys.readouterr().out


def test_an_mps_server_is_found_by_the_environment_or_by_its_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its directory alone, which a dead daemon leaves, is none."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(hardware, "_MPS", tmp_path)
    assert hardware.mps_server() == ""
    (tmp_path / "control").touch()
    assert hardware.mps_server() == str(tmp_path)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    assert hardware.mps_server() == "/somewhere"
