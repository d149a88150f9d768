"""The same as the command `atomr-mp`: `python -m atomr_mp`."""

from __future__ import annotations

import sys

from atomr_mp.cli import main

if __name__ == "__main__":
    sys.exit(main())
