"""Measures clusters on Ray beside Ray alone, in turns, on two raylets of this host; see `--help`.

Needs `pip install 'ray[data,serve]'`. It is not part of `scripts/bench`, for it starts Ray once for all turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ray
import ray.data
from ray import serve
from ray.cluster_utils import Cluster as Raylets
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import atomr_mp.ray
from benchmarks import machine

ACTOR: Final = Path(__file__).with_name("benchmarks") / "processes" / "ray_actor.py"
LOCAL: Final = "127.0.0.2"  # loopback; Ray takes 127.0.0.1 for the address of the first interface
WINDOW: Final = 64
BATCHES: Final = 100
WORK_S: Final = 0.1
"""Duration of a batch."""
CRASH_EVERY: Final = 20
KILLS: Final = 8
"""Workers that are killed in each turn, under Ray Serve."""
WHILE_S: Final = 0.3
"""How long requests count after a kill; a worker comes back sooner."""
SETUP_S: Final = 1.0
SETUP: Final = "BENCH_RAY_SETUP_S"
"""Variable with the duration of the actors' setup."""

Figures = dict[str, list[float]]
"""Figures by name, one for each turn."""


def main() -> int:
    """Measure; return 0 whatever the figures are."""
    parser = argparse.ArgumentParser(description="Measure clusters on Ray beside Ray alone.", allow_abbrev=False)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["calls", "serve", "batches", "raylet"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raylets = Raylets(
        initialize_head=True, head_node_args={"node_ip_address": LOCAL, "num_cpus": 8, "include_dashboard": False}
    )
    ray.init(address=raylets.address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    figures: dict[str, Figures] = {}
    try:
        for name in options.only:
            figures[name] = MEASURES[name](raylets, options.turns)
            print(json.dumps({name: summary(figures[name])}, indent=2), flush=True)
    finally:
        ray.shutdown()
        raylets.shutdown()
    if options.json:
        told = {"machine": machine.facts(), "ray": ray.__version__, "date": time.strftime("%Y-%m-%d")}
        told |= {name: {"summary": summary(each), "turns": each} for name, each in figures.items()}
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0


def summary(figures: Figures) -> dict[str, dict[str, float]]:
    """Return the median of each figure, and the least and the most."""
    return {
        name: {"median": statistics.median(each), "min": min(each), "max": max(each)} for name, each in figures.items()
    }


def cluster_of(nodes: int, **settings: Any) -> atomr_mp.ray.Cluster:
    """Return a cluster whose workers may end any number of times."""
    settings = {"max_restarts": 1000, "backoff_initial_s": 0.0001, "backoff_max_s": 0.0001, **settings}
    return atomr_mp.ray.Cluster(actors=f"{ACTOR}:Measured", nodes=nodes, backend="host", **settings)


# --- calls ---------------------------------------------------------------------------------------------------------


class Bare:
    """One of Ray's own actors that does the same work."""

    async def twice(self, number: int) -> int:
        """Return twice a number."""
        return 2 * number


def calls(raylets: Raylets, turns: int) -> Figures:
    """Call on the other node: a bare actor of Ray's, and a cluster through its relay."""
    second = raylets.add_node(node_ip_address=LOCAL, num_cpus=2)
    figures: Figures = {}
    with cluster_of(2) as cluster:
        away = next(index for index, each in enumerate(cluster.nodes) if not each.local)
        where = NodeAffinitySchedulingStrategy(cluster.nodes[away].node, soft=False)
        bare = ray.remote(Bare).options(num_cpus=0, scheduling_strategy=where).remote()
        for turn in range(turns + 1):
            ray_ms, cluster_ms = p50s(
                lambda: ray.get(bare.twice.remote(2)),
                lambda: cluster.call("Measured.twice", 2, node=away).result(),
            )
            found = {
                "ray p50 ms": ray_ms,
                "cluster p50 ms": cluster_ms,
                "ray calls/s": rate(lambda: bare.twice.remote(2), ray.get),
                "cluster calls/s": rate(
                    lambda: cluster.call("Measured.twice", 2, node=away),
                    lambda reply: reply.result(),
                ),
            }
            found["p50, ratio"] = found["cluster p50 ms"] / found["ray p50 ms"]
            found["calls/s, ratio"] = found["cluster calls/s"] / found["ray calls/s"]
            if turn:  # the first one warms up
                note(figures, found)
        ray.kill(bare)
    raylets.remove_node(second)
    return figures


def p50s(*calls: Callable[[], object], count: int = 400) -> list[float]:
    """Return the median time of each call, in milliseconds; they take turns, so other work slows all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(count):
        for call, own in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            own.append(time.perf_counter() - began)
    return [statistics.median(own) * 1e3 for own in times]


def rate(send: Callable[[], Any], result: Callable[[Any], object], count: int = 4096) -> float:
    """Return calls a second, with a window of them in flight."""
    sent: deque[Any] = deque()
    began = time.perf_counter()
    for _ in range(count):
        if len(sent) == WINDOW:
            result(sent.popleft())
        sent.append(send())
    while sent:
        result(sent.popleft())
    return count / (time.perf_counter() - began)


# --- Ray Data ------------------------------------------------------------------------------------------------------


class Plain:
    """A class for map_batches that crashes its process at some batches, the first time."""

    def __init__(self, marks: str) -> None:
        time.sleep(SETUP_S)  # the set-up that a crash costs
        self._marks = Path(marks)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch, or crash."""
        number = int(batch["x"][0])
        mark = self._marks / str(number)
        if number % CRASH_EVERY == CRASH_EVERY - 1 and not mark.exists():
            mark.touch()
            os._exit(1)
        time.sleep(WORK_S)  # its work
        return {**batch, "y": batch["x"] * 2}


def batches(_raylets: Raylets, turns: int) -> Figures:
    """Map batches; every twentieth crashes its process once. The figures are the cost of each crash."""
    figures: Figures = {}
    for _ in range(turns):
        found = {}
        for crashes in (False, True):
            with marks(crashes=crashes) as directory:
                found[crashes] = job(Plain, {"marks": directory})
        note(figures, {"ray, s a crash": (found[True] - found[False]) / (BATCHES // CRASH_EVERY)})
        for standby in ("hot", "none"):
            with cluster_of(1, standby=standby, runtime_env={"env_vars": {SETUP: str(SETUP_S)}}) as cluster:
                for crashes in (False, True):
                    with marks(crashes=crashes) as directory:
                        arguments = {"cluster": cluster, "method": "Measured.batch", "output": "y"}
                        arguments["columns"] = ["x", "marks"]
                        found[crashes] = job(atomr_mp.ray.Caller, arguments, marks=directory)
            cost = (found[True] - found[False]) / (BATCHES // CRASH_EVERY)
            note(figures, {f"cluster, {standby}, s a crash": cost})
            note(figures, {f"cluster, {standby}, ratio": cost / figures["ray, s a crash"][-1]})
    return figures


@contextlib.contextmanager
def marks(*, crashes: bool) -> Any:
    """Give a directory with a mark of each batch that has crashed often enough."""
    with tempfile.TemporaryDirectory() as directory:
        for number in range(0 if crashes else BATCHES):
            (Path(directory) / str(number)).touch()
        yield directory


def job(what: Any, arguments: dict[str, Any], marks: str | None = None) -> float:
    """Run a job and return how long it took, in seconds; every row has to be right."""
    began = time.perf_counter()
    rows = [{"x": number} if marks is None else {"x": number, "marks": marks} for number in range(BATCHES)]
    data = ray.data.from_items(rows, override_num_blocks=20).map_batches(
        what, fn_constructor_kwargs=arguments, batch_size=1, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=1
    )
    done = data.take_all()
    assert sorted(row["y"] for row in done) == [2 * number for number in range(BATCHES)]
    return time.perf_counter() - began


# --- Ray Serve -----------------------------------------------------------------------------------------------------


class PlainReplica:
    """A replica that does the work itself."""

    async def __call__(self, _method: str, number: int) -> dict[str, int]:
        """Return twice a number."""
        return {"value": 2 * number}


def serving(_raylets: Raylets, turns: int) -> Figures:
    """Call replicas through handles; kill workers under the cluster's."""
    figures: Figures = {}
    with cluster_of(1, gpus_per_node=2, standby="hot") as cluster:
        plain = serve.run(serve.deployment(PlainReplica).bind(), name="plain", route_prefix=None)
        own = serve.run(serve.deployment(atomr_mp.ray.Replica).bind(cluster), name="own", route_prefix=None)
        for turn in range(turns + 1):
            plain_ms, own_ms = p50s(
                lambda: plain.remote("Measured.twice", 2).result(), lambda: own.remote("Measured.twice", 2).result()
            )
            found = {"plain p50 ms": plain_ms, "cluster p50 ms": own_ms, "p50, ratio": own_ms / plain_ms}
            found |= longest_calls(cluster, plain, own)
            if turn:
                note(figures, found)
        serve.shutdown()
    return figures


def longest_calls(cluster: atomr_mp.ray.Cluster, plain: Any, own: Any) -> dict[str, float]:
    """Return the longest requests: of the plain replica, of the cluster's, and of the cluster's after a worker's kill.

    They take turns, kill by kill; the figures are the medians.
    """
    longest: dict[str, list[float]] = {
        "plain, longest ms": [],
        "cluster, longest ms": [],
        "cluster, killed, longest ms": [],
    }
    errors = 0
    for kill in range(KILLS):
        cluster.pool().wait_ready()
        for name, times in longest.items():
            handle = plain if name.startswith("plain") else own
            handle.remote("Measured.twice", 2).result()
            if "killed" in name:
                os.kill(cluster.pool().devices[kill % 2].pid, signal.SIGKILL)
            most, until = 0.0, time.perf_counter() + WHILE_S
            while (began := time.perf_counter()) < until:
                errors += "error" in handle.remote("Measured.twice", 2).result()
                most = max(most, time.perf_counter() - began)
            times.append(most * 1e3)
    return {name: statistics.median(times) for name, times in longest.items()} | {"errors over all kills": errors}


# --- a raylet's end ------------------------------------------------------------------------------------------------


def raylet(raylets: Raylets, turns: int) -> Figures:
    """Kill a raylet under idempotent calls of eight threads: the longest call, and the end of the pool."""
    figures: Figures = {}
    for _ in range(turns):
        second = raylets.add_node(node_ip_address=LOCAL, num_cpus=1)
        with cluster_of(2) as cluster:
            away = next(index for index, each in enumerate(cluster.nodes) if not each.local)
            pids = [*(each.pid for each in cluster.pool(away).devices), cluster.nodes[away].supervisor_pid]
            gone = [os.pidfd_open(pid) for pid in pids]
            ended: list[float] = []
            over = threading.Event()
            longest: list[float] = []
            errors: list[str] = []
            threads = [threading.Thread(target=keep_calling, args=(cluster, over, longest, errors)) for _ in range(8)]
            for thread in threads:
                thread.start()
            over.wait(1.0)
            began = time.perf_counter()
            os.kill(second.all_processes["raylet"][0].process.pid, signal.SIGKILL)
            for pidfd in gone:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(30_000)
                os.close(pidfd)
                ended.append(time.perf_counter() - began)
            over.wait(4.0)
            over.set()
            for thread in threads:
                thread.join()
            found = {"longest call, s": max(longest), "errors": len(errors)}
            note(figures, found | {"workers gone, s": ended[-2], "pool gone, s": ended[-1]})
    return figures


def keep_calling(cluster: atomr_mp.ray.Cluster, over: threading.Event, longest: list[float], errors: list[str]) -> None:
    """Call until an order to stop; note the longest call, and errors."""
    most = 0.0
    while not over.is_set():
        began = time.perf_counter()
        error = cluster.call("Measured.twice", 2).exception()
        most = max(most, time.perf_counter() - began)
        if error is not None:
            errors.append(str(error))
    longest.append(most)


def note(figures: Figures, found: dict[str, float]) -> None:
    """Add the figures of a turn."""
    for name, value in found.items():
        figures.setdefault(name, []).append(round(float(value), 5))


MEASURES: Final = {"calls": calls, "serve": serving, "batches": batches, "raylet": raylet}

if __name__ == "__main__":
    sys.exit(main())
