"""Messages of the libraries, one library a file, and the list of them. Pure.

A library is its messages here, its reference in `atomr_mp.libraries`, and its actor in `atomr_mp_workers.libraries`,
all under the same name. `docs/adding-a-library.md` has the way of adding one.
"""

from __future__ import annotations

import importlib
from typing import Final

from atomr_mp.protocol.libraries.base import LibraryRequest

LIBRARIES: Final = ("memory", "blas")
"""Every library, by the name of its files."""


def requests_of(library: str) -> dict[str, type[LibraryRequest]]:
    """Return a library's requests by name."""
    module = importlib.import_module(f"{__name__}.{library}")
    return {
        cls.name: cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, LibraryRequest) and cls.__module__ == module.__name__
    }
