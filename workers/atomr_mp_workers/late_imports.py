"""Refuses imports of code that has changed since the actor of a world was loaded.

A method may import a module long after its process has told the digest of its code. If the file has changed meanwhile,
the process would run other code than its digest says, beside members that have imported the file before. So the import
fails, and the call with it.

Of the files that the digest does not cover, since they are named at run time only, those are refused that were written
after the actor was loaded. Two processes may still have loaded different ones, each before its own start.
"""

# ruff: noqa: PTH116, PTH123 - strings as in `code_digest.py`

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from atomr_mp_workers.code_digest import ActorCode, stamp_of, text_digest


class LateImports(importlib.abc.MetaPathFinder):
    """Checks each import of a module that is an actor's code. It finds no module itself."""

    def __init__(self) -> None:
        self._codes: Final[dict[str, ActorCode]] = {}
        """By actor."""

    def check(self, actor: str, code: ActorCode) -> None:
        """Check imports from now on.

        Args:
            actor: The actor's name.
            code: Its code as it was when it was loaded.
        """
        if not code.digest:
            return
        self._codes[actor] = code
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Check no more imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, _target: object = None) -> None:
        """Check a module that is being imported. Any thread.

        Raises:
            ImportError: Its file has changed since the actor was loaded.
        """
        name = fullname.rpartition(".")[2]
        for actor, code in self._codes.items():
            for file in _files(name, [code.base] if path is None else path):
                if _has_changed(code, file) and _is_found(fullname, path, file):
                    raise ImportError(
                        f"{file} has changed since this worker loaded the actor {actor}, so the members of its world "
                        "may have different code: reload the pool (atomr-mp reload). A module that the program itself "
                        "writes belongs into another folder than the actor's",
                        name=fullname,
                        path=file,
                    )


def _files(name: str, folders: Iterable[str]) -> Iterable[str]:
    """Yield the files that a module may have."""
    for folder in folders:
        if isinstance(folder, str):
            yield f"{folder}/{name}/__init__.py"
            yield f"{folder}/{name}.py"


def _has_changed(code: ActorCode, file: str) -> bool:
    """Return whether a file counts for this code, and is not what it was."""
    try:
        found = os.stat(file)
    except OSError:
        return False
    real = os.path.realpath(file)
    if real not in code.files:
        # A file that was moved here keeps the time of its text.
        return real.startswith(f"{code.within}/") and found.st_ctime_ns > code.read_ns
    stamp, digest = code.files[real]
    if stamp_of(found) == stamp:
        return False
    try:
        with open(real, "rb") as opened:
            return text_digest(opened.read()) != digest  # touched, or written anew with the same text
    except OSError:
        return False  # the import tells


def _is_found(fullname: str, path: Sequence[str] | None, file: str) -> bool:
    """Return whether a module is imported from this file, and not from another of the same name."""
    if fullname in sys.builtin_module_names:
        return False
    spec = importlib.machinery.PathFinder.find_spec(fullname, path)
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)
