"""The models that Triton's own examples and tests ask, see `tests/cases/client_models.toml`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method

DELAY_S = 3.0
"""How long a slow model takes: tests ask it with deadlines of 2 s and less, and count on 10 s at most."""


class ClientModels(Actor):
    """Has the methods of these models."""

    threads = 4

    @method(idempotent=True)
    def add_sub(self, a: NDArray[np.int32], b: NDArray[np.int32]) -> dict[str, Any]:
        """Add and subtract."""
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}

    @method(idempotent=True)
    def add_sub_texts(self, a: list[bytes], b: list[bytes]) -> dict[str, Any]:
        """Add and subtract numbers that are texts."""
        pairs = [(int(one), int(other)) for one, other in zip(a, b, strict=True)]
        return {
            "OUTPUT0": [str(one + other).encode() for one, other in pairs],
            "OUTPUT1": [str(one - other).encode() for one, other in pairs],
        }

    @method(idempotent=True)
    def same_texts(self, x: list[bytes]) -> list[bytes]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_fp16(self, x: NDArray[np.float16]) -> NDArray[np.float16]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_int64(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return it."""
        return x

    @method(idempotent=True)
    def same_three(self, a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> dict[str, Any]:
        """Return them."""
        return {"OUTPUT0": a, "OUTPUT1": b, "OUTPUT2": c}

    @method(thread=True, idempotent=True)
    def slow(self, x: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return it after a while."""
        time.sleep(DELAY_S)  # takes long on purpose: its client does not wait for it
        return x

    @method(thread=True, idempotent=True, queue=1)
    def narrow(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return it after a while, with little room for others."""
        time.sleep(DELAY_S)  # takes long on purpose: a second request comes meanwhile
        return x

    @method(idempotent=True)
    def first_of(
        self,
        a: NDArray[np.float32] | None = None,
        b: NDArray[np.float32] | None = None,
        c: NDArray[np.float32] | None = None,
        d: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Return the first that is there, or a number."""
        return next((each for each in (a, b, c, d) if each is not None), np.zeros(1, np.float32))

    @method(idempotent=True)
    def told(self, x: NDArray[np.float32], parameters: dict[str, Any], headers: dict[str, Any]) -> dict[str, Any]:
        """Return the request's parameters and headers as texts."""
        del x
        found = parameters | headers
        return {"key": [str(name) for name in found], "value": [str(value) for value in found.values()]}

    @method(thread=True, idempotent=True)
    def repeat(
        self, values: NDArray[np.int32], delays_ms: NDArray[np.uint32], wait_ms: NDArray[np.uint32]
    ) -> Iterator[dict[str, Any]]:
        """Yield each number with its place, in its time."""
        for at, (value, delay_ms) in enumerate(zip(values, delays_ms, strict=True)):
            time.sleep(float(delay_ms) / 1000)  # as its client asks
            yield {"OUT": np.array([value], np.int32), "IDX": np.array([at], np.uint32)}
        time.sleep(float(wait_ms[0]) / 1000)  # as its client asks
