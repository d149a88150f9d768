"""Loads a code of the cache until it is killed: its folder and its key are the arguments."""

from __future__ import annotations

import sys
from pathlib import Path

from atomr_mp_workers.compiling.cache import CodeCache

with CodeCache(Path(sys.argv[1])).loading(sys.argv[2]):
    print("loading", flush=True)
    sys.stdin.read()
