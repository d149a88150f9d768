"""Tells when files were saved: `atomr-mp serve --watch`, for those who write actors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from atomr_mp.serve.server.actor_files import files_of

LOOK_S: Final = 0.3
"""How often the files are looked at; several saves within that are one."""

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
