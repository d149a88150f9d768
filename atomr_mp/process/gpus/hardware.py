"""The machine's hardware, as far as it is known without CUDA."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from atomr_mp.process.gpus.nvml import Survey

_PCI: Final = Path("/sys/bus/pci/devices")
_MPS: Final = Path("/tmp/nvidia-mps")  # noqa: S108 - CUDA's default, which only its daemon makes
_NVIDIA: Final = "0x10de"
_DISPLAY_OR_3D: Final = "0x03"

CUDA_MAJORS: Final = (12, 13)
"""Major versions of CUDA for which there is an extra."""


def nvidia_hardware() -> str:
    """Return this machine's NVIDIA GPUs, in words; empty if it shows none.

    Looks at the PCI bus and for the driver's devices, so a GPU whose driver is broken is seen too.
    """
    cards = [path.name for path in sorted(_PCI.glob("*")) if _is_nvidia_gpu(path)]
    if cards:
        return f"{len(cards)} on the PCI bus: {', '.join(cards)}"
    if Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists():
        return "the driver's devices in /dev"
    return ""


def mps_server() -> str:
    """Return where a server of CUDA's Multi-Process Service is reached from here; empty if there is none."""
    named = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    if named:
        return named
    # Its control daemon makes a pipe of this name, and removes it at its end.
    return str(_MPS) if (_MPS / "control").exists() else ""


def missing_for_cuda(survey: Survey) -> str:
    """Return the missing parts of the cuda backend on a machine whose driver answers, in words; empty if it can run."""
    if not survey.cuda[0]:
        return (
            "libcuda.so.1, the NVIDIA driver's part that computes, was not found; a container gets it by "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    version = ".".join(map(str, survey.cuda))
    if survey.cuda[0] < CUDA_MAJORS[0]:
        return f"the driver {survey.driver} supports CUDA {version} only; {CUDA_MAJORS[0]}.0 is needed at least"
    if find_spec("cupy") is None:  # finds, and does not import: that would load CUDA
        extra = f"cuda{min(survey.cuda[0], CUDA_MAJORS[-1])}"
        return f"CuPy is not installed; for this driver (CUDA {version}) run `pip install 'atomr-mp[{extra}]'`"
    return ""


def _is_nvidia_gpu(path: Path) -> bool:
    try:
        return (path / "vendor").read_text().strip() == _NVIDIA and (path / "class").read_text().startswith(
            _DISPLAY_OR_3D
        )
    except OSError:
        return False
