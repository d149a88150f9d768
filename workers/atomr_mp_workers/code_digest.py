"""A digest of the code that a process has loaded for an actor. Members of a world with different ones do not meet.

It covers the file of the actor's class, and all files of the same package, or else of the same folder, that it imports,
by way of each other too, wherever the import stands. It depends on these files alone, not on what the process has
imported. What is imported later is compared with it: see `late_imports.py`.
"""

# ruff: noqa: PTH113, PTH118, PTH120, PTH123 - there may be many paths, and strings are several times as fast

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MOST_FILES: Final = 1024
"""Further files do not count."""

_IMPORT: Final = re.compile(  # backtracks: over blanks of a line of the file that the user has named
    rb"^[ \t]*(?:from[ \t]+(?P<of>[.\w]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n;]*)"
    rb"|import[ \t]+(?P<modules>[^\n;]*))",
    re.MULTILINE,
)
_NAME: Final = re.compile(r"[\w.]+")


class FileStamp(NamedTuple):
    """What tells whether a file is the one that was read."""

    mtime_ns: int
    size: int
    inode: int


@dataclass(frozen=True)
class ActorCode:
    """The code of an actor's class, as it was when it was loaded."""

    digest: bytes = b""
    """16 bytes; empty for a class without a file."""
    base: str = ""
    """The folder in which its modules are looked for."""
    within: str = ""
    """The folder whose files count, without symbolic links."""
    files: dict[str, tuple[FileStamp, bytes]] = field(default_factory=dict)
    """By path without symbolic links, each file that counts and could be read, with a digest of its text."""
    read_ns: int = 0
    """When this was taken; CLOCK_REALTIME, as files are dated."""


def code_of(cls: type) -> ActorCode:
    """Return the code of a class. Take it right after its import: files may change later.

    A file that cannot be read counts by its name.
    """
    read_ns = time.time_ns()
    own = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not isinstance(own, str) or not own.endswith(".py"):
        return ActorCode()
    files = _Files(own)
    content: dict[str, bytes] = {}
    stamps: dict[str, tuple[FileStamp, bytes]] = {}
    waiting = [own]
    while waiting and len(content) < MOST_FILES:
        file = waiting.pop()
        if file not in content:
            content[file], stamp = _read(file)
            if stamp is not None:
                stamps[os.path.realpath(file)] = stamp, text_digest(content[file])
            waiting += files.imported(content[file], file)
    digest = hashlib.sha256()
    for file, text in sorted(content.items()):
        name = os.path.relpath(file, files.base)
        digest.update(f"\0{name}\0{len(text)}\0".encode(errors="surrogateescape") + text)
    return ActorCode(digest.digest()[:16], files.base, os.path.realpath(files.within), stamps, read_ns)


def stamp_of(found: os.stat_result) -> FileStamp:
    """Return the stamp of a file, by its status."""
    return FileStamp(found.st_mtime_ns, found.st_size, found.st_ino)


def text_digest(text: bytes) -> bytes:
    """Return the digest of a file's text."""
    return hashlib.sha256(text).digest()[:16]


class _Files:
    """The files that count for one of them.

    Args:
        file: That file.
    """

    def __init__(self, file: str) -> None:
        self.base = folder = os.path.dirname(file)
        """The folder in which its modules are looked for: its own, or the one that its topmost package is in."""
        self.within = folder
        """The folder whose files count: its own, or its topmost package."""
        while os.path.isfile(os.path.join(self.base, "__init__.py")) and self.base != os.path.dirname(self.base):
            self.within, self.base = self.base, os.path.dirname(self.base)
        self._known: dict[str, tuple[str, ...]] = {}
        """Files of modules, by their paths without an ending."""

    def imported(self, text: bytes, file: str) -> Iterator[str]:
        """Yield the files that a file's text imports. What only looks like an import does no harm."""
        for found in _IMPORT.finditer(text):
            of, names, modules = (part.decode(errors="replace") for part in found.groups(default=b""))
            base, path = self.base, of.lstrip(".")
            if of.startswith("."):
                base = os.path.dirname(file)
                for _ in range(len(of) - len(path) - 1):
                    base = os.path.dirname(base)
            if not of:
                for name in _NAME.findall(modules):
                    yield from self._of(base, name)
                continue
            yield from self._of(base, path)
            for name in _NAME.findall(names):
                yield from self._of(base, f"{path}.{name}")

    def _of(self, base: str, module: str) -> Iterator[str]:
        """Yield the file of a module and those of its packages, as far as they count and are there."""
        at = base
        for part in module.split("."):
            if part:
                at = f"{at}/{part}"
                found = self._known.get(at)
                if found is None:
                    found = self._known[at] = self._look(at)
                yield from found

    def _look(self, at: str) -> tuple[str, ...]:
        if not f"{at}/".startswith(f"{self.within}/"):
            return ()
        return tuple(each for each in (f"{at}/__init__.py", f"{at}.py") if os.path.isfile(each))


def _read(file: str) -> tuple[bytes, FileStamp | None]:
    try:
        with open(file, "rb") as opened:
            stamp = stamp_of(os.fstat(opened.fileno()))  # first: what is written meanwhile is another file's
            return opened.read(), stamp
    except OSError:
        return b"", None
