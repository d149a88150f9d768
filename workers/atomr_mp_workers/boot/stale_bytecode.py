"""Bytecode of a source file that was saved again within one second.

Python takes a file's bytecode for current if the file has the size and the second of the one that was compiled. So a
save soon after another, of the same length, would be passed over, and the earlier code would run.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def remove_stale() -> int:
    """Remove the bytecode of each imported module whose source was saved since, and return how many there were.

    What is installed in the interpreter's or the environment's own folders is left alone.
    """
    installed = tuple(f"{prefix}/" for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    removed = 0
    for module in list(sys.modules.values()):
        source, cached = getattr(module, "__file__", None), getattr(module, "__cached__", None)
        if not isinstance(source, str) or not isinstance(cached, str) or source.startswith(installed):
            continue
        with contextlib.suppress(OSError, ValueError):
            if Path(source).stat().st_mtime_ns >= Path(cached).stat().st_mtime_ns:
                Path(cached).unlink()
                removed += 1
    return removed
