"""Actors for tests of the Open Inference Protocol."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method
from tests.actors import probe


class Sums(TypedDict):
    """Two outputs."""

    total: NDArray[np.int32]
    difference: NDArray[np.int32]


class Part(TypedDict):
    """A part of a stream."""

    number: int
    text: str


class Inferred(Actor):
    """Adds, streams, waits and dies."""

    threads = 4

    @method(idempotent=True)
    def add_sub(self, a: NDArray[np.int32], b: NDArray[np.int32]) -> Sums:
        """Return the sum and the difference."""
        return {"total": a + b, "difference": a - b}

    @method(idempotent=True)
    def upper(self, text: list[str]) -> list[str]:
        """Return texts in capitals."""
        return [each.upper() for each in text]

    @method(idempotent=True)
    def join(self, parts: list[bytes], times: int = 1) -> bytes:
        """Return bytes, joined."""
        return b"".join(parts) * times

    @method(idempotent=True)
    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the argument."""
        return x

    @method(thread=True, idempotent=True)
    def zeros(self, count: int, gate: str = "") -> NDArray[np.uint8]:
        """Return so many bytes, behind a gate if there is one."""
        if gate:
            probe.arrive(gate)
        return np.zeros(count, np.uint8)

    @method
    def fail(self, x: float) -> float:
        """Raise."""
        raise ValueError(f"on purpose: {x}")

    @method
    def die(self, x: int) -> int:
        """End the worker."""
        os.kill(os.getpid(), signal.SIGKILL)
        return x

    @method
    def note(self, tag: str) -> str:
        """Leave a note that it ran."""
        probe.note(tag)
        return tag

    @method(thread=True)
    def wait_at(self, gate: str) -> int:
        """Report that it runs, and wait."""
        probe.arrive(gate)
        return os.getpid()

    @method(thread=True, queue=1)
    def narrow(self, gate: str) -> int:
        """Wait, with little room for others."""
        probe.arrive(gate)
        return os.getpid()

    @method(thread=True, idempotent=True)
    def count(self, upto: int, gate: str = "", at: int = -1, how: str = "") -> Iterator[Part]:
        """Yield numbers; at one of them wait at a gate, and raise or die."""
        try:
            for number in range(upto):
                if number == at:
                    if gate:
                        probe.arrive(gate)
                    if how:
                        probe.die(how)
                yield {"number": number, "text": f"part {number}"}
        finally:
            probe.note(f"closed-{upto}")

    @method(thread=True, idempotent=True)
    def fill(self, nbytes: int) -> Iterator[bytes]:
        """Yield large parts for ever, and note each."""
        while True:
            probe.note("filled")
            yield b"x" * nbytes

    @method
    def no_model(self, value: Any) -> Any:
        """Take what is no tensor."""
        return value


class Echoing(Actor):
    """Returns an array of each type."""

    @method(idempotent=True)
    def bool_(self, x: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the argument, as all others do."""
        return x

    @method(idempotent=True)
    def uint8(self, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return it."""
        return x

    @method(idempotent=True)
    def uint16(self, x: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return it."""
        return x

    @method(idempotent=True)
    def uint32(self, x: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return it."""
        return x

    @method(idempotent=True)
    def uint64(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return it."""
        return x

    @method(idempotent=True)
    def int8(self, x: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return it."""
        return x

    @method(idempotent=True)
    def int16(self, x: NDArray[np.int16]) -> NDArray[np.int16]:
        """Return it."""
        return x

    @method(idempotent=True)
    def int32(self, x: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return it."""
        return x

    @method(idempotent=True)
    def int64(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return it."""
        return x

    @method(idempotent=True)
    def fp16(self, x: NDArray[np.float16]) -> NDArray[np.float16]:
        """Return it."""
        return x

    @method(idempotent=True)
    def bf16(self, x: NDArray[bfloat16]) -> NDArray[bfloat16]:
        """Return it."""
        return x

    @method(idempotent=True)
    def fp32(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return it."""
        return x

    @method(idempotent=True)
    def fp64(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return it."""
        return x
