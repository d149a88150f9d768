"""Outputs as classes: the greatest elements, each as a text with its place and its label. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.serve.oip.datatypes import BYTES
from atomr_mp.serve.oip.tensors import NamedTensor

if TYPE_CHECKING:
    import numpy as np


MOST_CLASSES: Final = 10_000
"""Most texts that one output becomes: each is made in the front end, which is deaf to others meanwhile."""


def classes_of(tensor: NamedTensor, most: int, labels: Sequence[str], *, has_rows: bool) -> NamedTensor:
    """Return the greatest elements of a tensor, or of each of its rows, as texts "value:place:label".

    Args:
        tensor: The output.
        most: How many; fewer where there are fewer elements.
        labels: Names by place; places beyond have none.
        has_rows: Whether the first dimension is of rows.

    Raises:
        InvalidRequest: Its elements have no order, or there would be too many texts.
    """
    values = tensor.values
    if isinstance(values, list) or not values.ndim or values.dtype.kind == "b":
        raise errors.InvalidRequest(
            f"output {tensor.name!r} is {tensor.datatype} of shape {list(tensor.shape)}, and has no classes",
            maybe_executed=True,
        )
    rows = values.reshape(values.shape[0] if has_rows else 1, -1)
    count = min(most, rows.shape[1])
    if len(rows) * count > MOST_CLASSES:
        raise errors.InvalidRequest(
            f"output {tensor.name!r} would have {len(rows) * count} classes; the most are {MOST_CLASSES}",
            maybe_executed=True,
        )
    elements: list[bytes] = []
    for row in rows:
        for at in _greatest(row, count):
            label = f":{labels[at]}" if at < len(labels) else ""
            value = row[at]
            shown = f"{float(value):f}" if value.dtype.kind in "fV" else str(int(value))
            elements.append(f"{shown}:{at}{label}".encode())
    return NamedTensor(tensor.name, BYTES, (len(rows), count) if has_rows else (count,), elements)


def _greatest(row: np.ndarray[Any, Any], count: int) -> list[int]:
    """Return the places of the greatest elements, the first of equal ones first."""
    import numpy as np

    order = -row.astype(np.float64)
    if not count:
        return []
    least = np.partition(order, count - 1)[count - 1]
    places = np.flatnonzero(order <= least) if not np.isnan(least) else np.arange(len(order))
    found: list[int] = places[np.argsort(order[places], kind="stable")][:count].tolist()
    return found
