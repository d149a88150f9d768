"""What libraries have achieved, in a pool's status."""

from __future__ import annotations

from pathlib import Path

import pytest

from atomr_mp.cli import status as command
from atomr_mp.cli.common import short_time
from atomr_mp.operator.pool_status import PoolStatus, WorkFigures, status_of
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState
from atomr_mp.protocol.messages.operators import Status, WorkerStatus, WorkStatus


def shown(*work: list[WorkStatus]) -> PoolStatus:
    """Return the status of a pool whose devices have done this."""
    workers = []
    for index, each in enumerate(work):
        info = DeviceInfo(index, "host", DeviceState.READY, 1, "", False, 1, 0, "")
        workers.append(WorkerStatus(info, 0, 0, 0, 0, 0, 0.0, 0.0, 0, work=each))
    return status_of(Status(0, "p", "host", "1", 1, 0.0, 0, False, 1, 0, workers), Path("/run"), 9.0)


def test_rates_are_those_of_the_time_of_execution() -> None:
    """In thousands of millions a second; what is not declared, or took no measurable time, is left out."""
    found = shown(
        [
            WorkStatus("blas.gemm", 4, 2 * 10**9, 6 * 10**12, 10**9),
            WorkStatus("memory.copy", 1, 10**6, 0, 5 * 10**6),
            WorkStatus("fft.execute", 1, 0, 10, 10),
        ]
    )
    assert found.devices[0].work == [
        WorkFigures(method="blas.gemm", requests=4, mean_s=0.5, gflops=3000.0, gbytes_per_s=0.5),
        WorkFigures(method="memory.copy", requests=1, mean_s=0.001, gflops=None, gbytes_per_s=5.0),
        WorkFigures(method="fft.execute", requests=1, mean_s=0.0, gflops=None, gbytes_per_s=None),
    ]


def test_the_table_is_over_all_devices_and_shows_the_longest(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are means over the time of execution, not over devices."""
    gemm, copy = WorkStatus("blas.gemm", 1, 10**9, 10**12, 0), WorkStatus("memory.copy", 2, 10**6, 0, 10**9)
    few = [WorkStatus(f"solver.m{number}", 1, 100 - number, 1, 1) for number in range(20)]
    command._print(shown([copy, gemm, *few], [WorkStatus("blas.gemm", 3, 3 * 10**9, 7 * 10**12, 0)]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = lines.index(["library", "method", "requests", "mean", "time", "GFLOP/s", "GB/s"])
    rows = lines[head + 2 : head + 2 + command.MOST_WORK]
    assert rows[0] == ["blas.gemm", "4", "1", "s", "2,000", "-"]
    assert rows[1] == ["memory.copy", "2", "500", "us", "-", "1,000"]
    assert rows[-1][0] == "solver.m9"
    assert "solver.m10" not in {line[0] for line in lines if line}


def test_a_pool_without_library_work_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor has one whose GPUs' times are not known."""
    command._print(shown([]))
    assert "GFLOP/s" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (850e-9, "850 ns"),
        (999.6e-9, "1 us"),
        (12.34e-6, "12.3 us"),
        (4.5678e-3, "4.57 ms"),
        (0.9999, "1 s"),
        (61.25, "61.2 s"),
    ],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    """From nanoseconds to seconds."""
    assert short_time(seconds) == text
