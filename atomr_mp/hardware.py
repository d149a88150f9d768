"""What hardware there is, as far as can be told without CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PCI: Final = Path("/sys/bus/pci/devices")
_NVIDIA: Final = "0x10de"
_DISPLAY_OR_3D: Final = "0x03"


def nvidia_hardware() -> str:
    """Return what NVIDIA GPUs this machine shows, in words; empty if it shows none.

    Looks at the PCI bus and for the driver's devices, so a GPU whose driver is broken is seen too.
    """
    cards = [path.name for path in sorted(_PCI.glob("*")) if _is_nvidia_gpu(path)]
    if cards:
        return f"{len(cards)} on the PCI bus: {', '.join(cards)}"
    if Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists():
        return "the driver's devices in /dev"
    return ""


def _is_nvidia_gpu(path: Path) -> bool:
    try:
        return (path / "vendor").read_text().strip() == _NVIDIA and (path / "class").read_text().startswith(
            _DISPLAY_OR_3D
        )
    except OSError:
        return False
