"""Reads handwritten digits with Triton's own clients, while the worker that has the model is killed again and again.

    pip install 'atomr-mp' 'tritonclient[http]'
    python examples/digits_triton.py

It runs `atomr-mp serve` with the model of `digits.toml`, has four clients ask it, and kills the worker whenever a
standby is ready. It says how many requests were answered, that none has failed and which took longest. It ends with
status 1 if one has failed or a digit differs from what the network reads in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.http as triton

import atomr_mp
import digits_model

HERE: Final = Path(__file__).parent
ROWS: Final = 32
"""Images of a request."""
CLIENTS: Final = 4
LIMIT_S: Final = 60.0


@contextlib.contextmanager
def served(run_dir: Path) -> Iterator[str]:
    """Run a server on any port; yield its address."""
    model = ("--actor", str(HERE / "digits.py:Digits"), "--models", str(HERE / "digits.toml"))
    pool = ("--backend", "host", "--gpus", "1", "--standby", "hot", "--set", "max_restarts=1000000")
    command = [sys.executable, "-m", "atomr_mp.cli", "serve", "--run-dir", str(run_dir), "--insecure", "--port", "0"]
    with subprocess.Popen([*command, *model, *pool], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next((each[1] for line in process.stdout if (each := re.search(r"http://([\d.:]+)", line))), None)
            if found is None:
                raise SystemExit("digits_triton: the server has not started; its log says why")
            yield found
        finally:
            process.send_signal(signal.SIGTERM)


class Clients:
    """Ask for all images again and again, and count what comes back.

    Args:
        address: The server's.
    """

    def __init__(self, address: str) -> None:
        self.answered = 0
        self.wrong = 0
        self.failures: list[str] = []
        self.longest_s = 0.0
        self.stop: Final = threading.Event()
        self._address: Final = address
        self._lock: Final = threading.Lock()
        self._images: Final = np.load(HERE / "data" / "digits_test.npy").astype(np.float32)
        self._digits: Final = digits_model.predict(digits_model.load(HERE / "digits_weights.npz"), self._images)
        self._threads: Final = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let each finish its request."""
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        client: Any = triton.InferenceServerClient(self._address, network_timeout=LIMIT_S)
        given = triton.InferInput("images", [ROWS, digits_model.PIXELS], "FP32")
        at = 0
        while not self.stop.is_set():
            images = self._images[at : at + ROWS]
            given.set_shape(list(images.shape))
            given.set_data_from_numpy(images)
            began = time.perf_counter()
            try:
                digits = client.infer("digits", [given]).as_numpy("digits")
                is_right = bool(np.array_equal(digits, self._digits[at : at + ROWS]))
                failure = ""
            except triton.InferenceServerException as error:
                is_right, failure = True, str(error)
            with self._lock:
                self.answered += not failure
                self.wrong += not is_right
                self.failures += [failure] if failure else []
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
            at = (at + ROWS) % len(self._images)
        client.close()


def kill_worker(pool: atomr_mp.Pool) -> None:
    """Kill the worker once there is a standby for it."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        (device,) = pool.status().devices
        if device.standby is not None and device.standby.state == "ready" and device.pid is not None:
            os.kill(device.pid, signal.SIGKILL)
            return
        time.sleep(0.01)
    raise SystemExit("digits_triton: no standby was ready")


def main() -> int:
    """Serve, ask and kill; return the exit status."""
    parser = argparse.ArgumentParser(description="Ask a model server whose workers are killed.", allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=10)
    kills = parser.parse_args().kills
    with contextlib.ExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="digits-triton-"))) / "run"
        address = stack.enter_context(served(run_dir))
        pool = stack.enter_context(atomr_mp.connect(run_dir=run_dir))
        pool.wait_ready()
        clients = Clients(address)
        stack.callback(clients.end)
        for _ in range(kills):
            kill_worker(pool)
            before = clients.answered
            while clients.answered < before + 20 and not clients.failures:
                time.sleep(0.01)
    print(f"{kills} workers killed under {CLIENTS} clients")
    print(f"{clients.answered} requests answered, {clients.wrong} of them wrong, {len(clients.failures)} failed")
    print(f"the longest took {clients.longest_s * 1000:.0f} ms")
    for failure in clients.failures[:3]:
        print(failure, file=sys.stderr)
    return 1 if clients.wrong or clients.failures else 0


if __name__ == "__main__":
    sys.exit(main())
