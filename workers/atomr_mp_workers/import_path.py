"""Where a worker's imports look for users' modules: never before the standard library.

The process starts without the current folder on its path (`atomr_mp.process.interpreter`). Some modules of the standard
library are imported late, so a user's folder before it would still put `queue.py` in the place of `queue`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from pathlib import Path


def add_current_folder() -> None:
    """Let imports find modules in the current folder, last of all; does nothing the second time."""
    with contextlib.suppress(FileNotFoundError):  # the folder was removed
        folder = os.getcwd()  # noqa: PTH109 - text, as the path has it
        if folder not in sys.path:
            sys.path.append(folder)


def add_actors_folder(folder: str) -> None:
    """Let imports find modules in an actor's folder before installed ones, as `python file.py` does."""
    standard = standard_library()
    others = [each for each in sys.path if each not in standard and each != folder]
    sys.path[:] = [*(each for each in sys.path if each in standard), folder, *others]


@functools.cache
def standard_library() -> frozenset[str]:
    """Return the folders of the standard library as the path may have them."""
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return frozenset(
        found for each in folders for found in (each, str(Path(each, "lib-dynload")), str(Path(each).parent / archive))
    )
