"""A model with a state for each sequence."""

from __future__ import annotations

import os
import time
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method
from tests.actors.probe import arrive


class Sums(TypedDict):
    """The outputs of `add`."""

    total: NDArray[np.int64]
    pid: NDArray[np.int64]
    """The worker's, by which a test sees where it ran."""


class Accumulating(Actor):
    """Adds up the numbers of each sequence; never of two together, and never with a start of its own."""

    def setup(self, _context: object) -> None:
        """Begin with no sequence."""
        self._totals: dict[Any, int] = {}

    @method(idempotent=True)
    def add(self, value: NDArray[np.int64], sequence: dict[str, Any], wait_s: float = 0.0) -> Sums:
        """Add a number to its sequence's sum, after a while; a value of -1 fails."""
        identity = sequence["model"], sequence["id"]
        assert sequence["ready"] is True
        if sequence["start"]:
            self._totals[identity] = 0
        time.sleep(wait_s)
        if value[0] == -1:
            raise ValueError("-1 is no number here")
        self._totals[identity] += int(value[0])  # KeyError: it has not begun here
        return self._told(identity, ends=sequence["end"])

    @method(idempotent=True)
    def add_rows(
        self,
        value: NDArray[np.int64],
        begins: NDArray[np.int32],
        ends: NDArray[np.float32],
        ready: NDArray[np.bool_],
        correlation: NDArray[np.uint64],
    ) -> Sums:
        """Add as Triton's models do, which get tensors."""
        assert [each.shape for each in (value, begins, ends, ready, correlation)] == [(1, 1)] * 5
        assert ready[0, 0]
        identity = int(correlation[0, 0])
        if begins[0, 0]:
            self._totals[identity] = 0
        self._totals[identity] += int(value[0, 0])
        found = self._told(identity, ends=ends[0, 0] > 0.5)
        return {"total": found["total"].reshape(1, 1), "pid": found["pid"].reshape(1, 1)}

    def _told(self, identity: Any, *, ends: bool) -> Sums:
        total = self._totals.pop(identity) if ends else self._totals[identity]
        return {"total": np.array([total]), "pid": np.array([os.getpid()])}

    @method(idempotent=True)
    def same(self, value: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return it."""
        return value

    @method(idempotent=True)
    def hold(self, value: NDArray[np.int64], sequence: dict[str, Any], gate: str) -> Sums:
        """Add a number once a gate opens."""
        arrive(gate)
        return self.add(value, sequence)
