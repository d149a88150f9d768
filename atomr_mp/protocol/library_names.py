"""The names of the libraries, for modules that need nothing else of them. Pure."""

from __future__ import annotations

from typing import Final

DECLARED: Final = ("blas", "blas_lt", "fft", "elementwise", "rng", "solver", "sparse", "tensor", "dnn")
"""Libraries whose methods are written from their requests, by the name of their files."""

KERNELS: Final = "kernels"
"""The library of the caller's own kernels, whose methods are written by hand."""

STEPS: Final = (*DECLARED, KERNELS)
"""Libraries whose requests can be steps of programs, and that actors have."""

ENGINES: Final = ("", "cuTENSOR", "CuPy", "cuDNN")
"""Engines of the libraries that have a choice, by the number on the board; first that nothing says so."""

LIBRARIES: Final = ("memory", "program", *STEPS)
"""Every library. On the board each has its place by its number here."""
