"""`atomr-mp version`: what is installed, and what it can run on."""

from __future__ import annotations

import argparse
import sys

from atomr_mp.cli.common import Commands


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "version", help="show versions, and which backends can run here", description="Shows versions and backends."
    )
    parser.set_defaults(run=run)
    return parser


def run(_options: argparse.Namespace) -> int:
    """Print versions and backends."""
    import platform

    from atomr_mp import __version__
    from atomr_mp.protocol.codec import VERSION

    sys.stdout.write(
        f"atomr-mp {__version__}\n"
        f"Python {platform.python_version()}\n"
        f"protocol {VERSION}\n"
        "host backend: available\n"
        f"cuda backend: {_cuda()}\n"
    )
    return 0


def _cuda() -> str:
    """Return whether the cuda backend is available, or why not, with a line for the driver and for each GPU."""
    import os

    from atomr_mp import errors
    from atomr_mp.process.gpus.hardware import missing_for_cuda, nvidia_hardware
    from atomr_mp.process.gpus.nvml import survey
    from atomr_mp.supervision.placement import VISIBLE, describe

    hardware = nvidia_hardware()
    if not hardware:
        return "not available: no NVIDIA hardware found"
    try:
        found = survey()
    except errors.ConfigurationError as error:
        return f"not available: {error.message} (NVIDIA hardware: {hardware})"
    missing = missing_for_cuda(found)
    lines = [
        f"not available: {missing}" if missing else "available",
        f"NVIDIA driver {found.driver}" + (f", CUDA {found.cuda[0]}.{found.cuda[1]}" if found.cuda[0] else ""),
        *(f"GPU {index}: {describe(gpu)}" for index, gpu in enumerate(found.gpus)),
    ]
    if VISIBLE in os.environ:
        lines.append(f"{VISIBLE}={os.environ[VISIBLE]}: only these can be used, and are counted from 0")
    return "\n".join(lines)
