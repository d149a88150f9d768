"""Measures the same as `loaded_failover` without the runtime: the shortest failover possible under the load.

    python -m scripts.benchmarks.standalone.bare_failover --losses 20 > bare.json

Three clients keep 24 calls in flight each to one server process, eight bytes there and back, every sixth with 320 KB in
and out of memory that both have mapped and touched beforehand. A second server is connected and waits. The first is
killed; each client sees the end of its connection, sends its 24 calls to the second, and takes the time until that has
answered one. There is no supervisor, no check and no deadline. Times are in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

CLIENTS: Final = 3
IN_FLIGHT: Final = 24
LARGE_EVERY: Final = 6
LARGE: Final = 80_000
"""Elements of a large array, of four bytes each."""
CALL: Final = 8
"""Bytes of a call and of an answer: the client's number, and 1 if it is large."""
CALM_S: Final = 0.5


def serve(path: str, folder: str) -> None:
    """Answer for ever."""
    memory = [np.memmap(Path(folder) / f"{number}", np.float32, "r+", shape=(2, LARGE)) for number in range(CLIENTS)]
    small = np.ones(64, np.float32)
    for each in memory:
        each[1] = each[0] * 2
    with socket.socket(socket.AF_UNIX) as listener, select.epoll() as poll:
        listener.bind(path)
        listener.listen()
        peers = {}
        for _ in range(CLIENTS):
            peer, _ = listener.accept()
            peers[peer.fileno()] = peer
            poll.register(peer.fileno(), select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                calls = peers[descriptor].recv(CALL * 1024)
                for at in range(0, len(calls), CALL):
                    if calls[at + 1]:
                        arrays = memory[calls[at]]
                        arrays[1] = arrays[0] * 2
                    else:
                        float((small * 2.0).sum())
                peers[descriptor].sendall(calls)


def call(number: int, folder: str) -> None:
    """Keep calls in flight, and print how long each loss of the server kept them."""
    memory = np.memmap(Path(folder) / f"{number}", np.float32, "r+", shape=(2, LARGE))
    memory[0] = 1
    calls = [bytes([number, turn % LARGE_EVERY == 0]) + bytes(CALL - 2) for turn in range(IN_FLIGHT)]
    servers = [_connected(sys.stdin.readline().strip()) for _ in range(2)]
    print("ready", flush=True)
    sent_ns = 0
    while True:
        servers[0].sendall(b"".join(calls))
        while True:
            try:
                answers = servers[0].recv(CALL * 1024)
            except ConnectionResetError:
                answers = b""
            if not answers:
                break
            if sent_ns:
                print((time.monotonic_ns() - sent_ns) / 1e6, flush=True)
                sent_ns = 0
                servers.append(_connected(sys.stdin.readline().strip()))
                print("ready", flush=True)
            if any(answers[at + 1] for at in range(0, len(answers), CALL)):
                assert memory[1, -1] == 2
            servers[0].sendall(answers)  # another call for each answer
        sent_ns = time.monotonic_ns()
        servers.pop(0).close()


def _connected(path: str) -> socket.socket:
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            peer.close()
            time.sleep(0.01)  # it starts
        else:
            return peer


def measure(losses: int) -> dict[str, Any]:
    """Return the figures of so many losses."""
    found: list[float] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for number in range(CLIENTS):
            (Path(folder) / f"{number}").write_bytes(bytes(8 * LARGE))
        program = [sys.executable, __file__, "--folder", folder]
        paths = [f"{folder}/server-{number}" for number in range(losses + 2)]
        servers = [subprocess.Popen([*program, "--serve", path]) for path in paths[:2]]
        clients = [
            subprocess.Popen(
                [*program, "--call", str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            for number in range(CLIENTS)
        ]
        try:
            for path in paths[:2]:
                _tell(clients, path)
            for path in paths[2:]:
                _hear(clients)
                time.sleep(CALM_S)
                lost = servers.pop(0)
                lost.send_signal(signal.SIGKILL)
                found += map(float, _hear(clients))
                lost.wait()
                servers.append(subprocess.Popen([*program, "--serve", path]))
                _tell(clients, path)
        finally:
            _end([*servers, *clients])
    ordered = sorted(found)
    p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    figures = {"p50": statistics.median(ordered), "p90": p90, "max": ordered[-1], "min": ordered[0]}
    rounded = {name: round(value, 2) for name, value in figures.items()}
    return {**rounded, "count": len(found), "all": [round(each, 2) for each in found]}


def _end(programs: list[subprocess.Popen[Any]]) -> None:
    for each in programs:
        each.kill()
    for each in programs:
        each.wait()


def _tell(clients: list[subprocess.Popen[str]], line: str) -> None:
    for each in clients:
        assert each.stdin is not None
        each.stdin.write(f"{line}\n")


def _hear(clients: list[subprocess.Popen[str]]) -> list[str]:
    return [each.stdout.readline() for each in clients if each.stdout is not None]


def main() -> None:
    """Measure, and print; or be one of the programs."""
    parser = argparse.ArgumentParser(description="Measure failovers between two bare servers under load.")
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--call", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.folder)
    elif asked.call is not None:
        call(asked.call, asked.folder)
    else:
        print(json.dumps({"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "killed": measure(asked.losses)}))


if __name__ == "__main__":
    main()
