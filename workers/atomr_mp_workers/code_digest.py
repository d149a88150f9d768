"""A digest of the code that a process has loaded for an actor. Members of a world with different ones do not meet.

It covers the file of the actor's class and those that it imports from the same folder or package, directly or by way of
each other, when they are imported. It depends on nothing else that the process has imported.
"""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path
from typing import Final

MOST_FILES: Final = 1024
"""Further files do not count."""


def code_digest(cls: type) -> bytes:
    """Return a digest of 16 bytes of the code of a class. Take it right after its import: files may change later.

    A file that cannot be read counts by its name.
    """
    own = _file_of(cls.__module__)
    if own is None:
        return b""
    folder = _folder(own)
    digest, waiting, seen = hashlib.sha256(), [cls.__module__], {cls.__module__}
    files = set[Path]()
    while waiting and len(files) < MOST_FILES:
        module = waiting.pop()
        file = _file_of(module)
        if file is None or folder not in file.parents:
            continue
        files.add(file)
        found = sorted(_named_in(sys.modules[module]) - seen)
        seen.update(found)
        waiting += found
    for file in sorted(files):
        digest.update(f"\0{file.relative_to(folder)}\0".encode(errors="surrogateescape"))
        try:
            digest.update(file.read_bytes())
        except OSError:
            continue
    return digest.digest()[:16]


def _named_in(module: types.ModuleType) -> set[str]:
    """Return the modules that a module's variables are, or come from."""
    found = set[str]()
    for value in list(vars(module).values()):
        if isinstance(value, types.ModuleType):
            name: object = value.__name__
        elif isinstance(value, type | types.FunctionType):
            name = value.__module__
        else:
            continue  # whatever else it is asked might run its code
        if isinstance(name, str) and name in sys.modules:
            found.add(name)
    return found


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if isinstance(file, str) and file.endswith(".py") else None


def _folder(file: Path) -> Path:
    """Return the folder whose files count: that of the file, or the one that the file's topmost package is in."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
