"""Fourier transforms of arrays in a device's memory: `device.fft`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from atomr_mp.libraries.base import wholes
from atomr_mp.libraries.generated.fft import FftRequests
from atomr_mp.protocol.libraries.fft import Norm
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class Fft(FftRequests):
    """Discrete Fourier transforms, with the names, axes and norms of scipy.fft; `transform` is their request.

    Each takes a ref and returns a `Reply` at once, whose result is a new ref, or None where `out` is given. Up to three
    axes are transformed at a time; all other dimensions are batches. Arrays may have any strides. `fft` and its kind
    take complex arrays, and `out` may be `x` itself. `rfft` takes real arrays, and returns half of the spectrum along
    the last axis. `irfft` is its inverse; `n` is the length of the result's last axis, by default 2·(m - 1). Arrays are
    neither padded nor cut: slice the ref, or write it into a larger one.
    """

    def fft(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axis: int = -1,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform complex x along one axis."""
        return self.transform(x, out, axes=(axis,), norm=norm, deadline_s=deadline_s)

    def ifft(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axis: int = -1,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform complex x back along one axis."""
        return self.transform(x, out, axes=(axis,), inverse=True, norm=norm, deadline_s=deadline_s)

    def rfft(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axis: int = -1,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform real x along one axis, to half of a spectrum."""
        return self.transform(x, out, kind="r2c", axes=(axis,), norm=norm, deadline_s=deadline_s)

    def irfft(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        n: int | None = None,
        axis: int = -1,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform half of a spectrum back to real numbers along one axis."""
        return self.transform(
            x, out, kind="c2r", axes=(axis,), n=_last(n, out, (axis,)), norm=norm, deadline_s=deadline_s
        )

    def fft2(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axes: Sequence[int] = (-2, -1),
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform complex x along two axes."""
        return self.transform(x, out, axes=axes, norm=norm, deadline_s=deadline_s)

    def ifft2(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axes: Sequence[int] = (-2, -1),
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform complex x back along two axes."""
        return self.transform(x, out, axes=axes, inverse=True, norm=norm, deadline_s=deadline_s)

    def rfft2(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axes: Sequence[int] = (-2, -1),
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform real x along two axes, to half of a spectrum along the last of them."""
        return self.transform(x, out, kind="r2c", axes=axes, norm=norm, deadline_s=deadline_s)

    def irfft2(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        n: int | None = None,
        axes: Sequence[int] = (-2, -1),
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform half of a spectrum back to real numbers along two axes."""
        return self.transform(x, out, kind="c2r", axes=axes, n=_last(n, out, axes), norm=norm, deadline_s=deadline_s)

    def fftn(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axes: Sequence[int] | None = None,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform complex x along up to three axes, by default all."""
        return self.transform(x, out, axes=_all(x, axes), norm=norm, deadline_s=deadline_s)

    def ifftn(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axes: Sequence[int] | None = None,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform complex x back along up to three axes, by default all."""
        return self.transform(x, out, axes=_all(x, axes), inverse=True, norm=norm, deadline_s=deadline_s)

    def rfftn(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        axes: Sequence[int] | None = None,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform real x along up to three axes, by default all, to half of a spectrum along the last of them."""
        return self.transform(x, out, kind="r2c", axes=_all(x, axes), norm=norm, deadline_s=deadline_s)

    def irfftn(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        n: int | None = None,
        axes: Sequence[int] | None = None,
        norm: Norm = "backward",
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform half of a spectrum back to real numbers along up to three axes, by default all."""
        chosen = _all(x, axes)
        return self.transform(
            x, out, kind="c2r", axes=chosen, n=_last(n, out, chosen), norm=norm, deadline_s=deadline_s
        )


def _all(x: Operand, axes: Sequence[int] | None) -> Sequence[int]:
    """Return the axes that are given, or all. The request's check refuses x if it is no array."""
    ndim = getattr(x, "ndim", 1)
    return wholes("axes", axes) if axes is not None else range(ndim if isinstance(ndim, int) else 1)


def _last(n: int | None, out: Operand | None, axes: Sequence[int]) -> int | None:
    """Return the length of a result's last axis: `n`, or else the length in `out`."""
    axes, shape = wholes("axes", axes), getattr(out, "shape", ())
    if n is None and isinstance(shape, tuple) and axes and -len(shape) <= axes[-1] < len(shape):
        return shape[axes[-1]]  # type: ignore[no-any-return]  # of an array
    return n


Reference: Final = Fft
