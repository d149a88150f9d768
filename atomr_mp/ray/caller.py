"""For Ray Data: each batch is a call of a cluster's pools, and Ray's actors survive the end of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp.ray.cluster import Cluster

DEADLINE_S: Final = 300.0
"""How long a batch may take, with all attempts."""

JOIN_S: Final = 2.0
"""How long a new actor waits for the pools of all nodes, so that its first batches are spread over them."""

FINGERPRINT: Final = "poison_fingerprint"
"""Column with the fingerprint of a batch that ends workers, None for other batches; used with on_poison="null"."""


class Caller:
    """A class for `Dataset.map_batches`: calls a method once for each batch, with columns as its arguments.

    The method gets arrays, or lists for columns of strings and other objects, and returns one value per row. It must be
    idempotent: Ray runs batches again when one of Ray's actors ends. The class uses no GPU of its own, so give
    `map_batches` none. Several batches of a block are in flight at a time. Batches may be read-only
    (`zero_copy_batch=True`).

    Args:
        cluster: The cluster; `fn_constructor_kwargs` carries it.
        method: "Actor.method".
        columns: The columns that are its arguments, in order.
        output: The column that takes the result.
        on_poison: "raise" ends the job at a batch that has ended workers again and again (`PoisonRequest`). "null"
            gives its rows None, and adds a column "poison_fingerprint" to all rows.
        deadline_s: How long a batch may take, with all attempts.

    Raises:
        InvalidRequest: There is no such method, it is not idempotent, or an argument is invalid.
        PoolUnreachable: No pool could be reached.
    """

    def __init__(
        self,
        cluster: Cluster,
        method: str,
        columns: Sequence[str],
        output: str,
        on_poison: Literal["raise", "null"] = "raise",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        if on_poison not in {"raise", "null"}:
            raise errors.InvalidRequest(f"on_poison must be 'raise' or 'null', got {on_poison!r}")
        if isinstance(columns, str) or not columns:
            raise errors.InvalidRequest(f"columns must be a list of one column or more, got {columns!r}")
        cluster.wait_nodes(JOIN_S)
        if not cluster.method_info(method).idempotent:
            raise errors.InvalidRequest(f"{method} is not idempotent, and Ray Data may run a batch twice")
        self._cluster: Final = cluster
        self._method: Final = method
        self._columns: Final = columns
        self._output: Final = output
        self._null: Final = on_poison == "null"
        self._deadline_s: Final = deadline_s

    async def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return a batch with the column of results.

        Raises:
            InvalidRequest: A column is missing, or the method has not returned one value per row.
            PoisonRequest: The batch ends workers; with on_poison="raise".
            AtomrError: The call ended with this error.
        """
        missing = [each for each in self._columns if each not in batch]
        if missing:
            raise errors.InvalidRequest(f"there is no column {missing[0]!r}; there are: {', '.join(batch)}")
        arguments = [_argument(batch[each]) for each in self._columns]
        rows = len(batch[self._columns[0]])
        fingerprint = None
        try:
            result = await self._cluster.call(self._method, *arguments, deadline_s=self._deadline_s)
        except errors.PoisonRequest as poison:
            if not self._null:
                raise
            result, fingerprint = [None] * rows, poison.fingerprint
        if not hasattr(result, "__len__") or len(result) != rows:
            raise errors.InvalidRequest(f"{self._method} must return one value for each of {rows} rows")
        done = {**batch, self._output: np.asarray(result)}
        if self._null:
            done[FINGERPRINT] = np.array([fingerprint] * rows, dtype=object)
        return done


def _argument(column: NDArray[Any]) -> Any:
    return column.tolist() if column.dtype.kind in "OUS" else column
