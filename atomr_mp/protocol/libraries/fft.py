"""Discrete Fourier transforms along one to three dimensions of an array. Pure.

X_k = Σ x_j·exp(-2πi·jk/n), and with the opposite sign for the inverse. Dimensions that are not transformed are batches;
any strides fit. Real input gives half of the spectrum along the last of the axes: its other half is the conjugate of
the first.

`norm` divides as scipy.fft does: "backward" divides the inverse by the number of elements, "forward" the other
direction, and "ortho" both by its square root. "none" divides neither, as cuFFT does by itself. Callbacks of cuFFT are
not provided: elementwise requests before and after do the same.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes, reads, writes
from atomr_mp.protocol.libraries.base import COMPLEX, FULL, LibraryRequest, Rest
from atomr_mp.protocol.refs import Operand

MAX_AXES = 3

Kind = Literal["c2c", "r2c", "c2r"]
"""Complex to complex; real to half of a complex spectrum; and back."""
Norm = Literal["backward", "ortho", "forward", "none"]
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]

SPECTRUM_OF = {"float32": "complex64", "float64": "complex128"}
REAL_OF = {spectrum: real for real, spectrum in SPECTRUM_OF.items()}


def _as_transformed(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """As x; the last of the axes has n // 2 + 1 elements for kind r2c, n for c2r."""
    return spectrum_shape(sizes["dims"], request.kind, request.axes, request.n)


def _dtype_transformed(request: Any) -> str:
    """Return the element type that goes with that of x."""
    dtype: str = request.x.dtype
    return {"r2c": SPECTRUM_OF, "c2r": REAL_OF}.get(request.kind, {}).get(dtype, dtype)


def _is_of_its_kind(request: Any, _sizes: Sizes) -> bool:
    """The array x must be complex for kinds c2c and c2r, real for r2c."""
    return bool((request.x.dtype in COMPLEX) == (request.kind != "r2c"))


def _goes_one_way(request: Any, _sizes: Sizes) -> bool:
    """Only kind c2c has a choice of direction: r2c is forward, c2r is the inverse."""
    return not (request.inverse and request.kind != "c2c")


def _takes_no_length(request: Any, _sizes: Sizes) -> bool:
    """Only kind c2r has a choice of n: x tells all other lengths; slice it, or pad a copy."""
    return request.n is None or request.kind == "c2r"


def _has_elements(request: Any, sizes: Sizes) -> bool:
    """Each axis must have at least one element; for kind c2r the last of x has n // 2 + 1, two or more without n."""
    dims, axes = sizes["dims"], request.axes
    if not all(dims[axis] for axis in axes):
        return False
    if request.kind != "c2r":
        return True
    return bool(dims[axes[-1]] > 1 if request.n is None else dims[axes[-1]] == request.n // 2 + 1)


class Transform(LibraryRequest, frozen=True):
    """Transform x along axes.

    The content of x stays as it is. A c2r transform of anything but the spectrum of real numbers is undefined.
    """

    name: ClassVar = "transform"
    types: ClassVar = {"X": FULL}
    rules: ClassVar = (_is_of_its_kind, _goes_one_way, _takes_no_length, _has_elements)
    rest: ClassVar = Rest.UNCHANGED
    x: Annotated[Operand, reads("*dims", dtype="X")]
    out: Annotated[Operand | None, writes(_as_transformed, dtype=_dtype_transformed, alias=("x",))] = None
    kind: Kind = "c2c"
    """The kinds of numbers in x and out: "c2c", "r2c" or "c2r"."""
    axes: tuple[int, ...] = (-1,)
    """The one to three dimensions that are transformed; the last of them is halved in a spectrum of reals."""
    inverse: bool = False
    """The inverse transform; for kind c2c only."""
    norm: Norm = "backward"
    """The direction that is divided by the number of elements; with "ortho" both are, by its root."""
    n: Size | None = None
    """For kind c2r: the length of the last axis of the result, by default an even one."""

    def flops(self) -> int:
        """Return 5·n·log2(n), half of it for reals, as is usual, whatever the algorithm."""
        dims = _as_transformed(self, self.sizes()) if self.kind == "c2r" else self.x.shape
        n = math.prod(dims[axis] for axis in self.axes)
        total = 5 * math.prod(dims) * math.log2(n) if n > 1 else 0
        return int(total if self.kind == "c2c" else total / 2)


def spectrum_shape(dims: tuple[int, ...], kind: str, axes: tuple[int, ...], n: int | None) -> tuple[int, ...]:
    """Return the shape of a transform.

    Raises:
        InvalidRequest: The axes are not one to three different dimensions.
    """
    if not 1 <= len(axes) <= MAX_AXES:
        raise errors.InvalidRequest(f"axes are {axes}; one to {MAX_AXES} dimensions can be transformed at a time")
    if any(not -len(dims) <= axis < len(dims) for axis in axes) or len({axis % len(dims) for axis in axes}) < len(axes):
        raise errors.InvalidRequest(f"axes are {axes}; they must be different dimensions of x, which has {len(dims)}")
    shape, last = list(dims), axes[-1]
    if kind == "r2c":
        shape[last] = shape[last] // 2 + 1
    elif kind == "c2r":
        shape[last] = 2 * (shape[last] - 1) if n is None else n
    return tuple(shape)
