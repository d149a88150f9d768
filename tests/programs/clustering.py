"""Runs two raylets on this host, a cluster over them, and reports the outcome as JSON on its last line."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import ray
import ray.data
from ray.cluster_utils import Cluster as Raylets

import atomr_mp.ray
from atomr_mp import errors
from atomr_mp.process.files.rundir import default_run_dir

if TYPE_CHECKING:
    from starlette.requests import Request

ACTOR = Path(__file__).parents[1] / "actors" / "clustered.py"
LOCAL = "127.0.0.2"  # loopback; Ray takes 127.0.0.1 for the address of the first interface
WRONG: list[dict[str, Any]] = [
    {"gpus_per_node": 0.5},
    {"nodes": 0},
    {"backend": "gpu"},
    {"relay_ports": (80, 90)},
    {"relay_ports": 5570},
    {"cpus_per_node": 0},
    {"cpus_per_node": float("nan")},
    {"runtime_env": "pip"},
    {"listen": "tcp://127.0.0.2:5570"},
]
QUEUED = 40
"""Calls that wait when a pool is lost, more than run."""
LEFT_S = 30.0
"""How long files of pools may stay after Ray's end."""
BACK_S = 60.0
"""How long Ray may take to start an actor anew."""


def main() -> dict[str, Any]:
    """Return what was seen."""
    raylets = Raylets(
        initialize_head=True, head_node_args={"node_ip_address": LOCAL, "num_cpus": 4, "include_dashboard": False}
    )
    second = raylets.add_node(node_ip_address=LOCAL, num_cpus=1)
    ray.init(address=raylets.address, log_to_driver=False, logging_level="ERROR")
    seen: dict[str, Any] = {}
    try:
        seen["refused"] = [code_of(functools.partial(host_cluster, **wrong)) for wrong in WRONG]
        seen["bad_setting"] = code_of(functools.partial(host_cluster, max_restart=1))
        seen["bad_actor"] = code_of(lambda: atomr_mp.ray.Cluster(actors="no_such_module:Nothing", backend="host"))
        seen["ports_taken"] = on_taken_ports()
        with atomr_mp.ray.Cluster(
            actors=f"{ACTOR}:Clustered",
            nodes=2,
            backend="host",
            max_restarts=100,
            backoff_initial_s=0.05,
            backoff_max_s=0.05,
            relay_ports=(port := 20000 + os.getpid() % 12000, port + 15),
        ) as cluster:
            calls(cluster, seen)
            seen["replica"] = asyncio.run(replica(cluster))
            seen["served"] = served(cluster)
            dataset(cluster, seen)
            seen["met"] = batches_in_flight(cluster)
            supervisor_killed(cluster, seen)
            actor_killed(cluster, seen)
            raylet_killed(cluster, second, seen)
        left_open(seen)
        seen["supervisors_ended"] = [wait(each) for each in seen.pop("supervisors")]
        seen["closed"] = code_of(lambda: cluster.call("Clustered.pid"))
    finally:
        print(json.dumps(seen), file=sys.stderr)  # what was seen until then, if it has failed
        ray.shutdown()
        seen["ray_over"] = not ray.is_initialized()
        raylets.shutdown()
    until = time.monotonic() + LEFT_S
    while (left := files_left()) and time.monotonic() < until:
        time.sleep(0.05)  # no event tells of removed files
    seen["files_left"] = left
    return seen


def host_cluster(**settings: Any) -> atomr_mp.ray.Cluster:
    """Return a cluster on the host backend, unless the settings say otherwise."""
    return atomr_mp.ray.Cluster(**{"actors": f"{ACTOR}:Clustered", "backend": "host", **settings})


def on_taken_ports() -> str:
    """Return what a cluster says whose range of ports another process uses."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        try:
            host_cluster(relay_ports=(port, port)).close()
        except errors.ConfigurationError as error:
            return error.message
    return "started"


def calls(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Call each node in every way, and across a worker's death."""
    seen["local"] = sorted(each.local for each in cluster.nodes)
    seen["supervisors"] = [os.pidfd_open(each.supervisor_pid) for each in cluster.nodes]
    pids = [cluster.call("Clustered.pid", node=node).result() for node in range(2)]
    seen["workers"] = len(set(pids))
    slow = [cluster.call("Clustered.slow_pid", 0.2) for _ in range(4)]
    seen["least_loaded"] = sorted(each.node for each in slow)
    seen["answered_by"] = len({each.result() for each in slow})
    seen["by_actor"] = cluster.actor("Clustered").twice(number=4).result()
    seen["map"] = list(cluster.map("Clustered.twice", range(200))) == [2 * number for number in range(200)]
    seen["streamed"] = [list(cluster.stream("Clustered.count", 3, node=node)) for node in (0, 1, None)]
    seen["streamed_ref"] = list(cluster.stream("Clustered.each", cluster.put(np.arange(3.0), node=1)))
    refs = [cluster.put(np.arange(10.0), node=node) for node in range(2)]
    seen["totals"] = [cluster.call("Clustered.total", ref).result() for ref in refs]
    seen["awaited"] = asyncio.run(awaited(cluster))
    with ray.get(ray.put(cluster)) as arrived:
        seen["arrived"] = [arrived is ray.get(ray.put(cluster)), arrived.call("Clustered.twice", 2).result()]
    lost = [cluster.call("Clustered.end", node=node).exception() for node in range(2)]
    seen["lost"] = [(each.code, each.device, each.maybe_executed) for each in lost]  # type: ignore[union-attr]
    failed = cluster.call("Clustered.fail", node=1).exception()
    seen["failed"] = (failed.code, failed.exception)  # type: ignore[union-attr]
    seen["after"] = [cluster.call("Clustered.pid", node=node).result() not in pids for node in range(2)]
    seen["status"] = [each.pool.pool != "" for each in cluster.status() if each.pool is not None]
    seen["no_method"] = code_of(lambda: cluster.call("Clustered.nothing"))
    seen["no_node"] = code_of(lambda: cluster.call("Clustered.pid", node=2))
    seen["not_idempotent"] = code_of(lambda: atomr_mp.ray.Caller(cluster, "Clustered.end", ["x"], "y"))


async def awaited(cluster: atomr_mp.ray.Cluster) -> list[int]:
    """Call from an event loop."""
    parts = [part async for part in cluster.stream("Clustered.count", 2)]
    return parts + list(await asyncio.gather(*[cluster.call("Clustered.twice", number) for number in range(4)]))


async def replica(cluster: atomr_mp.ray.Cluster) -> list[Any]:
    """Ask what Ray Serve would have as a replica."""
    made = atomr_mp.ray.Replica(cluster, deadline_s=20.0)
    await made.check_health()
    failed = await made("Clustered.fail")
    return [
        atomr_mp.ray.value_of(await made("Clustered.twice", 4)),
        [atomr_mp.ray.value_of(part) async for part in made.stream("Clustered.count", 3)],
        code_of(lambda: atomr_mp.ray.value_of(failed)),
    ]


def left_open(seen: dict[str, Any]) -> None:
    """Make a cluster and leave it open: its pool has to end with Ray."""
    cluster = host_cluster()
    seen["supervisors"].append(os.pidfd_open(cluster.nodes[0].supervisor_pid))
    ray.shutdown()


def files_left() -> list[str]:
    """Return the files of pools that are left; this program alone has its temporary directory."""
    return sorted(str(path) for path in default_run_dir("any").parent.glob("ray-*/**/*"))


class Queue:
    """Calls that may not run twice, more than run at a time, on all nodes.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: atomr_mp.ray.Cluster) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._replies = {
            f"{number}": cluster.call("Clustered.noted", self._directory.name, f"{number}", 0.02, deadline_s=60.0)
            for number in range(QUEUED)
        }
        next(iter(self._replies.values())).result()

    def judged(self) -> dict[str, list[str]]:
        """Return the calls that ended otherwise than they may."""
        ended = {key: reply.exception() for key, reply in self._replies.items()}
        folder = Path(self._directory.name)
        runs = Counter(line for path in folder.iterdir() for line in path.read_text().split())
        failed = {key: error for key, error in ended.items() if error is not None}
        self._directory.cleanup()
        return {
            "run_twice": [key for key in ended if runs[key] > 1],
            "answered_unrun": [key for key in ended if key not in failed and not runs[key]],
            "lost_unrun": [f"{key}: {error!r}" for key, error in failed.items() if not runs[key]],
            "denied": [key for key, error in failed.items() if runs[key] and not error.maybe_executed],  # type: ignore[attr-defined]
        }


class Twice(atomr_mp.ray.Replica):
    """Answers `GET /twice?number=4`, and an error of the call with status 500."""

    async def __call__(self, request: Request) -> int:  # type: ignore[override]
        """Return twice the number."""
        found = await super().__call__("Clustered.twice", int(request.query_params["number"]))
        return int(atomr_mp.ray.value_of(found))


def served(cluster: atomr_mp.ray.Cluster) -> list[Any] | str:
    """Have a replica of Ray Serve call while workers are killed; the missing package where Serve is not installed."""
    try:
        from ray import serve
    except ModuleNotFoundError as error:  # any other error of an import is one
        return str(error.name)

    class Served(atomr_mp.ray.Replica):
        async def pid(self) -> int:
            """Return the replica's pid."""
            return os.getpid()

    with socket.create_server((LOCAL, 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": LOCAL, "port": port})
    deployment = serve.deployment(Served).options(ray_actor_options={"num_cpus": 0.1}, health_check_period_s=0.5)
    handle = serve.run(deployment.bind(cluster), name="own", route_prefix=None)
    before = handle.pid.remote().result()
    answers = []
    for number in range(60):
        if number in {10, 30}:
            for pool in cluster.pools:
                os.kill(pool.devices[0].pid, signal.SIGKILL)
        answers.append(atomr_mp.ray.value_of(handle.remote("Clustered.twice", number).result()))
    parts = [atomr_mp.ray.value_of(part) for part in handle.options(stream=True).stream.remote("Clustered.count", 3)]
    late = handle.remote("Clustered.slow_pid", 1.0, deadline_s=0.1).result()
    same = handle.pid.remote().result() == before
    http = serve.deployment(Twice).options(ray_actor_options={"num_cpus": 0.1})
    serve.run(http.bind(cluster), name="http", route_prefix="/twice")
    with urllib.request.urlopen(f"http://{LOCAL}:{port}/twice?number=4", timeout=30.0) as answer:
        by_http = int(answer.read())
    serve.shutdown()
    right = answers == [2 * number for number in range(60)]
    return [right, parts, code_of(lambda: atomr_mp.ray.value_of(late)), same, by_http]


def batches_in_flight(cluster: atomr_mp.ray.Cluster) -> list[bool]:
    """Map batches of one block, each of which waits for another one."""
    with tempfile.TemporaryDirectory() as directory:
        rows = [{"number": number, "directory": directory} for number in range(8)]
        data = ray.data.from_items(rows, override_num_blocks=1).map_batches(
            atomr_mp.ray.Caller,
            fn_constructor_kwargs={
                "cluster": cluster,
                "method": "Clustered.meet",
                "columns": ["number", "directory"],
                "output": "met",
            },
            batch_size=2,
            compute=ray.data.ActorPoolStrategy(size=1),
            num_cpus=1,
        )
        return [bool(row["met"]) for row in data.take_all()]


def dataset(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Have a deadly batch among good ones."""
    numbers = [{"x": float(number if number != 13 else -1)} for number in range(40)]
    data = ray.data.from_items(numbers, override_num_blocks=4).map_batches(
        atomr_mp.ray.Caller,
        fn_constructor_kwargs={
            "cluster": cluster,
            "method": "Clustered.square",
            "columns": ["x"],
            "output": "y",
            "on_poison": "null",
        },
        batch_size=10,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    rows = data.take_all()
    seen["rows"] = len(rows)
    seen["right"] = sum(row["y"] is not None and row["y"] == row["x"] ** 2 for row in rows)
    seen["null"] = sum(row["y"] is None and bool(row["poison_fingerprint"]) for row in rows)


def supervisor_killed(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Kill the supervisor of the other node while calls wait there: its actor starts another."""
    away = next(index for index, each in enumerate(cluster.nodes) if not each.local)
    before = cluster.nodes[away]
    queue = Queue(cluster)
    os.kill(before.supervisor_pid, signal.SIGKILL)
    seen["supervisor_killed"] = queue.judged()
    while cluster.nodes[away].epoch in {"", before.epoch}:
        cluster.pool(away, BACK_S)
        time.sleep(0.05)  # the end of the old pool is on its way to this process


def actor_killed(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Kill Ray's actor of the other node while it is called: Ray starts another, with a pool of its own."""
    away = next(index for index, each in enumerate(cluster.nodes) if not each.local)
    before = cluster.nodes[away]
    ref = cluster.put(np.arange(10.0), node=away)
    owner = psutil.Process(before.supervisor_pid).ppid()
    under_way = [cluster.call("Clustered.slow_pid", 0.2, deadline_s=60) for _ in range(6)]
    queue = Queue(cluster)
    os.kill(owner, signal.SIGKILL)
    seen["actor_killed"] = queue.judged()
    seen["across_actor"] = [str(each.exception()) for each in under_way]
    cluster.pool(1 - away)
    seen["stale"] = code_of(lambda: cluster.call("Clustered.total", ref).result())
    again = cluster.pool(away, BACK_S)
    seen["new_epoch"] = cluster.nodes[away].epoch not in {"", before.epoch}
    seen["new_pool"] = again.call("Clustered.twice", 2).result()
    seen["supervisors"].append(os.pidfd_open(cluster.nodes[away].supervisor_pid))


def raylet_killed(cluster: atomr_mp.ray.Cluster, second: Any, seen: dict[str, Any]) -> None:
    """Kill the raylet that is not ours while it is called: its pool goes, and what may run twice goes to the other."""
    away = next(index for index, each in enumerate(cluster.nodes) if not each.local)
    gone = os.pidfd_open(cluster.nodes[away].supervisor_pid)
    stream = iter(cluster.stream("Clustered.count", 10**9, node=away))
    seen["first"] = next(stream)
    once = cluster.call("Clustered.once", 30.0, node=away)  # longer than the queue takes; what is behind it moves
    moving = [cluster.call("Clustered.slow_pid", 0.05, deadline_s=30) for _ in range(10)]
    seen["moving"] = len({each.node for each in moving})
    queue = Queue(cluster)
    began = time.monotonic()
    os.kill(second.all_processes["raylet"][0].process.pid, signal.SIGKILL)  # a zombie: nobody reaps it
    seen["pool_gone"] = wait(gone)
    seen["pool_gone_s"] = time.monotonic() - began
    seen["moved"] = [str(each.exception()) for each in moving]
    seen["moved_s"] = time.monotonic() - began
    seen["raylet_killed"] = queue.judged()
    seen["stream_lost"] = code_of(lambda: deque(stream, maxlen=0))
    lost = once.exception()
    seen["once"] = isinstance(lost, errors.PoolLost | errors.WorkerLost) and lost.maybe_executed
    seen["still"] = cluster.call("Clustered.pid").result() > 0
    seen["awaited_unreachable"] = asyncio.run(beside_a_lost_node(cluster, away))
    seen["unreachable"] = code_of(lambda: cluster.call("Clustered.pid", node=away, deadline_s=0.2))


async def beside_a_lost_node(cluster: atomr_mp.ray.Cluster, lost: int) -> tuple[str, int]:
    """Call a node that is lost, and meanwhile the other one: the loop goes on."""
    to_lost = asyncio.ensure_future(cluster.call("Clustered.twice", 2, node=lost, deadline_s=5.0))
    answer = await asyncio.wait_for(cluster.call("Clustered.twice", 3), 4.0)
    found = await asyncio.gather(to_lost, return_exceptions=True)
    return getattr(found[0], "code", "none"), answer


def wait(pidfd: int) -> bool:
    """Return whether a process has ended in time, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = bool(poll.poll(10_000))
    os.close(pidfd)
    return ended


def code_of(call: Callable[[], object]) -> str:
    """Return the code of the error that a call raises."""
    try:
        call()
    except errors.AtomrError as error:
        return error.code
    return "none"


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    sys.stdout.flush()
