"""How soon a client has its next good answer after a GPU's context was poisoned, or its process killed.

    python -m scripts.benchmarks.gpu.failover [--limit-s SECONDS] [RUN …] > failover.json

Needs a GPU and the extra of its CUDA version. Times are in milliseconds. The supervisor hears of a poisoned context by
the worker's last word, of a kill by the end of its control channel; from then on the time counts. The model has 8 GiB
of resident weights and a captured graph over them; the network is one of torch's. The run "Load hot" has three busy
clients, see `loaded_failover`. Losses, and figures of whole runs, are told on standard error as they come; a run begins
no further loss after its time (`--limit-s`), and what is stopped by SIGTERM prints what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events

ACTORS: Final = Path(__file__).parents[1] / "processes" / "failover_actor.py"
ROWS: Final = 4096
LOADED: Final = "Load hot"
RUNS: Final = {"Model hot": 25, "Model warm": 6, "Model none": 5, "Network hot": 10, LOADED: 40}
"""Each with how many losses of each kind."""
DEADLINE_S: Final = 60.0
PACE_S: Final = 0.0002
"""Between calls."""

CONTEXT_AND_SETUP: Final = """
import importlib.util, os, sys, time
import cupy, numpy, zmq
from nvmath.bindings import cublas

spec = importlib.util.spec_from_file_location("actors", sys.argv[1])
actors = importlib.util.module_from_spec(spec)
spec.loader.exec_module(actors)


class Context:
    def resident(self, name, layout, version, fill):
        arrays = {name: cupy.empty(shape, dtype) for name, (shape, dtype) in layout.items()}
        fill(arrays)
        return arrays


for _ in range(6):
    began = time.perf_counter()
    if not os.fork():
        cupy.cuda.Device(0).use()
        cupy.cuda.runtime.free(0)
        context = time.perf_counter() - began
        model = actors.Model()
        model.setup(Context())
        assert model.answer(2.0) == 2 * actors.ROWS
        print(context, time.perf_counter() - began, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
"""The least work of a warm standby: a context and the setup, in a process forked with all imports done."""


class Failovers:
    """A pool whose worker is lost again and again.

    Args:
        pool: The pool.
        run_dir: Its run directory.
        model: Its actor.
    """

    def __init__(self, pool: atomr_mp.Pool, run_dir: Path, model: str) -> None:
        self._pool = pool
        self._run_dir = run_dir
        self._model = model
        self._poisons = 0
        self._right = pool.call(f"{model}.answer", 2.0).result(DEADLINE_S)
        assert model != "Model" or self._right == 2 * ROWS

    def poison(self) -> dict[str, float]:
        """Poison the context, and call until there is an answer."""
        self.settle()
        self._poisons += 1  # the same arguments again and again would be refused, as those of a poison request
        self._pool.call(f"{self._model}.poison", self._poisons).exception(DEADLINE_S)
        return self._until_answer()

    def kill(self) -> dict[str, float]:
        """Kill the process while it works, and call until there is an answer."""
        self.settle()
        os.kill(self._pool.devices[0].pid, signal.SIGKILL)
        return self._until_answer()

    def _until_answer(self) -> dict[str, float]:
        """Call again and again, without waiting for those that went to the dead, until one call is answered."""
        begun = time.time()
        replies: list[atomr_mp.Reply] = []
        answers: list[float] = []

        def note(reply: atomr_mp.Reply) -> None:
            if reply.exception() is None:
                answers.append(time.time())

        while not answers:
            with contextlib.suppress(errors.Overloaded):  # so many wait already for a device that takes long
                replies.append(self._pool.call(f"{self._model}.answer", 2.0))
                replies[-1].add_done_callback(note)
            time.sleep(PACE_S)
        answered = answers[0]
        assert all(reply.result() == self._right for reply in replies if reply.exception(DEADLINE_S) is None)
        seen = self._seen()
        if self._model == "Model":
            assert self._pool.call("Model.replay", 3.0).result(DEADLINE_S) == 3
        return {"since_seen": round((answered - seen) * 1e3, 2), "in_all": round((answered - begun) * 1e3, 2)}

    def _seen(self) -> float:
        """Return when the supervisor heard of the latest loss."""
        back = [each for each in self._events() if each["event"] in {"promoted", "ready"}][-1]
        return float(back["time"]) - float(back["away_s"])

    def _events(self) -> list[dict[str, Any]]:
        return [dict(each) for each in read_events(self._run_dir / "events.jsonl")]

    def settle(self) -> None:
        """Wait until the device answers, and what is to stand behind it does."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            device = self._pool.status().devices[0]
            stands = device.standby is None or device.standby.mode == "none" or device.standby.state == "ready"
            if device.state == "ready" and stands:
                assert self._pool.call(f"{self._model}.answer", 2.0).result(DEADLINE_S) == self._right
                return
            time.sleep(0.02)
        raise TimeoutError(f"the device is not as it should be: {self._pool.status()}")


def summary(found: list[dict[str, float]]) -> dict[str, Any]:
    """Return the spread of each figure."""
    result = {}
    for name in found[0]:
        values = sorted(each[name] for each in found)
        at_99 = values[min(len(values) - 1, int(len(values) * 0.99))]
        result[name] = {"p50": statistics.median(values), "p99": at_99, "min": values[0], "count": len(values)}
    return result


def used_mib() -> int:
    """Return how much of the GPU's memory is used."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def context_and_setup() -> dict[str, Any]:
    """Return the least that a failover to a warm standby takes on this machine, without the runtime."""
    command = [sys.executable, "-c", CONTEXT_AND_SETUP, str(ACTORS)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    times = [[float(each) * 1e3 for each in line.split()] for line in found[1:]]  # the first compiles the kernels
    return summary([{"context": round(a, 1), "context_and_setup": round(b, 1)} for a, b in times])


def measure(model: str, standby: str, count: int, limit_s: float) -> dict[str, Any]:
    """Return the times of failovers with one kind of standby; fewer than `count` if the time is over."""
    until_s = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        with atomr_mp.start(
            actors=[f"{ACTORS}:{model}"],
            gpus=1,
            backend="cuda",
            run_dir=run_dir,
            standby=standby,
            max_restarts=10_000,
        ) as pool:
            failovers = Failovers(pool, run_dir, model)
            failovers.kill()  # the first process has compiled the kernels
            before = used_mib()
            half_s = (time.monotonic() + until_s) / 2
            poisoned = repeated(failovers.poison, count, half_s)
            killed = repeated(failovers.kill, count, until_s)
            failovers.settle()
            return {
                "poisoned": summary(poisoned),
                "killed": summary(killed),
                "used_mib_before_and_after": [before, used_mib()],
            }


def repeated(lose: Callable[[], dict[str, float]], count: int, until_s: float) -> list[dict[str, float]]:
    """Return the figures of so many losses, at least one, or as many as there is time for."""
    found: list[dict[str, float]] = []
    while not found or (len(found) < count and time.monotonic() < until_s):
        found.append(lose())
        sys.stderr.write(f"{lose.__name__} {len(found)}: {found[-1]}\n")
    return found


def under_load(losses: int, limit_s: float, result: dict[str, Any]) -> None:
    """Note what failovers take with three busy clients."""
    loaded = Path(__file__).parents[1] / "standalone" / "loaded_failover.py"
    command = [sys.executable, str(loaded), "--backend", "cuda", "--losses", str(losses), "--limit-s", str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        try:
            printed = program.stdout.read()
        except KeyboardInterrupt:
            program.terminate()
            result[LOADED] = json.loads(program.stdout.read())
            raise
    result[LOADED] = json.loads(printed)


def measure_all(runs: list[str], limit_s: float, result: dict[str, Any]) -> None:
    """Note the figures of runs."""
    result["beside"] = context_and_setup()
    for run in runs:
        sys.stderr.write(f"failover: {run}\n")
        if run == LOADED:
            under_load(RUNS[run], limit_s, result)
        else:
            model, standby = run.split()
            result[run] = measure(model, standby, RUNS[run], limit_s)
        sys.stderr.write(f"failover: {run}: {json.dumps(result[run])}\n")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure failovers on a GPU.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"some of {', '.join(RUNS)}; default: all")
    parser.add_argument("--limit-s", type=float, default=100.0, help="when a run begins no further loss (default: 100)")
    asked = parser.parse_args()
    if unknown := set(asked.runs) - RUNS.keys():
        parser.error(f"there is no run {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "used_mib_idle": used_mib()}
    name = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    result["gpu"] = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    try:
        measure_all(asked.runs or list(RUNS), asked.limit_s, result)
    except KeyboardInterrupt:
        result["stopped"] = "before its end"
    finally:
        print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
