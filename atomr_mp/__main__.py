"""The command `atomr-mp`, also as `python -m atomr_mp`.

Imports nothing before `main`, so that a Ctrl-C while the command's modules are imported ends it without a traceback.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; return its exit status."""
    try:
        from atomr_mp.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 128 + 2


if __name__ == "__main__":
    sys.exit(main())
