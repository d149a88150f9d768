"""The names of the libraries, for modules that need nothing else of them. Pure."""

from __future__ import annotations

from typing import Final

DECLARED: Final = ("blas", "blas_lt", "fft", "elementwise", "rng", "solver", "sparse", "tensor")
"""Libraries whose methods are written from their requests, by the name of their files."""

ENGINES: Final = ("", "cuTENSOR", "CuPy")
"""Engines of the libraries that have a choice, by the number on the board; first that nothing says so."""

LIBRARIES: Final = ("memory", "program", *DECLARED)
"""Every library. On the board each has its place by its number here."""
