"""Facts of the machine and its software, without which numbers mean little."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

SMI_S: Final = 30.0
"""How long the driver's tool may take."""

PACKAGES: Final = ("atomr-mp", "pyzmq", "msgpack", "msgspec", "numpy", "psutil")


def facts() -> dict[str, Any]:
    """Return the known facts of this machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "gpus": _gpus(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()  # ARM's cpuinfo names no model


def _gpus() -> list[str]:
    """Return the GPUs with their driver's version; none on a machine without the driver's tool."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=SMI_S).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
