"""The models that a Triton server had when its answers were recorded, see `tests/cases/like_triton.toml`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp import errors
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

    @method(thread=True, idempotent=True)
    def parts(self, n: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
        """Yield so many numbers; if negative, one fewer and an error; from 1000 on slowly, the rest."""
        asked = int(n[0])
        for number in range(-asked - 1 if asked < 0 else asked % 1000 % 100):
            yield np.array([number], np.int32)
            if asked >= 1000:
                time.sleep(0.1)  # is slow on purpose: its client leaves meanwhile
        if asked < 0:
            raise ValueError("stream broke")

    @method(idempotent=True)
    def fails(self, mode: NDArray[np.int32]) -> dict[str, Any]:
        """Raise, or return an output of another name, another datatype, or none."""
        asked = int(mode[0])
        if asked == 4:
            raise errors.InvalidRequest("error INVALID_ARG")
        if asked == 102:
            return {"WRONG": mode}
        if asked == 103:
            return {"OUT": np.array([1.5], np.float32)}
        if asked == 105:
            return {}
        raise ValueError(f"error of mode {asked}")

    @method(thread=True, idempotent=True)
    def slow(self, ms: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return it after so many milliseconds."""
        time.sleep(int(ms[0]) / 1000)  # takes long on purpose: its client does not wait for it
        return ms

    @method(idempotent=True)
    def told(self, x: NDArray[np.int32], parameters: dict[str, Any], request_id: str) -> str:
        """Return the request's parameters and its id, as JSON."""
        del x
        return json.dumps({"parameters": parameters, "id": request_id})

    @method(idempotent=True)
    def generated(self, text_input: str, max_tokens: NDArray[np.int32] | None = None) -> dict[str, Any]:
        """Return the text."""
        count = 3 if max_tokens is None else int(max_tokens[0])
        return {"text_output": text_input, "count": count, "score": 0.5}
