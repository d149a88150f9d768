"""An actor for tests of files that come by HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, UploadedFile, method


class Uploaded(Actor):
    """Tells what it was given."""

    @method
    def turned(self, content: bytes, times: int = 1, mark: str = "") -> bytes:
        """Return the content turned around, so many times, and the mark."""
        return content[::-1] * times + mark.encode()

    @method
    def pixels(self, picture: NDArray[np.uint8], weights: NDArray[np.float32] | None = None) -> list[float]:
        """Return the sums."""
        return [float(picture.sum()), -1.0 if weights is None else float(weights.sum())]

    @method
    def shown(
        self, file: UploadedFile, more: list[UploadedFile] | None = None, options: dict[str, Any] | None = None
    ) -> list[Any]:
        """Return the names, types and sizes of files, and the options."""
        files = [[each.filename, each.content_type, len(each.content)] for each in (file, *(more or ()))]
        return [*files, options]

    @method
    def both(self, left: bytes, right: bytes) -> bytes:
        """Return one behind the other."""
        return left + right
