"""The version of this package: in a module of its own, for processes that need nothing else of the package's front."""

from __future__ import annotations

__version__ = "0.1.0"
