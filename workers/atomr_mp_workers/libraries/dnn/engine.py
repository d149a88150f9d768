"""What serves requests of neural networks on the CUDA backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from atomr_mp_workers.libraries.base import Library

Enqueue = Callable[[Any], Any]
"""Does a request like the one that it was made for, and returns what the request's method returns."""


class DnnEngine(Protocol):
    """A vendor's library.

    Args:
        library: The actor whose stream and workspace it uses.
    """

    def __init__(self, library: Library) -> None:
        """Note the library; what takes long is made by the first `planned`."""

    def planned(self, request: Any) -> Enqueue | None:
        """Return the function that does a request, None if it does not serve it. On the thread that makes plans."""
