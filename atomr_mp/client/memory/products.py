"""`a @ b` of refs as a request: what BLAS has by `blas`, and the rest by `tensor`. Pure."""

from __future__ import annotations

import string
from typing import Final

from atomr_mp import errors
from atomr_mp.client.memory.ref_memory import BufferRef
from atomr_mp.protocol.declaration.strides import matrix, vector
from atomr_mp.protocol.libraries import blas, tensor
from atomr_mp.protocol.libraries.base import FULL, LibraryRequest
from atomr_mp.protocol.libraries.elementwise import broadcast

ROWS, INNER, COLUMNS = "i", "k", "j"
BATCH: Final = [letter for letter in string.ascii_letters if letter not in {ROWS, INNER, COLUMNS}]
"""Labels of the dimensions of a batch, the last one first."""


def product(a: BufferRef, b: BufferRef) -> tuple[str, LibraryRequest, tuple[int, ...]]:
    """Return the library and the request of a product as NumPy's `matmul` defines it, and the result's shape.

    Raises:
        InvalidRequest: The shapes do not fit.
    """
    shape = _shape(a, b)
    return *(_of_blas(a, b) or _of_tensor(a, b, shape)), shape


def _shape(a: BufferRef, b: BufferRef) -> tuple[int, ...]:
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
        raise errors.InvalidRequest(
            f"@ of shapes {a.shape} and {b.shape}: the last length of the first must be the last but one of the second "
            "(of a vector its only one)"
        )
    return (*broadcast(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))


def _of_blas(a: BufferRef, b: BufferRef) -> tuple[str, LibraryRequest] | None:
    """Return the request of BLAS for a product; None where it has none for such dimensions, elements or strides."""
    if any((vector if each.ndim == 1 else matrix)(each.layout) for each in (a, b)):
        return None
    match a.ndim, b.ndim:
        case 2, 2:
            return "blas", blas.Gemm(a, b)
        case 2, 1 if a.dtype in FULL:
            return "blas", blas.Gemv(a, b)
        case 1, 2 if a.dtype in FULL:
            return "blas", blas.Gemv(b.of_layout(b.layout.transposed()), a)
        case 1, 1 if a.dtype in FULL:
            return "blas", blas.Inner(a, b)
    return None


def _of_tensor(a: BufferRef, b: BufferRef, shape: tuple[int, ...]) -> tuple[str, LibraryRequest]:
    """Return the product as a sum over labels. It lacks the dimensions of length 1 in a batch, which have none."""
    batch = shape[: max(a.ndim, b.ndim, 2) - 2]
    first, of_first = _without_ones(a, INNER if a.ndim == 1 else ROWS + INNER)
    second, of_second = _without_ones(b, INNER if b.ndim == 1 else INNER + COLUMNS)
    out = "".join(label for label, length in zip(reversed(BATCH[: len(batch)]), batch, strict=True) if length != 1)
    out += (ROWS if a.ndim > 1 else "") + (COLUMNS if b.ndim > 1 else "")
    return "tensor", tensor.EinsteinSum([first, second], f"{of_first},{of_second}->{out}")


def _without_ones(array: BufferRef, last: str) -> tuple[BufferRef, str]:
    """Return an array without the dimensions of length 1 in its batch, and its labels."""
    in_batch = range(array.ndim - len(last))
    index = tuple(0 if array.shape[at] == 1 else slice(None) for at in in_batch)
    labels = (BATCH[in_batch.stop - 1 - at] for at in in_batch if array.shape[at] != 1)
    return array.of_layout(array.layout.indexed(index)), "".join(labels) + last
