"""The real driver's answers about real GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

import pytest

from atomr_mp.process.gpus import nvml
from atomr_mp.process.gpus.health import Monitor
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings

pytestmark = pytest.mark.gpu

UUID: Final = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_the_driver_tells_of_its_gpus() -> None:
    """Each has what identifies it."""
    found = nvml.survey()
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", found.driver)
    assert found.cuda >= (12, 0)
    for gpu in found.gpus:
        for device in gpu.devices:
            assert UUID.fullmatch(device.uuid)
            assert device.name.strip()
            assert 0 <= device.used_bytes <= device.memory_bytes
            assert not device.problem


def test_a_process_that_plans_does_not_use_cuda() -> None:
    """It imports nothing of it and makes no context, for which it would have to open the driver's memory manager."""
    code = """
import os, sys
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings
make_plan(PoolSettings(backend="cuda"))
print(*sys.modules)
print(*(os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 0, told.stderr
    modules, files = told.stdout.splitlines()
    assert not {"cupy", "cuda", "torch"} & set(modules.split())
    assert "/dev/nvidia-uvm" not in files


def test_a_plan_shows_each_worker_its_own_gpu_first() -> None:
    """CuPy is installed where these tests run."""
    plan = make_plan(PoolSettings(backend="cuda"))
    assert plan.backend == "cuda"
    for device in plan.devices:
        seen = device.environment["CUDA_VISIBLE_DEVICES"].split(",")
        assert seen[0] == device.uuid
        assert len(set(seen)) == len(seen)
        assert device.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert device.execution.memory_bytes > 0


def test_one_gpu_is_found_by_the_beginning_of_its_uuid() -> None:
    """As CUDA itself takes it."""
    first = make_plan(PoolSettings(backend="cuda")).devices[0]
    (again,) = make_plan(PoolSettings(backend="cuda", gpus=first.uuid[:30])).devices
    assert again.uuid == first.uuid


def test_the_driver_tells_what_this_process_takes_or_nothing_of_it() -> None:
    """If it tells any, as outside most containers, it tells more when more is used."""
    import cupy

    uuid = make_plan(PoolSettings(backend="cuda")).devices[0].uuid

    def taken() -> int | None:
        with Monitor({0: uuid}) as monitor:
            (told,) = monitor.memory()
        return {each.pid: each.taken_bytes for each in told.processes}.get(os.getpid())

    with cupy.cuda.Device(0):
        small = cupy.zeros(1)
        before = taken()
        large = cupy.zeros(2**30, "uint8")
        cupy.cuda.Device(0).synchronize()
        after = taken()
        if before is None or after is None:
            pytest.skip("the driver does not tell it here")
        assert after - before >= 2**30
        del small, large
