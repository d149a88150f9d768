"""A digest of the code that a process has loaded for an actor. Members of a world with different ones do not meet.

It covers the file of the actor's class, and all files of the same folder or package that it imports, by way of each
other too, wherever the import stands. It depends on these files alone, not on what the process has imported.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOST_FILES: Final = 1024
"""Further files do not count."""

_IMPORT: Final = re.compile(  # backtracks: over blanks of a line of the file that the user has named
    rb"^[ \t]*(?:from[ \t]+(?P<of>[.\w]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n;]*)"
    rb"|import[ \t]+(?P<modules>[^\n;]*))",
    re.MULTILINE,
)
_NAME: Final = re.compile(r"[\w.]+")


def code_digest(cls: type) -> bytes:
    """Return a digest of 16 bytes of the code of a class. Take it right after its import: files may change later.

    It is empty for a class without a file. A file that cannot be read counts by its name.
    """
    own = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not isinstance(own, str) or not own.endswith(".py"):
        return b""
    folder = _folder(Path(own))
    content: dict[Path, bytes] = {}
    waiting = [Path(own)]
    while waiting and len(content) < MOST_FILES:
        file = waiting.pop()
        if file in content:
            continue
        try:
            content[file] = file.read_bytes()
        except OSError:
            content[file] = b""
        waiting += _imported(content[file], file, folder)
    digest = hashlib.sha256()
    for file, text in sorted(content.items()):
        digest.update(f"\0{file.relative_to(folder)}\0{len(text)}\0".encode(errors="surrogateescape") + text)
    return digest.digest()[:16]


def _folder(file: Path) -> Path:
    """Return the folder whose files count: that of the file, or the one that the file's topmost package is in."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return folder


def _imported(text: bytes, file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the folder that a file's text imports. What only looks like an import does no harm."""
    for found in _IMPORT.finditer(text):
        of, names, modules = (part.decode(errors="replace") for part in found.groups(default=b""))
        base, path = folder, of.lstrip(".")
        if of.startswith("."):
            base = file.parent
            for _ in range(len(of) - len(path) - 1):
                base = base.parent
        for name in _NAME.findall(names or modules):
            for module in {path, f"{path}.{name}".strip(".")} if of else {name}:
                yield from _files_of(base, [part for part in module.split(".") if part], folder)


def _files_of(base: Path, parts: list[str], folder: Path) -> Iterator[Path]:
    """Yield the file of a module and those of its packages, as far as they are there."""
    at = base
    for part in parts:
        for file in (at / part / "__init__.py", at / f"{part}.py"):
            if file.is_file() and folder in file.parents:
                yield file
        at /= part
