"""The front ends' counters, in memory that they share, and their form for Prometheus.

Each front-end process writes a slot of its own, and any of them reads all slots. A slot outlives its process: the next
process goes on counting there.
"""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from atomr_mp.process.gpus.driver import Driver
from atomr_mp.protocol.messages.operators import Status
from atomr_mp.protocol.own_time import OwnTime
from atomr_mp.serve import method_figures
from atomr_mp.serve.method_figures import OTHER, MethodFigures

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ROUTES: Final = ("call", "openai", "oip", "health", "metrics", "watch", "page", "other")

STATUSES: Final = (
    *(200, 400, 401, 403, 404, 405, 406, 408, 409, 411, 413, 415, 422, 429, 431, 499, 500, 501, 503, 504),
    0,  # any other status
)
"""Statuses that are counted by themselves; 499 is a client that left before its answer."""

FIRST_BUCKET: Final = 14
LAST_BUCKET: Final = 36
"""Number of the last bucket. Durations of calls are shown from 16 microseconds (2^14 ns) to 69 s (2^36 ns)."""

REQUESTS: Final = 0
IN_FLIGHT: Final = len(ROUTES) * len(STATUSES)
CONNECTIONS: Final = IN_FLIGHT + 1
STREAMS: Final = CONNECTIONS + 1
VIEWERS: Final = STREAMS + 1
"""Who views the page: a request in flight and a stream each."""
REFUSED: Final = VIEWERS + 1
STARTS: Final = REFUSED + 1
BEAT_NS: Final = STARTS + 1
"""When the process's event loop has last turned, by CLOCK_MONOTONIC; 0 before the first time."""
SLOT_WORDS: Final = BEAT_NS + 1

BEAT_S: Final = 1.0
"""How often a front end shows that its event loop turns."""

GAUGES: Final = (IN_FLIGHT, CONNECTIONS, STREAMS, VIEWERS)
"""Counters that start from 0 in a new process."""

WORD_BYTES: Final = 8

MEMORY: Final = "atomr-mp-serve-counters"
"""Name of the memory that front ends share."""

FRONT_END: Final = "atomr-mp serve "
"""Begins the name that a front end has as a client of its pool."""

_PLACES: Final = {
    (route, status): REQUESTS + at for at, (route, status) in enumerate(itertools.product(ROUTES, STATUSES))
}


def shared_bytes(slots: int) -> int:
    """Return how many bytes of shared memory the processes' slots take, with their figures by method."""
    return own_bytes(slots) + method_figures.shared_bytes(slots)


def own_bytes(slots: int) -> int:
    """Return the bytes of the slots alone, in whole pages."""
    return -(-slots * SLOT_WORDS * WORD_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class Counters:
    """The counters of one front-end process, beside those of the others.

    Args:
        descriptor: Descriptor of the shared memory; None for memory of this process alone.
        slots: How many processes share it.
        slot: This process's slot.
    """

    def __init__(self, descriptor: int | None = None, slots: int = 1, slot: int = 0) -> None:
        size = own_bytes(slots)
        memory = mmap.mmap(-1 if descriptor is None else descriptor, size)
        offset = 0 if descriptor is None else size
        self.methods: Final = MethodFigures(descriptor, slots, slot, offset)
        """Figures by method."""
        self._all: Final = memoryview(memory).cast("Q")
        self.own: Final = self._all[slot * SLOT_WORDS : (slot + 1) * SLOT_WORDS]
        self._slots: Final = slots
        self.slot: Final = slot
        for gauge in GAUGES:
            self.own[gauge] = 0
        self.own[STARTS] += 1
        self.beat()

    def beat(self) -> None:
        """Show that this process's event loop turns."""
        self.own[BEAT_NS] = time.monotonic_ns()

    def count(self, route: str, status: int) -> None:
        """Count an answer."""
        place = _PLACES.get((route, status))
        self.own[place if place is not None else _PLACES[route, 0]] += 1

    def total(self, place: int) -> int:
        """Return the sum of a counter over all processes."""
        return sum(self._all[slot * SLOT_WORDS + place] for slot in range(self._slots))


class Heartbeats:
    """The front ends' heartbeats, as their parent sees them.

    Args:
        descriptor: Descriptor of the shared memory.
        slots: How many processes share it.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        self._all: Final = memoryview(mmap.mmap(descriptor, own_bytes(slots))).cast("Q")
        self._own: Final = OwnTime(time.monotonic())
        self._seen: Final[dict[int, tuple[float, float]]] = {}
        """By slot, the latest heartbeat, and when that was seen first, by the parent's own time."""

    def since_s(self, slot: int, started_s: float) -> float:
        """Return for how many seconds a process's event loop has not turned. To be called every `BEAT_S`.

        Args:
            slot: The process's slot.
            started_s: When the process was started, by `time.monotonic`; a heartbeat before that was another's.
        """
        self._own.look(time.monotonic())
        beat_s, now_s = max(self._all[slot * SLOT_WORDS + BEAT_NS] / 1e9, started_s), self._own.now_s
        seen_s, since_s = self._seen.get(slot, (0.0, now_s))
        if beat_s != seen_s:
            self._seen[slot] = beat_s, now_s
            return 0.0
        return now_s - since_s


class PoolTold(NamedTuple):
    """What is known of the pool."""

    status: Status | None
    """Its status; None if its supervisor does not answer."""
    latest: Status | None
    """The latest answer of a supervisor that has not ended."""
    driver: Driver
    """Tells how its GPUs are used."""


def exposition(counters: Counters, told: PoolTold, accept: str = "", more: Iterable[Metric] = ()) -> tuple[str, bytes]:
    """Return the content type and the text of all metrics: the front ends', and the pool's as far as they are known.

    Args:
        counters: The front ends'.
        told: What is known of the pool.
        accept: The header `Accept` of who asks: OpenMetrics for those who name it, else Prometheus's text format.
        more: Metrics beside these.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collector(counters, told, more))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


class _Collector:
    """Makes the front ends' metrics and the pool's."""

    def __init__(self, counters: Counters, told: PoolTold, more: Iterable[Metric]) -> None:
        self._counters = counters
        self._told = told
        self._more = more

    def describe(self) -> list[Metric]:
        """Return nothing: the registry must not ask the pool."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from atomr_mp.helpers.metrics_server import all_metrics

        yield from _front_end_metrics(self._counters, is_pool_up=self._told.status is not None)
        yield from all_metrics(*self._told)
        yield from self._more


def _front_end_metrics(counters: Counters, *, is_pool_up: bool) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily(
        "atomr_mp_http_requests", "Answers by route and status; 499: the client left", labels=["route", "status"]
    )
    for (route, status), place in _PLACES.items():
        count = counters.total(place)
        if count:
            requests.add_metric([route, str(status) if status else "other"], count)
    called = HistogramMetricFamily(
        "atomr_mp_http_call_seconds",
        "Calls from their headers to their answer's end, by method; code is ok, or an error's",
        labels=["method", "code"],
    )
    by_device = HistogramMetricFamily(
        "atomr_mp_http_device_call_seconds",
        "Calls that a device had, whatever their code, from their headers to their answer's end",
        labels=["method", "device"],
    )
    begun = HistogramMetricFamily(
        "atomr_mp_http_first_part_seconds",
        "Streams from their headers to their first part",
        labels=["method"],
    )
    parts = CounterMetricFamily("atomr_mp_http_parts", "Parts of methods that stream", labels=["method"])
    for each in counters.methods.all():
        if each.kind == method_figures.CALL:
            called.add_metric([each.method, each.outcome], _buckets(each.buckets), each.total / 1e9)
        elif each.kind == method_figures.DEVICE_CALL:
            by_device.add_metric([each.method, each.outcome or OTHER], _buckets(each.buckets), each.total / 1e9)
        elif each.kind == method_figures.FIRST_PART:
            begun.add_metric([each.method], _buckets(each.buckets), each.total / 1e9)
        elif each.kind == method_figures.PARTS:
            parts.add_metric([each.method], each.total)
    in_flight = counters.total(IN_FLIGHT)
    refused = "Connections that were refused, or closed over bad, late or unread bytes"
    return [
        requests,
        called,
        by_device,
        begun,
        parts,
        GaugeMetricFamily("atomr_mp_http_in_flight", "Requests that are being read or answered", in_flight),
        GaugeMetricFamily("atomr_mp_http_connections", "Open connections", counters.total(CONNECTIONS)),
        GaugeMetricFamily("atomr_mp_http_streams", "Open streams", counters.total(STREAMS)),
        CounterMetricFamily("atomr_mp_http_connections_refused", refused, counters.total(REFUSED)),
        CounterMetricFamily("atomr_mp_http_front_end_starts", "Front-end processes", counters.total(STARTS)),
        GaugeMetricFamily("atomr_mp_http_pool_up", "1 if the pool's supervisor answers", is_pool_up),
    ]


def _buckets(latencies: Sequence[int]) -> list[tuple[str, float]]:
    """Return how many calls took less than each bound, in seconds."""
    below = list(itertools.accumulate(latencies))
    shown = [(repr(2**power / 1e9), float(below[power])) for power in range(FIRST_BUCKET, LAST_BUCKET + 1)]
    return [*shown, ("+Inf", float(below[-1]))]
