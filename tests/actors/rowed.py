"""An actor whose methods take the rows of many requests at a time: tests see which rows were together."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, method
from tests.actors.probe import arrive

TOGETHER = Batch(max_items=8, max_wait_s=30, rows=True)
"""Only full batches go, as far as tests have patience."""
NOW = Batch(max_items=8, max_wait_s=0, rows=True)
"""A batch takes the requests that have arrived."""


class Columns(TypedDict):
    """Several outputs."""

    total: NDArray[np.float64]
    names: list[str]


class Rowed(Actor):
    """Runs its batches on the loop, unless a method says otherwise."""

    @method(batch=TOGETHER)
    def together(self, x: NDArray[np.float64], scale: float = 1.0) -> NDArray[np.float64]:
        """Return each row scaled, and behind it how many rows there were."""
        assert not x.flags.writeable
        return np.column_stack([x * scale, np.full(len(x), float(len(x)))])

    @method(batch=NOW, thread=True, idempotent=True)
    def model(self, x: NDArray[np.float64], names: list[str]) -> Columns:
        """Return two columns, with rows in the order of the arguments."""
        return {"total": (x @ np.arange(1.0, 1 + x.shape[1])), "names": [name.upper() for name in names]}

    @method(batch=NOW, thread=True, idempotent=True, example=lambda: (np.zeros((2, 3)),))
    def sums(self, x: Any) -> Any:
        """Return the sum of each row, in its own element type, and how many rows there were."""
        rows = np.full(len(x), len(x))
        return x.reshape(len(x), -1).sum(axis=1, dtype=x.dtype), rows

    @method(batch=NOW, thread=True)
    def hold(self, gate: str, x: NDArray[np.int64]) -> list[list[int]]:
        """Return all rows of the batch for each row, after waiting at a gate."""
        if gate:
            arrive(gate)
        return [x.tolist() for _ in x]

    @method(batch=Batch(max_items=8, max_wait_s=30, rows=True, key="parity"))
    def by_parity(self, x: NDArray[np.int64]) -> list[list[int]]:
        """Return all rows of the batch for each row."""
        return [x.tolist() for _ in x]

    def parity(self, x: NDArray[np.int64]) -> int:
        """Return the parity of the first row."""
        return int(x[0]) % 2

    @method(batch=TOGETHER)
    def wrong(self, x: NDArray[np.int64], kind: str) -> Any:
        """Return something without as many rows, or raise."""
        if kind == "raise":
            raise ValueError("one of these rows is bad")
        return {
            "short": x[1:],
            "column": {"right": x, "short": x[1:]},
            "part": (x, x[1:]),
            "none": None,
            "scalar": 5,
            "nothing": {},
            "unsendable": [{1, object()} if each < 0 else int(each) for each in x],
        }[kind]

    @method(batch=TOGETHER)
    def same(self, x: Any) -> Any:
        """Return what it was given."""
        return x

    @method(batch=NOW)
    def options(self, x: NDArray[np.int64], options: dict[str, Any] | None = None) -> NDArray[np.int64]:
        """Return the rows."""
        return x + len(options or ())

    @method
    def alone(self, item: int) -> int:
        """Return the item; on the loop, and no batch."""
        return item
