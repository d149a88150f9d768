"""The figures of the scenarios, their comparison, and the goals. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIMES: Final = "×"  # noqa: RUF001 - the sign that is meant

Value = float | str
"""A number, or words where there is none."""

Results = dict[tuple[str, str], list[dict[str, Value]]]
"""By contestant and scenario: each round's values by the name of their metric; none if the round failed."""


@dataclass(frozen=True)
class Goal:
    """A limit that the runtime has to keep."""

    limit: float
    ratio: bool = False
    """Whether the limit is for the ratio to the base instead of the value itself."""
    at_least: bool = False
    """Whether more is better."""

    def is_met(self, value: float) -> bool:
        """Whether a value, or a ratio, keeps the limit."""
        return value >= self.limit if self.at_least else value <= self.limit

    def text(self, unit: str) -> str:
        """Return the limit as written in a table."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}{TIMES if self.ratio else f' {unit}'}"


@dataclass(frozen=True)
class Metric:
    """One number of a scenario's round."""

    scenario: str
    name: str
    title: str
    unit: str = ""
    """Empty for words."""
    goal: Goal | None = None
    """The runtime's; other contestants have none."""
    against: str = ""
    """The base's metric to compare with; by default the one of the same name."""

    @property
    def base(self) -> str:
        """Name of the base's metric to compare with."""
        return self.against or self.name


NINE_TENTHS: Final = Goal(0.9, ratio=True, at_least=True)

A_TWENTIETH: Final = Goal(50)
"""Of a call that takes a millisecond: what signals may add."""

METRICS: Final = (
    Metric("latency", "empty_p50", "empty call, p50", "µs", Goal(1.15, ratio=True)),
    Metric("latency", "empty_p99", "empty call, p99", "µs", Goal(1.4, ratio=True)),
    # The base is the blocking one for asyncio too: what matters is how far from the wire a caller is.
    Metric("latency", "async_p50", "empty call, asyncio, p50", "µs", Goal(1.4, ratio=True), "empty_p50"),
    Metric("latency", "async_p99", "empty call, asyncio, p99", "µs", None, "empty_p99"),
    Metric("throughput", "flight", "64 in flight", "calls/s", Goal(1.5, ratio=True, at_least=True)),
    Metric("throughput", "async_flight", "64 in flight, asyncio", "calls/s", None, "flight"),
    Metric("clients", "clients", "4 clients, 64 in flight each", "calls/s", Goal(1.0, ratio=True, at_least=True)),
    Metric("launch", "launch", "2 workers, first answer of both / bare ones with NumPy", "ms", Goal(4.0, ratio=True)),
    Metric("launch", "size", "memory of all processes of these", "MiB", Goal(60.0)),
    Metric("import", "import", "import of the package", "ms", Goal(120.0)),
    Metric("import", "import_used", "import of the modules that a start needs", "ms", Goal(120.0)),
    Metric("memory", "supervisor", "memory of the supervisor", "MiB", Goal(40.0)),
    Metric("memory", "worker", "memory of an idle worker", "MiB", Goal(70.0)),
    Metric("buffers", "put_64", "put of 64 MiB / copy", "ms", Goal(1.25, ratio=True)),
    Metric("buffers", "put_512", "put of 512 MiB / copy", "ms", Goal(1.25, ratio=True)),
    Metric("buffers", "take_64", "numpy(out=) of 64 MiB / copy", "ms", Goal(1.25, ratio=True)),
    Metric("buffers", "take_512", "numpy(out=) of 512 MiB / copy", "ms", Goal(1.25, ratio=True)),
    Metric("buffers", "first_512", "512 MiB from device to device, slab not known", "ms", Goal(25.0)),
    Metric("buffers", "hand_on_64", "64 MiB from device to device", "ms", Goal(2.0)),
    Metric("buffers", "hand_on_512", "512 MiB from device to device", "ms", Goal(2.0)),
    Metric("buffers", "ref", "what a ref argument adds to a call", "µs", Goal(15.0)),
    Metric("recovery", "idle_kill", "idle kill → next answer", "ms", Goal(200.0)),
    Metric("recovery", "held_kill", "kill → error of the request in flight", "ms", Goal(10.0)),
    Metric("recovery", "held_error", "what the request in flight is told"),
    Metric("aftermath", "application_gone", "kill of the application → all its processes are gone", "ms"),
    Metric("aftermath", "application_left", "its processes that are left after 5 s", "processes"),
    Metric("aftermath", "application_shm", "its shared memory that is left", "MiB"),
    Metric("aftermath", "supervisor_gone", "kill of the supervisor → all processes are gone", "ms"),
    Metric("aftermath", "supervisor_left", "processes that are left after 5 s", "processes"),
    Metric("aftermath", "supervisor_shm", "shared memory that is left", "MiB"),
    Metric("failover", "none", "idle kill → next answer, no standby", "ms", Goal(200.0)),
    Metric("failover", "warm", "idle kill → next answer, warm", "ms", Goal(12.0)),
    Metric("failover", "hot", "idle kill → next answer, hot", "ms", Goal(6.0)),
    *(
        Metric("failover", f"{kind}_{name}", f"{title} → answers of all methods, {name}", "ms", goals.get(name))
        for kind, title, goals in (
            ("killed", "kill under load, hot", {"p90": Goal(15.0)}),
            ("poisoned", "poison under load, hot", {"p90": Goal(15.0)}),
            ("killed_bare", "kill under load, hot, a kernel without example", {}),
            ("poisoned_bare", "poison under load, hot, a kernel without example", {}),
        )
        for name in ("p50", "p90", "max")
    ),
    Metric("failover-torch", "warm", "with torch: idle kill → next answer, warm", "ms"),
    Metric("failover-torch", "hot", "with torch: idle kill → next answer, hot", "ms", Goal(30.0)),
    Metric("signals", "off", "empty call without signals, p50", "µs"),
    Metric("signals", "again", "another pool without signals, more than that", "µs"),
    Metric("signals", "metrics", "metrics, read each second, more than without", "µs", A_TWENTIETH),
    Metric("signals", "unrecorded", "spans, in one that is not recorded, more than without", "µs", A_TWENTIETH),
    Metric("signals", "sampled", "spans, one call in a hundred recorded, more than without", "µs", A_TWENTIETH),
    Metric("signals", "traced", "spans, each call recorded, more than without", "µs", A_TWENTIETH),
    Metric("signals", "off_paced", "a call each ms, without signals, p50", "µs"),
    Metric("signals", "again_paced", "a call each ms, another pool, more than that", "µs"),
    Metric("signals", "metrics_paced", "a call each ms, metrics, more than without", "µs", A_TWENTIETH),
    Metric("signals", "unrecorded_paced", "a call each ms, in one not recorded, more than without", "µs", A_TWENTIETH),
    Metric("signals", "sampled_paced", "a call each ms, one in a hundred, more than without", "µs", A_TWENTIETH),
    Metric("signals", "traced_paced", "a call each ms, each recorded, more than without", "µs", A_TWENTIETH),
    Metric("embed", "embed", "MiniLM, texts of all lengths", "texts/s", Goal(0.95, ratio=True, at_least=True)),
    Metric("embed", "embed_alike", "MiniLM, texts of one length", "texts/s", Goal(0.95, ratio=True, at_least=True)),
    *(
        Metric("workers-per-gpu", f"{name}_{count}", f"{count} worker{'s' * (count > 1)} of a GPU{title}", unit)
        for count in (1, 2, 4)
        for name, title, unit in (
            ("rate", ", a small model", "calls/s"),
            ("gain", ", beside one", TIMES),
            ("p50", ", a call, p50", "ms"),
            ("p99", ", a call, p99", "ms"),
            ("failing_p99", ", the others' calls while one fails over, p99", "ms"),
            ("failover", ", kill → the next answer of the killed one", "ms"),
        )
        if (count, name) not in {(1, "gain"), (1, "failing_p99")}
    ),
    Metric("serve", "call_p50", "JSON call over HTTP, p50", "µs"),
    Metric("serve", "call_p99", "JSON call over HTTP, p99", "µs"),
    Metric("serve", "flight", "HTTP, 64 in flight", "calls/s"),
    Metric("serve", "part", "HTTP, a part of a stream", "µs"),
    Metric("serve-turns", "served", "JSON call over HTTP, in turns, p50", "µs"),
    Metric("serve-turns", "halves", "the server without a pool, then a call of the pool", "µs"),
    Metric("serve-turns", "bare", "the server without a pool, alone", "µs"),
    Metric("serve-turns", "pool", "a call of the pool, alone", "µs"),
    Metric("serve-turns", "to_halves", "the call beside both, one after the other", TIMES, Goal(1.2)),
    Metric("serve-turns", "to_sum", "the call beside the sum of both alone", TIMES),
    Metric("serve-killed", "failed", "kills under HTTP load, hot: calls that failed", "calls", Goal(0.0)),
    Metric("serve-killed", "longest", "the longest call at a kill, p50", "ms", Goal(20.0)),
    Metric("serve-killed", "before", "the longest call in as long before a kill, p50", "ms"),
    Metric("serve-killed", "worst", "the longest call of all", "ms"),
    Metric("serve-killed", "under_load", "calls meanwhile", "calls"),
    Metric("serve-model", "embed", "MiniLM over HTTP, texts of all lengths", "texts/s", NINE_TENTHS),
    Metric("serve-model", "embed_alike", "MiniLM over HTTP, texts of one length", "texts/s", NINE_TENTHS),
    Metric("streams", "call_p50", "empty call on the thread, p50", "µs"),
    Metric("streams", "first_p50", "first part of a stream, p50", "µs"),
    Metric("streams", "first_ratio", "the first part, of an empty call", TIMES, Goal(1.3)),
    Metric("streams", "part_16", "a part, 16 ahead", "µs", Goal(15.0)),
    Metric("streams", "cpu_16", "processor time of a part, 16 ahead, client and worker", "µs"),
    Metric("streams", "part_256", "a part, 256 ahead", "µs", Goal(3.0)),
    Metric("streams", "cpu_256", "processor time of a part, 256 ahead, client and worker", "µs"),
    Metric("streams", "remote_first_ratio", "the first part by tcp://, of an empty call by tcp://", TIMES),
    Metric("streams", "remote_16", "a part by tcp://, 16 ahead", "µs"),
    Metric("streams", "remote_256", "a part by tcp://, 256 ahead", "µs"),
    Metric("streams", "steps", "64 streams by Steps of 5 ms, of the rate alone", "%", Goal(95.0, at_least=True)),
    Metric("streams", "gap_p50", "longest gap of a resumed stream, hot, p50", "ms", Goal(15.0)),
    Metric("streams", "gather", "gather of 10,000 calls, of the rate of map", "%", Goal(90.0, at_least=True)),
)
