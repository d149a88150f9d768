"""The command lines of this package's own processes. Pure.

Python puts the current folder first on the path of a process that is started by `-m`. There a user's own `queue.py`
would stand for the standard library's. No process of ours looks there before it has its imports; workers look there
last, for actors (`atomr_mp_workers.import_path`).
"""

from __future__ import annotations

import sys


def module(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module in an interpreter like this one, without the current folder.

    A flag rather than PYTHONSAFEPATH, which programs that an actor starts would inherit.
    """
    return [sys.executable, "-P", "-m", name, *arguments]
