"""Fourier transforms on the host backend, with SciPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy import fft as scipy_fft

from atomr_mp.protocol.libraries import fft
from atomr_mp_workers.libraries.base import Library, array

UNDIVIDED: Final = {True: "forward", False: "backward"}
"""SciPy's norm that leaves a transform undivided, by whether it is an inverse."""


class HostFft(Library):
    """Transforms of NumPy's arrays."""

    def transform(self, request: fft.Transform) -> None:
        """Transform x along axes."""
        x, out = array(request.x), array(request.out)
        inverse = request.inverse or request.kind == "c2r"
        norm = UNDIVIDED[inverse] if request.norm == "none" else request.norm
        made: Any
        if request.kind == "c2c":
            made = (scipy_fft.ifftn if inverse else scipy_fft.fftn)(x, axes=request.axes, norm=norm)
        elif request.kind == "r2c":
            made = scipy_fft.rfftn(x, axes=request.axes, norm=norm)
        else:
            lengths = [out.shape[axis] for axis in request.axes]
            made = scipy_fft.irfftn(x, lengths, request.axes, norm=norm)
        np.copyto(out, made)


Implementation: Final = HostFft
