"""Messages of the libraries, one library a file, and the list of them. Pure.

A library is its messages here, its reference in `atomr_mp.libraries`, and its actor in `atomr_mp_workers.libraries`,
all under the same name. `docs/adding-a-library.md` has the way of adding one.
"""

from __future__ import annotations

import importlib

from atomr_mp.protocol.libraries.base import LibraryRequest, requests_in
from atomr_mp.protocol.library_names import DECLARED, LIBRARIES, STEPS

__all__ = ["DECLARED", "LIBRARIES", "STEPS", "requests_of"]


def requests_of(library: str) -> dict[str, type[LibraryRequest]]:
    """Return a library's requests by name."""
    return {cls.name: cls for cls in requests_in(importlib.import_module(f"{__name__}.{library}"))}
