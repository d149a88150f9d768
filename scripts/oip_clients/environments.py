"""Environments of clients and of Triton, made when they are first needed, from package registries alone."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / ".venv-oip"

PACKAGES: Final = {
    "client": ("tritonclient[all]>=2.69", "ml_dtypes", "psutil", "requests"),
    "perf": ("tritonclient==2.51.0", "nvidia-cuda-runtime-cu12"),
    "triton": ("nvidia-pytriton==0.7.0", "numpy<2"),
}
"""Packages by environment. Triton's tests need the newest clients, and perf_analyzer is in wheels of 2.51."""


class MissingError(Exception):
    """What cannot be had here."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment; makes it if need be, which takes up to two minutes.

    Raises:
        MissingError: Something cannot be installed.
    """
    folder = HOME / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(PACKAGES[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {', '.join(PACKAGES[name])}", flush=True)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *PACKAGES[name])
        stamp.write_text(wanted)
    return python


def site_of(name: str) -> Path:
    """Return the folder of an environment's packages."""
    python_of(name)
    return next((HOME / name / "lib").glob("python3*")) / "site-packages"


def perf_libraries() -> list[Path]:
    """Return the folders of the libraries that perf_analyzer needs beside the system's.

    Raises:
        MissingError: libb64 is neither installed nor to be had as Debian's package.
    """
    found = [site_of("perf") / "nvidia" / "cuda_runtime" / "lib"]
    if ctypes.util.find_library("b64") is not None:
        return found
    folder = HOME / "libb64"
    if not folder.exists():
        print("unpacking Debian's libb64-0d", flush=True)
        packed = HOME / "packed"
        packed.mkdir(exist_ok=True)
        _run("apt-get", "download", "libb64-0d", at=packed)
        _run("dpkg-deb", "-x", *map(str, packed.glob("libb64-0d_*.deb")), str(folder))
    return [*found, *(each.parent for each in folder.rglob("libb64.so.0d"))]


def _run(*command: str, at: Path = ROOT) -> None:
    try:
        done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise MissingError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
