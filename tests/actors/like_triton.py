"""The models that a Triton server had when its answers were recorded, see `tests/cases/triton_answers.json`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method


class LikeTriton(Actor):
    """Has the same models."""

    @method(idempotent=True)
    def add_sub(self, a: NDArray[np.int32], b: NDArray[np.int32]) -> dict[str, Any]:
        """Add and subtract, row by row."""
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}

    @method(idempotent=True)
    def types(
        self,
        in_bool: NDArray[np.bool_] | None = None,
        in_uint8: NDArray[np.uint8] | None = None,
        in_uint16: NDArray[np.uint16] | None = None,
        in_uint32: NDArray[np.uint32] | None = None,
        in_uint64: NDArray[np.uint64] | None = None,
        in_int8: NDArray[np.int8] | None = None,
        in_int16: NDArray[np.int16] | None = None,
        in_int32: NDArray[np.int32] | None = None,
        in_int64: NDArray[np.int64] | None = None,
        in_fp16: NDArray[np.float16] | None = None,
        in_fp32: NDArray[np.float32] | None = None,
        in_fp64: NDArray[np.float64] | None = None,
        in_bytes: list[bytes] | None = None,
    ) -> dict[str, Any]:
        """Return each input that came."""
        given = {name: value for name, value in locals().items() if name.startswith("in_") and value is not None}
        return {f"OUT_{name.removeprefix('in_').upper()}": value for name, value in given.items()}

    @method(idempotent=True)
    def same(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_int32(self, x: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return it."""
        return x
