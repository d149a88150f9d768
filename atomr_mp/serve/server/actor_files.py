"""The files of actors' code: each actor's own, and the modules of its folder that it imports. Read, never run.

A server that watches its actors' files needs to know them without importing users' code.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

MOST_FILES: Final = 1000
"""Most files that are watched."""

MOST_BYTES: Final = 2**22
"""Largest file whose imports are looked for."""


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
