"""On what hardware a request was verified: a mark that holds only as long as the code is what it was then.

`scripts/test-gpu` writes `verified.json` after all tests on a GPU; the support matrix and the documentation read it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "verified.json"
"""Marks by "library.request.backend"; there is none as long as nothing was verified."""

FOLDERS: Final = (Path(__file__).parents[1].parent, Path(__file__).parents[3])
"""Where packages are looked for: beside this one, and in the root of the project."""

ROOMS: Final = ("atomr_mp.protocol.declaration", "atomr_mp.protocol.libraries", "atomr_mp_workers.libraries")
"""Packages whose modules a mark vouches for, where a library imports them."""


def verified(library: str, request: str, backend: str, file: Path = FILE) -> dict[str, Any] | None:
    """Return on what a request was verified: device, driver, date; None if it was not, or its code has changed."""
    marks: Mapping[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    mark = marks.get(f"{library}.{request}.{backend}")
    return mark if mark is not None and mark["digest"] == digest(library, backend) else None


@functools.cache
def digest(library: str, backend: str) -> str:
    """Return a digest of what a library's requests are on a backend: its files, and those of its room that they use."""
    found = hashlib.sha256()
    for name, file in sorted(files(library, backend).items()):
        found.update(f"{name}\n".encode() + file.read_bytes())
    return found.hexdigest()


def files(library: str, backend: str) -> dict[str, Path]:
    """Return the files that a mark vouches for, by module."""
    found: dict[str, Path] = {}
    left = [f"atomr_mp.protocol.libraries.{library}", f"atomr_mp_workers.libraries.{library}.{backend}"]
    while left:
        name = left.pop()
        file = _file(name)
        if name not in found and file is not None:
            found[name] = file
            left += _imported(file)
    return found


def _imported(file: Path) -> Iterator[str]:
    """Yield the modules of these rooms that a module may import."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(ROOMS):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)  # a module, or a name in one


def _file(module: str) -> Path | None:
    path = Path(*module.split("."))
    candidates = (folder / each for folder in FOLDERS for each in (path.with_suffix(".py"), path / "__init__.py"))
    return next((each for each in candidates if each.is_file()), None)
