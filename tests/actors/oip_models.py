"""Models for clients of the Open Inference Protocol."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method


class Sums(TypedDict):
    """The outputs of `add_sub`."""

    total: NDArray[np.int32]
    difference: NDArray[np.int32]


class Several(TypedDict):
    """Outputs of several kinds."""

    number: int
    share: float
    text: str
    data: bytes
    texts: list[str]
    values: list[float]


class Modelled(Actor):
    """Has a model for each way in which tensors cross."""

    @method(idempotent=True)
    def add_sub(self, a: NDArray[np.int32], b: NDArray[np.int32]) -> Sums:
        """Add and subtract."""
        return {"total": a + b, "difference": a - b}

    @method(idempotent=True)
    def same_bool(self, x: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_uint8(self, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_int64(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_uint64(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_float16(self, x: NDArray[np.float16]) -> NDArray[np.float16]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_float32(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_float64(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_bytes(self, x: list[bytes]) -> list[bytes]:
        """Return it."""
        return x

    @method(idempotent=True)
    def several(self, number: int, share: float = 0.5, text: str = "none", data: bytes = b"") -> Several:
        """Return outputs of several kinds."""
        return {
            "number": number,
            "share": share,
            "text": text,
            "data": data,
            "texts": [text] * number,
            "values": [share] * number,
        }

    @method(idempotent=True)
    def raised(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raise an exception."""
        raise ValueError(f"{x.size} elements on purpose")

    @method(idempotent=True, thread=True)
    def slow(self, seconds: float) -> int:
        """Sleep, and return the process."""
        time.sleep(seconds)
        return os.getpid()

    @method(thread=True)
    def parts(self, n: int) -> Iterator[dict[str, int]]:
        """Give so many parts."""
        for number in range(n):
            yield {"number": number}

    @method
    def no_model(self, x: dict[str, int]) -> int:
        """Take no tensor."""
        return len(x)
