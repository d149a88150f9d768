"""Our server and Triton's, on ports of loopback, for as long as a `with` block runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oip_clients import environments, triton_models
from oip_clients.environments import ROOT, MissingError

HTTP: Final = 8000
GRPC: Final = 8001
"""Triton's ports, which its tests have in them."""

TRITON_HTTP: Final = 18000
TRITON_GRPC: Final = 18001

START_S: Final = 60.0


@contextlib.contextmanager
def ours(actor: str, models: str) -> Iterator[None]:
    """Run `atomr-mp serve` without a token, on the host backend, with an actor of `tests/actors`."""
    with tempfile.TemporaryDirectory() as run_dir:
        command = [sys.executable, "-m", "atomr_mp.cli", "serve", "--backend", "host", "--gpus", "1", "--insecure"]
        command += ["--actor", f"tests/actors/{actor}", "--models", f"tests/cases/{models}", "--run-dir", run_dir]
        command += ["--port", str(HTTP), "--grpc-port", str(GRPC), "--allow-client-shm"]
        with _running(command, HTTP, {"PYTHONPATH": str(ROOT)}, Path(run_dir) / "serve.log"):
            yield


@contextlib.contextmanager
def triton() -> Iterator[None]:
    """Run Triton with the models that it had when its answers were recorded."""
    site = environments.site_of("triton")
    package = site / "pytriton" / "tritonserver"
    with tempfile.TemporaryDirectory() as made:
        backend = Path(made) / "backends" / "python"
        shutil.copytree(package / "backends" / "python", backend)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = package / "python_backend_stubs" / version / "triton_python_backend_stub"
        if not stub.exists():
            raise MissingError(f"nvidia-pytriton has no Python backend for Python {version}")
        shutil.copy(stub, backend)
        models = Path(made) / "models"
        triton_models.write(models, site)
        command = [str(package / "bin" / "tritonserver"), "--id=triton", f"--model-repository={models}"]
        command += [f"--backend-directory={backend.parent}", "--disable-auto-complete-config", "--allow-metrics=false"]
        command += ["--http-address=127.0.0.1", f"--http-port={TRITON_HTTP}", "--http-thread-count=2"]
        command += ["--grpc-address=127.0.0.1", f"--grpc-port={TRITON_GRPC}", "--exit-timeout-secs=5"]
        command += ["--backend-config=python,shm-default-byte-size=1048576"]
        more = {
            "LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs"),
            "PYTHONPATH": str(site),
            "PYTHONHOME": sys.base_prefix,
        }
        with _running(command, TRITON_HTTP, more, Path(made) / "triton.log"):
            yield


@contextlib.contextmanager
def _running(command: list[str], port: int, more: dict[str, str], log: Path) -> Iterator[None]:
    """Run a server until its end is due; it is there once it says that it is ready.

    Raises:
        MissingError: Its port is taken, or it does not start.
    """
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        raise MissingError(f"something listens at port {port}, which is needed here")
    with log.open("wb") as told:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **more}, stdout=told, stderr=told)
    try:
        end = time.monotonic() + START_S
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise MissingError(f"{command[0]} does not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)  # there is no event: it is another program
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    """Return whether a server answers that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
