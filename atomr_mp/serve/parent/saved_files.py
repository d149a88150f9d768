"""Tells when files were saved: `atomr-mp serve --watch`, for those who write actors.

The files are each actor's own, and the modules of its folder that it imports. They are read, and never run.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.3
"""How often the files are looked at; several saves within that are one."""

MOST_FILES: Final = 1000
"""Most files that are watched."""

MOST_BYTES: Final = 2**22
"""Largest file whose imports are looked for."""

Stamps = Mapping[Path, tuple[int, ...]]
"""Figures of each file that differ once it was written or replaced; empty of a file that is missing."""


class Saves:
    """Decides when code is to be loaded again: after files have changed, at the first look at which nothing has. Pure.

    Args:
        stamps: Of the files as they were loaded.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._loaded = self._last = stamps

    def look(self, stamps: Stamps) -> bool:
        """Take the present figures of the files; return whether to load them."""
        rests, self._last = stamps == self._last, stamps
        if not rests or stamps == self._loaded:
            return False
        self._loaded = stamps
        return True


class SavedFiles:
    """Watches the files of actors.

    Args:
        targets: The actors'.
        others: Further files, such as the pool's configuration.
    """

    def __init__(self, targets: Collection[str], others: Collection[Path] = ()) -> None:
        self._targets: Final = targets
        self._files = files_of(targets) | {file.absolute() for file in others}
        self._stamps = _stamps(self._files)
        self._saves: Final = Saves(self._stamps)

    async def keep_reloading(self, is_ready: Callable[[], bool], reload: Callable[[], Awaitable[object]]) -> None:
        """Reload after each save, one time after the other, until this task is cancelled.

        Args:
            is_ready: Whether there is something to reload.
            reload: Returns when a reload is over, whatever has come of it.
        """
        while True:
            await asyncio.sleep(LOOK_S)  # files are looked at: what an editor replaces has no event of its own
            if is_ready() and self._look():
                await reload()

    def _look(self) -> bool:
        stamps = _stamps(self._files)
        if stamps != self._stamps:  # other modules may be imported now; those of a file that is broken are kept
            self._files |= files_of(self._targets)
            stamps = self._stamps = _stamps(self._files)
        return self._saves.look(stamps)


def _stamps(files: Collection[Path]) -> Stamps:
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def files_of(targets: Collection[str]) -> set[Path]:
    """Return the files of actors, and of what they import from their folders.

    Args:
        targets: "[NAME=][folder/]package.module:Class" or "[NAME=]path/to/file.py:Class".
    """
    found: set[Path] = set()
    for target in targets:
        place = target.partition("=")[2] or target
        location = place.rpartition(":")[0]
        folder_text, _, module = location.rpartition("/")
        folder = Path(folder_text or ("/" if location.startswith("/") else ".")).absolute()
        left = [folder / module] if location.endswith(".py") else [*_candidates(folder, module)]
        while left and len(found) < MOST_FILES:
            file = left.pop()
            if file not in found and file.is_file():
                found.add(file)
                left += _imported(file, folder)
    return found


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that a file may import from a folder; none if it cannot be read now."""
    try:
        tree = ast.parse(file.read_bytes()) if file.stat().st_size <= MOST_BYTES else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _candidates(folder, each.name)
        elif isinstance(node, ast.ImportFrom):
            begin = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
            package = f"{node.module}." if node.module else ""
            for each in node.names:
                yield from _candidates(begin, package + each.name)


def _candidates(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files that a module, and the packages it is in, may be."""
    place = folder
    for name in module.split("."):
        place /= name
        yield place.with_name(f"{name}.py")
        yield place / "__init__.py"
