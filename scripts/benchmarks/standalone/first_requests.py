"""Measures how long another client waits while a worker imports what a library's first request needs.

    python -m scripts.benchmarks.standalone.first_requests --backend host > first_requests.json

A client calls an empty method every millisecond. Another one sends a library's first request; the calls count that fall
into the time until its answer, at least `WINDOW_NS`: their p99 and the longest, in milliseconds. `bare` is the same
import on a thread of a process without the runtime, whose loop answers eight bytes with eight; it has imported before
what a worker has. Both take turns, each time in new processes; figures are medians of all turns. A turn before
them, which does not count, compiles the bytecode.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

ACTOR: Final = Path(__file__).parents[1] / "processes" / "echo_actor.py"
DEADLINE_S: Final = 120.0
WINDOW_NS: Final = 100_000_000
"""Shortest time in which calls count."""
CALM_S: Final = 0.3
"""How long the client calls before the first request."""
PAUSE_S: Final = 0.001
BYTES: Final = 8

WORKER: Final = (
    "atomr_mp_workers.boot.worker_main",
    "atomr_mp_workers.building",
    "atomr_mp_workers.device.host_memory",
    "atomr_mp.protocol.libraries.memory",
    "numpy.random",
)
"""Modules that a worker has imported before a library's first request."""


def _product(device: Any) -> Any:
    a = device.put(np.ones((8, 8), np.float32))
    return lambda: device.blas.gemm(a, a)


def _fused(device: Any) -> Any:
    a = device.put(np.ones((16, 16), np.float32))
    return lambda: device.blas_lt.matmul(a, a)


def _transform(device: Any) -> Any:
    a = device.put(np.ones(16, np.complex64))
    return lambda: device.fft.fft(a)


def _sum(device: Any) -> Any:
    a = device.put(np.ones(16, np.float32))
    return lambda: device.elementwise.add(a, a)


def _numbers(device: Any) -> Any:
    device.put(np.ones(3))
    return lambda: device.rng.normal(size=3)


def _points(device: Any) -> Any:
    device.put(np.ones(3))
    return lambda: device.rng.generator(kind="sobol32", dimensions=3).uniform(size=(8, 3))


def _solution(device: Any) -> Any:
    a, b = device.put(np.eye(8, dtype=np.float32)), device.put(np.ones(8, np.float32))
    return lambda: device.solver.solve(a, b)


def _matrix(device: Any) -> Any:
    indptr, indices, values, x = (device.put(np.arange(*each)) for each in ((5,), (4,), (1.0, 5.0), (4.0,)))
    return lambda: device.sparse.spmv(device.sparse.csr((values, indices, indptr), (4, 4)), x)


def _contraction(device: Any) -> Any:
    a = device.put(np.ones((4, 4), np.float32))
    return lambda: device.tensor.einsum("ij,jk->ik", a, a)


def _program(device: Any) -> Any:
    a = device.put(np.ones(16, np.float32))
    with device.program() as p:
        p.returns(p.elementwise.add(a, a))
    return p.run


FIRST: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "blas": ("blas", _product),
    "blas_lt": ("blas_lt", _fused),
    "fft": ("fft", _transform),
    "elementwise": ("elementwise", _sum),
    "rng": ("rng", _numbers),
    "rng, Sobol": ("rng", _points),
    "solver": ("solver", _solution),
    "sparse": ("sparse", _matrix),
    "tensor": ("tensor", _contraction),
    "program": ("program", _program),
}
"""Each library's first request: its library, and a function that prepares the call which sends it."""


class Waited(NamedTuple):
    """Calls in the time of a first request."""

    p99_ms: float
    longest_ms: float
    first_ms: float
    """How long the first request took itself."""


# --- the client that calls --------------------------------------------------------------------------------------------


def call(path: str) -> None:
    """Call every millisecond until the end of the input; print all calls: when each began, and how long it took."""
    with _caller(path) as one:
        for _ in range(50):
            one()
        print("ready", flush=True)
        found: list[tuple[int, int]] = []
        ended = threading.Event()

        def end() -> None:
            sys.stdin.read()
            ended.set()

        threading.Thread(target=end, daemon=True).start()
        while not ended.is_set():
            begun_ns = time.monotonic_ns()
            one()
            found.append((begun_ns, time.monotonic_ns() - begun_ns))
            time.sleep(PAUSE_S)
        print(json.dumps(found), flush=True)


@contextlib.contextmanager
def _caller(path: str) -> Iterator[Callable[[], object]]:
    """Give a function that calls a pool in a run directory, or a bare server at a socket."""
    if Path(path).is_dir():
        import atomr_mp

        with atomr_mp.connect(run_dir=path) as pool:
            yield lambda: pool.call("Echo.empty").result(DEADLINE_S)
        return
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)

        def one() -> None:
            peer.sendall(bytes(BYTES))
            peer.recv(BYTES)

        yield one


def waited(path: Path, first: Callable[[], object]) -> Waited:
    """Return how long another client's calls took during a first request."""
    program = [sys.executable, __file__, "--call", str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        try:
            assert caller.stdout is not None
            assert caller.stdin is not None
            if caller.stdout.readline() != "ready\n":
                raise RuntimeError("the client that calls has not started")
            time.sleep(CALM_S)
            begun_ns = time.monotonic_ns()
            first()
            ended_ns = time.monotonic_ns()
            until_ns = max(ended_ns, begun_ns + WINDOW_NS)
            while time.monotonic_ns() < until_ns + WINDOW_NS // 2:
                time.sleep(PAUSE_S)
            caller.stdin.close()
            calls = json.loads(caller.stdout.readline())
        finally:
            caller.kill()
    took = sorted(ns for at_ns, ns in calls if at_ns < until_ns and at_ns + ns > begun_ns)
    at = min(len(took) - 1, int(len(took) * 0.99))
    return Waited(took[at] / 1e6, took[-1] / 1e6, (ended_ns - begun_ns) / 1e6)


# --- what is called ---------------------------------------------------------------------------------------------------


def of_runtime(backend: str, name: str, folder: Path) -> Waited:
    """Return the figures of a new pool."""
    import atomr_mp

    run_dir = folder / "run"
    kind: Any = backend
    importlib.import_module(f"atomr_mp.libraries.{FIRST[name][0]}")  # the client's own imports are not measured
    with atomr_mp.start(actors=[f"{ACTOR}:Echo"], gpus=1, backend=kind, run_dir=run_dir, standby="none") as pool:
        send = FIRST[name][1](pool.device(0))
        return waited(run_dir, lambda: send().result(DEADLINE_S))


def of_bare(backend: str, name: str, folder: Path) -> Waited:
    """Return the figures of a new process that imports the same on a thread."""
    path = folder / "bare"
    module = f"atomr_mp_workers.libraries.{FIRST[name][0]}.{backend}"
    program = [sys.executable, __file__, "--serve", str(path), "--module", module, "--backend", backend]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as server:
        try:
            stdin, stdout = server.stdin, server.stdout
            assert stdin is not None
            assert stdout is not None
            if stdout.readline() != "ready\n":
                raise RuntimeError("the bare server has not started")

            def first() -> None:
                stdin.write("import\n")
                stdout.readline()

            return waited(path, first)
        finally:
            server.kill()


def serve(path: str, module: str, backend: str) -> None:
    """Answer for ever, and import a module on a thread when a line comes."""
    for each in WORKER:
        importlib.import_module(each)
    if backend == "cuda":
        import cupy

        cupy.zeros(1).sum().item()  # makes the context

    def import_it() -> None:
        importlib.import_module(f"atomr_mp.protocol.libraries.{module.split('.')[2]}")
        importlib.import_module(module)
        print("imported", flush=True)

    with socket.socket(socket.AF_UNIX) as listener, select.epoll() as poll:
        listener.bind(path)
        listener.listen()
        poll.register(sys.stdin.fileno(), select.EPOLLIN)
        print("ready", flush=True)
        peer, _ = listener.accept()
        poll.register(peer.fileno(), select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == peer.fileno():
                    if not (asked := peer.recv(BYTES)):
                        return
                    peer.sendall(asked)
                else:
                    os.read(descriptor, 100)
                    poll.unregister(descriptor)
                    threading.Thread(target=import_it, daemon=True).start()


# --- all of it --------------------------------------------------------------------------------------------------------


def measure(backend: str, names: list[str], turns: int) -> dict[str, Any]:
    """Return the medians of all libraries, and the longest waits of each turn."""
    found: dict[str, Any] = {}
    for name in names:
        each: dict[str, list[Waited]] = {"runtime": [], "bare": []}
        for turn in range(turns + 1):
            for kind, one in (("runtime", of_runtime), ("bare", of_bare)):
                with tempfile.TemporaryDirectory(prefix="atomr-mp-first-", dir="/tmp") as folder:
                    figures = one(backend, name, Path(folder))
                if turn:
                    each[kind].append(figures)
        of = {
            kind: Waited(*(statistics.median(column) for column in zip(*all_, strict=True)))
            for kind, all_ in each.items()
        }
        rounded = {kind: {key: round(ms, 2) for key, ms in medians._asdict().items()} for kind, medians in of.items()}
        found[name] = rounded | {
            "p99_to_bare": round(of["runtime"].p99_ms / of["bare"].p99_ms, 2),
            "longest_to_bare": round(of["runtime"].longest_ms / of["bare"].longest_ms, 2),
            "longest": {kind: [round(one.longest_ms, 2) for one in all_] for kind, all_ in each.items()},
        }
        sys.stderr.write(f"{name}: {json.dumps({key: found[name][key] for key in found[name] if key != 'longest'})}\n")
    return found


def main() -> None:
    """Measure, and print; or be one of the programs."""
    parser = argparse.ArgumentParser(description="Measure how long others wait during libraries' first requests.")
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--only", action="append", choices=list(FIRST), help="a library (default: all)")
    for hidden in ("--call", "--serve", "--module"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.call:
        call(asked.call)
    elif asked.serve:
        serve(asked.serve, asked.module, asked.backend)
    else:
        result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "backend": asked.backend, "turns": asked.turns}
        result["cores"] = os.cpu_count()
        with tempfile.TemporaryDirectory(prefix="atomr-mp-bytecode-", dir="/tmp") as folder:
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ["PYTHONPYCACHEPREFIX"] = folder
            result["libraries"] = measure(asked.backend, asked.only or list(FIRST), asked.turns)
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
