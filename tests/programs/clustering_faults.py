"""Raylets whose nodes lack something, and what is killed beside a cluster; the last line says what was seen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.data
from ray.cluster_utils import Cluster as Raylets

import atomr_mp.ray
from atomr_mp import errors

ACTOR = Path(__file__).parents[1] / "actors" / "clustered.py"
LOCAL = "127.0.0.2"  # loopback; Ray takes 127.0.0.1 for the address of the first interface
BACK_S = 60.0
"""How long Ray may take to start an actor anew."""

OTHER_VERSION = "import atomr_mp.version as v; v.__version__ = '0.0.1'"
ABSENT = "raise ModuleNotFoundError(\"No module named 'atomr_mp'\", name='atomr_mp')"
ONLY_HERE = "import os\nfrom tests_clustered import Clustered\nassert 'BROKEN' not in os.environ, 'not on this node'"


def main() -> dict[str, Any]:
    """Return what was seen."""
    seen: dict[str, Any] = {}
    raylets = Raylets(
        initialize_head=True, head_node_args={"node_ip_address": LOCAL, "num_cpus": 2, "include_dashboard": False}
    )
    ray.init(address=raylets.address, log_to_driver=False, logging_level="ERROR")
    try:
        with tempfile.TemporaryDirectory() as directory:
            bad_nodes(raylets, Path(directory), seen)
        second = raylets.add_node(node_ip_address=LOCAL, num_cpus=1)
        driver_killed(raylets.address, seen)
        with cluster_of(2) as cluster:
            seen["job"] = deadly_job(cluster)
            relay_killed(cluster, seen)
            supervisor_killed(cluster, seen)
            actor_stopped(cluster, seen)
            raylet_stopped(cluster, second, seen)
            gcs_killed(cluster, raylets, seen)
    finally:
        print(json.dumps(seen), file=sys.stderr)  # what was seen until then, if it has failed
        end_processes()
    return seen


def cluster_of(nodes: int, actor: str = f"{ACTOR}:Clustered") -> atomr_mp.ray.Cluster:
    """Return a cluster on the host backend."""
    return atomr_mp.ray.Cluster(
        actors=actor, nodes=nodes, backend="host", max_restarts=100, start_timeout_s=60, within_s=1.0
    )


def bad_nodes(raylets: Raylets, directory: Path, seen: dict[str, Any]) -> None:
    """Have nodes that differ: each is an error of the cluster's start, and nothing is left running."""
    (directory / "tests_clustered.py").write_text(ACTOR.read_text(encoding="utf-8"), encoding="utf-8")
    (directory / "only_here.py").write_text(ONLY_HERE, encoding="utf-8")
    for name, path, text in (
        ("version", "version/sitecustomize.py", OTHER_VERSION),
        ("absent", "absent/atomr_mp/__init__.py", ABSENT),
    ):
        file = directory / path
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
        before = os.environ.get("PYTHONPATH", "")
        with node(raylets, {"PYTHONPATH": f"{directory / name}{os.pathsep}{before}"}):
            seen[name] = told(lambda: cluster_of(2))
    with node(raylets, {"BROKEN": "1"}):
        seen["broken"] = told(lambda: cluster_of(2, f"{directory / 'only_here.py'}:Clustered"))
    seen["no_room"] = told(
        lambda: atomr_mp.ray.Cluster(actors=f"{ACTOR}:Clustered", nodes=3, backend="host", start_timeout_s=1)
    )
    seen["bad_left"] = pools()


@contextlib.contextmanager
def node(raylets: Raylets, variables: dict[str, str]) -> Iterator[None]:
    """Have a node whose processes have these variables."""
    added = raylets.add_node(node_ip_address=LOCAL, num_cpus=1, env_vars=variables)
    try:
        yield
    finally:
        raylets.remove_node(added)


def driver_killed(address: str, seen: dict[str, Any]) -> None:
    """Kill a program that has made a cluster: its pools end."""
    program = (
        "import ray, sys, time; sys.path.insert(0, sys.argv[2]); from tests.programs import clustering_faults as c\n"
        "ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); cluster = c.cluster_of(2)\n"
        "print(*[each.supervisor_pid for each in cluster.nodes], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, address, str(ACTOR.parents[2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        gone = [os.pidfd_open(int(pid)) for pid in driver.stdout.readline().split()]
        began = time.monotonic()
        driver.kill()
        seen["driver"] = [wait(each, 20) for each in gone]
        seen["driver_s"] = time.monotonic() - began


def deadly_job(cluster: atomr_mp.ray.Cluster) -> str:
    """Map a batch that ends workers: the job ends, and says why."""
    data = ray.data.from_items([{"x": -1.0}, {"x": 2.0}], override_num_blocks=1).map_batches(
        atomr_mp.ray.Caller,
        fn_constructor_kwargs={"cluster": cluster, "method": "Clustered.square", "columns": ["x"], "output": "y"},
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=0.5,
    )
    try:
        data.take_all()
    except Exception as error:  # noqa: BLE001 - whatever Ray makes of it
        return str(error)
    return "no error"


def relay_killed(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Kill the relay of the other node under calls: the next one takes the session over."""
    away = other(cluster)
    epoch = cluster.nodes[away].epoch
    under_way = [cluster.call("Clustered.slow_pid", 0.1, node=away) for _ in range(5)]
    status = cluster.status()[away].pool
    assert status is not None
    assert status.remote is not None
    os.kill(status.remote.pid, signal.SIGKILL)
    seen["relay"] = [str(each.exception()) for each in under_way]
    seen["same_epoch"] = cluster.nodes[away].epoch == epoch


def supervisor_killed(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Kill the supervisors of both pools, one after the other: their actors start others."""
    seen["supervisors"] = []
    for index in range(2):
        before = cluster.nodes[index]
        os.kill(before.supervisor_pid, signal.SIGKILL)
        answer = cluster.call("Clustered.twice", 2, deadline_s=BACK_S).result()
        again = wait_epoch(cluster, index, before.epoch)
        seen["supervisors"].append((answer, again.call("Clustered.twice", 3).result()))


def actor_stopped(cluster: atomr_mp.ray.Cluster, seen: dict[str, Any]) -> None:
    """Stop Ray's actor of each node: no call needs it."""
    owners = [psutil.Process(each.supervisor_pid).parent() for each in cluster.nodes]
    for owner in owners:
        owner.suspend()
    seen["actor_stopped"] = [cluster.call("Clustered.twice", 2, node=index).result() for index in range(2)]
    for owner in owners:
        owner.resume()


def raylet_stopped(cluster: atomr_mp.ray.Cluster, second: Any, seen: dict[str, Any]) -> None:
    """Stop the raylet of the other node: its pool serves for some seconds, then ends, and calls go elsewhere."""
    away = other(cluster)
    raylet = second.all_processes["raylet"][0].process.pid
    gone = os.pidfd_open(cluster.nodes[away].supervisor_pid)
    began = time.monotonic()
    os.kill(raylet, signal.SIGSTOP)
    seen["serves_on"] = cluster.call("Clustered.twice", 2, node=away).result()
    seen["stopped"] = wait(gone, 30)
    seen["stopped_s"] = time.monotonic() - began
    seen["elsewhere"] = [each.result() for each in [cluster.call("Clustered.twice", 4) for _ in range(8)]]
    os.kill(raylet, signal.SIGCONT)


def gcs_killed(cluster: atomr_mp.ray.Cluster, raylets: Raylets, seen: dict[str, Any]) -> None:
    """Kill Ray's GCS: calls go on."""
    os.kill(raylets.head_node.all_processes["gcs_server"][0].process.pid, signal.SIGKILL)
    until = time.monotonic() + 3.0
    answers = set()
    while time.monotonic() < until:
        answers.add(cluster.call("Clustered.twice", 5).result())
    seen["gcs"] = list(answers)


def other(cluster: atomr_mp.ray.Cluster) -> int:
    """Return the index of the node that is not this process's."""
    return next(index for index, each in enumerate(cluster.nodes) if not each.local)


def wait_epoch(cluster: atomr_mp.ray.Cluster, index: int, before: str) -> atomr_mp.Pool:
    """Return the pool of a node once it has another epoch."""
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        pool = cluster.pool(index, BACK_S)
        if cluster.nodes[index].epoch != before:
            return pool
        time.sleep(0.05)  # the end of the old pool is on its way to this process
    raise TimeoutError(f"node {index} has no other epoch")


def wait(pidfd: int, timeout_s: float) -> bool:
    """Return whether a process has ended in time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = bool(poll.poll(timeout_s * 1000))
    os.close(pidfd)
    return ended


def told(call: Callable[[], object]) -> tuple[str, str]:
    """Return the code and the text of the error that a call raises."""
    try:
        call()
    except errors.AtomrError as error:
        return error.code, error.message
    return "none", ""


def pools() -> list[int]:
    """Return the pids of this run's supervisors."""
    return [each.pid for each in processes() if "atomr_mp.supervisor" in each.cmdline()]


def processes() -> list[psutil.Process]:
    """Return the processes of this run but this one: their temporary directory is known to no other."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == os.environ["TMPDIR"]:
                found.append(process)
    return found


def end_processes() -> None:
    """End what is left of Ray: `ray.shutdown` would wait for its GCS."""
    left = processes()
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, 10)


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    os._exit(0)  # Ray's own end would wait for its GCS
