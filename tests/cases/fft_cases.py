"""Expected results of transforms on every backend: NumPy's in double precision, one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from atomr_mp.protocol.libraries import fft
from atomr_mp.protocol.libraries.base import COMPLEX, REAL, LibraryRequest
from tests import declared
from tests.declared import Expected

Array = npt.NDArray[Any]

NORMS: Final = ("backward", "ortho", "forward", "none")


@st.composite
def requests(
    draw: st.DrawFn,
    cls: type[fft.Transform] = fft.Transform,
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7),
    most: int = 4,
) -> Any:
    """Draw a transform: any kind, axes, direction, norm, strides, batches, in place too."""
    dims = draw(st.lists(st.sampled_from(lengths), min_size=1, max_size=most))
    kind = draw(st.sampled_from(["c2c", "r2c", "c2r"]))
    chosen = draw(st.permutations(range(len(dims))).map(lambda order: order[: draw(st.integers(1, min(3, len(dims))))]))
    axes = tuple(axis - len(dims) if draw(st.booleans()) else axis for axis in chosen)
    batches = [axis for axis in range(len(dims)) if axis not in {each % len(dims) for each in axes}]
    if batches and draw(st.integers(0, 9)) == 0:
        dims[batches[0]] = 0
    n = None
    if kind == "c2r":
        n = dims[axes[-1]]
        dims[axes[-1]] = n // 2 + 1
        if n % 2 == 0 and draw(st.booleans()):
            n = None
    fixed = {
        "kind": kind,
        "axes": axes,
        "inverse": kind == "c2c" and draw(st.booleans()),
        "norm": draw(st.sampled_from(NORMS)),
        "n": n,
    }
    letters = {"X": draw(st.sampled_from(REAL if kind == "r2c" else COMPLEX))}
    return draw(declared.requests(cls, fixed=fixed, sizes={"dims": tuple(dims)}, letters=letters))


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any]) -> None:
    """Give a transform random numbers, have it done, and check all of its memory."""
    declared.assert_agrees(request, random, run, expected, spectrum)


def spectrum(request: Any, name: str, values: Array) -> Array:
    """Return the spectrum of real numbers where one is needed."""
    if request.kind != "c2r" or name != "x" or not values.size:
        return values
    axes = request.axes
    if any(request.x.layout.strides[axis] == 0 and request.x.shape[axis] > 1 for axis in axes):
        return np.full_like(
            values, values.real.flat[0]
        )  # the same number everywhere is one of real numbers if it is real
    made: Array = np.fft.rfftn(np.fft.irfftn(values, [request.out.shape[axis] for axis in axes], axes=axes), axes=axes)
    return made


def expected(request: fft.Transform, dense: dict[str, Array]) -> Expected:
    """Sum the definition, one dimension after the other."""
    x, axes = dense["x"], request.axes
    inverse = request.inverse or request.kind == "c2r"
    real_shape = request.out.shape if request.kind == "c2r" and request.out else x.shape
    count = math.prod(real_shape[axis] for axis in axes)
    total = x
    if request.kind == "c2r":
        total = mirrored(x, axes, real_shape[axes[-1]])
    for axis in axes:
        total = along(total, axis, 2j if inverse else -2j)
    if request.kind == "r2c":
        total = total.take(range(x.shape[axes[-1]] // 2 + 1), axes[-1])
    elif request.kind == "c2r":
        total = total.real
    divided = {"ortho": math.sqrt(count), "backward": count if inverse else 1, "forward": 1 if inverse else count}
    largest = float(np.abs(x).max(initial=0)) or 1.0
    stages = max(1, math.ceil(math.log2(max(1, count)) / 4))  # each stage of a fast transform rounds anew
    return Expected({"out": total / divided.get(request.norm, 1)}, count * stages, largest)


def along(x: Array, axis: int, sign: complex) -> Array:
    """Transform along one axis by the definition."""
    n = x.shape[axis]
    matrix = np.exp(sign * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n)  # angles stay small, and exact
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def mirrored(half: Array, axes: tuple[int, ...], n: int) -> Array:
    """Return the whole spectrum of real numbers, from its first half along the last of the axes."""
    last = axes[-1]
    rest = half.take([n - k for k in range(n // 2 + 1, n)], last).conj()
    for axis in axes[:-1]:
        rest = np.roll(np.flip(rest, axis), 1, axis)
    return np.concatenate([half, rest], last)
