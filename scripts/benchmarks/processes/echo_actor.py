"""The actor that the runtime's measurements call."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from atomr_mp_workers import Actor, Context, DeviceArray, method


class Echo(Actor):
    """Does as little as possible."""

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context

    @method
    def empty(self) -> None:
        """Answer."""

    @method(idempotent=True)
    def again(self) -> None:
        """Answer, also twice."""

    @method
    def echo(self, payload: bytes) -> bytes:
        """Answer with what was sent."""
        return payload

    @method
    def make(self, nbytes: int) -> DeviceArray:
        """Return a ref to a new array, with something at both ends."""
        made = self._context.empty((nbytes,), "uint8")
        made.array[[0, -1]] = 1
        return made

    @method
    def ends(self, array: Any) -> int:
        """Return the sum of an array's ends."""
        return int(array[0]) + int(array[-1])

    @method
    def seen(self, _value: Any) -> None:
        """Answer, whatever came."""

    @method
    def hold(self, fifo: str, seconds: float) -> None:
        """Open a fifo for writing, so that its reader knows that this runs; then sleep."""
        Path(fifo).write_bytes(b".")
        time.sleep(seconds)
