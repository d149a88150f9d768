from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from atomr_mp.cli import status, top
from atomr_mp.cli.common import short_count, short_duration, short_size
from atomr_mp.cli.top import MOST_METHODS, Calls, Sample, batches, methods, view
from atomr_mp.operator import pool_status
from atomr_mp.operator.figures import quantile
from atomr_mp.protocol.messages.devices import Circuit, DeviceInfo, DeviceState
from atomr_mp.protocol.messages.operators import (
    BatchStatus,
    Figures,
    RemoteSessionStatus,
    RemoteStatus,
    StandbyStatus,
    Status,
    WorkerStatus,
)

NS = st.integers(1, 2**40)

NOW_S: Final = 1_800_000_000.0


def histogram(latencies: list[int]) -> list[int]:
    """Count as a board does."""
    counts = [0] * 64
    for latency_ns in latencies:
        counts[latency_ns.bit_length()] += 1
    return counts


@given(st.lists(NS, min_size=1, max_size=100), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_right_but_for_its_bucket(latencies: list[int], part: float) -> None:
    """It lies between half the true one and twice that."""
    latencies.sort()
    exact = latencies[max(0, -int(-part * len(latencies) // 1) - 1)]
    found = quantile(histogram(latencies), part)
    assert found is not None
    assert exact / 2 <= found <= exact * 2


def test_no_requests_have_no_latency() -> None:
    """A dash, and no error."""
    assert quantile([0] * 64, 0.99) is None
    assert quantile([], 0.5) is None


def test_methods_that_were_called_over_http_are_shown_at_80_columns() -> None:
    """Those that were called most come first; others are counted; the columns fit, also with the longest names."""
    idle = Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), [])
    status = Status(1, "night", "host", "1", 7, NOW_S - 90, 2**25, False, 3, 0, [worker(0, idle)])
    old: dict[str, Calls] = {"A.slow": (10, 1, histogram([2**30] * 10))}
    new: dict[str, Calls] = {
        "A.slow": (30, 2, histogram([2**30] * 10 + [2**20] * 20)),
        **{"A." + "long" * 60 + f"{n}": (100_000 + n, 0, histogram([2**36] * 3)) for n in range(MOST_METHODS)},
    }
    assert methods(Sample(10.0, status), Sample(12.0, status)) == []
    console = Console(width=80)
    with console.capture() as capture:
        console.print(*methods(Sample(10.0, status, {}), Sample(12.0, status, new)))
        console.print(*methods(Sample(10.0, status, old), Sample(12.0, status, {"A.slow": new["A.slow"]})))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("A.long") for line in lines) == MOST_METHODS
    assert any("and 1 method less called" in line for line in lines)
    (slow,) = [line.split() for line in lines if line.startswith("A.slow")]
    assert slow == ["A.slow", "10", "0.5", "1.48ms", "2.08ms", "30", "2"]


def test_a_view_shows_the_last_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and latencies are of the time between two snapshots; the last fault comes first."""
    monkeypatch.setattr(top, "time", SimpleNamespace(time=lambda: NOW_S))
    idle = Figures(0, 100, 5, 0, 0, 0, 0, 0, histogram([2**30] * 105), [])
    busy = msgspec.structs.replace(
        idle,
        answered=1100,
        failed=25,
        latencies=list(map(sum, zip(idle.latencies, histogram([1500] * 1020), strict=True))),
    )
    before, after = (
        Status(1, "night", "host", "1", 7, NOW_S - 90, 2**25, False, 3, 0, [worker(0, figures), worker(1, idle)])
        for figures in (idle, busy)
    )
    console = Console(width=160)
    with console.capture() as capture:
        console.print(view(Sample(10.0, before), Sample(12.0, after)))
    lines = capture.get().splitlines()
    assert lines[0].startswith("pool night, host backend, up 1 min 30 s, 1 of 2 devices ready, 3 clients")
    rows = {line.split()[0]: line.split() for line in lines if line.strip()[:1].isdigit()}
    assert rows["0"][1:6] == ["ready", "4", "0", "510", "10"]
    assert rows["0"][6:8] == ["1.45µs", "2.03µs"]
    assert rows["1"][1:8] == ["rebuilding", "4", "1", "0", "0", "-", "-"]
    assert lines[-1] == "device 1, 1 min 0 s ago: killed by [SIGKILL]"


def test_a_worker_on_trial_is_told_from_one_that_is_well() -> None:
    """Its device's circuit is half open; it counts as ready, for it takes calls."""
    tried = worker(0, Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), []))
    tried = msgspec.structs.replace(tried, device=msgspec.structs.replace(tried.device, circuit=Circuit.HALF_OPEN))
    told = Sample(1.0, Status(1, "p", "host", "1", 7, 0.0, 0, False, 1, 0, [tried]))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(view(told, told))
    assert "1 of 1 device ready" in capture.get()
    assert "half open" in capture.get()
    open_circuit = msgspec.structs.replace(tried.device, circuit=Circuit.OPEN, retry_at=1.0)
    shown = pool_status._device(msgspec.structs.replace(tried, device=open_circuit), time.time())
    assert (shown.circuit, shown.retry_after_s) == ("open", 0.001)


def test_batches_of_the_last_interval_are_shown() -> None:
    """Their number, size and waiting time are shown, but not those of another worker."""
    sizes = [0] * 11
    first = [BatchStatus("Embed.embed", 10, 100, 1.0, 0.5, sizes), BatchStatus("Embed.idle", 1, 1, 0.0, 0.0, sizes)]
    later = [BatchStatus("Embed.embed", 30, 700, 2.5, 0.5, sizes), first[1]]
    figures = Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), [])
    before, after = (
        Status(1, "p", "host", "1", 7, 0.0, 0, False, 1, 0, [msgspec.structs.replace(worker(0, figures), batches=each)])
        for each in (first, later)
    )
    assert batches(Sample(10.0, before), Sample(12.0, after)) == [
        "batches:",
        "device 0, Embed.embed: 10/s of 30.0 requests, after 2.5ms (means)",
    ]
    assert batches(Sample(10.0, after), Sample(12.0, after)) == []
    (again,) = after.workers
    info = msgspec.structs.replace(again.device, generation=5)
    renewed = msgspec.structs.replace(after, workers=[msgspec.structs.replace(again, device=info)])
    assert batches(Sample(10.0, before), Sample(12.0, renewed)) == []


def test_remote_clients_have_a_line() -> None:
    """It says who is cut, what the relay keeps, and how the relay is. Without remote clients there is no line."""
    sessions = [
        RemoteSessionStatus("one", "alice", connected=True, kept_bytes=2**20),
        RemoteSessionStatus("two", "bob", connected=False, kept_bytes=2**20),
    ]
    served = RemoteStatus("tcp://10.0.0.5:5570", 9, listening=True, restarts=0, refused=4, sessions=sessions)
    again = msgspec.structs.replace(served, pid=0, listening=False, restarts=2, sessions=[])
    figures = Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), [])
    told = []
    for remote in (None, served, again):
        status = Status(1, "p", "host", "1", 7, 0.0, 0, False, 1, 0, [worker(0, figures)], remote=remote)
        console = Console(width=160)
        with console.capture() as capture:
            console.print(view(Sample(1.0, status), Sample(2.0, status)))
        told.append([line.strip() for line in capture.get().splitlines() if line.startswith("remote clients")])
    assert told == [
        [],
        ["remote clients: 2 sessions (1 cut), 2 MiB under way, 4 refused"],
        ["remote clients: 0 sessions, 0 MiB under way, 4 refused, relay started again 2 times, relay starting"],
    ]


def worker(index: int, figures: Figures) -> WorkerStatus:
    """Return a device, well if it is the first."""
    state = DeviceState.REBUILDING if index else DeviceState.READY
    info = DeviceInfo(index, "host", state, 4, "", admitted=False, worker_pid=9, restarts=index, reason="")
    fault, at = ("killed by [SIGKILL]", NOW_S - 60) if index else ("", 0.0)
    return WorkerStatus(info, 0, 0, 0, 0, 0, 0.0, 0.0, 2**20, figures=figures, last_fault=fault, last_fault_at=at)


@pytest.mark.parametrize("counts", list(itertools.permutations([0, 1, 3, 9]))[:5])
def test_quantiles_grow_with_their_part(counts: tuple[int, ...]) -> None:
    """The median is never above the 99th percentile."""
    median, late = quantile(counts, 0.5), quantile(counts, 0.99)
    assert median is not None
    assert late is not None
    assert median <= late


@pytest.mark.parametrize("workers_per_gpu", [1, 2])
def test_the_widest_figures_fit_into_80_columns(workers_per_gpu: int) -> None:
    """Nothing is cut off, in `top` and in `status`; where a GPU has several devices, both are named."""
    idle = Figures(0, 0, 0, 0, 0, 0, 0, 0, histogram([]), [])
    busy = Figures(0, 2**30, 2**28, 0, 0, 0, 0, 0, histogram([2**29 + 12345] * 1020), [])
    workers = []
    for figures in (idle, busy):
        standby = StandbyStatus("hot", "starting", 4194303, 5, 0, None)
        wide = msgspec.structs.replace(
            worker(11, figures),
            queue_depth=123_456,
            running=128,
            running_for_s=5999.0,
            memory_bytes=2**37,
            standby=standby,
        )
        info = msgspec.structs.replace(
            wide.device,
            name="NVIDIA H100 80GB HBM3",
            state=DeviceState.QUARANTINED,
            generation=123,
            worker_pid=4194303,
            gpu=11 // workers_per_gpu,
            worker=11 % workers_per_gpu,
            workers_per_gpu=workers_per_gpu,
        )
        workers.append(msgspec.structs.replace(wide, device=info, slab_bytes=2**36, started_at=NOW_S))
    before, after = (Status(1, "p", "cuda", "1", 7, 0.0, 0, False, 1, 0, [each]) for each in workers)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(view(Sample(10.0, before), Sample(12.0, after)))
    row = next(line for line in capture.get().splitlines() if line.startswith(" 11"))
    first = (
        ["11", "quarantined", "123", "11", "671M"] if workers_per_gpu == 1 else ["11", "5", "1", "quarantined", "11"]
    )
    assert row.split()[:5] == first
    assert row.split()[-5:] == ["128", "100m", "123k", "128G", "64G"]
    assert "…" not in row
    with console.capture() as capture:
        console.print(status._table([msgspec.to_builtins(pool_status._device(workers[1], 0.0))]))
    shown = capture.get()
    for word in ("quarantined", "4194303", "hot starting", "123k", "100m", "128G", "NVIDIA"):
        assert word in shown
    assert "…" not in shown


@given(st.integers(0, 2**60))
@example(1000 * 2**20)
@example(1000 * 2**30)
def test_short_figures_are_short(value: int) -> None:
    """They have at most five characters, up to the largest that a machine can have."""
    assert len(short_count(min(value, 10**12 - 10**9))) <= 5
    assert len(short_duration(min(value, 10**8))) <= 5
    assert len(short_size(min(value, 2**49))) <= 5
