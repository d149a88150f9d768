"""What the Open Inference Protocol costs over HTTP and gRPC, beside its floor, and Triton where one runs, in turns.

    python -m scripts.benchmarks.standalone.inference > inference.json
    python -m scripts.benchmarks.standalone.inference --triton 127.0.0.1:18000 --triton-grpc 127.0.0.1:18001

Every request is one of two inputs of 16 int32 to a model that adds and subtracts them. A floor is what the same front
end takes to answer it from its own process, plus a call of the pool by its own client. `--triton` names a server whose
model `add_sub` has the inputs INPUT0 and INPUT1 and rows. `kill` is the longest request of a client that asks one
after the other while the worker is killed, each time with a standby ready.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import atomr_mp
from atomr_mp_workers import Actor, method

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import machine

COUNT: Final = 300
"""Requests of a way in a round."""

KILLS: Final = 20

LIMIT_S: Final = 60.0

VALUES: Final = np.arange(16, dtype=np.int32)

Way = Callable[[], None]


class Adding(Actor):
    """The model."""

    @method(idempotent=True)
    def add_sub(self, a: NDArray[np.int32], b: NDArray[np.int32]) -> dict[str, Any]:
        """Add and subtract."""
        return {"total": a + b, "difference": a - b}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a server; yield its addresses for HTTP and gRPC."""
    pool = ("--actor", f"{__file__}:Adding", "--backend", "host", "--gpus", "1", "--standby", "hot")
    more = ("--set", "max_restarts=100000", "--insecure", "--port", "0", "--grpc-port", "0")
    command = [sys.executable, "-m", "atomr_mp.cli", "serve", "--run-dir", str(folder / "run"), *pool, *more]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
        try:
            told = ""
            while process.stdout is not None and "gRPC at" not in told:
                line = process.stdout.readline().decode()
                if not line:
                    raise RuntimeError((folder / "log").read_text())
                told += line
            web, grpc = re.search(r"http://([\d.:]+)", told), re.search(r"gRPC at ([\d.:]+)", told)
            assert web is not None
            assert grpc is not None
            yield web[1], grpc[1]
        finally:
            process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def own_front_end(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a front end that answers from its own process; yield its addresses for HTTP and gRPC."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
    command = [
        sys.executable,
        "-m",
        "scripts.benchmarks.processes.own_front_end",
        str(folder / "run"),
        *map(str, ports),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise RuntimeError("the front end did not start")
            yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
        finally:
            process.kill()


def asking(address: str, request: bytes) -> Way:
    """Return a request over HTTP, which is sent at once on a connection that stays."""
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)), LIMIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask() -> None:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        found = answer.read()
        if answer.status != 200:
            raise RuntimeError(found.decode())

    return ask


def by_http(address: str, model: str, names: tuple[str, str], shape: list[int]) -> Way:
    """Return a request of binary data over HTTP."""
    size = {"binary_data_size": VALUES.nbytes}
    inputs = [{"name": name, "datatype": "INT32", "shape": shape, "parameters": size} for name in names]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = text + 2 * VALUES.tobytes()
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}"]
    lines.append(f"Inference-Header-Content-Length: {len(text)}")
    return asking(address, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def by_grpc(address: str, model: str, names: tuple[str, str], shape: list[int]) -> Way:
    """Return a request over gRPC."""
    import tritonclient.grpc as triton

    client: Any = triton.InferenceServerClient(address)
    inputs = [triton.InferInput(name, shape, "INT32") for name in names]
    for each in inputs:
        each.set_data_from_numpy(VALUES.reshape(shape))
    return lambda: client.infer(model, inputs)


def microseconds(way: Way) -> list[float]:
    """Return the time of each request of a round."""
    found: list[float] = []
    for _ in range(COUNT):
        began = time.perf_counter()
        way()
        found.append((time.perf_counter() - began) * 1e6)
    return found


def in_turns(ways: dict[str, Way], rounds: int) -> dict[str, Any]:
    """Return the median of each way's medians, and those of each round."""
    medians: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            medians[name].append(round(statistics.median(microseconds(way)), 1))
    return {name: {"p50_us": statistics.median(each), "rounds": each} for name, each in medians.items()}


def killed(way: Way, pool: atomr_mp.Pool) -> dict[str, Any]:
    """Return the longest request over each kill of the worker, and how many requests there were."""
    longest: list[float] = []
    asked, stop, failures = [0], threading.Event(), list[str]()
    slowest = [0.0]

    def ask() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            try:
                way()
            except Exception as error:  # noqa: BLE001 - counted
                failures.append(repr(error)[:200])
            asked[0] += 1
            slowest[0] = max(slowest[0], time.perf_counter() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(KILLS):
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            (device,) = pool.status().devices
            if device.standby is not None and device.standby.state == "ready":
                break
            time.sleep(0.01)
        assert device.pid is not None
        before, slowest[0] = asked[0], 0.0
        os.kill(device.pid, signal.SIGKILL)
        while asked[0] < before + 50:
            time.sleep(0.005)
        longest.append(round(slowest[0] * 1000, 2))
    stop.set()
    thread.join()
    return {"ms": longest, "p50_ms": statistics.median(longest), "requests": asked[0], "errors": failures}


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure the Open Inference Protocol beside its floor.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--triton", help="a Triton server's address for HTTP")
    parser.add_argument("--triton-grpc", help="its address for gRPC")
    asked = parser.parse_args()
    found: dict[str, Any] = {"machine": machine.facts()}
    with tempfile.TemporaryDirectory(prefix="atomr-mp-inference-", dir="/tmp") as name:
        folder, ours = Path(name), ("Adding.add_sub", ("a", "b"), [16])
        with (
            served(folder) as (web, grpc),
            own_front_end(folder) as (own_web, own_grpc),
            atomr_mp.connect(run_dir=folder / "run") as pool,
        ):
            pool.wait_ready()
            ways: dict[str, Way] = {
                "http": by_http(web, *ours),
                "http_front_end": by_http(own_web, *ours),
                "pool": lambda: pool.call("Adding.add_sub", VALUES, VALUES).result(LIMIT_S),
            }
            ways["grpc"], ways["grpc_front_end"] = by_grpc(grpc, *ours), by_grpc(own_grpc, *ours)
            theirs = ("add_sub", ("INPUT0", "INPUT1"), [1, 16])
            if asked.triton:
                ways["triton_http"] = by_http(asked.triton, *theirs)
            if asked.triton_grpc:
                ways["triton_grpc"] = by_grpc(asked.triton_grpc, *theirs)
            for way in ways.values():
                way()
            found["p50"] = in_turns(ways, asked.rounds)
            p50 = {each: facts["p50_us"] for each, facts in found["p50"].items()}
            found["ratios"] = {
                "http / floor": round(p50["http"] / (p50["http_front_end"] + p50["pool"]), 2),
                "grpc / floor": round(p50["grpc"] / (p50["grpc_front_end"] + p50["pool"]), 2),
                **{
                    f"{way} / triton": round(p50[way] / p50[f"triton_{way}"], 2)
                    for way in ("http", "grpc")
                    if f"triton_{way}" in p50
                },
            }
            found["kill"] = {way: killed(ways[way], pool) for way in ("http", "grpc")}
    json.dump(found, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
