"""Routines of LAPACK and BLAS whose wrappers in SciPy keep the interpreter's lock, called without it. Any thread.

While such a wrapper works on a large matrix, no other thread of the worker runs, and other clients wait. SciPy's
`cython_lapack` and `cython_blas` publish the routines' addresses with their signatures, and ctypes releases the lock
for a call.

Matrices are float32, float64, complex64 or complex128, not empty, and all of one request have one type.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cython_blas, cython_lapack

from atomr_mp import errors

Array = npt.NDArray[Any]

LETTERS: Final = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


def potrf(a: Array, *, lower: bool) -> int:
    """Factor the triangle of a Hermitian matrix in column order in place; return LAPACK's info."""
    return _lapack("potrf", a.dtype, "L" if lower else "U", len(a), a, len(a))


def potrs(a: Array, b: Array, *, lower: bool) -> Array:
    """Return the solution of a system, in column order, by the factor that `potrf` has left in a."""
    a, x = np.asfortranarray(a), np.array(b, order="F")
    _lapack("potrs", a.dtype, "L" if lower else "U", len(a), x.shape[1], a, len(a), x, len(a))
    return x


def generalised(a: Array, b: Array, *, itype: int, jobz: str, lower: bool) -> tuple[Array, int]:
    """Solve a generalised problem in place, of matrices in column order; return the eigenvalues and LAPACK's info."""
    n, uplo = len(a), "L" if lower else "U"
    w, iwork = np.empty(n, a.real.dtype), np.empty(3 + 5 * n, np.intc)
    works: tuple[Array, ...]
    if a.dtype.kind == "c":
        works = np.empty(2 * n + n**2, a.dtype), np.empty(1 + 5 * n + 2 * n**2, w.dtype)
    else:
        works = (np.empty(1 + 6 * n + 2 * n**2, a.dtype),)
    spaces = [each for work in (*works, iwork) for each in (work, work.size)]
    name = "hegvd" if a.dtype.kind == "c" else "sygvd"
    return w, _lapack(name, a.dtype, itype, jobz, uplo, n, a, n, b, n, w, *spaces)


def trsm(alpha: Any, a: Array, b: Array, *, side: str = "L", lower: bool, trans: str = "N", diag: str = "N") -> Array:
    """Return x, in column order, for which a·x = alpha·b, or x·a = alpha·b for the side "R"."""
    a, x, factor = np.asfortranarray(a), np.array(b, order="F"), np.array([alpha], b.dtype)
    (m, n), uplo = x.shape, "L" if lower else "U"
    _call(cython_blas, LETTERS[x.dtype.name] + "trsm", side, uplo, trans, diag, m, n, factor, a, len(a), x, m)
    return x


def nrm2(x: Array) -> float:
    """Return √Σ|x_i|² of a vector, by parts of 2^30 elements, since BLAS counts up to 2^31 - 1."""
    x, letter = np.ascontiguousarray(x), LETTERS[x.dtype.name]
    name = {"c": "scnrm2", "z": "dznrm2"}.get(letter, f"{letter}nrm2")
    parts = [x[begin : begin + 2**30] for begin in range(0, x.size, 2**30)]
    return math.hypot(*(_call(cython_blas, name, part.size, part, 1) for part in parts))


def _lapack(name: str, dtype: Any, *arguments: str | int | Array) -> int:
    """Call a routine of LAPACK and return its info, its last argument; an invalid argument is a bug of ours."""
    info = np.zeros(1, np.intc)
    _call(cython_lapack, LETTERS[dtype.name] + name, *arguments, info)
    if info[0] < 0:
        raise errors.LibraryError(f"{name}: argument {-info[0]} is wrong", library="lapack", status=int(info[0]))
    return int(info[0])


def _call(module: Any, name: str, *arguments: str | int | Array) -> Any:
    """Call a routine with the addresses of letters, whole numbers and arrays, and return its result.

    Raises:
        Unsupported: The installed SciPy's routine takes other arguments; or a number does not fit 32 bits.
    """
    routine, types = _routine(module, name)
    passed = [_passed(each) for each in arguments]
    if types != tuple(kind for kind, _, _ in passed):
        raise errors.Unsupported(f"{name} of the installed SciPy takes other arguments than that of SciPy 1.17")
    return routine(*(place for _, place, _ in passed))


def _passed(argument: str | int | Array) -> tuple[str, int, Any]:
    """Return an argument's type in C, its address, and what has to live as long as the call."""
    if isinstance(argument, np.ndarray):
        return ("int" if argument.dtype == np.intc else argument.dtype.name), argument.ctypes.data, argument
    if isinstance(argument, int) and argument >= 2**31:
        raise errors.Unsupported(f"LAPACK counts up to 2^31 - 1: a matrix, or what it needs beside it, has {argument}")
    held: Any = ctypes.c_char(argument.encode()) if isinstance(argument, str) else ctypes.c_int(argument)
    return ("char" if isinstance(argument, str) else "int"), ctypes.addressof(held), held


@functools.cache
def _routine(module: Any, name: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return a routine, and the types of what its arguments point to."""
    capsule = module.__pyx_capi__[name]
    signature = _api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)(capsule)
    place = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(capsule, signature)
    result, *types = (_type(each) for each in re.split(r"[(,]", signature.decode()))
    kind = {"float32": ctypes.c_float, "float64": ctypes.c_double}.get(result)
    return ctypes.CFUNCTYPE(kind, *[ctypes.c_void_p] * len(types))(place), tuple(types)


def _api(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's, which is called with the lock."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


def _type(words: str) -> str:
    """Return a type of a signature of Cython's by NumPy's name."""
    word = words.strip(" *)").removeprefix("__pyx_t_")
    ends = {"_s": "float32", "_d": "float64", "float_complex": "complex64", "double_complex": "complex128"}
    return next((name for end, name in ends.items() if word.endswith(end)), word)
