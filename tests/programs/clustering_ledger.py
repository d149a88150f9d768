"""Runs three raylets on this host and a cluster over them, whose processes are killed and stopped under load.

Each call notes its runs. The last line has, as JSON, the outcomes of the calls and the holdings of each node.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster as Raylets

import atomr_mp.ray
from atomr_mp import errors

ACTOR = Path(__file__).parents[1] / "actors" / "clustered.py"
LOCAL = "127.0.0.2"  # loopback; Ray takes 127.0.0.1 for the address of the first interface
NODES = 3
THREADS = 3
PACE_S = 0.005
"""Between a thread's calls, so that two processors have time for what is under test."""
BACK_S = 60.0
"""How long Ray may take to start an actor anew."""
STANDS_S = 1.0
"""How long a process is stopped that is not replaced."""
STEADY_S = 3.0
"""For how long nothing changes before what nodes hold counts as what they hold at rest."""
MEMORY_BYTES = 48 * 2**20
"""How much more a process may hold than before: Python's own growth."""


class Load:
    """Threads that call all nodes until they are stopped, and the outcomes of their calls."""

    def __init__(self, cluster: atomr_mp.ray.Cluster, directory: str) -> None:
        self._cluster, self.directory = cluster, directory
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.ended: dict[str, str] = {}
        """The code of each call's error, "none" if it was answered, "hidden" if it may have run and denies it."""
        self.answers: Counter[str] = Counter()
        """How often each call was called back."""
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def more(self, calls: int) -> None:
        """Wait until so many calls more have ended."""
        wanted = len(self.ended) + calls
        wait_until(lambda: len(self.ended) >= wanted, "calls go on")

    def stop(self) -> Counter[str]:
        """Stop, and return how often each call has run."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return Counter(line for path in Path(self.directory).iterdir() for line in path.read_text().split())

    def _run(self, thread: int) -> None:
        number = 0
        while not self._over.wait(PACE_S):
            number += 1
            kind = ("once", "again")[number % 2]
            key = f"{kind}-{thread}-{number}"
            reply = self._cluster.call(f"Noted.{kind}", self.directory, key, deadline_s=30.0)
            reply.add_done_callback(functools.partial(self._count, key))
            try:
                ended = "none" if reply.result() == key else "wrong"
            except errors.RequestError as error:
                ended = error.code if error.maybe_executed else f"{error.code}, not run"
            with self._lock:
                self.ended[key] = ended

    def _count(self, key: str, _reply: object) -> None:
        with self._lock:
            self.answers[key] += 1


def main() -> dict[str, Any]:
    """Return what was seen."""
    raylets = Raylets(
        initialize_head=True, head_node_args={"node_ip_address": LOCAL, "num_cpus": 1, "include_dashboard": False}
    )
    others = [raylets.add_node(node_ip_address=LOCAL, num_cpus=1) for _ in range(NODES - 1)]
    ray.init(address=raylets.address, log_to_driver=False, logging_level="ERROR")
    seen: dict[str, Any] = {}
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            atomr_mp.ray.Cluster(
                actors=f"{ACTOR}:Noted",
                nodes=NODES,
                backend="host",
                max_restarts=1000,
                backoff_initial_s=0.05,
                backoff_max_s=0.05,
            ) as cluster,
        ):
            load = Load(cluster, directory)
            try:
                load.more(300)
                before = settled_baseline(cluster)
                ends(cluster, load, [raylets.head_node, *others], seen)
                seen["grown"] = settled_growth(cluster, before)
                raylet_reaped(cluster, others, load, seen)
                seen["grown_beside"] = settled_growth(cluster, before)
            finally:
                runs = load.stop()
            judge(load, runs, seen)
        seen["pools_left"] = pools()
    finally:
        print(json.dumps(seen), file=sys.stderr)  # what was seen until then, if it has failed
        ray.shutdown()
        raylets.shutdown()
    return seen


def ends(cluster: atomr_mp.ray.Cluster, load: Load, nodes: list[Any], seen: dict[str, Any]) -> None:
    """Kill and stop processes of each kind, of the two nodes that are not this process's, while the load goes on."""
    one, two = (index for index, each in enumerate(cluster.nodes) if not each.local)
    epochs = [each.epoch for each in cluster.nodes]
    generation = cluster.pool(one).devices[0].generation
    os.kill(cluster.pool(one).devices[0].pid, signal.SIGKILL)
    wait_until(lambda: cluster.pool(one).devices[0].generation > generation, "a worker is replaced")
    relays = {node: relay(cluster, node) for node in (one, two)}
    for node, number in ((one, signal.SIGKILL), (two, signal.SIGSTOP)):
        os.kill(relays[node].pid, number)
    raylet = next(each for each in nodes if each.node_id == cluster.nodes[one].node).all_processes["raylet"][0]
    for pid in (
        cluster.pool(one).devices[0].pid,
        cluster.nodes[one].supervisor_pid,
        owner(cluster, one).pid,
        raylet.process.pid,
        nodes[0].all_processes["gcs_server"][0].process.pid,
    ):
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + STANDS_S
        load.more(50)
        wait_until(functools.partial(passed, until), "time passes")
        os.kill(pid, signal.SIGCONT)
    # This program stands still itself, for longer than relays wait for a word of it.
    subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 2.5; kill -CONT {os.getpid()}"], check=True)
    load.more(50)
    wait_until(lambda: not relays[two].is_running(), "a relay that stands still is replaced")
    seen["after"] = [
        cluster.call("Noted.again", load.directory, f"after-{node}", node=node).result() for node in (one, two)
    ]
    seen["same_epochs"] = [each.epoch for each in cluster.nodes] == epochs
    os.kill(cluster.nodes[one].supervisor_pid, signal.SIGKILL)
    os.kill(owner(cluster, two).pid, signal.SIGKILL)
    for node in (one, two):
        wait_until(functools.partial(begun_anew, cluster, node, epochs[node]), "pools begin anew")
    load.more(100)


def passed(until: float) -> bool:
    """Return whether a time has come."""
    return time.monotonic() > until


def begun_anew(cluster: atomr_mp.ray.Cluster, node: int, epoch: str) -> bool:
    """Return whether a node's pool is another one than before, and is reached."""
    info = cluster.nodes[node]
    return info.connected and info.epoch != epoch


def raylet_reaped(cluster: atomr_mp.ray.Cluster, others: list[Any], load: Load, seen: dict[str, Any]) -> None:
    """Kill a raylet that is reaped at once: its pool goes too."""
    raylet = others[0].all_processes["raylet"][0].process
    lost = next(index for index, each in enumerate(cluster.nodes) if each.node == others[0].node_id)
    gone = os.pidfd_open(cluster.nodes[lost].supervisor_pid)
    raylet.kill()
    raylet.wait()
    poll = select.poll()
    poll.register(gone, select.POLLIN)
    seen["pool_gone"] = bool(poll.poll(10_000))
    os.close(gone)
    load.more(100)


def judge(load: Load, runs: Counter[str], seen: dict[str, Any]) -> None:
    """Report the outcomes of the calls."""
    seen["calls"] = len(load.ended)
    seen["codes"] = sorted(set(load.ended.values()))
    seen["not_called_back_once"] = [key for key in load.ended if load.answers[key] != 1]
    once = {key: ended for key, ended in load.ended.items() if key.startswith("once")}
    seen["run_twice"] = [key for key in once if runs[key] > 1]
    seen["answered_unrun"] = [key for key, ended in load.ended.items() if ended == "none" and not runs[key]]
    seen["denied"] = [key for key, ended in load.ended.items() if ended.endswith("not run") and runs[key]]
    seen["again_failed"] = {
        key: ended for key, ended in load.ended.items() if key.startswith("again") and ended != "none"
    }
    seen["once_failed"] = sum(ended != "none" for ended in once.values())


def held(cluster: atomr_mp.ray.Cluster) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Return what each node that is connected holds: by role, processes, their descriptors and resident bytes."""
    found = {}
    for info in cluster.nodes:
        with contextlib.suppress(psutil.Error, StopIteration):  # a process begins or ends just now
            found[info.node] = roles_of(psutil.Process(info.supervisor_pid)) if info.connected else {}
    this = psutil.Process()
    found["caller"] = {"caller": (1, this.num_fds(), this.memory_info().rss)}
    return found


def roles_of(supervisor: psutil.Process) -> dict[str, tuple[int, int, int]]:
    """Return what a pool's processes hold, by role."""
    roles: dict[str, tuple[int, int, int]] = {}
    for process in (supervisor, *supervisor.children(recursive=True)):
        name = next(each for each in process.cmdline()[1:] if each.startswith("atomr_mp"))
        count, descriptors, resident = roles.get(name, (0, 0, 0))
        roles[name] = (count + 1, descriptors + process.num_fds(), resident + process.memory_info().rss)
    return roles


def settled_baseline(cluster: atomr_mp.ray.Cluster) -> dict[str, Any]:
    """Return what nodes hold once it stays the same: relays and workers that stand by have started then."""
    until, found, since = time.monotonic() + BACK_S, held(cluster), time.monotonic()
    while time.monotonic() < since + STEADY_S or len(found) <= NODES:
        time.sleep(0.2)  # no event tells of another process's descriptors
        now = held(cluster)
        if counts(now) != counts(found):
            found, since = now, time.monotonic()
        if time.monotonic() > until:
            raise TimeoutError(f"what nodes hold never stays the same: {found}")
    return found


def counts(nodes: dict[str, Any]) -> dict[str, Any]:
    """Return processes and descriptors of the pools by node and role, without memory."""
    return {node: {name: each[:2] for name, each in roles.items()} for node, roles in nodes.items() if node != "caller"}


def settled_growth(cluster: atomr_mp.ray.Cluster, before: dict[str, Any], within_s: float = 20.0) -> list[str]:
    """Return what nodes hold beyond what they held before, once that is nothing or has not changed in time."""
    until = time.monotonic() + within_s
    while True:
        grown = growth(held(cluster), before)
        if not grown or time.monotonic() > until:
            return grown
        time.sleep(0.2)  # no event tells of another process's descriptors


def growth(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Return what there is more of than before."""
    more = [f"{node[:8]} is not told of" for node in before if node not in now]
    for node, roles in now.items():
        for name, (count, descriptors, resident) in roles.items():
            was = before[node].get(name, (0, 0, 0))
            spare = NODES if name == "caller" else 0  # Ray's connections to its actors, which come and go
            if count > was[0] or descriptors > was[1] + spare or resident > was[2] + MEMORY_BYTES:
                more.append(f"{node[:8]} {name}: {(count, descriptors, resident)}, before {was}")
    return more


def owner(cluster: atomr_mp.ray.Cluster, node: int) -> psutil.Process:
    """Return Ray's actor of a node."""
    parent = psutil.Process(cluster.nodes[node].supervisor_pid).parent()
    assert parent is not None
    return parent


def relay(cluster: atomr_mp.ray.Cluster, node: int) -> psutil.Process:
    """Return the relay that serves a node's pool, not the one that stands by."""
    status = cluster.status()[node].pool
    assert status is not None
    assert status.remote is not None
    return psutil.Process(status.remote.pid)


def wait_until(condition: Callable[[], object], what: str, within_s: float = BACK_S) -> None:
    """Wait until something is so."""
    until = time.monotonic() + within_s
    while True:
        try:
            if condition():
                return
        except (errors.PoolLost, errors.PoolUnreachable):
            pass  # its node comes back
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)  # other processes tell no event


def pools() -> list[int]:
    """Return the pids of this run's supervisors."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if "atomr_mp.supervisor" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("TMPDIR") == os.environ["TMPDIR"]
    ]


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    sys.stdout.flush()
