"""Searches the documentation of Python's standard library by meaning, with the vectors of `embed.py`.

    python examples/search_stdlib.py "read a file line by line"
    python examples/search_stdlib.py --write docs.jsonl

The second writes what is searched as JSON lines, for `atomr-mp map Embed.embed --input docs.jsonl …`. The text is that
of this Python's own docstrings, read from their files without importing them.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

import atomr_mp

EMBED: Final = f"{Path(__file__).with_name('embed.py')}:Embed"

STANDARD_LIBRARY: Final = Path(sysconfig.get_path("stdlib"))

NOT_SEARCHED: Final = frozenset({"distutils", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"})
"""Folders of what lies beside the library and is none of it, or is about to leave."""

Backend = Literal["auto", "cuda", "host"]

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Entry(NamedTuple):
    """A documented name, and how near it is."""

    name: str
    """As it is imported: "pathlib.Path.read_text"."""
    text: str
    """The first paragraph of its docstring, in one line."""


def main() -> int:
    """Search, or write what would be searched; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Search the standard library's documentation by meaning.", allow_abbrev=False
    )
    parser.add_argument("query", nargs="?", help="what to look for, in words of your own")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the texts there, one JSON string a line")
    parser.add_argument("--found", type=int, default=5, metavar="N", help="how many to show (default: %(default)s)")
    parser.add_argument("--backend", choices=("auto", "cuda", "host"), default="auto")
    options = parser.parse_args()
    entries = list(documentation())
    if options.write:
        options.write.write_text("".join(f"{json.dumps(_sentence(each))}\n" for each in entries), encoding="utf-8")
    if options.query:
        for score, entry in search(options.query, entries, options.found, options.backend):
            print(f"{score:.2f}  {entry.name}: {entry.text}")
    return 0 if options.query or options.write else parser.error("give a query, or a file to --write")


def search(query: str, entries: list[Entry], found: int, backend: Backend) -> list[tuple[float, Entry]]:
    """Return the entries that are nearest to a query, the nearest first, with the cosine of the angle between them."""
    with atomr_mp.start(actors=[EMBED], gpus=1, backend=backend) as pool:
        near = pool.call("Embed.embed", query).result()
        vectors = np.stack(list(pool.map("Embed.embed", map(_sentence, entries))))
    cosines = vectors @ near
    return [(float(cosines[at]), entries[at]) for at in np.argsort(-cosines)[:found]]


def documentation(root: Path = STANDARD_LIBRARY) -> Iterator[Entry]:
    """Yield the documented public objects in the modules of a folder, file after file."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if NOT_SEARCHED.intersection(parts) or not all(part.isidentifier() for part in parts):
            continue
        module = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in module):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError):  # some files are there to be wrong
                continue
            yield from _documented(tree, ".".join(module))


def _documented(node: Documented, name: str) -> Iterator[Entry]:
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    if text:
        yield Entry(name, text)
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
            yield from _documented(inner, f"{name}.{inner.name}")


def _sentence(entry: Entry) -> str:
    return f"{entry.name}: {entry.text}"


if __name__ == "__main__":
    sys.exit(main())
