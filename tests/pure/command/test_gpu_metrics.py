"""The metrics of devices that share a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra metrics: pip install 'atomr-mp[metrics]'")

from atomr_mp.helpers.metrics_server import device_metrics, gpu_metrics
from atomr_mp.process.gpus.nvml import GpuUsage
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState
from atomr_mp.protocol.messages.operators import Figures, WorkerStatus
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings

GPUS = ["GPU-aa11", "GPU-bb22"]


def workers(workers_per_gpu: int) -> list[WorkerStatus]:
    """Return the status of two GPUs' devices."""
    plan = make_plan(PoolSettings(backend="host", gpus="2", workers_per_gpu=workers_per_gpu))
    return [
        WorkerStatus(
            DeviceInfo(
                each.index,
                "H100",
                DeviceState.READY,
                1,
                "",
                True,
                1,
                0,
                "",
                uuid=GPUS[each.gpu],
                gpu=each.gpu,
                worker=each.worker,
                workers_per_gpu=workers_per_gpu,
            ),
            *(0, 0, 0, 0, 0, 0.0, 0.0, 0, []),
            figures=Figures(0, 0, 0, 0, 0, 0, 0, 0, [0] * 64, []),
        )
        for each in plan.devices
    ]


@pytest.mark.parametrize("workers_per_gpu", [1, 3])
def test_a_gpu_is_counted_once_however_many_devices_it_has(workers_per_gpu: int) -> None:
    """A sum over the pool's samples is that of its GPUs; each sample names the GPU and its first device."""
    usage = {uuid: GpuUsage(0.5, number, 10 + number) for number, uuid in enumerate(GPUS)}
    for family in gpu_metrics(workers(workers_per_gpu), usage):
        places = [(sample.labels["device"], sample.labels["gpu"]) for sample in family.samples]
        assert places == [("0", "0"), (str(workers_per_gpu), "1")]


def test_each_device_tells_where_it_is() -> None:
    """For joins with figures that are given by device alone."""
    (family,) = (family for family in device_metrics(workers(2)) if family.name == "atomr_mp_device_info")
    found = [tuple(sample.labels[name] for name in ("device", "gpu", "worker", "uuid")) for sample in family.samples]
    assert found == [(str(n), str(n // 2), str(n % 2), GPUS[n // 2]) for n in range(4)]
