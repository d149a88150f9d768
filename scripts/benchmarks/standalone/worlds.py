"""Measures worlds, on GPUs where there are some: gang calls, collectives, and the loss of a member.

    python -m scripts.benchmarks.standalone.worlds --rounds 7 > worlds.json

Times are in microseconds unless their names say otherwise. Each ratio is the median of the rounds, with the smallest
and the largest; what is compared is measured in turns. `gang_to_call` is an empty gang call beside an empty call of a
method with `thread=True`. `all_reduce_to_gloo` needs torch. `beside_late` is the p99 of another client's empty calls on
the same devices while a rank comes 100 ms late, beside its own p99 without. `killed_ms` is the time from SIGKILL of a
rank until the next right answer of an idempotent gang call that has an example, with a hot standby, and `single_ms` the
same of a single device; `killed_since_sign_ms` counts from the kernel's first sign of the end. `poisoned_ms` is the
time from the error that says that a rank's context is lost. `refused_us` is the time from the kernel's first sign of a
rank's end until the caller of the call that it ran has the error, and `refused_to_call` its median beside an empty call
on a thread. `raised_ms` is the time of a call whose last rank raises while the others wait for it, which ends the
epoch.

`--under-load COUNT` measures that alone, with three clients of each device that have eight calls in flight each: so
many kills and poisons in turn, on GPUs. `--engine nccl` takes the other engine, with spares. `gpu_mib` is what the
devices' memory in use has grown by, and `shm` the files in /dev/shm that are new behind the pool's end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import atomr_mp
from atomr_mp import errors

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.standalone.loaded_failover import Clients, summary

ACTORS: Final = Path(__file__).parents[1] / "processes" / "world_actor.py"
LOADED: Final = ACTORS.with_name("loaded_actor.py")
LOAD: Final = (3, 8, 0)
"""Clients of each device, calls in flight of each, each how manieth is large."""
FORMED_S: Final = 4.0
"""How long NCCL's communicators with a new standby take; they are shown nowhere."""
CALLS: Final = 300
KIB: Final = 256
"""Elements of four bytes in a KiB."""
LATE_S: Final = 0.1
DEADLINE_S: Final = 60.0
GPUS: Final = Path("/proc/driver/nvidia/gpus")
"""Has an entry for each GPU; where it is, worlds are measured on these."""


@contextlib.contextmanager
def started(ranks: int, standby: str = "none", engine: str = "", more: tuple[str, ...] = ()) -> Iterator[atomr_mp.Pool]:
    """Give a pool with a world of so many ranks, of an engine with spares if one is named, and with more actors."""
    by_engine = {"engine": engine, "spares": True} if engine else {}
    with (
        tempfile.TemporaryDirectory(prefix="atomr-mp-worlds-", dir="/tmp") as folder,
        atomr_mp.start(
            actors=[f"{ACTORS}:Gang", f"{ACTORS}:Beside", *more],
            **_devices(ranks),
            run_dir=Path(folder) / "run",
            standby=standby,
            worlds={"w": {"devices": list(range(ranks)), "actors": ["Gang"], **by_engine}},
            max_restarts=10_000,
            max_suspicions=0,
        ) as pool,
    ):
        pool.world("w").wait_ready(DEADLINE_S)
        yield pool


def _devices(ranks: int) -> dict[str, Any]:
    """Return settings for so many devices, several on one GPU if there are fewer."""
    if not GPUS.exists():
        return {"backend": "host", "gpus": ranks}
    gpus = min(ranks, len(list(GPUS.iterdir())))
    return {"backend": "cuda", "gpus": gpus, "workers_per_gpu": ranks // gpus}


def timed(call: Callable[[], object], count: int) -> list[float]:
    """Return how long each of so many calls takes, in microseconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1e6)
    return took


def p(values: list[float], share: float) -> float:
    """Return a quantile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spread(values: list[float]) -> dict[str, float]:
    """Return the median of the rounds, the smallest and the largest."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def calls(ranks: int, rounds: int) -> dict[str, Any]:
    """Measure empty gang calls beside calls on a thread, and sums."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with started(ranks) as pool:
        gang, beside = pool.world("w").actor("Gang"), pool.actor("Beside", device=0)
        ways = {
            "call": lambda: beside.threaded().result(),
            "gang": lambda: gang.empty().result(),
            "meeting": lambda: gang.meet().result(),
        }
        for way in ways.values():
            timed(way, 30)
        for _ in range(rounds):
            took = {name: timed(way, CALLS) for name, way in ways.items()}
            for name, each in took.items():
                note(f"{name}_p50", p(each, 0.5))
                note(f"{name}_p99", p(each, 0.99))
            note("gang_to_call", p(took["gang"], 0.5) / p(took["call"], 0.5))
            note("gang_to_call_p99", p(took["gang"], 0.99) / p(took["call"], 0.99))
            sums = gang.reduced(KIB, CALLS).result(DEADLINE_S)
            note("all_reduce_1k_p50", p(sums, 0.5) * 1e6)
            note("all_reduce_1k_p99", p(sums, 0.99) * 1e6)
            if importlib.util.find_spec("torch"):
                note("all_reduce_to_gloo", p(sums, 0.5) * 1e6 / gloo(ranks))
        note("all_reduce_64m_ms", p(gang.reduced(2**24, 5).result(DEADLINE_S), 0.5) * 1e3)
    return {name: spread(values) for name, values in found.items()}


def gloo(ranks: int) -> float:
    """Return how long gloo takes for the same sum, in microseconds."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                try:
                    _gloo(rank, ranks, folder, writing)
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        return float(told.read())


def _gloo(rank: int, ranks: int, folder: str, writing: int) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks)
    x = torch.ones(KIB)
    took = timed(lambda: distributed.all_reduce(x), CALLS)
    if not rank:
        os.write(writing, str(p(took, 0.5)).encode())
    distributed.destroy_process_group()


def beside_late(rounds: int) -> dict[str, Any]:
    """Measure another client's calls while a rank comes late."""
    ratios, quiet_us, late_us = [], [], []
    with started(2) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        gang, empty = pool.world("w").actor("Gang"), other.actor("Beside", device=0).empty
        timed(lambda: empty().result(), 100)
        for _ in range(rounds):
            quiet = timed(lambda: empty().result(), 1000)
            stop = threading.Event()

            def late(stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    gang.late(LATE_S).result(DEADLINE_S)

            thread = threading.Thread(target=late)
            thread.start()
            time.sleep(LATE_S)
            loaded = timed(lambda: empty().result(), 1000)
            stop.set()
            thread.join()
            quiet_us.append(p(quiet, 0.99))
            late_us.append(p(loaded, 0.99))
            ratios.append(late_us[-1] / quiet_us[-1])
    return {"ratio": spread(ratios), "quiet_p99": spread(quiet_us), "late_p99": spread(late_us)}


def kills(count: int) -> dict[str, Any]:
    """Measure the time from SIGKILL to the next right answer, of a world and of a single device."""
    took: dict[str, list[float]] = {"killed_ms": [], "killed_since_sign_ms": [], "single_ms": []}
    with started(2, "hot") as pool:
        gang, single = pool.world("w").actor("Gang"), pool.actor("Beside", device=1)
        ways = {"killed": gang.meet, "single": single.threaded}
        for _ in range(count):
            for name, way in ways.items():
                _calm(pool)
                way().result(DEADLINE_S)
                began, seen = _killed(pool)
                way().result(DEADLINE_S)
                took[f"{name}_ms"].append((time.perf_counter() - began) * 1e3)
                if name == "killed":
                    took["killed_since_sign_ms"].append((time.perf_counter() - seen) * 1e3)
    found: dict[str, Any] = {name: spread(each) for name, each in took.items()}
    found["killed_since_sign_p90_ms"] = round(p(took["killed_since_sign_ms"], 0.9), 3)
    found["killed_to_single"] = round(found["killed_ms"]["median"] / found["single_ms"]["median"], 2)
    return found


def poisons(count: int) -> dict[str, Any]:
    """Measure the time from a call's error, which says that its context is lost, to the next right gang answer."""
    took = []
    with started(2, "hot") as pool:
        gang, single = pool.world("w").actor("Gang"), pool.actor("Beside", device=1)
        for _ in range(count):
            _calm(pool)
            gang.meet().result(DEADLINE_S)
            assert isinstance(single.poison().exception(DEADLINE_S), errors.ContextPoisoned)
            began = time.perf_counter()
            gang.meet().result(DEADLINE_S)
            took.append((time.perf_counter() - began) * 1e3)
    return {"poisoned_ms": spread(took), "poisoned_p90_ms": round(p(took, 0.9), 3)}


def under_load(count: int, engine: str) -> dict[str, Any]:
    """Measure kills and poisons of a member that serves other clients besides, and what they leave."""
    took: dict[str, list[float]] = {"killed_since_sign_ms": [], "killed_ms": [], "poisoned_ms": []}
    shm = {each.name for each in Path("/dev/shm").iterdir()}
    with started(2, "hot", engine, (f"{LOADED}:OnGpu",)) as pool, contextlib.ExitStack() as stack:
        gang, single = pool.world("w").actor("Gang"), pool.actor("Beside", device=1)
        load = [Clients(pool.run_dir, "OnGpu", *LOAD, device) for device in (0, 1)]
        for each in load:
            stack.callback(each.close)
            each.ready()
        before: list[int] = []
        for turn in range(2 * count + 2):
            _calm(pool)
            time.sleep(FORMED_S if engine else 0.0)
            gang.meet().result(DEADLINE_S)
            if turn == 2:  # the first two load what a first loss loads
                took = {name: [] for name in took}
                before = _used_mib()
            if turn % 2:
                assert isinstance(single.poison().exception(DEADLINE_S), errors.ContextPoisoned)
                began = seen = time.perf_counter()
            else:
                began, seen = _killed(pool)
            gang.meet().result(DEADLINE_S)
            now = time.perf_counter()
            if turn % 2:
                took["poisoned_ms"].append((now - began) * 1e3)
            else:
                took["killed_ms"].append((now - began) * 1e3)
                took["killed_since_sign_ms"].append((now - seen) * 1e3)
            gang.reduced(KIB, 1).result(DEADLINE_S)
            sys.stderr.write(f"{turn}: {(now - seen) * 1e3:.2f} ms\n")
            for each in load:
                each.lines(0.0)
        _calm(pool)
        time.sleep(FORMED_S)
        grown = [after - each for after, each in zip(_used_mib(), before, strict=True)]
        rest = {"gpu_mib": grown, "generation_of_rank_0": pool.devices[0].generation}
    left = sorted({each.name for each in Path("/dev/shm").iterdir()} - shm)
    return {
        "engine": engine or "mailboxes",
        **{name: summary(each) for name, each in took.items()},
        **rest,
        "shm": left,
    }


def _used_mib() -> list[int]:
    """Return how much of each GPU's memory is in use."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()]


def _calm(pool: atomr_mp.Pool) -> None:
    """Wait until all standbys are ready, and a little longer."""
    while any(device.standby is None for device in pool.devices):
        time.sleep(0.01)
    time.sleep(0.2)


def _killed(pool: atomr_mp.Pool) -> tuple[float, float]:
    """Kill the second device's worker; return when, and when the kernel gave the first sign of its end."""
    pid = pool.devices[1].pid
    assert pid
    with _sign(pid) as sign:
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        sign.poll()
        return began, time.perf_counter()


@contextlib.contextmanager
def _sign(pid: int) -> Iterator[select.poll]:
    """Give a poll that the kernel's first sign of a process's end makes ready."""
    ends, pidfd = select.poll(), os.pidfd_open(pid, os.O_EXCL)  # PIDFD_THREAD, since Linux 6.9
    try:
        ends.register(pidfd, select.POLLIN)
        yield ends
    finally:
        os.close(pidfd)


def refusals(count: int) -> dict[str, Any]:
    """Measure the time from a rank's end to the error of the call that it ran."""
    took: list[float] = []
    with started(2, "hot") as pool:
        gang, beside = pool.world("w").actor("Gang"), pool.actor("Beside", device=0)
        empty = timed(lambda: beside.threaded().result(), CALLS)
        for _ in range(count):
            _calm(pool)
            gang.meet().result(DEADLINE_S)
            pid = pool.devices[1].pid
            assert pid
            with _sign(pid) as sign:
                reply = gang.late(DEADLINE_S)
                time.sleep(0.2)
                os.kill(pid, signal.SIGKILL)
                sign.poll()
                began = time.perf_counter()
                assert reply.exception(DEADLINE_S) is not None
                took.append((time.perf_counter() - began) * 1e6)
    return {"refused_us": spread(took), "refused_to_call": round(statistics.median(took) / p(empty, 0.5), 2)}


def raised(ranks: int, count: int) -> dict[str, Any]:
    """Measure calls whose last rank raises while the others wait for it."""
    took = []
    with started(ranks) as pool:
        world = pool.world("w")
        for _ in range(count):
            world.wait_ready(DEADLINE_S)
            began = time.perf_counter()
            assert isinstance(world.call("Gang.fail").exception(DEADLINE_S), errors.ActorFailed)
            took.append((time.perf_counter() - began) * 1e3)
    return {"raised_ms_p50": round(p(took, 0.5), 3), "raised_ms_p99": round(p(took, 0.99), 3)}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure worlds, on GPUs where there are some.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--under-load", type=int, metavar="COUNT")
    parser.add_argument("--engine", default="")
    asked = parser.parse_args()
    if asked.under_load:
        print(json.dumps(under_load(asked.under_load, asked.engine), indent=1))
        return
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "two_ranks": calls(2, asked.rounds),
        "four_ranks": calls(4, asked.rounds),
        "beside_late": beside_late(asked.rounds),
        "kills": kills(asked.kills),
        **({"poisons": poisons(asked.kills)} if GPUS.exists() else {}),
        "refusals": refusals(asked.kills),
        "raised": {"two_ranks": raised(2, CALLS), "four_ranks": raised(4, CALLS)},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
