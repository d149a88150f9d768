"""Serves a pool's figures to Prometheus: a process of its own, which the supervisor starts if `metrics` is set.

It asks the supervisor as `atomr-mp status` does, once for each scrape, and the driver (NVML) in a thread that can be
left behind. So neither a scraper nor the driver ever delays the supervisor's loop.
"""

from __future__ import annotations

import itertools
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from atomr_mp import errors, output
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.gpus.driver import Driver
from atomr_mp.process.gpus.nvml import GpuUsage
from atomr_mp.process.prctl import die_with_parent
from atomr_mp.process.scheduling import standstill
from atomr_mp.protocol.board import page
from atomr_mp.protocol.hosts import is_local
from atomr_mp.protocol.messages.devices import Circuit, DeviceState, WorldInfo, WorldState
from atomr_mp.protocol.messages.operators import RemoteStatus, Status, WorkerStatus

FIRST_BUCKET: Final = 10
LAST_BUCKET: Final = 36
"""Buckets are shown from 1 microsecond, 2^10 ns, to 69 s, 2^36 ns."""

ANSWER_S: Final = 3.0
"""How long the supervisor may take to greet, or to answer: a scrape takes less than Prometheus waits for."""

OUTCOMES: Final = ("answered", "failed", "cancelled", "expired", "rejected", "lost")


def main() -> int:
    """Serve until the supervisor ends. Arguments: its pid, the listening socket, the path of its session socket."""
    parent, listening = map(int, sys.argv[1:3])
    die_with_parent(parent)
    output.protect()
    registry = CollectorRegistry()
    registry.register(PoolCollector(parent, Path(sys.argv[3])))
    MetricsServer(socket.socket(fileno=listening), registry).serve_forever()
    return 0


class MetricsServer(ThreadingHTTPServer):
    """Answers scrapes on a socket that listens already, of either family."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, registry: CollectorRegistry) -> None:
        facts = {"registry": registry, "timeout": 10.0, "any_host": listening.family == socket.AF_UNIX}
        super().__init__(("", 0), type("Handler", (ScrapeHandler,), facts), bind_and_activate=False)
        self.socket.close()
        self.socket = listening


class ScrapeHandler(exposition.MetricsHandler):
    """Answers a scrape, but no page of a foreign web site: its name may have been made to resolve to this machine."""

    any_host = False
    """Whether any `Host` is served, since no browser reaches the socket."""

    def do_GET(self) -> None:  # noqa: N802 - the name is that of `http.server`
        """Answer, or refuse."""
        host = self.headers.get("Host")
        if self.any_host or host is None or is_local(host):  # every browser names the host
            super().do_GET()
        else:
            self.send_error(HTTPStatus.FORBIDDEN, "ask for an address or for localhost")


class PoolCollector:
    """Makes metrics of a pool's status.

    Args:
        supervisor: The supervisor's pid.
        path: Its session socket.
    """

    def __init__(self, supervisor: int, path: Path) -> None:
        self._supervisor = supervisor
        self._path = path
        self._observer: OperatorSession | None = None
        """A session with it; used by one thread at a time."""
        self._lock = threading.Lock()
        self._driver = Driver()
        self._told = self._ask()
        """Its latest answer."""

    def describe(self) -> list[Metric]:
        """Return nothing: the registry is not to ask the pool when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        with self._lock:
            status = self._ask()
            self._told = status or self._told
            told = self._told
        yield from all_metrics(status, told, self._driver)

    def _ask(self) -> Status | None:
        """Return the pool's status; None if the supervisor does not answer. Blocks for a few seconds at most."""
        if standstill(self._supervisor) is not None:  # each further connection to it would wait in its queue
            return None
        for _ in range(2):
            known = self._observer is not None
            try:
                if self._observer is None:
                    self._observer = OperatorSession(self._path, ANSWER_S)
                return self._observer.status(ANSWER_S)
            except (errors.AtomrError, TimeoutError, OSError) as error:
                self._drop()
                if not known or isinstance(error, TimeoutError):
                    return None  # else it has ended that session, and may begin another
        return None

    def _drop(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()


def all_metrics(status: Status | None, told: Status | None, driver: Driver) -> Iterator[Metric]:
    """Yield all metrics of a pool: here, and among those of `atomr-mp serve`.

    Args:
        status: Its status; None if its supervisor does not answer.
        told: Its supervisor's latest answer, if there was one, which tells what runs meanwhile.
        driver: Tells how the GPUs are used; asked if there are any.
    """
    yield GaugeMetricFamily("atomr_mp_supervisor_up", "0 while the supervisor does not answer", status is not None)
    if status is None:  # the rest would be out of date
        yield from [] if told is None else [info_metric(told)]
        return
    yield from pool_metrics(status)
    yield from world_metrics(status.worlds)
    yield from remote_metrics(status.remote)
    yield from device_metrics(status.workers)
    yield from batch_metrics(status.workers)
    if status.backend == "cuda":
        yield from gpu_metrics(status.workers, driver.usage())


def info_metric(status: Status) -> Metric:
    """Return the metric that tells what runs."""
    info = GaugeMetricFamily("atomr_mp_info", "1; what runs", labels=["pool", "backend", "version"])
    info.add_metric([status.pool, status.backend, status.version], 1)
    return info


def pool_metrics(status: Status) -> Iterable[Metric]:
    """Return the metrics of the pool and its supervisor."""
    refused = "Sessions that were refused or ended for what they sent"
    unkept = "Slabs with large results that end with their worker, for want of descriptors or of room"
    return [
        info_metric(status),
        GaugeMetricFamily(
            "atomr_mp_files_unwritable",
            "1 while output and events are lost, as on a full disk",
            bool(status.unwritable),
        ),
        GaugeMetricFamily("atomr_mp_sessions", "Clients that may call", status.sessions),
        CounterMetricFamily("atomr_mp_sessions_refused", refused, status.refused),
        CounterMetricFamily("atomr_mp_result_slabs_not_kept", unkept, status.unkept_results),
        GaugeMetricFamily(
            "atomr_mp_supervisor_start_time_seconds", "Start of the supervisor", status.supervisor_started_at
        ),
        GaugeMetricFamily(
            "atomr_mp_supervisor_memory_bytes", "Resident memory of the supervisor", status.supervisor_memory_bytes
        ),
        GaugeMetricFamily(
            "atomr_mp_resident_bytes", "Memory that outlives the workers, of all devices", status.resident_bytes
        ),
        GaugeMetricFamily(
            "atomr_mp_quarantined_requests", "Requests that are refused, for they end workers", len(status.quarantined)
        ),
    ]


def world_metrics(worlds: list[WorldInfo]) -> Iterable[Metric]:
    """Return the metrics of the pool's worlds, without those that sessions have made: names of these never end."""
    ready = GaugeMetricFamily("atomr_mp_world_ready", "1 if the world takes calls", labels=["world"])
    epochs = CounterMetricFamily("atomr_mp_world_epochs", "How often the members have met anew", labels=["world"])
    for world in worlds:
        if not world.made:
            ready.add_metric([world.name], int(world.state is WorldState.READY))
            epochs.add_metric([world.name], world.epoch)
    return [ready, epochs]


def remote_metrics(remote: RemoteStatus | None) -> Iterable[Metric]:
    """Return the metrics of remote clients; families without samples if the pool admits none."""
    listening = GaugeMetricFamily("atomr_mp_relay_listening", "1 if remote clients can connect", labels=[])
    restarts = CounterMetricFamily("atomr_mp_relay_restarts", "Ends of the relay's process", labels=[])
    refused = CounterMetricFamily(
        "atomr_mp_remote_refused", "Handshakes and channels that relays refused: keys, limits, rules", labels=[]
    )
    sessions = GaugeMetricFamily("atomr_mp_remote_sessions", "Sessions of remote clients", labels=["connection"])
    kept = GaugeMetricFamily("atomr_mp_remote_kept_bytes", "Bytes sent to them and not acknowledged", labels=[])
    if remote is not None:
        connected = sum(each.connected for each in remote.sessions)
        listening.add_metric([], int(remote.listening))
        restarts.add_metric([], remote.restarts)
        refused.add_metric([], remote.refused)
        sessions.add_metric(["up"], connected)
        sessions.add_metric(["cut"], len(remote.sessions) - connected)
        kept.add_metric([], sum(each.kept_bytes for each in remote.sessions))
    return [listening, restarts, refused, sessions, kept]


def device_metrics(workers: list[WorkerStatus]) -> Iterator[Metric]:
    """Yield the metrics of the devices."""
    requests = CounterMetricFamily("atomr_mp_requests", "Requests by outcome", labels=["device", "outcome"])
    latency = HistogramMetricFamily(
        "atomr_mp_request_seconds",
        "Requests that ran, from their arrival at the worker to their answer",
        labels=["device"],
    )
    ends = CounterMetricFamily("atomr_mp_worker_ends", "Ends of worker processes by cause", labels=["device", "cause"])
    state = GaugeMetricFamily(
        "atomr_mp_device_state", "1 for the state that the device is in", labels=["device", "state"]
    )
    circuit = GaugeMetricFamily(
        "atomr_mp_device_circuit", "1 for the state that the device's circuit is in", labels=["device", "circuit"]
    )
    for worker in workers:
        device, figures = str(worker.device.index), worker.figures
        for outcome in OUTCOMES:
            requests.add_metric([device, outcome], getattr(figures, outcome))
        latency.add_metric([device], *histogram(figures.latencies, figures.latency_ns))
        for end in figures.ends:
            ends.add_metric([device, end.cause], end.count)
        for each in DeviceState:
            state.add_metric([device, each.value], int(worker.device.state is each))
        for position in Circuit:
            circuit.add_metric([device, position.value], int(worker.device.circuit is position))
    restarts = CounterMetricFamily("atomr_mp_restarts", "Unplanned ends of worker processes", labels=["device"])
    refused = CounterMetricFamily("atomr_mp_refused_messages", "Messages that workers refused", labels=["device"])
    internal = CounterMetricFamily(
        "atomr_mp_internal_errors", "Faults of the runtime that have cost a request or a session", labels=["device"]
    )
    for worker in workers:
        restarts.add_metric([str(worker.device.index)], worker.device.restarts)
        refused.add_metric([str(worker.device.index)], worker.refused)
        internal.add_metric([str(worker.device.index)], worker.figures.internal_errors)
    place = GaugeMetricFamily(
        "atomr_mp_device_info", "1; where the device is", labels=["device", "gpu", "worker", "name", "uuid"]
    )
    for worker in workers:
        info = worker.device
        place.add_metric([str(info.index), str(info.gpu), str(info.worker), info.name, info.uuid], 1)
    yield from (place, requests, latency, ends, state, circuit, restarts, refused, internal)
    for name, (text, value) in GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["device"])
        for worker in workers:
            gauge.add_metric([str(worker.device.index)], value(worker))
        yield gauge


GAUGES: Final[dict[str, tuple[str, Callable[[WorkerStatus], float]]]] = {
    "atomr_mp_generation": ("Worker processes since the pool's start", lambda worker: worker.device.generation),
    "atomr_mp_queue_depth": ("Requests received and not ended", lambda worker: worker.queue_depth),
    "atomr_mp_running": ("Requests that run", lambda worker: worker.running),
    "atomr_mp_running_seconds": ("Age of the oldest request that runs", lambda worker: worker.running_for_s),
    "atomr_mp_worker_memory_bytes": ("Resident memory of the worker", lambda worker: worker.memory_bytes),
    "atomr_mp_slab_bytes": ("Device memory of the slabs for buffers", lambda worker: worker.slab_bytes),
    "atomr_mp_leases": ("How often sessions hold buffers", lambda worker: worker.leases),
}


def batch_metrics(workers: list[WorkerStatus]) -> Iterable[Metric]:
    """Return the metrics of batched methods, of each worker: they start from 0 with the next generation."""
    labels = ["device", "generation", "method"]
    items = HistogramMetricFamily("atomr_mp_batch_items", "Requests, or rows, in a batch", labels=labels)
    wait = HistogramMetricFamily(
        "atomr_mp_batch_wait_seconds", "Requests from their arrival to the start of their batch", labels=labels
    )
    longest = GaugeMetricFamily(
        "atomr_mp_batch_longest_wait_seconds", "How long a request waited for its batch at most", labels=labels
    )
    for worker in workers:
        for of in worker.batches:
            device = [str(worker.device.index), str(worker.device.generation), of.method]
            below = list(itertools.accumulate(of.sizes))
            buckets = [*((repr(float(2**power)), count) for power, count in enumerate(below)), ("+Inf", of.batches)]
            items.add_metric(device, buckets, of.items)
            wait.add_metric(device, _waits(of.waits), of.wait_s)
            longest.add_metric(device, of.longest_wait_s)
    return [items, wait, longest]


def _waits(waits: list[int]) -> list[tuple[str, float]]:
    """Return how many requests waited for less than each bound, in seconds."""
    below = list(itertools.accumulate(waits)) or [0]
    bounds = [repr(2.0 ** (page.FIRST_WAIT + at) / 1e9) for at in range(len(below) - 1)]
    return list(zip([*bounds, "+Inf"], map(float, below), strict=True))


def gpu_metrics(workers: list[WorkerStatus], usage: dict[str, GpuUsage]) -> Iterator[Metric]:
    """Yield the driver's metrics of the pool's GPUs, each once, by its first device; slices have no utilisation."""
    labels = ["device", "gpu"]
    busy = GaugeMetricFamily(
        "atomr_mp_gpu_busy_ratio", "Part of the last moments in which the GPU worked", labels=labels
    )
    used = GaugeMetricFamily("atomr_mp_gpu_memory_used_bytes", "The GPU's memory in use, by anybody", labels=labels)
    memory = GaugeMetricFamily("atomr_mp_gpu_memory_bytes", "The GPU's memory", labels=labels)
    for worker in workers:
        found = usage.get(worker.device.uuid)
        if found is None or worker.device.worker:
            continue
        device = [str(worker.device.index), str(worker.device.gpu)]
        if found.busy is not None:
            busy.add_metric(device, found.busy)
        used.add_metric(device, found.used_bytes)
        memory.add_metric(device, found.memory_bytes)
    yield from (busy, used, memory)


def histogram(latencies: list[int], sum_ns: int) -> tuple[list[tuple[str, float]], float]:
    """Return counts below each bound in seconds, and the sum in seconds."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for power, count in enumerate(latencies):
        below += count
        if FIRST_BUCKET <= power <= LAST_BUCKET:
            buckets.append((repr(2**power / 1e9), below))
    return [*buckets, ("+Inf", below)], sum_ns / 1e9


if __name__ == "__main__":
    sys.exit(main())
