"""Requests of fft as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from atomr_mp.libraries.base import LibraryReference, whole, wholes
from atomr_mp.protocol.libraries import fft
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class FftRequests(LibraryReference):
    """Discrete Fourier transforms along one to three dimensions of an array.

    X_k = Σ x_j·exp(-2πi·jk/n), and with the opposite sign for the inverse. Dimensions that are not transformed are
    batches; any strides fit. Real input gives half of the spectrum along the last of the axes: its other half is the
    conjugate of the first.

    `norm` divides as scipy.fft does: "backward" divides the inverse by the number of elements, "forward" the other
    direction, and "ortho" both by its square root. "none" divides neither, as cuFFT does by itself. Callbacks of cuFFT
    are not provided: elementwise requests before and after do the same.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "fft"

    def transform(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        kind: fft.Kind = "c2c",
        axes: Sequence[SupportsIndex] = (-1,),
        inverse: bool = False,
        norm: fft.Norm = "backward",
        n: SupportsIndex | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Transform x along axes.

        The content of x stays as it is. A c2r transform of anything but the spectrum of real numbers is undefined.

        Args:
            x: Read; shape (*dims).
            out: Written; as x; the last of the axes has n // 2 + 1 elements for kind r2c, n for c2r. May be x
                itself.
            kind: The kinds of numbers in x and out: "c2c", "r2c" or "c2r".
            axes: The one to three dimensions that are transformed; the last of them is halved in a spectrum of
                reals.
            inverse: The inverse transform; for kind c2c only.
            norm: The direction that is divided by the number of elements; with "ortho" both are, by its root.
            n: For kind c2r: the length of the last axis of the result, by default an even one.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            fft.Transform(
                x=x,
                out=out,
                kind=kind,
                axes=wholes("axes", axes),
                inverse=inverse,
                norm=norm,
                n=None if n is None else whole("n", n),
            ),
            deadline_s,
        )
