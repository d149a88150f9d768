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
    from atomr_mp.hardware import nvidia_hardware
    from atomr_mp.protocol.codec import VERSION

    found = nvidia_hardware()
    sys.stdout.write(
        f"atomr-mp {__version__}\n"
        f"Python {platform.python_version()}\n"
        f"protocol {VERSION}\n"
        "host backend: available\n"
        f"cuda backend: not available, this version has none (NVIDIA hardware: {found or 'none found'})\n"
    )
    return 0
