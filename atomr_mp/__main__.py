"""The command `atomr-mp`, also as `python -m atomr_mp`.

Imports nothing before `main`, so that a Ctrl-C while the command's modules are imported ends it without a traceback.
`python -m` puts the current folder first on the path; it goes last here, so that a user's own `queue.py` there does not
stand for the standard library's.
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
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
