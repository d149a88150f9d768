"""Measures how soon clients have good answers again after the loss of a worker, alone and under load.

    python -m scripts.benchmarks.standalone.loaded_failover --backend cuda > loaded.json

Each loss is told on standard error as it comes. It stops by itself after `--limit-s`; stopped before that by SIGTERM or
SIGINT it prints the figures that it has.

Each device has one worker with a hot standby behind it; workers are poisoned, or killed, again and again. `quiet` is
one client with two calls in flight; `loaded` is three clients of each device with 24 calls in flight each, every sixth
with 320 KB in and out. Each client takes the time from its first error to the next good answer of its device's new
worker, in milliseconds. `each` has the figures of all clients, `worst` those of the client that waited longest, per
loss, and `large` those of the first large answer; `unharmed` counts the clients that lost no call. `sign` is the time
from SIGKILL to the first sign that the kernel gives, the end of one of the process's threads, and `since_sign` the time
from there to each client's next good answer.
Calls longer than `--slow-ms` are told in `slow`: the events of the supervisor, and where the threads of the promoted
worker were, from a look every 5 ms. A gap between two looks means that some thread held the interpreter's lock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import atomr_mp
from atomr_mp import errors
from atomr_mp.process.files.events import read_events

ACTORS: Final = Path(__file__).parents[1] / "processes" / "loaded_actor.py"
CLIENT: Final = Path(__file__).parents[1] / "processes" / "loaded_client.py"
DEADLINE_S: Final = 60.0
QUIET_S: Final = 3.0
"""How long a client may say nothing after a loss before it counts as unharmed."""
CALM_S: Final = 0.3
"""How long the load goes on beside a standby that is ready, before the next loss."""
MOST_SLOW: Final = 12
"""Slow recoveries that are reported in detail, of each kind of loss."""

LOADS: Final = {"quiet": (1, 2, 0), "loaded": (3, 24, 6)}
"""Clients, calls in flight of each, each how manieth is large."""

Recovery = dict[str, Any]


class Clients:
    """Client programs, and what they say.

    Args:
        run_dir: The pool's run directory.
        actor: The actor that they call.
        count: How many.
        in_flight: Calls in flight of each.
        large_every: Each how manieth is large; 0 for none.
        device: The device that they call.
    """

    def __init__(self, run_dir: Path, actor: str, count: int, in_flight: int, large_every: int, device: int) -> None:
        arguments = [str(run_dir), actor, str(in_flight), str(large_every), str(device)]
        command = [sys.executable, str(CLIENT), *arguments]
        self.count: Final = count
        self._programs = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) for _ in range(count)
        ]
        self._heard = {program.stdout.fileno(): b"" for program in self._programs if program.stdout is not None}

    def ready(self) -> None:
        """Wait until all call."""
        if self.lines(DEADLINE_S) != ["ready"] * len(self._heard):
            raise RuntimeError("a client did not start")

    def lines(self, patience_s: float) -> list[str]:
        """Wait for the next line of each, but not too long, and return those that have come."""
        found: dict[int, str] = {}
        until_s = time.monotonic() + patience_s
        while True:
            for each in [each for each in self._heard if each not in found]:
                line, newline, rest = self._heard[each].partition(b"\n")
                if newline:
                    found[each], self._heard[each] = line.decode(), rest
            waiting = [each for each in self._heard if each not in found]
            if not waiting or not self._hear(waiting, until_s - time.monotonic()):
                return list(found.values())

    def close(self) -> None:
        """Have them leave."""
        for program in self._programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.communicate(timeout=10)
            program.kill()
            program.wait()

    def _hear(self, waiting: list[int], patience_s: float) -> bool:
        """Wait until one of these has said something; False if none has."""
        poll = select.poll()
        for each in waiting:
            poll.register(each, select.POLLIN)
        ready = [each for each, _ in poll.poll(max(0.0, patience_s) * 1000)]
        for each in ready:
            data = os.read(each, 65536)
            if not data:
                raise RuntimeError("a client has ended")
            self._heard[each] += data
        return bool(ready)


class Losses:
    """Has a pool's workers lost, one device's after the other's, and gathers what that costs.

    Args:
        pool: The pool.
        run_dir: Its run directory.
        actor: Its actor.
        clients: Who call, by device.
        slow_ms: From when on a recovery is told in detail.
    """

    def __init__(self, pool: atomr_mp.Pool, run_dir: Path, actor: str, clients: list[Clients], slow_ms: float) -> None:
        self._pool = pool
        self._run_dir = run_dir
        self._actor = actor
        self._clients = clients
        self._slow_ms = slow_ms
        self._poisons = 0
        self._device = 0

    def poison(self) -> None:
        """Poison the context."""
        self._poisons += 1  # the same arguments again and again would be refused, as those of a poison request
        actor = self._pool.actor(self._actor, device=self._device)
        actor.poison(time.time_ns() + self._poisons).exception(DEADLINE_S)

    def kill(self) -> int:
        """Kill the process; return when one of its threads had ended, by CLOCK_MONOTONIC in nanoseconds."""
        pid = self._pool.devices[self._device].pid
        with contextlib.ExitStack() as stack:
            poll = select.poll()
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pidfd = os.pidfd_open(int(thread.name), os.O_EXCL)  # PIDFD_THREAD, since Linux 6.9
                stack.callback(os.close, pidfd)
                poll.register(pidfd, select.POLLIN)
            os.kill(pid, signal.SIGKILL)
            poll.poll()
            return time.monotonic_ns()

    def measure(self, lose: Callable[[], int | None], count: int, until_s: float, result: dict[str, Any]) -> None:
        """Note the figures of so many losses, or as many as there is time for; after each loss."""
        each: list[float] = []
        worst: list[float] = []
        large: list[float] = []
        sign: list[float] = []
        since_sign: list[float] = []
        slow: list[Recovery] = []
        losses = unharmed = 0
        while losses < count and time.monotonic() < until_s:
            found, sign_ms = self.lose(lose)
            losses += 1
            unharmed += self._clients[self._device].count - len(found)
            took = [_ms(recovery, "answer_ns") for recovery in found]
            sys.stderr.write(f"{lose.__name__} {losses}: {' '.join(f'{ms:.2f}' for ms in took) or 'nobody met it'}\n")
            if took:
                each += took
                worst.append(max(took))
                if sign_ms is not None:
                    sign.append(sign_ms)
                    since_sign += [_ms(recovery, "answer_ns", "sign_ns") for recovery in found]
                large += [_ms(recovery, "large_ns") for recovery in found if recovery["large_ns"]]
                if max(took) > self._slow_ms and len(slow) < MOST_SLOW:
                    slow.append(self._explained(found[took.index(max(took))], losses))
            result |= {
                "each": summary(each),
                "worst": summary(worst),
                "large": summary(large),
                **({"sign": summary(sign), "since_sign": summary(since_sign)} if sign else {}),
                "losses": losses,
                "unharmed": unharmed,
                "all": [round(ms, 2) for ms in each],
                "slow": slow,
            }

    def until_both(self, lose: Callable[[], int | None], count: int) -> list[float]:
        """Lose the worker so often; return how long each client had no answer of both kinds, in milliseconds."""
        found = [recovery for _ in range(count) for recovery in self.lose(lose)[0]]
        return [max(_ms(each, "answer_ns"), _ms(each, "large_ns")) for each in found]

    def lose(self, lose: Callable[[], int | None]) -> tuple[list[Recovery], float | None]:
        """Lose the next worker; return the recoveries of the clients that met that, and how long a kill's sign took."""
        self._device = (self._device + 1) % len(self._clients)
        self.settle()
        lost_ns = time.monotonic_ns()
        sign_ns = lose()
        heard = [json.loads(line) for line in self._clients[self._device].lines(QUIET_S)]
        found = [recovery | {"sign_ns": sign_ns} for recovery in heard if recovery["error_ns"] > lost_ns]
        return found, None if sign_ns is None else (sign_ns - lost_ns) / 1e6

    def settle(self) -> None:
        """Wait until the device answers and its standby is ready, and for a while."""
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            device = self._pool.status().devices[self._device]
            stands = device.standby is not None and device.standby.state == "ready"
            if device.state == "ready" and stands:
                time.sleep(CALM_S)
                return
            time.sleep(0.02)
        raise TimeoutError(f"the device is not as it should be: {self._pool.status()}")

    def _explained(self, found: Recovery, loss: int) -> Recovery:
        """Return the events in the time of a recovery."""
        from_ns, to_ns = found["error_ns"], found["answer_ns"]
        for _ in range(3):  # the worker may be replaced once more meanwhile
            with contextlib.suppress(errors.AtomrError):
                actor = self._pool.actor(self._actor, device=self._device)
                pid, looks = actor.looks(from_ns, to_ns).result(DEADLINE_S)
                break
        else:
            pid, looks = 0, []
        return {
            "loss": loss,
            "ms": round((to_ns - from_ns) / 1e6, 2),
            "failed": found["failed"],
            "pid": pid,
            "events": self._events(from_ns, to_ns),
            "stacks": condensed(looks, from_ns),
        }

    def _events(self, from_ns: int, to_ns: int) -> list[str]:
        """Return the supervisor's events from a tenth of a second before a time until after it, from its start on."""
        offset_s = time.time() - time.monotonic()
        found = []
        for event in read_events(self._run_dir / "events.jsonl"):
            at_s = float(str(event["time"])) - offset_s
            if from_ns / 1e9 - 0.1 <= at_s <= to_ns / 1e9 + 0.5:
                found.append(
                    f"{(at_s - from_ns / 1e9) * 1e3:+.1f} ms {event['event']} generation {event.get('generation')}"
                )
        return found


def _ms(recovery: Recovery, until: str, since: str = "error_ns") -> float:
    return float(recovery[until] - recovery[since]) / 1e6


def condensed(looks: list[tuple[int, dict[str, list[str]]]], from_ns: int) -> list[dict[str, Any]]:
    """Return looks at stacks, those that are alike and follow each other as one; of threads that sleep, nothing."""
    found: list[dict[str, Any]] = []
    last_ns = 0
    for at_ns, threads in looks:
        stacks = {name: " < ".join(frames[:8]) for name, frames in threads.items() if not _sleeps(frames)}
        if not found or found[-1]["threads"] != stacks or at_ns - last_ns > 15_000_000:
            found.append({"from_ms": round((at_ns - from_ns) / 1e6, 1), "looks": 0, "threads": stacks})
        found[-1]["to_ms"] = round((at_ns - from_ns) / 1e6, 1)
        found[-1]["looks"] += 1
        last_ns = at_ns
    return found


def _sleeps(frames: list[str]) -> bool:
    """Whether a thread waits for something to do."""
    return bool(frames) and frames[0].rpartition(" ")[2] in {"_run", "_sleep", "_wait", "get", "wait"}


def summary(values: list[float]) -> dict[str, float]:
    """Return the spread of figures."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    figures = {"p50": statistics.median(ordered), "p90": p90, "max": ordered[-1], "min": ordered[0]}
    return {name: round(value, 2) for name, value in figures.items()} | {"count": len(ordered)}


@contextlib.contextmanager
def lost(backend: str, load: str, slow_ms: float, kind: str = "", devices: int = 1) -> Iterator[Losses]:
    """Give a pool under a load, whose workers can be lost.

    Args:
        backend: The backend of the pool.
        load: One of `LOADS`.
        slow_ms: From when on a recovery is told in detail.
        kind: Begins the actor's name: "Unwarmed" for one that leaves what large calls need to their first, "Warmed"
            for one that has an example of them.
        devices: How many the pool has; each has the load.
    """
    actor = kind + ("OnGpu" if backend == "cuda" else "OnHost")
    with tempfile.TemporaryDirectory(prefix="atomr-mp-loaded-", dir="/tmp") as folder, contextlib.ExitStack() as stack:
        run_dir = Path(folder) / "run"
        settings: dict[str, Any] = {"max_restarts": 10_000, "max_suspicions": 0}  # the measurement is to blame
        pool = atomr_mp.start(
            actors=[f"{ACTORS}:{actor}"],
            gpus=devices,
            backend="cuda" if backend == "cuda" else "host",
            run_dir=run_dir,
            standby="hot",
            **settings,
        )
        stack.enter_context(pool)
        clients = []
        for device in range(devices):
            clients.append(Clients(run_dir, actor, *LOADS[load], device))
            stack.callback(clients[-1].close)
        for each in clients:
            each.ready()
        losses = Losses(pool, run_dir, actor, clients, slow_ms)
        for lose in (losses.kill, losses.poison):  # the first process has compiled the kernels, and is not like others
            for _ in range(devices):
                losses.lose(lose)
        yield losses


def unwarmed(backend: str, losses: int) -> dict[str, dict[str, float]]:
    """Return the spread of the times until clients have answers again of an actor that prepares one method alone.

    Args:
        backend: The backend of the pool.
        losses: How many of each kind.

    Returns:
        By kind of loss. On a GPU, where the other method compiles a kernel, it has an example; without that the kinds
        end in "_bare".
    """
    found = {}
    for actor, end in (("Warmed", ""), ("Unwarmed", "_bare")) if backend == "cuda" else (("Unwarmed", ""),):
        with lost(backend, "loaded", float("inf"), actor) as pool:
            for kind, lose in {"killed": pool.kill, "poisoned": pool.poison}.items():
                found[f"{kind}{end}"] = summary(pool.until_both(lose, losses))
    return found


def measure(backend: str, losses: int, *, devices: int, slow_ms: float, limit_s: float, result: dict[str, Any]) -> None:
    """Note the figures of all loads as they come; there are a third as many losses without a load.

    Args:
        backend: The backend of the pool.
        losses: How many of each kind, under load.
        devices: How many the pool has.
        slow_ms: From when on a recovery is told in detail.
        limit_s: After this time no further loss is begun, those of the start included.
        result: Where to note them.
    """
    until_s = time.monotonic() + limit_s
    for load in LOADS:
        count = losses if load == "loaded" else max(1, losses // 3)
        sys.stderr.write(f"{load}:\n")
        with lost(backend, load, slow_ms, devices=devices) as pool:
            left_s = until_s - time.monotonic()
            half_s = time.monotonic() + left_s * (0.5 if load == "loaded" else 0.12)
            found = result[load] = {"poisoned": {}, "killed": {}}
            pool.measure(pool.poison, count, half_s, found["poisoned"])
            pool.measure(pool.kill, count, until_s if load == "loaded" else half_s + left_s * 0.12, found["killed"])
            for kind in found:
                _compare(result, kind)


def _compare(result: dict[str, Any], kind: str) -> None:
    """Note how much longer a recovery takes under load than the median alone."""
    quiet, loaded = (result.get(load, {}).get(kind, {}).get("each", {"count": 0}) for load in LOADS)
    if quiet["count"] and loaded["count"]:
        result[f"{kind}_to_quiet"] = {name: round(loaded[name] / quiet["p50"], 1) for name in ("p50", "p90")}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure failovers to a hot standby, alone and under load.")
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    parser.add_argument("--devices", type=int, default=1, help="of the pool, lost in turn (default: 1)")
    parser.add_argument("--losses", type=int, default=40, help="of each kind, under load")
    parser.add_argument("--slow-ms", type=float, default=20.0, help="from when on a recovery is told in detail")
    parser.add_argument("--limit-s", type=float, default=100.0, help="when it stops with fewer losses (default: 100)")
    parser.add_argument("--blind", action="store_true", help="do not look at stacks")
    asked = parser.parse_args()
    if asked.blind:
        os.environ["LOADED_FAILOVER_BLIND"] = "1"
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "backend": asked.backend}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        limits = {"slow_ms": asked.slow_ms, "limit_s": asked.limit_s}
        measure(asked.backend, asked.losses, devices=asked.devices, **limits, result=result)
    except KeyboardInterrupt:
        result["stopped"] = "before its end"
    finally:
        print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
