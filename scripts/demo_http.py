"""Clients read digits over HTTP while workers are killed, and none of them sees an error. Run by scripts/demo-http.

Starts `atomr-mp serve` with examples/digits.py and a standby, has clients ask it without a pause, kills a worker with
SIGKILL whenever the next standby is ready, and compares every answer with the model's own. The last line says what was
proven; the exit status is 1 if a single call failed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np

import atomr_mp

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
CLIENTS: Final = 4
AFTER_KILL_S: Final = 0.3
"""For how long the clients go on after the last kill."""

CALLS_BETWEEN: Final = 50
"""Calls of each client between two kills."""

STANDBY_S: Final = 60.0
"""How long the next standby may take."""

ANSWER_S: Final = 30.0


class Client(threading.Thread):
    """Asks for one image after another.

    Args:
        port: The server's, on loopback.
        token: The server's.
        images: Read again and again.
        expected: What they show.
        stop: Ends it.
    """

    def __init__(
        self, port: int, token: str, images: list[list[int]], expected: list[int], stop: threading.Event
    ) -> None:
        super().__init__()
        self._port, self._images, self._expected, self._stop_asking = port, images, expected, stop
        self._headers: Final = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.answered = 0
        self.longest_s = 0.0
        self.wrong: list[str] = []

    def run(self) -> None:
        """Ask until the end, or until something is wrong."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            while not self._stop_asking.is_set() and not self.wrong:
                number = self.answered % len(self._images)
                begun = time.monotonic()
                try:
                    connection.request(
                        "POST", "/call/Digits.predict", json.dumps([self._images[number]]), self._headers
                    )
                    response = connection.getresponse()
                    body = response.read()
                except (OSError, http.client.HTTPException) as error:
                    self.wrong.append(f"the connection broke: {error!r}")
                    return
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                if response.status != http.HTTPStatus.OK or json.loads(body) != self._expected[number]:
                    self.wrong.append(f"image {number}: {response.status} {body[:200]!r}")
                self.answered += 1


def main() -> int:
    """Run the demonstration; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Serves digits over HTTP while workers are killed.", allow_abbrev=False
    )
    parser.add_argument("--kills", type=int, default=5, metavar="N", help="workers that are killed; default: 5")
    parser.add_argument("--backend", choices=("auto", "cuda", "host"), default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="atomr-mp-demo-") as directory:
        run_dir = Path(directory) / "run"
        command = [sys.executable, "-m", "atomr_mp", "serve", "--port", "0", "--run-dir", str(run_dir), "--gpus", "1"]
        pool = ["--actor", f"{EXAMPLES / 'digits.py'}:Digits", "--backend", options.backend, "--standby", "hot"]
        limits = ["--set", "max_restarts=1000", "--set", "max_suspicions=0"]  # we kill the workers, not a request
        with subprocess.Popen([*command, *pool, *limits], stdout=subprocess.PIPE, text=True) as server:
            try:
                clients = _serve(server, run_dir, options.kills)
            finally:
                server.terminate()
    wrong = [each for client in clients for each in client.wrong]
    for each in wrong:
        print(f"wrong: {each}")
    answered, longest_s = sum(client.answered for client in clients), max(client.longest_s for client in clients)
    print(f"{answered:,} calls answered, {len(wrong)} failed; the longest took {longest_s * 1e3:.0f} ms")
    if wrong or server.returncode:
        return 1
    print(f"Proven: {options.kills} workers were killed under {CLIENTS} HTTP clients, and no call failed.")
    return 0


def _serve(server: subprocess.Popen[str], run_dir: Path, kills: int) -> list[Client]:
    """Have clients ask while workers are killed."""
    assert server.stdout is not None
    told = ""
    while "/call/" not in told:
        line = server.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        told += line
    port, token = re.search(r"http://[^/ ]*?:(\d+)", told), re.search(r"Bearer ([^']+)'", told)
    assert port is not None
    assert token is not None
    images = np.load(EXAMPLES / "data/digits_all.npy")[:100]
    with atomr_mp.connect(run_dir=run_dir) as pool:
        pool.wait_ready()
        expected = [int(digit) for digit in pool.call("Digits.predict_many", images).result()]
        print(f"serving at port {port[1]}, supervisor {pool.supervisor_pid}; {CLIENTS} clients ask without a pause")
        stop = threading.Event()
        clients = [Client(int(port[1]), token[1], images.tolist(), expected, stop) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            pid = 0
            for _ in range(kills):
                pid = _pid_before_standby(pool, pid)
                _wait_for_answers(clients)
                os.kill(pid, signal.SIGKILL)
                print(f"kill -9 {pid}: {sum(client.answered for client in clients):,} calls answered so far")
            _pid_before_standby(pool, pid)
            stop.wait(AFTER_KILL_S)
        finally:
            stop.set()
            for client in clients:
                client.join()
    return clients


def _wait_for_answers(clients: list[Client]) -> None:
    """Wait until each client has had some more answers, or something is wrong."""
    goals = [client.answered + CALLS_BETWEEN for client in clients]
    while any(client.answered < goal and client.is_alive() for client, goal in zip(clients, goals, strict=True)):
        time.sleep(0.01)  # nothing tells when


def _pid_before_standby(pool: atomr_mp.Pool, killed: int) -> int:
    """Return the pid of the worker that follows a killed one, once a standby is ready to take its place."""
    until_s = time.monotonic() + STANDBY_S
    while time.monotonic() < until_s:
        pool.wait_ready(STANDBY_S)
        pid = pool.devices[0].pid
        if pid != killed:
            standby = pool.status().devices[0].standby
            if standby is not None and standby.state == "ready":
                return pid
        time.sleep(0.02)  # nothing tells a client
    raise SystemExit(f"no standby was ready within {STANDBY_S:g} s")


if __name__ == "__main__":
    sys.exit(main())
