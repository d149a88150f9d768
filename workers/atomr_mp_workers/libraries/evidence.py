"""Marks of the hardware on which requests were verified; a mark holds only as long as the code is unchanged.

`scripts/test-gpu` writes `verified.json` after all tests on a GPU; the support matrix and the documentation read it.
Docstrings and comments may change: a mark's digest leaves them out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import json
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "verified.json"
"""Marks by "library.request.backend"; the file is missing as long as nothing was verified."""

FOLDERS: Final = (Path(__file__).parents[1].parent, Path(__file__).parents[3])
"""Folders that packages are looked for in: beside this one, and in the root of the project."""

ROOMS: Final = ("atomr_mp.protocol.declaration", "atomr_mp.protocol.libraries", "atomr_mp_workers.libraries")
"""Packages whose modules a mark vouches for, where a library imports them."""


def verified(library: str, request: str, backend: str, file: Path = FILE) -> dict[str, Any] | None:
    """Return the mark of a request: device, driver, date; None if it has none, or its code has changed."""
    marks: Mapping[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    mark = marks.get(f"{library}.{request}.{backend}")
    return mark if mark is not None and mark["digest"] == digest(library, backend) else None


@functools.cache
def digest(library: str, backend: str) -> str:
    """Return a digest of a library's code on a backend: its own files, and the files of its rooms that they import."""
    found = hashlib.sha256()
    for name, file in sorted(files(library, backend).items()):
        found.update(f"{name}\n{code(file.read_text(encoding='utf-8'))}".encode())
    return found.hexdigest()


def code(source: str) -> str:
    """Return Python without its comments, docstrings and blank lines; the same text under every version of Python.

    Positions are cut out of the source, since neither `ast.dump` nor tokens of f-strings are equal in all versions.
    """
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    kept: set[int] = set()  # lines that end inside a string
    for string, documents in _strings(ast.parse(source)):
        assert string.end_lineno is not None  # a parsed node has it
        first, last = string.lineno - 1, string.end_lineno - 1
        if documents:
            outside = lines[first].encode()[: string.col_offset] + lines[last].encode()[string.end_col_offset :]
            lines[first : last + 1] = [outside.decode(), *[""] * (last - first)]
        else:
            kept.update(range(first, last))
    rows = ((line, row in kept) for row, line in enumerate(lines))
    return "\n".join(line if whole else line.rstrip() for line, whole in rows if whole or line.strip())


def _strings(node: ast.AST, *, documents: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the strings of a syntax tree, each with whether it is a statement of its own, thus a docstring."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
        yield node, documents and not isinstance(node, ast.JoinedStr)
        return  # Python 3.11 gives wrong positions inside f-strings
    for child in ast.iter_child_nodes(node):
        yield from _strings(child, documents=isinstance(node, ast.Expr))


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
